"""TorchRL: a replay buffer for its trainers and collectors, with priorities that several processes share.

It is used as TorchRL's own::

    buffer = ReplayBuffer(100_000, sampler=Prioritized(0.6, 0.4), batch_size=256)
    collector = MultiAsyncCollector(..., replay_buffer=buffer)
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from echo_shm.missing import needs

with needs("adapters.torchrl", "TorchRL", "tensordict", "torch"):
    import torch
    from tensordict import TensorDict, TensorDictBase

from echo_shm.adapters.tensordicts import arrays, tensors
from echo_shm.adapters.torchrl_replay import INDEX, WEIGHT, Shared
from echo_shm.replay import Fifo, Lifo, Prioritized, Replay, Softmax, Table, Uniform

__all__ = ["ReplayBuffer"]


class ReplayBuffer(Shared):
    """What TorchRL's ``TensorDictReplayBuffer`` is for trainers and collectors, over an echo_shm :class:`Replay`.

    It pickles: in another process it writes into the same replay, through a ring, and may draw from it and update it.
    So a collector's workers extend it while the learner samples and sets priorities. The process that made it has
    the replay. A thread of it stores what the others send. When it closes, or ends, the replay ends.

    Args:
        capacity: Most steps. The oldest ones go.
        example: A TensorDict of one step, or of several. Each later step has the same leaves, all of them tensors.
            None: the first TensorDict that comes; until then the buffer does not pickle.
        sampler: ``Uniform()``, ``Prioritized(alpha, beta)``, or another one.
        batch_size: Of :meth:`sample` and of iterations. None: it is given with each call.
        priority_key: Where priorities are in what comes to :meth:`extend` and :meth:`update_tensordict_priority`.
        eps: Is added to each priority.
        timeout: Seconds that :meth:`sample` waits for the first step; None: no limit.
        store, name, options: As for :class:`Replay`. ``thread=True`` is the default here.

    Attributes:
        beta: The exponent of the importance weights. None: the sampler's. It may be changed at any time, in the process
            that made the buffer.

    Raises:
        TypeError, ValueError, SegmentError: As for :class:`Replay`.
        KeyError: A leaf of the example is no tensor. TypeError: It is of a dtype that numpy does not have.

    TorchRL's transforms are not for it: give them to the environments.
    """

    #: What collectors and trainers ask of a buffer's storage, which is the buffer itself.
    shared, ndim, device = True, 1, torch.device("cpu")
    beta: float | None = None

    def __init__(
        self,
        capacity: int,
        example: TensorDictBase | None = None,
        *,
        sampler: Uniform | Prioritized | Softmax | Fifo | Lifo | None = None,
        batch_size: int | None = None,
        priority_key: str | tuple[str, ...] = "td_error",
        eps: float = 1e-8,
        timeout: float | None = 60.0,
        store: Literal["memory", "shm"] | str = "memory",
        name: str | None = None,
        **options: Any,
    ) -> None:
        all_options = {"thread": True, "store": store, "name": name, **options}
        settings = batch_size, priority_key, eps, timeout
        super().__init__(Table("default", sampler=sampler), capacity, all_options, settings, example)

    # -- in

    def extend(self, data: TensorDictBase, *, update_priority: bool | None = None) -> None:
        """Stores copies of the steps of a TensorDict, of any batch size; in another process, sends them.

        What is under ``priority_key`` becomes their priorities, if it is there and ``update_priority`` is not False.
        Otherwise they have the highest one so far. No indices are returned: :meth:`sample` says them.

        Raises:
            KeyError: A leaf is missing, or there is one that the example does not have.
            SpecMismatchError, TypeError: A leaf has another dtype or shape, or a dtype that numpy does not have.
            ValueError: What comes first has no rows.
            ConnectionClosedError: The replay is closed.

        """
        if self._there is None:
            self._begin(data)
        data = data if data.ndim == 1 else data.reshape(-1)
        given = data.get(self._priority_key, None) if update_priority is not False else None
        priorities = None if given is None else self._priorities(given, len(data))
        self._writes.extend(arrays(self._form, self._steps(data)), priorities)

    def add(self, data: TensorDictBase) -> None:
        """Stores a copy of one step, a TensorDict without batch size, as :meth:`extend` does."""
        self.extend(data.unsqueeze(0))

    # -- out

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draws steps.

        Returns:
            A TensorDict of that batch size. Its tensors are the batch's own memory on the CPU, which nobody else
            writes to. Beside the steps' leaves it has ``"index"``, int64, for :meth:`update_priority`; and where the
            sampler goes by priorities, ``"priority_weight"``, float32, at most 1. With ``return_info``, the TensorDict
            and a dict of these two. In another process, the batch was drawn a little ahead.

        Raises:
            RuntimeError: There is no batch size, the replay is closed, or it is not known yet what a step has.
            TimeoutError: No step came in time, or nobody is there who could bring one.

        """
        n = self._batch_size if batch_size is None else batch_size
        if n is None:
            raise RuntimeError("batch_size: use ReplayBuffer(..., batch_size=...), or sample(batch_size)")
        if self._there is None:
            raise RuntimeError("sample(): the buffer is empty: use extend() first")
        if isinstance(self._there, Replay):
            batch = self._there.sample(n, timeout=self._timeout, beta=self.beta)
        else:
            if n not in self._batches:
                self._batches[n] = self._there.dataset_iter(n, prefetch=1, timeout=self._timeout)
            batch = next(self._batches[n], None)
        if batch is None:
            raise RuntimeError("sample(): the replay is closed, or no batch came from its process in time")
        info = {INDEX: torch.from_numpy(batch.key.view(np.int64))}
        if self._prioritized:
            info[WEIGHT] = torch.from_numpy(batch.weight.astype(np.float32))
        data = TensorDict({**tensors(batch.data, n), **info}, [n])
        return (data, info) if return_info else data

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Samples without end."""
        while True:
            yield self.sample()

    # -- priorities

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Gives the steps of a sample the priorities that are under ``priority_key``. Without such a sampler: nothing.

        Of several numbers for a step the highest counts. Steps that are gone are ignored.

        Raises:
            KeyError: There are none.
            ValueError: One is negative, or not finite.

        """
        if not self._prioritized:
            return
        given = data.get(self._priority_key, None)
        if given is None:
            raise KeyError(f"{self._priority_key!r} is not in the sample: set priority_key to where the loss writes it")
        self.update_priority(data.get(INDEX), given)

    def update_priority(self, index: torch.Tensor, priority: Any) -> None:
        """Gives steps priorities by the indices of :meth:`sample`, of shape ``(n,)`` or ``(n, ...)``: a number or n."""
        if self._prioritized:
            keys = np.ascontiguousarray(index.reshape(len(index), -1)[:, 0].cpu().numpy()).view(np.uint64)
            self._there.update(keys, self._priorities(priority, len(keys)))

    def _priorities(self, given: Any, n: int) -> Any:
        tensor = torch.as_tensor(given).detach().to("cpu", torch.float64)
        tensor = tensor.expand(n) if tensor.ndim == 0 else tensor.reshape(n, -1).amax(1)
        return tensor.numpy() + self._eps

    # -- looking

    def __len__(self) -> int:
        return 0 if self._there is None else int(self._there.info("default").size)

    @property
    def write_count(self) -> int:
        """How many steps came since the last :meth:`empty`; in another process, up to a tenth of a second ago."""
        return 0 if self._there is None else int(self._there.info("default").inserted)

    @property
    def batch_size(self) -> int | None:
        """Of :meth:`sample` and of iterations."""
        n: int | None = self._batch_size
        return n

    @property
    def storage(self) -> "ReplayBuffer":
        """The buffer itself: it has the ``device`` of its samples."""
        return self

    _storage = storage

    @property
    def initialized(self) -> bool:
        """Whether it is known what a step has."""
        return self._there is not None
