"""Tianshou: replay buffers of vectorized environments for its collectors and off-policy algorithms.

They are used as Tianshou's own::

    buffer = PrioritizedVectorReplayBuffer(100_000, len(envs), alpha=0.6, beta=0.4)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
"""

from typing import Any, Literal

import numpy as np

from echo_shm.missing import needs

with needs("adapters.tianshou", "Tianshou", "tianshou"):
    import tianshou.data
    from tianshou.data import Batch, to_numpy

from echo_shm.adapters.tianshou_rows import Column, Rows, arrays, at_index
from echo_shm.replay import Prioritized, Uniform
from echo_shm.replay.selectors import Selector

__all__ = ["PrioritizedVectorReplayBuffer", "VectorReplayBuffer"]

#: What is stored in the replay. All else (rewards, ends, infos) stays in arrays that algorithms read as a whole.
_STORED = ("obs", "act", "obs_next")


class VectorReplayBuffer(tianshou.data.VectorReplayBuffer):
    """Tianshou's ``VectorReplayBuffer``, whose observations and actions are in an echo_shm :class:`Replay`.

    Indices are Tianshou's own. Rewards, ends, ``info`` and ``policy`` are in arrays of this process, as there.

    Args:
        total_size, buffer_num: As in Tianshou: most steps, and how many environments.
        store, name, seed: As for :class:`Replay`. Other processes may read by the name, with a
            :class:`ReplayClient`. They must not write.
        kwargs: ``stack_num``, ``ignore_obs_next``, ``save_only_last_obs`` and ``sample_avail`` as in Tianshou.

    Raises:
        ValueError, SegmentError: As for :class:`Replay`.

    It neither pickles nor goes to HDF5. Observations and actions are arrays of fixed shapes, or nested dicts of them.
    ``buffer.obs[index]`` reads from the replay. It is no array: all else about it raises. So it is with ``act``.
    """

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        *,
        store: Literal["memory", "shm"] | str = "memory",
        name: str | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(total_size, buffer_num, **kwargs)
        self._rows = Rows(self.maxsize, buffer_num, self._selector(), store=store, name=name, seed=seed)

    def _selector(self) -> Selector:
        return Uniform()

    # -- in

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[Any, Any, Any, Any]:
        """Stores a step of each environment: as in Tianshou."""
        rest = Batch({key: batch[key] for key in batch.get_keys() if key not in _STORED})
        wanted = _STORED if self._save_obs_next else ("obs", "act")
        stored = {key: batch[key] for key in wanted if key in batch.get_keys()}
        if self._save_only_last_obs:
            stored.update({key: value[:, -1] for key, value in stored.items() if key != "act"})
        # Tianshou wants these keys, too. They are arrays without elements there.
        rest.update(dict.fromkeys(stored, np.empty((len(batch), *[1] * self._save_only_last_obs, 0))))
        appended = self._rows.append(arrays(stored))
        try:
            indices, *others = super().add(rest, buffer_ids)
        except BaseException:
            self._rows.drop(appended)
            raise
        self._rows.put(indices, appended)
        return indices, *others

    # -- out

    def sample_indices(self, batch_size: int | None) -> Any:
        """Draws indices, or returns all of them: as in Tianshou."""
        if not batch_size or batch_size < 0 or (self._sample_avail and self.stack_num > 1):
            return super().sample_indices(batch_size)
        return self._rows.draw(batch_size)[1]

    def sample(self, batch_size: int | None) -> Any:
        """Draws steps: as in Tianshou."""
        if not batch_size or batch_size < 0 or self.stack_num > 1 or not self._save_obs_next:
            return super().sample(batch_size)
        drawn, indices = self._rows.draw(batch_size)
        return self._made(indices, drawn), indices

    def __getitem__(self, index: Any) -> Any:
        """The steps at an index, a slice or an array of indices: as in Tianshou."""
        if isinstance(index, slice):
            index = self.sample_indices(0) if index == slice(None) else self._indices[: len(self)][index]
        if self.stack_num > 1 or not self._save_obs_next:
            return self._weighed(super().__getitem__(index), index, None)  # which calls get()
        return self._made(index, self._rows.read(index))

    def _made(self, index: Any, found: Any) -> Any:
        """A batch of what the replay has at an index, and of what this process has there."""
        get = super().get
        here = {key: get(index, key, Batch(), 1) for key in {*self._meta.keys(), "info", "policy"}}
        return self._weighed(Batch({**here, **at_index(found.data, index)}), index, found)

    def _weighed(self, batch: Any, index: Any, found: Any) -> Any:
        return batch

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """What is at an index under a key, stacked if that is wanted: as in Tianshou."""
        if key not in _STORED or (key == "obs_next" and not self._save_obs_next):
            return super().get(index, key, default_value, stack_num)
        number = self.stack_num if stack_num is None else stack_num
        indices = [np.asarray(index)]
        for _ in range(number - 1):
            indices.insert(0, self.prev(np.atleast_1d(indices[0])).reshape(indices[0].shape))
        parts = [Batch(at_index(self._rows.read(one).data, one))[key] for one in indices]
        if number == 1:
            return parts[0]
        return Batch.stack(parts, indices[0].ndim) if isinstance(parts[0], Batch) else np.stack(parts, indices[0].ndim)

    def __getattr__(self, key: str) -> Any:
        found = super().__getattr__(key)
        return Column(self, key) if key in _STORED else found

    def hasnull(self) -> bool:
        """Whether a step has a NaN. It is looked for when steps come, and not in all of them each time."""
        found = self.sample_indices(0)
        return len(found) > 0 and bool(self._rows.null[found].any() or self._meta[found].hasnull())

    # -- all of it

    def reset(self, keep_statistics: bool = False) -> None:
        """Removes all steps."""
        super().reset(keep_statistics)
        self._rows.clear()

    def close(self) -> None:
        """Ends the replay. Idempotent."""
        self._rows.close()

    def set_array_at_key(self, seq: Any, key: str, index: Any = None, default_value: float | None = None) -> None:
        """Sets an array that is not in the replay, as in Tianshou."""
        if key in _STORED:
            self._refuse()
        super().set_array_at_key(seq, key, index, default_value)

    @classmethod
    def _refuse(cls, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError(
            "what is in a replay cannot be replaced, pickled or saved to HDF5: add buffer[:] to a buffer of Tianshou"
        )

    save_hdf5 = load_hdf5 = from_data = set_batch = dropnull = __reduce__ = _refuse


class PrioritizedVectorReplayBuffer(VectorReplayBuffer):
    """The same with priorities: Tianshou's ``PrioritizedVectorReplayBuffer``.

    Args:
        total_size, buffer_num, kwargs: As for :class:`VectorReplayBuffer`.
        alpha, beta: The exponents of the priorities, and of the importance weights.
        weight_norm: Divide the weights of a batch by the largest of them.

    """

    def __init__(
        self, total_size: int, buffer_num: int, *, alpha: float, beta: float, weight_norm: bool = True, **kwargs: Any
    ) -> None:
        self._alpha, self._beta, self._weight_norm = alpha, beta, weight_norm
        super().__init__(total_size, buffer_num, **kwargs)

    def _selector(self) -> Selector:
        return Prioritized(self._alpha, beta=1.0)  # which set_beta() turns into others

    def set_beta(self, beta: float) -> None:
        """The exponent of the importance weights from now on."""
        self._beta = beta

    def get_weight(self, index: Any) -> Any:
        """The importance weights of steps, at most 1."""
        return self._weights(index, self._rows.read(index))

    def update_weight(self, index: Any, new_weight: Any) -> None:
        """Gives steps the absolute values of these as priorities; a bit is added, so that none is 0."""
        self._rows.update(index, np.abs(to_numpy(new_weight)) + np.finfo(np.float32).eps)

    def _weighed(self, batch: Any, index: Any, found: Any) -> Any:
        weight = self._weights(index, found or self._rows.read(index))
        batch.weight = weight / np.max(weight) if self._weight_norm else weight
        return batch

    def _weights(self, index: Any, found: Any) -> Any:
        return at_index({"weight": found.weight**self._beta}, index)["weight"]
