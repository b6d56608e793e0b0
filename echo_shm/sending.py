"""How a sample comes into a ring: it is copied into a slot and committed."""

import errno
import functools
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm._slot import Reservation, Slots
from echo_shm.errors import ConnectionClosedError, SpecMismatchError, with_sent
from echo_shm.ring import producers
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.fast_path import compile_fast_path, describe_rows, plain_form
from echo_shm.spec import Array, Leaf, Tree
from echo_shm.timeouts import PLAIN, check_timeout

if TYPE_CHECKING:
    from echo_shm._core import CData, Pointers

#: Results that say that the sample cannot be sent now, but perhaps later.
_NOT_NOW = (lib.ES_FULL, lib.ES_TIMEOUT, -errno.EINTR)


class SampleWriter:
    """Writes pytrees into a ring through an attachment. Threads may share it.

    Args:
        attachment: A producer's or a learner's.
        learner_grace: As for :class:`ShmClient`.
        before_waiting: Called each time before a wait for a free slot.

    """

    def __init__(
        self, attachment: Attachment, learner_grace: float | None, before_waiting: Callable[[], None] | None = None
    ) -> None:
        self._attachment = attachment
        self._before_waiting = before_waiting
        self._learner_grace = learner_grace
        self._ring = attachment.ring
        self._spec = attachment.segment.spec
        self._flatten = self._spec.structure.flatten_up_to
        self._buffers = [_has_buffer(leaf) for leaf in self._spec.leaves]
        self._send_at_once = compile_fast_path(self._spec, self._ring)
        self._slots: Slots | None = None
        self._waiting = 1  # producers that waited when this one last looked

    @property
    def version(self) -> int:
        """The version of the weights that samples are made with: each sample that is sent carries it. 0: none.

        It is the version that this process's :class:`Subscriber` to the ring's weights has got last, or what was
        assigned here: that stays until something else is assigned. A version is an integer from 0 to 2**62.
        """
        return int(lib.es_age_version(self._ring))

    @version.setter
    def version(self, version: int) -> None:
        lib.es_age_set_version(self._ring, producers.checked_version(version), 1)

    def send(self, tree: Tree, timeout: float | None = None) -> None:
        """Copies one sample into the ring. When it returns, the sample is committed: no process's death loses it.

        Args:
            tree: A pytree of the segment's structure. Each leaf is an array of exactly the leaf's dtype and shape,
                contiguous or not. A leaf of shape () may also be a numpy scalar of the dtype, or a Python number,
                which is rounded to the leaf's precision. Nothing else is cast.
            timeout: Seconds to wait while the ring is full; None: no limit.

        Raises:
            SpecMismatchError: The structure, a dtype or a shape differs. Nothing was sent.
            ValueError: ``timeout`` is not a number of seconds.
            TimeoutError: The ring stayed full. Nothing was sent.
            ConnectionClosedError: The ring or this client was closed, this worker was stopped, or every learner is
                dead (see ``learner_grace``). Nothing was sent.
            ForkedError: Called in a child of the process that attached.

        """
        if timeout is not None and not (timeout.__class__ in PLAIN and timeout >= 0):
            check_timeout(timeout)
        if self._send_at_once(tree):
            return
        pointers = [self._pointer(i, self._spec.exact(i, leaf)) for i, leaf in enumerate(self._leaves(tree))]
        code = lib.es_api_send(self._ring, pointers)
        if code:
            self._finish_send(code, pointers, timeout)

    def _finish_send(self, code: int, pointers: "Pointers", timeout: float | None) -> None:
        """Goes on with a send whose first attempt returned ``code``."""
        if code in _NOT_NOW:
            code = self._wait(lambda ns: lib.es_api_send_wait(self._ring, pointers, ns), timeout)
        self._attachment.check(code)

    def bind(self, tree: Tree) -> "BoundSample":
        """Fixes a set of arrays. Each ``.send()`` of the result copies what they hold then, with one C call.

        Args:
            tree: As for :meth:`send`, but every leaf is a C-contiguous numpy array. The arrays are kept, not copied:
                write into them between sends.

        Raises:
            SpecMismatchError: The structure, a dtype or a shape differs.
            TypeError: A leaf is not an array.
            ValueError: An array is not C-contiguous.

        """
        arrays: list[Array] = []
        for leaf, array in zip(self._spec.leaves, self._leaves(tree), strict=True):
            if not isinstance(array, np.ndarray):
                raise TypeError(
                    f"{leaf.name}: got {type(array).__name__}; bind() keeps the arrays it is given, so "
                    "every leaf must be a numpy array (of shape () for a scalar)"
                )
            if array.dtype == leaf.dtype and array.shape == leaf.shape and not array.flags.c_contiguous:
                raise ValueError(
                    f"{leaf.name}: the array is not C-contiguous, so bind() cannot send it in place; "
                    "bind np.ascontiguousarray(...) and write into that"
                )
            self._spec.exact(len(arrays), array)
            arrays.append(array)
        return BoundSample(self, tuple(arrays), [self._pointer(i, a) for i, a in enumerate(arrays)])

    def _bind_leaf(self, index: int, array: Array) -> "BoundSample":
        """As :meth:`bind`, of one leaf: nobody reads the others of such a sample, and what was in the slot stays."""
        pointers = [ffi.NULL] * len(self._spec.leaves)
        pointers[index] = self._pointer(index, self._spec.exact(index, array))
        return BoundSample(self, (array,), pointers)

    def send_many(self, tree: Tree, timeout: float | None = None) -> None:
        """Copies n samples into the ring, in order. Samples of other producers may be between them.

        Args:
            tree: As for :meth:`send`, but every leaf is an array with a leading n: ``(n, *leaf.shape)``.
            timeout: Seconds to wait each time the ring is full; None: no limit.

        Raises:
            TimeoutError, ConnectionClosedError: As :meth:`send`, but some samples may have been sent: the message
                and the attribute ``sent`` say how many.
            SpecMismatchError, ForkedError: As :meth:`send`. Nothing was sent.

        """
        self._send_rest(tree, timeout, 0)

    def _send_rest(self, tree: Tree, timeout: float | None, sent: int) -> None:
        """As :meth:`send_many`, of samples of which so many are sent."""
        check_timeout(timeout)
        arrays, count = [], -1
        try:
            leaves = self._leaves(tree)
        except SpecMismatchError as error:
            if not isinstance(tree, list | tuple):
                raise
            raise SpecMismatchError(
                f"{error}. send_many takes one tree whose leaves have a leading n, not a sequence of samples: "
                "optree.tree_map(lambda *x: np.stack(x), *samples) makes one"
            ) from None
        for index, array in enumerate(leaves):
            leaf = self._spec.leaves[index]
            if not isinstance(array, np.ndarray) or array.ndim == 0:
                raise SpecMismatchError(
                    f"{leaf.name}: got {type(array).__name__} without a leading dimension, "
                    f"expected an array of {leaf.dtype}[n{''.join(f', {n}' for n in leaf.shape)}]"
                )
            count = array.shape[0] if index == 0 else count
            if array.shape[0] != count and array.shape[1:] == leaf.shape:
                raise SpecMismatchError(
                    f"{leaf.name} has {array.shape[0]} samples, and {self._spec.leaves[0].name} has {count}: "
                    "every leaf needs the same leading n"
                )
            arrays.append(self._spec.exact(index, array, (count, *leaf.shape)))
        pointers = [self._pointer(i, array) for i, array in enumerate(arrays)]
        while sent < count:
            attempt = functools.partial(lib.es_api_send_many, self._ring, pointers, sent, count)
            try:
                code = attempt(0)
                if code in _NOT_NOW:
                    code = self._wait(attempt, timeout)
                self._attachment.check(code)
            except (TimeoutError, ConnectionClosedError) as error:
                raise with_sent(error, f"{error}; {sent} of {count} samples were sent", sent) from None
            sent += code

    def reserve(self, timeout: float | None = None) -> Reservation:
        """Claims a slot to write in place::

            with client.reserve() as slot:
                slot["obs"][...] = obs

        The value is a pytree of writable arrays, each of its leaf's dtype and shape. They are views of the slot.
        At first they hold data of an earlier sample, so write all of them. A clean exit commits the sample, an
        exception aborts it. Then the arrays are read-only, and the slot may hold another sample. Do not write after
        the exit through views of your own, such as a tensor: those stay writable.

        Args:
            timeout: Seconds to wait while the ring is full; None: no limit.

        Raises:
            TimeoutError, ConnectionClosedError, ForkedError: On entry, as :meth:`send`.
            ConnectionClosedError: On exit, if the ring was closed more than a second before. The sample was not sent.
            ValueError: On exit, if an array of the tree was replaced (``slot["obs"] = obs``) and not written into, or
                the tree has another structure. The sample was not sent.

        """
        return (self._slots or self._make_slots()).reserve(self, timeout)

    def _make_slots(self) -> Slots:
        segment, capacity = self._attachment.segment, self._attachment.segment.geometry.capacity
        reserve, commit, abort, ring = (
            int(ffi.cast("uintptr_t", pointer))
            for pointer in (
                ffi.addressof(lib, "es_api_reserve"),
                ffi.addressof(lib, "es_api_commit"),
                ffi.addressof(lib, "es_api_abort"),
                self._ring,
            )
        )
        # One array for each leaf, of shape (capacity, *leaf.shape).
        leaves = tuple(
            segment.array(lib.es_api_leaf_offset(self._ring, i), (capacity, *leaf.shape), leaf.dtype, writable=True)
            for i, leaf in enumerate(self._spec.leaves)
        )
        rows, form = tuple(map(describe_rows, leaves)), plain_form(self._spec)
        self._slots = Slots(reserve, commit, abort, ring, capacity, rows, form, self._spec.structure.unflatten, leaves)
        return self._slots

    # What a reservation calls.

    def _claim(self, reservation: Reservation, code: int, timeout: float | None) -> None:
        """Goes on with a claim whose first attempt returned ``code``."""
        if code in _NOT_NOW:
            code = self._wait(reservation._claim, timeout)
        self._attachment.check(code)

    def _check(self, code: int) -> None:
        self._attachment.check(code)

    def _check_slot(self, tree: Tree, arrays: tuple[Array, ...]) -> None:
        """Raises unless each leaf of the tree is the slot's array, or one that begins at the same place."""
        for leaf, now, array in zip(self._spec.leaves, self._leaves(tree), arrays, strict=True):
            if now is array or (isinstance(now, np.ndarray) and _address(now) == _address(array)):
                continue
            raise ValueError(
                f"{leaf.name}: the slot's array was replaced ({type(now).__name__}), so the sample was not sent; "
                f"write into the array: slot{leaf.path}[...] = value"
            )

    def _leaves(self, tree: Tree) -> list[Any]:
        try:
            return list(self._flatten(tree))
        except (ValueError, TypeError):
            raise self._wrong_structure(tree) from None

    def _wrong_structure(self, tree: Tree) -> SpecMismatchError:
        different = self._spec.structure_difference(tree)
        return SpecMismatchError(f"the sample's structure is not that of {self._attachment.what}: {different}")

    def _pointer(self, index: int, array: Array) -> "CData":
        """A pointer to a contiguous array's bytes. It keeps the array alive."""
        if not array.size:
            return ffi.NULL
        return ffi.from_buffer(array if self._buffers[index] else array.reshape(-1).view(np.uint8))

    def _wait(self, attempt: Callable[[int], int], timeout: float | None) -> int:
        """Repeats a C call that sleeps for one slice. In between, Python handles signals, and learners are checked."""
        check_timeout(timeout)
        started = time.monotonic()
        alone_since: float | None = None
        while True:
            left = None if timeout is None else timeout - (time.monotonic() - started)
            if left is not None and left <= 0:
                raise TimeoutError(f"{self._attachment.what} stayed full for {timeout} s: no learner released a batch")
            if self._before_waiting is not None:
                self._before_waiting()
            code = attempt(self._attachment.slice_ns_within(left, self._waiting))
            if code not in _NOT_NOW:
                return code
            self._look_for_the_dead()
            if lib.es_api_learner_alive(self._ring):
                alone_since = None
                continue
            alone_since = time.monotonic() if alone_since is None else alone_since
            if self._learner_grace is not None and time.monotonic() - alone_since >= self._learner_grace:
                raise ConnectionClosedError(
                    f"{self._attachment.what} is full and has had no living learner for {self._learner_grace} s "
                    "(learner_grace)"
                )

    def _look_for_the_dead(self) -> None:
        """Reaps: the slots of the dead come back though no learner looks. Of all that wait, one a slice does so."""
        snap, attachment = ffi.new("es_snapshot *"), self._attachment
        lib.es_monitor_observe(self._ring, snap)
        self._waiting = snap.producers_waiting + 1
        if random.random() * attachment.slice * self._waiting < attachment.slice_of(self._waiting):
            attachment.reaper.reap()


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _has_buffer(leaf: Leaf) -> bool:
    """Whether arrays of the leaf's dtype have Python's buffer protocol. datetime64 and extension dtypes have not."""
    if leaf.nbytes == 0:  # its dtype may have any size
        return False
    try:
        ffi.from_buffer(np.empty(1, leaf.dtype))
    except (ValueError, TypeError, BufferError):
        return False
    return True


class BoundSample:
    """A fixed set of arrays. :meth:`send` copies what they hold then into the ring, with one C call.

    :meth:`ShmClient.bind` makes it. It keeps the arrays alive; write into them (``array[...] = value``) between sends.
    """

    __slots__ = ("_arrays", "_pointers", "_ring", "_send", "_writer")

    def __init__(self, writer: SampleWriter, arrays: tuple[Array, ...], pointers: "list[CData]") -> None:
        self._writer = writer
        self._arrays = arrays
        self._pointers = ffi.new("void *[]", pointers), pointers
        self._ring = writer._attachment.ring
        self._send = lib.es_api_send

    def send(self, timeout: float | None = None) -> None:
        """Copies the bound arrays into the next slot. Waits and raises as :meth:`ShmClient.send` does."""
        if timeout is not None and not (timeout.__class__ in PLAIN and timeout >= 0):
            check_timeout(timeout)
        code = self._send(self._ring, self._pointers[0])
        if code:
            self._writer._finish_send(code, self._pointers[0], timeout)
