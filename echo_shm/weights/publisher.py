"""The publisher: it writes versions of weights into shared memory, and waits for nobody."""

import contextlib
import errno
import secrets
import threading
import weakref
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.closing import Closing
from echo_shm.errors import SegmentError
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.creation import create_segment
from echo_shm.ring.fast_path import compile_call
from echo_shm.ring.handle import Handle
from echo_shm.ring.lockfile import CREATOR_BYTE, check_name, holder_of
from echo_shm.ring.segment import Segment
from echo_shm.spec import Array, Spec, Tree
from echo_shm.weights.leaves import arrays_of, flat, spec_of
from echo_shm.weights.segment import SPARE_SLOTS, check_holds_weights, geometry, segment_name
from echo_shm.weights.subscription import TOO_HIGH

#: The most leases of a segment, and the most subscribers.
_MAX_LEASES, _MAX_SUBSCRIBERS = 2**15 - SPARE_SLOTS, 60_000


class Publisher(Closing):
    """Publishes versions of a pytree of arrays to the processes of this machine.

    :meth:`Server.publisher` and :meth:`Replay.publisher` make one that workers find through their client.

    If a publisher's process is killed, the last version that was whole stays. A new publisher of the same name goes on
    from it: its subscribers need not attach again.

    Args:
        params: An example of the weights: a pytree of numpy arrays, torch tensors or JAX arrays. It gives structure,
            dtypes and shapes. Nothing is published yet.
        name: The name for ``Subscriber(name)``. None: a unique name is made.
        max_leases: How many leases there may be at the same time, over all subscribers. The segment has room for two
            versions more than that.
        max_subscribers: How many subscribers may be attached at the same time.

    Raises:
        TypeError: A leaf is no array, or its items have no fixed size.
        ValueError: A number or the name is out of range, or ``params`` has no leaves.
        SegmentError: The name has a publisher that is alive, or shared memory is too small.
        SpecMismatchError: The weights of that name, which a dead publisher has left, have another structure, dtype or
            shape.

    """

    def __init__(
        self, params: Tree, *, name: str | None = None, max_leases: int = 8, max_subscribers: int = 1024
    ) -> None:
        name = secrets.token_hex(4) if name is None else check_name(name)
        self._open(spec_of(params), segment_name(name), None, max_leases, max_subscribers, None)

    @classmethod
    def _beside(
        cls,
        params: Tree,
        name: str,
        uuid: bytes | None,
        max_leases: int,
        max_subscribers: int,
        told: Callable[[int], object] | None,
    ) -> "Publisher":
        """The publisher of a ring or a replay of that name. ``told`` hears of each version."""
        self = cls.__new__(cls)
        self._open(spec_of(params), segment_name(name), uuid, max_leases, max_subscribers, told)
        return self

    @classmethod
    def _of_leaves(cls, spec: Spec, name: str, max_leases: int, max_subscribers: int) -> "Publisher":
        """One that passes on what another one publishes, as a tuple of leaves. ``spec`` is what both look like."""
        self = cls.__new__(cls)
        self._open(flat(spec), segment_name(name), None, max_leases, max_subscribers, None)
        return self

    def _open(
        self,
        spec: Spec,
        name: str,
        uuid: bytes | None,
        max_leases: int,
        max_subscribers: int,
        told: Callable[[int], object] | None,
    ) -> None:
        for label, count, most in (
            ("max_leases", max_leases, _MAX_LEASES),
            ("max_subscribers", max_subscribers, _MAX_SUBSCRIBERS),
        ):
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
                raise ValueError(f"{label}={count!r}: use an integer from 1 to {most}")
        segment = _go_on(name, uuid, spec) or create_segment(name, spec, geometry(max_leases, max_subscribers), uuid)
        try:
            self._attachment = Attachment(segment, lib.ES_ROLE_LEARNER, f"weights {name!r}", prefault=True)
        except BaseException:
            segment.unlink()
            raise
        self._spec, self._segment, self._told = spec, segment, told
        self._ring = self._attachment.ring
        self._publish_tree, self._publish_arrays = compile_call(spec, self._ring, "es_weights_publish")
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end, self._attachment, segment)

    @property
    def name(self) -> str:
        """The segment's name. ``Subscriber(name)`` takes it."""
        return self._segment.name

    @property
    def handle(self) -> Handle:
        """What another process of this user needs to subscribe. It pickles."""
        return Handle(self._segment.name, self._segment.uuid, self._spec.treespec)

    @property
    def version(self) -> int:
        """The latest version, also an earlier publisher's; 0 when nothing was published."""
        return int(lib.es_weights_latest(self._ring))

    def publish(self, params: Tree, version: int | None = None) -> int:
        """Publishes a version. It waits for no subscriber, whatever they do.

        Args:
            params: As the example: the same structure, dtypes and shapes. It is copied.
            version: Its number, more than :attr:`version`. None: the next one.

        Returns:
            The version's number: 1, 2, and so on, unless numbers were given.

        Raises:
            ValueError: There is such a version, or a later one, or the number is no version's. Nothing was published.
            SpecMismatchError: The structure, a dtype or a shape differs. The message names the first leaf that does.
                Nothing was published.
            ConnectionClosedError: This publisher is closed.
            ForkedError: Called in a child of the process that made it.

        """
        with self._lock:
            number = self._publish_tree(params) if version is None else self._publish_as(version, params)
            if number is None:
                number = self._publish_arrays(*self._converted(params))
                assert number is not None
            self._attachment.check(number)
            if self._told is not None:
                self._told(number)
        return number

    def _publish_as(self, version: int, params: Tree) -> int:
        if isinstance(version, bool) or not isinstance(version, int) or not self.version < version < TOO_HIGH:
            raise ValueError(f"version={version!r}: use an integer above the latest version, {self.version}")
        arrays = self._converted(params)
        pointers = ffi.new("void *[]", [ffi.cast("uint8_t *", array.ctypes.data) for array in arrays])
        return int(lib.es_weights_publish_as(self._ring, version, pointers))

    def _converted(self, params: Tree) -> list[Array]:
        """The leaves as plain arrays that can be copied as they are."""
        arrays = arrays_of(self._spec, params, self._attachment.what)
        return [np.asarray(array, order="C") for array in arrays]

    def close(self) -> None:
        """Ends it, and removes the name. Idempotent.

        Subscribers keep what they have, and can still copy and lease the latest version. Those that wait for a later
        one get ConnectionClosedError.
        """
        self._end()

    def __repr__(self) -> str:
        state = "open" if self._end.alive else "closed"
        return f"<Publisher of {self.name!r}, version {self.version}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Publisher belongs to its process: pickle publisher.handle, and subscribe there")


def _end(attachment: Attachment, segment: Segment) -> None:
    if lib.es_api_close(attachment.ring) != lib.ES_EFORK:  # a child of the publisher's process ends nothing
        attachment.detach()
        segment.unlink()


def _go_on(name: str, uuid: bytes | None, spec: Spec) -> Segment | None:
    """The segment that a dead publisher has left, taken over; None if there is none.

    One that belongs to an earlier ring of the same name is removed.
    """
    try:
        segment = Segment.attach(name)
    except SegmentError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    check_holds_weights(segment)
    assert segment.lockfile is not None
    if not segment.lockfile.try_lock(CREATOR_BYTE):
        raise SegmentError(
            f"weights {name!r} have a publisher already, {holder_of(segment.lockfile)}: one process publishes, the "
            f"others subscribe with Subscriber({name!r})"
        )
    if uuid is not None and segment.uuid != uuid:
        segment.unlink()
        return None
    try:
        spec.check_same(segment.spec, f"weights {name!r}, which an earlier publisher has left")
    except BaseException:
        with contextlib.suppress(OSError):
            lib.es_segment_locks_drop(segment.lockfile.locks, CREATOR_BYTE)
        raise
    segment.spec = spec
    return segment
