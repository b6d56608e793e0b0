"""Datasets for a ``DataLoader``. ``echo_shm.adapters.torch`` has what users call."""

import multiprocessing
import multiprocessing.sharedctypes
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from echo_shm import Finishing, Handle, Replay, ReplayClient, Sample, Server
from echo_shm.adapters.torch_tensors import as_tensors
from echo_shm.replay import ReplayHandle
from echo_shm.ring.protocols import check_finishing
from echo_shm.spec import Tree

#: Seconds between two looks whether the producers of a dataset have finished.
_LOOK = 0.05


class RingDataset(IterableDataset):
    """The batches of a ring, for ``DataLoader(RingDataset(server), batch_size=None)``. Each is a tree of tensors.

    In the process that has the server, tensors are views of the ring. The loader's workers (``num_workers=2``) attach
    as further learners: each batch goes to one of them, and comes to the loop by copies. A batch that a killed worker
    had not handed over goes to another learner, and the loader raises RuntimeError. What workers have taken ahead is
    lost if the loop is left before the end. A worker that waits for a batch then keeps PyTorch waiting for 5 seconds.

    Args:
        source: A :class:`Server`; or ``server.handle`` or the ring's name, which are attached to in any process.
        until: As for :meth:`Server.dataset_iter`. In the loader's workers, a failure of it shows when it has finished,
            to those that ask it: ``join()`` or the end of the ``with`` block raise.
        drop_last, max_age: As for :meth:`Server.dataset_iter`.

    Raises:
        TypeError: The source is something else, or ``until`` has no ``finished`` and ``check()``.

    """

    def __init__(
        self,
        source: Server | Handle | str,
        *,
        until: Finishing | None = None,
        drop_last: bool = True,
        max_age: int | None = None,
    ) -> None:
        if not isinstance(source, Server | Handle | str):
            raise TypeError(
                f"RingDataset takes a Server, server.handle or a ring's name, got {type(source).__name__}; a Replay "
                "goes into ReplayDataset(replay, batch_size)"
            )
        check_finishing(until)
        self._server = source if isinstance(source, Server) else None
        self._handle = source.handle if isinstance(source, Server) else source
        self._options: dict[str, Any] = {"drop_last": drop_last, "max_age": max_age}
        self._until, self._end = until, _End(told=until is not None)
        if until is not None:
            over = threading.Event()
            weakref.finalize(self, over.set)
            threading.Thread(target=_watch, args=(until, self._end, over), name="echo_shm-until", daemon=True).start()

    def __iter__(self) -> Iterator[Tree]:
        if self._server is not None and get_worker_info() is None:
            return map(_batch, self._server.dataset_iter(until=self._until, **self._options))
        return self._attached()

    def _attached(self) -> Iterator[Tree]:
        until = self._until if get_worker_info() is None else self._end
        with Server.attach(self._handle) as learner:
            yield from map(_batch, learner.dataset_iter(until=until, **self._options))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_server": None, "_until": None}


def _batch(sample: Sample) -> Tree:
    return as_tensors(sample.batch)


class _End:
    """What ends the stream of a loader's worker: that the producers have finished, or that its parent has died.

    Args:
        told: Somebody calls :meth:`set`.

    """

    def __init__(self, told: bool) -> None:
        # Forked and spawned processes share it.
        self._flag = multiprocessing.sharedctypes.RawValue("b", 0) if told else None

    def set(self) -> None:
        """Says that the producers have finished."""
        if self._flag is not None:
            self._flag.value = 1

    @property
    def finished(self) -> bool:
        """Whether no more samples will come, or nobody wants them."""
        parent = multiprocessing.parent_process()
        return (self._flag is not None and bool(self._flag.value)) or (parent is not None and not parent.is_alive())

    def check(self) -> None:
        """Never fails: see :class:`RingDataset`."""


def _watch(until: Finishing, end: _End, over: threading.Event) -> None:
    while not over.wait(_LOOK):
        if until.finished:
            end.set()
            return


class ReplayDataset(IterableDataset):
    """Batches of a replay's table, for ``DataLoader(ReplayDataset(replay, 256), batch_size=None)``.

    Each is a :class:`~echo_shm.replay.Batch` of tensors. It ends when the replay is closed: leave the loop yourself.
    The loader's workers ask the replay for batches that it draws into shared memory. Each batch goes to one of them.

    Args:
        source: A :class:`Replay`, ``replay.handle``, or a replay's name. A Replay needs ``thread=True`` if the loader
            has workers, because this process waits for them then.
        batch_size: Items in a batch.
        table, prefetch, timeout: As for :meth:`ReplayClient.dataset_iter`.

    """

    def __init__(
        self,
        source: Replay | ReplayHandle | str,
        batch_size: int,
        table: str | None = None,
        *,
        prefetch: int = 4,
        timeout: float | None = None,
    ) -> None:
        if not isinstance(source, Replay | ReplayHandle | str):
            raise TypeError(
                f"ReplayDataset takes a Replay, replay.handle or a replay's name, got {type(source).__name__}; a "
                "Server goes into RingDataset(server)"
            )
        self._replay = source if isinstance(source, Replay) else None
        self._handle: ReplayHandle | str | None = source if not isinstance(source, Replay) else None
        if isinstance(source, Replay) and source.has_thread:
            self._handle = source.handle
        self._arguments = (batch_size, table, prefetch, timeout)

    def __iter__(self) -> Iterator[Tree]:
        if self._replay is not None and get_worker_info() is None:
            return map(as_tensors, self._replay.dataset_iter(*self._arguments))
        if self._handle is None:
            raise ValueError(
                "this Replay draws in the calls of its own process, which waits for the loader's workers: use "
                "Replay(..., thread=True), or num_workers=0"
            )
        return self._attached(self._handle)

    def _attached(self, handle: Any) -> Iterator[Tree]:
        with ReplayClient(handle) as client:
            yield from map(as_tensors, client.dataset_iter(*self._arguments))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_replay": None}
