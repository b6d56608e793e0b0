"""The replay behind a buffer for TorchRL: it begins with the first step, and pickles into a way to write into it."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optree
import torch
from tensordict import TensorDictBase

from echo_shm.adapters.folders import check_restorable, read_files, write_files
from echo_shm.adapters.tensordicts import arrays, form_of
from echo_shm.replay import Batch, Prioritized, Replay, ReplayClient, ReplayHandle, Softmax, Table

#: What a sample has beside the data, and what does not come into the replay.
INDEX, WEIGHT = "index", "priority_weight"


class Shared:
    """The part of a :class:`~echo_shm.adapters.torchrl.ReplayBuffer` that begins, shares, keeps and ends its replay.

    Args:
        table: The replay's table.
        capacity, options: Of the :class:`Replay`.
        settings: Those that a buffer of another process has, too.
        example: A TensorDict of one step, or of several; or None.

    """

    def __init__(
        self,
        table: Table,
        capacity: int,
        options: dict[str, Any],
        settings: tuple[Any, ...],
        example: TensorDictBase | None,
    ) -> None:
        self._table, self._capacity, self._options = table, capacity, options
        self._set(isinstance(table.sampler, Prioritized | Softmax), *settings)
        if example is not None:
            self._begin(example)

    def _set(self, *settings: Any) -> None:
        self._settings = settings
        self._prioritized, self._batch_size, self._priority_key, self._eps, self._timeout = settings
        self._there: Any = None  # a Replay, or another process's ReplayClient
        self._writes: Any = None  # the Replay, or a Writer
        self._batches: dict[int, Iterator[Batch]] = {}

    def _begin(self, example: TensorDictBase) -> None:
        if 0 in example.batch_size:
            raise ValueError(
                f"got a TensorDict of batch size {list(example.batch_size)}, which has no row: what comes first says "
                "what a step has: leave it out, or use ReplayBuffer(..., example=tensordict)"
            )
        one = self._steps(example).reshape(-1)[0]
        self._own(Replay(arrays(one, one), self._capacity, [self._table], **self._options))

    def _steps(self, data: TensorDictBase) -> TensorDictBase:
        """What is stored of it. A TensorDict in it that has nothing but the priorities is not."""
        key = self._priority_key
        data = data.exclude(INDEX, WEIGHT, key)
        for end in range(len(key) - 1, 0, -1) if isinstance(key, tuple) else ():
            around = data.get(key[:end], None)
            if isinstance(around, TensorDictBase) and around.is_empty():
                data = data.exclude(key[:end])
        return data

    def _own(self, replay: Replay) -> None:
        self._there = self._writes = replay
        self._form = form_of(replay.handle.treespec)

    @classmethod
    def _join(cls, handle: ReplayHandle, settings: tuple[Any, ...]) -> "Shared":
        self = cls.__new__(cls)
        self._set(*settings)
        self._there = ReplayClient(handle)
        self._writes, self._form = self._there.writer(), form_of(handle.treespec)
        return self

    def __reduce__(self) -> Any:
        return self._join, (self._owned("pickling").handle, self._settings)

    def _owned(self, what: str) -> Replay:
        if self._there is None:
            raise RuntimeError(
                f"{what}: it is not known yet what a step has: use ReplayBuffer(..., example=tensordict)"
            )
        if not isinstance(self._there, Replay):
            raise RuntimeError(f"{what}: only the process that made the ReplayBuffer can do that")
        return self._there

    # -- all of it

    def empty(self, empty_write_count: bool = True) -> None:
        """Removes all steps, and counts from 0."""
        self._owned("empty()").reset()

    def dumps(self, path: str | Path) -> None:
        """Writes all that is stored to files in a directory: see :meth:`Replay.checkpoint`."""
        self._owned("dumps()").checkpoint(path)

    def loads(self, path: str | Path) -> None:
        """Goes on with what :meth:`dumps` has written: steps, indices, priorities, and the generator.

        The replay is another one then: what other processes have of this buffer writes to it no more.

        Raises:
            SegmentError: There is no checkpoint. The buffer goes on.
            ValueError: ``store`` is a directory that is not empty. The buffer goes on.
            RuntimeError: Another process has made the buffer.

        """
        if self._there is not None:
            self._owned("loads()")
        options = {name: value for name, value in self._options.items() if name != "seed"}
        check_restorable(path, options["store"], "loads()")
        if options["name"] is not None:
            self.close()  # the name must be free
        replay = Replay.restore(path, **options)
        self.close()
        self._own(replay)

    dump, load = dumps, loads

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`dumps` writes, in tensors of bytes."""
        with tempfile.TemporaryDirectory() as folder:
            self.dumps(folder)
            files: Any = read_files(folder)
            tensors: Any = optree.tree_map(_tensor, files)
            return dict(tensors)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Does with it what :meth:`loads` does."""
        with tempfile.TemporaryDirectory() as folder:
            write_files(folder, state_dict)
            self.loads(folder)

    def close(self) -> None:
        """Ends the replay; in another process, leaves it. Idempotent."""
        self._batches.clear()
        if self._there is not None:
            self._writes.close()
            self._there.close()


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
