"""What all subscribers to weights have in common, wherever the weights come from."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import numpy as np

from echo_shm.errors import SegmentError
from echo_shm.spec import Array, Spec, Tree
from echo_shm.timeouts import check_timeout
from echo_shm.weights.leaves import arrays_of

_Self = TypeVar("_Self", bound="Subscription")
_S = TypeVar("_S", bound="Subscription")

#: Times between two looks whether there are weights (seconds): at first, and at most.
_SOONEST, _LATEST = 1e-3, 0.1

#: The least version that is none.
TOO_HIGH = 2**48


class Subscription(ABC):
    """The latest version of weights: what ``client.subscriber()`` returns, whichever client it is.

    A :class:`Subscriber` reads what a publisher of this machine publishes, a :class:`TcpSubscriber` what the server of
    a :class:`TcpClient` sends. Code that takes either takes this type.
    """

    @property
    @abstractmethod
    def version(self) -> int:
        """The version that this subscriber got last; 0 before the first."""

    @property
    @abstractmethod
    def latest_version(self) -> int:
        """The version that was published last, as far as this process knows; 0 when there is none."""

    @abstractmethod
    def latest(self) -> Tree:
        """The latest version, as a private copy: a pytree of new numpy arrays."""

    @abstractmethod
    def poll(self, into: Tree = None) -> bool:
        """Whether there is a version that is newer than the one that this subscriber got last.

        Args:
            into: A pytree of writable arrays, into which a newer version is copied. None: nothing is copied, and the
                version stays news.

        """

    @abstractmethod
    def wait(self, min_version: int, timeout: float | None = None) -> int:
        """Sleeps until that version is there, or a later one: at most ``timeout`` seconds. Returns the latest one."""

    @abstractmethod
    def lease(self) -> AbstractContextManager[Tree]:
        """The latest version without a copy: a pytree of read-only arrays, which stay as they are in a with block."""

    @abstractmethod
    def close(self) -> None:
        """Ends it. Idempotent."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def await_publisher(subscribe: Callable[[], _S], timeout: float | None) -> _S:
    """What ``subscribe`` returns, once the learner has made its publisher.

    Args:
        subscribe: Raises SegmentError as long as there are no weights.
        timeout: Seconds to wait; None: no limit.

    Raises:
        SegmentError: There were none in time.
        ValueError: ``timeout`` is not a number of seconds.

    """
    check_timeout(timeout)
    started, nap = time.monotonic(), _SOONEST
    while True:
        try:
            return subscribe()
        except SegmentError:
            if timeout is not None and time.monotonic() - started >= timeout:
                raise
        time.sleep(nap)
        nap = min(2 * nap, _LATEST)


def check_min_version(min_version: int) -> None:
    """Raises ValueError unless it can be a version, or 0."""
    if isinstance(min_version, bool) or not isinstance(min_version, int) or not 0 <= min_version < TOO_HIGH:
        raise ValueError(f"min_version={min_version!r}: use an integer from 0 to 2**48 - 1")


def writable_arrays(spec: Spec, into: Tree, what: str) -> list[Array]:
    """The leaves of ``into`` as arrays that have the dtypes and shapes of ``spec``. ``what`` names what has that Spec.

    Raises:
        SpecMismatchError, TypeError: As :func:`arrays_of`.
        ValueError: A leaf cannot be written to.

    """
    arrays = arrays_of(spec, into, what)
    for leaf, array in zip(spec.leaves, arrays, strict=True):
        if not array.flags.writeable:
            raise ValueError(f"{leaf.name}: the array is read-only; pass one that can be written to")
    return arrays


def contiguous(array: Array) -> Array:
    """The array, or one of the same dtype and shape if its bytes do not lie one behind the other."""
    # asarray(): without numpy's subclasses
    return np.asarray(array) if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
