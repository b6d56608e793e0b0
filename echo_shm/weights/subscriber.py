"""Subscribers: they copy or lease the latest version of weights."""

import contextlib
import errno
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import NoReturn

from echo_shm._core import ffi, lib
from echo_shm.errors import EchoShmError, SegmentError, SpecMismatchError
from echo_shm.ring import producers
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.fast_path import compile_call, compile_tree
from echo_shm.ring.handle import Handle
from echo_shm.ring.segment import Segment
from echo_shm.spec import Array, Tree
from echo_shm.timeouts import check_timeout
from echo_shm.weights.leaves import flat, spec_of
from echo_shm.weights.segment import check_holds_weights, empty_arrays, segment_name
from echo_shm.weights.subscription import Subscription, check_min_version, contiguous, writable_arrays

#: What the word of the latest version never says: in a forked child the next look takes the long way, which raises.
_NEVER = -1

#: Bits of that word below the version.
_SLOT_BITS = 16


class Subscriber(Subscription):
    """Reads the weights that a :class:`Publisher` of this machine publishes.

    :meth:`ShmClient.subscriber` makes one for the weights of its learner. Threads may share a subscriber, but each
    version that one of them gets is news to none of the others. A forked child makes its own.

    Args:
        name_or_handle: ``publisher.name``, or ``publisher.handle``.
        example: A pytree with the structure, dtypes and shapes of the weights. It is only needed with a name if the
            weights have node types beyond dict, OrderedDict, list, tuple and None.

    Raises:
        SegmentError: There is no such segment, it holds no weights, or it cannot be trusted or joined.
        SpecMismatchError: The example does not fit, or one is needed.

    """

    def __init__(self, name_or_handle: str | Handle, example: Tree = None) -> None:
        if isinstance(name_or_handle, Handle):
            segment = Segment.attach(name_or_handle.name, name_or_handle.uuid)
            treespec = name_or_handle.treespec
            if treespec is not None and treespec.num_leaves == len(segment.spec.leaves):
                segment.spec.treespec = treespec
        elif isinstance(name_or_handle, str):
            segment = Segment.attach(segment_name(name_or_handle))
        else:
            raise TypeError(
                f"Subscriber takes a publisher's name or handle, not {type(name_or_handle).__name__} {name_or_handle!r}"
            )
        self._join(segment, example)

    @classmethod
    def _beside(cls, name: str, uuid: bytes | None, example: Tree) -> "Subscriber":
        """The subscriber to the weights of a ring or a replay of that name."""
        self = cls.__new__(cls)
        try:
            segment = Segment.attach(segment_name(name), uuid)
        except SegmentError as error:
            raise SegmentError(
                error.errno,
                f"{name!r} has no weights to subscribe to ({error}): the learner calls publisher(params) before its "
                "workers start",
            ) from None
        self._join(segment, example)
        return self

    @classmethod
    def _of_leaves(cls, handle: Handle) -> "Subscriber":
        """One that gets the leaves alone, as a tuple, whatever the structure of the weights is."""
        self = cls.__new__(cls)
        segment = Segment.attach(handle.name, handle.uuid)
        segment.spec = flat(segment.spec)
        self._join(segment, None)
        return self

    def _join(self, segment: Segment, example: Tree) -> None:
        check_holds_weights(segment)
        producers.refuse_if_stopped(f"weights {segment.name!r}")
        what = f"weights {segment.name!r}"
        if example is not None:
            mine = spec_of(example)
            mine.check_same(segment.spec, what)
            segment.spec = mine
        if segment.spec.treespec is None:
            raise SpecMismatchError(
                f"{what} have node types beyond dict, OrderedDict, list, tuple and None: pass an example with "
                "their structure, or the publisher's handle in place of its name"
            )
        self._segment, self._spec = segment, segment.spec
        self._attachment = Attachment(segment, lib.ES_ROLE_PRODUCER, what, prefault=True)
        producers.add(self._attachment)
        self._ring = self._attachment.ring
        self._copy_tree, self._copy_arrays = compile_call(self._spec, self._ring, "es_weights_copy")
        self._tree = compile_tree(self._spec)
        at = lib.es_weights_word(self._ring)
        self._word = memoryview(segment.mapping)[at : at + 8].cast("Q")
        self._seen = 0  # that word, when the latest version was copied or leased
        self._version = 0
        self._stamp = producers.Stamp(segment)
        _subscribers.add(self)

    @property
    def name(self) -> str:
        """The segment's name."""
        return self._segment.name

    @property
    def version(self) -> int:
        """The version that this subscriber got last; 0 before the first."""
        return self._version

    @property
    def latest_version(self) -> int:
        """The version that was published last; 0 when there is none."""
        return int(lib.es_weights_latest(self._ring))

    def latest(self) -> Tree:
        """The latest version, as a private copy: a pytree of new numpy arrays.

        Raises:
            EchoShmError: Nothing was published yet.
            ConnectionClosedError: This subscriber is closed.
            ForkedError: Called in a child of the process that made it.

        """
        arrays = empty_arrays(self._spec)
        copied = self._copy(self._copy_arrays, *arrays)
        assert copied, "these arrays are as they should be"
        return self._tree(*arrays)

    def poll(self, into: Tree = None) -> bool:
        """Whether there is a version that is newer than the one that this subscriber got last.

        Without news it costs about as much as an attribute.

        Args:
            into: A pytree of writable arrays with the structure, dtypes and shapes of the weights: numpy arrays, or
                torch tensors of this machine's memory. A newer version is copied into them. If the call ends with an
                exception, for instance by Ctrl-C, they may hold parts of several versions. None: nothing is copied,
                and the version stays news.

        Raises:
            SpecMismatchError: The structure, a dtype or a shape differs. The message names the first leaf that does.
            ValueError: A leaf cannot be written to.
            ConnectionClosedError, ForkedError: As :meth:`latest`.

        """
        word = self._word[0]
        if word == self._seen:
            return False
        self._attachment.refuse_in_child()
        if word >> _SLOT_BITS == self._version:
            self._seen = word
            return False
        if into is not None:
            self._copy_into(into)
        return True

    def wait(self, min_version: int, timeout: float | None = None) -> int:
        """Sleeps until that version, or a later one, is published. It copies nothing.

        Args:
            min_version: The least version.
            timeout: Seconds; None: no limit.

        Returns:
            The latest version.

        Raises:
            TimeoutError: No such version was published in time.
            ConnectionClosedError: The publisher has closed, so there will be none; or this subscriber is closed, or
                this worker was stopped.
            ForkedError: As :meth:`latest`.

        """
        check_min_version(min_version)
        check_timeout(timeout)
        started = time.monotonic()
        while True:
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - started))
            code = lib.es_weights_wait(self._ring, min_version, self._attachment.slice_ns_within(left))
            latest = self.latest_version
            if latest >= min_version and code not in (lib.ES_EDETACHED, lib.ES_EFORK):
                return latest
            if code not in (lib.ES_OK, lib.ES_TIMEOUT, -errno.EINTR):
                self._attachment.check(code)
            if left == 0:
                raise TimeoutError(
                    f"{self._attachment.what} stayed at version {latest} for {timeout} s; waited for {min_version}"
                )

    @contextlib.contextmanager
    def lease(self) -> Iterator[Tree]:
        """The latest version without a copy::

            with subscriber.lease() as view:
                action = policy(view, obs)

        The value is a pytree of read-only arrays of one version, which nobody overwrites inside the block. Do not use
        them, or views of them, after it: they show later versions then, perhaps parts of several.

        Raises:
            EchoShmError: Nothing was published yet; or all leases are in use. The message names their processes.
            ConnectionClosedError, ForkedError: As :meth:`latest`.

        """
        lease, slot = self._lease()
        try:
            yield self._spec.structure.unflatten(self._arrays(slot))
        finally:
            lib.es_weights_release(self._ring, lease)

    def close(self) -> None:
        """Leaves. Idempotent. Its leases end."""
        self._attachment.detach()

    def __repr__(self) -> str:
        return f"<Subscriber of {self.name!r}, version {self.version} of {self.latest_version}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Subscriber belongs to its process: pickle publisher.handle, and subscribe there")

    # -- what the calls share

    def _copy(self, copy: Callable[..., int | None], *leaves: Tree) -> bool:
        """Copies the latest version. Each try that is overtaken by later versions is followed by another one.

        False: nothing was copied, because the leaves are not plain arrays of the right kind.
        """
        while True:
            word = self._word[0]
            code = copy(*leaves)
            if code is None:
                return False
            if code >= 0:
                self._got(code, word)
                return True
            if code != lib.ES_LAPPED:
                self._refuse(code)

    def _copy_into(self, into: Tree) -> None:
        if self._copy(self._copy_tree, into):
            return
        arrays = writable_arrays(self._spec, into, self._attachment.what)
        mine = list(map(contiguous, arrays))
        copied = self._copy(self._copy_arrays, *mine)
        assert copied, "these arrays are as they should be"
        for array, own in zip(arrays, mine, strict=True):
            if not array.flags.c_contiguous:
                array[...] = own

    def _lease(self) -> tuple[int, int]:
        number, slot = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        swept = False
        while True:
            word = self._word[0]
            lease = int(lib.es_weights_lease(self._ring, number, slot))
            if lease >= 0:
                self._got(number[0], word)
                return lease, slot[0]
            if lease == lib.ES_FULL and not swept:
                swept = True
                self._attachment.reaper.reap()
            elif lease != lib.ES_LAPPED:
                self._refuse(lease)

    def _arrays(self, slot: int) -> Iterator[Array]:
        for i, leaf in enumerate(self._spec.leaves):
            at = lib.es_api_leaf_offset(self._ring, i) + slot * leaf.nbytes
            yield self._segment.array(at, leaf.shape, leaf.dtype, writable=False)

    def _got(self, version: int, word: int) -> None:
        if version != self._version:
            self._stamp.set(version)
        self._version = version
        if word >> _SLOT_BITS == version:  # otherwise poll() finds that out
            self._seen = word

    def _refuse(self, code: int) -> NoReturn:
        what = self._attachment.what
        if code == lib.ES_NOTHING:
            raise EchoShmError(
                f"{what} have no version yet: the learner calls publisher.publish(params) before its workers start, or "
                "the worker waits: subscriber.wait(1, timeout)"
            )
        if code == lib.ES_FULL:
            raise EchoShmError(
                f"all leases of {what} are in use, by {', '.join(self._holders())}: end one, or create the publisher "
                "with a larger max_leases"
            )
        self._attachment.check(code)
        raise AssertionError(code)

    def _holders(self) -> list[str]:
        info, found = ffi.new("es_owner_info *"), []
        for i in range(self._segment.geometry.num_buffers):
            owner = lib.es_weights_holder(self._ring, i)
            if owner >= 0 and lib.es_monitor_next_owner(self._ring, owner, info) == owner:
                found.append(f"process {info.id.pid}")
        return sorted(set(found))


_subscribers: "weakref.WeakSet[Subscriber]" = weakref.WeakSet()


def _forget_in_child() -> None:
    """In a forked child: the next poll() takes the long way, which raises."""
    for subscriber in list(_subscribers):
        subscriber._seen = _NEVER


os.register_at_fork(after_in_child=_forget_in_child)
