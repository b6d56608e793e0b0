"""Handles, which name a segment to another process; and attaching by handle, name or example."""

from dataclasses import dataclass

import optree

from echo_shm.errors import SegmentError, SpecMismatchError
from echo_shm.ring.lockfile import BATCHES
from echo_shm.ring.segment import Segment
from echo_shm.spec import Spec, Tree


@dataclass(frozen=True)
class Handle:
    """Names a segment to another process of the same user. It pickles.

    Attributes:
        name: The segment's name.
        uuid: The segment's uuid: a later segment of the same name has another one.
        treespec: The samples' structure. With it, trees with node types beyond dict, OrderedDict, list, tuple and
            None need no example.

    """

    name: str
    uuid: bytes
    treespec: optree.PyTreeSpec | None


def attach_segment(handle_or_name: Handle | str, example: Tree, *, caller: str) -> Segment:
    """Maps a segment and finds its treespec, from the handle, the example or the schema.

    Raises:
        SegmentError: As :meth:`Segment.attach`; or the handle has another number of leaves than the segment.
        SpecMismatchError: The example does not fit the segment, or one is needed.

    """
    if isinstance(handle_or_name, Handle):
        segment = Segment.attach(handle_or_name.name, handle_or_name.uuid)
        # The same uuid means the same segment, unless a process has overwritten its schema.
        treespec, theirs = handle_or_name.treespec, len(segment.spec.leaves)
        if treespec is not None and treespec.num_leaves != theirs:
            raise SegmentError(
                f"segment {segment.name!r} cannot be used: its schema has {theirs} leaves, the samples of its handle "
                f"have {treespec.num_leaves}"
            )
        segment.spec.treespec = treespec
    elif isinstance(handle_or_name, str):
        segment = Segment.attach(handle_or_name)
    else:
        raise TypeError(
            f"{caller} takes a segment's name or server.handle, not {type(handle_or_name).__name__} {handle_or_name!r}"
        )
    if segment.name.endswith(BATCHES):
        raise SegmentError(
            f"ring {segment.name!r} belongs to a replay, which alone sends into it: take batches with "
            "ReplayClient.dataset_iter()"
        )
    if segment.geometry.weights:
        raise SegmentError(
            f"segment {segment.name!r} holds weights, it is no ring: read them with Subscriber({segment.name!r})"
        )
    if example is not None:
        mine = Spec.from_example(example)
        mine.check_same(segment.spec, f"segment {segment.name!r}")
        segment.spec = mine
    if segment.spec.treespec is None:
        raise SpecMismatchError(
            f"segment {segment.name!r} holds samples with node types beyond dict, OrderedDict, list, tuple and None: "
            f"pass an example, {caller}({segment.name!r}, example), or the server's handle in place of its name"
        )
    return segment
