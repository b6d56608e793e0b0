"""Creating a segment: both its files, its header; and the error that says what has the name already."""

import contextlib
import os
import secrets
import time

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError, error_from
from echo_shm.ring.allocation import create_files
from echo_shm.ring.lockfile import check_name
from echo_shm.ring.metrics import RingView
from echo_shm.ring.segment import Geometry, Segment, listing
from echo_shm.spec import Spec


def create_segment(name: str | None, spec: Spec, geometry: Geometry, uuid: bytes | None = None) -> Segment:
    """Creates a segment and takes the creator's lock. If it fails, nothing is left behind.

    ``uuid`` is that of the segment that it belongs to; None: one of its own.

    Raises:
        SegmentError: The name is taken, or shared memory is too small.
        ValueError: The name or the geometry is not possible.

    """
    name = f"{os.getpid()}-{secrets.token_hex(4)}" if name is None else check_name(name)
    geo = geometry.to_c(spec)
    sizes = ffi.new("uint64_t[]", [leaf.nbytes for leaf in spec.leaves])
    size: int = lib.es_segment_size(geo, sizes)
    if size == 0:
        raise ValueError(
            f"batch_size={geometry.batch_size}, num_buffers={geometry.num_buffers}, "
            f"max_producers={geometry.max_producers}, reap_interval={geometry.reap_interval} with "
            f"{spec.sample_bytes} bytes a sample is out of range: "
            "counts must be at least 1, batch_size at most 2**30, batch_size * num_buffers at most 2**32, "
            "max_producers at most 60000"
        )
    with contextlib.ExitStack() as undo:
        lockfile, mapping = create_files(name, size, undo, taken=_taken, smaller="batch_size or num_buffers")
        own = ffi.new("uint8_t[16]", uuid or secrets.token_bytes(16))
        base = ffi.from_buffer("uint8_t[]", mapping)
        code = lib.es_segment_format(
            base, size, geo, sizes, ffi.from_buffer(spec.schema), own, os.getpid(), time.time_ns()
        )
        if code != lib.ES_OK:
            raise error_from(code, f"segment {name!r}")
        segment = Segment(name, mapping, lockfile)
        segment.spec = spec
        undo.pop_all()
    return segment


def _taken(name: str) -> str:
    """What has the name already: since when, who uses it, what is in it, and what to do."""
    what, other = f"a segment named {name!r} exists already", f"join it: Server.attach({name!r})"
    try:
        seen = listing(name)
    except (SegmentError, OSError) as error:
        return f"{what}: {error}"
    if seen.segment is None:
        remove = "; choose another name" if seen.locked else "; `echo-shm gc` removes it"
        return f"{what}: {seen.fault}{remove}"
    found = seen.segment
    samples, full = RingView(found).committed()
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.created))
    what += f", created on {since} by process {found.creator_pid}"
    holds = f"It holds {samples:,} committed samples, {full:,} full batches of {found.geometry.batch_size:,}"
    if seen.creator_alive:
        return f"{what}, which is alive. {holds}. Choose another name, or {other}"
    if seen.locked:
        return f"{what}, which is dead; other processes are attached. {holds}. Choose another name, or {other}"
    return (
        f"{what}, which is dead; nobody is attached. {holds}. To drop them, run `echo-shm gc`, which removes all such "
        f"segments. To take them first, {other}"
    )
