"""TorchRL's shared-memory scheme for weights, and a state dict in shared memory under a lock.

Runs in an environment that has torchrl, tensordict and torch alone.
"""

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.weight_update import SharedMemWeightSyncScheme

from bench import weights_program as program
from bench.replay_program import Leaves, Measurement, Sizes
from bench.weights_program import Publish, Readers

#: A reader of the state dict looks for a new version that often (seconds), as a worker does between two steps.
_LOOK = 0.001


_THREADS = torch.get_num_threads()


class _Model(torch.nn.Module):
    """A module with such parameters."""

    def __init__(self, params: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in params.items():
            self.register_parameter(name, torch.nn.Parameter(tensor))


def _tensors(params: Leaves) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(leaf) for name, leaf in params.items()}


def _empty_model(shapes: dict[str, tuple[int, ...]]) -> _Model:
    """With memory of its own, all pages there."""
    return _Model({name: torch.ones(shape) for name, shape in shapes.items()})


def _shapes(params: Leaves) -> dict[str, tuple[int, ...]]:
    return {name: leaf.shape for name, leaf in params.items()}


def _ways(publish: Publish) -> list[Publish]:
    """With one thread, and with all: on a busy machine they wait for each other."""

    def way(threads: int) -> Publish:
        def work() -> None:
            torch.set_num_threads(threads)
            publish()

        return work

    return [way(threads) for threads in sorted({1, _THREADS})]


# --- TorchRL ----------------------------------------------------------------------------------------------------------


class _Scheme(SharedMemWeightSyncScheme):  # type: ignore[misc]
    """Says when the weights were applied: just before the acknowledgement."""

    stamp: Callable[[], None] | None = None

    def _send_ack(self, message: str = "updated") -> None:
        if self.stamp is not None:
            self.stamp()
        super()._send_ack(message)

    def of_worker(self, number: int) -> "_Scheme":
        """The same with the queues of one worker: those of 64 are more than can be passed to a process."""
        mine = copy.copy(self)
        for name in ("_weight_init_queues", "_instruction_queues", "_ack_queues"):
            setattr(mine, name, {number: getattr(self, name)[number]})
        mine._shared_transport = copy.copy(self._shared_transport)
        mine._shared_transport._weight_queues = mine._weight_init_queues
        mine._shared_transport._params_map = mine._shared_transport._unique_weights = None
        return mine


def _apply(
    number: int, stamp: Callable[[], None], scheme: _Scheme, shapes: dict[str, tuple[int, ...]], private: bool
) -> None:
    torch.set_num_threads(1)
    model = _empty_model(shapes)
    scheme.stamp = stamp
    scheme.init_on_receiver(model_id="policy", model=model, worker_idx=number)
    scheme.connect(worker_idx=number)
    if private:  # connect() has put the model's parameters into the shared memory
        TensorDict.from_module(model).clone().to_module(model)
    stamp()
    while True:  # a thread of the scheme's applies the weights
        time.sleep(3600)


@contextlib.contextmanager
def _sent(params: Leaves, count: int, private: bool = False) -> Iterator[tuple[Readers, list[Publish]]]:
    context = program.context("bench.weights_torchrl", "torchrl.data", "torch.distributed.rpc")
    weights = TensorDict.from_module(_Model(_tensors(params)))
    scheme = _Scheme()
    # A clone: otherwise the learner's own parameters would be the shared memory, and nothing would be copied to it.
    scheme.init_on_sender(
        model_id="policy", weights=weights.clone(), devices=[torch.device("cpu")] * count, ctx=context
    )
    arguments = [(scheme.of_worker(number), _shapes(params), private) for number in range(count)]
    with program.readers(context, _apply, arguments) as running:
        scheme.connect()
        running.await_all()
        yield running, _ways(lambda: scheme.send(weights))


# --- a state dict under a lock, as in sample-factory ------------------------------------------------------------------


def _load(
    number: int,
    stamp: Callable[[], None],
    lock: Any,
    shared: dict[str, torch.Tensor],
    version: torch.Tensor,
    shapes: dict[str, tuple[int, ...]],
) -> None:
    torch.set_num_threads(1)
    model = _empty_model(shapes)
    mine = 0
    stamp()
    while True:
        if version.item() == mine:
            time.sleep(_LOOK)
            continue
        with lock:
            mine = int(version.item())
            model.load_state_dict(shared)
        stamp()


@contextlib.contextmanager
def _locked(params: Leaves, count: int) -> Iterator[tuple[Readers, list[Publish]]]:
    context = program.context("bench.weights_torchrl", "torchrl.data", "torch.distributed.rpc")
    weights = _tensors(params)
    shared = {name: tensor.clone().share_memory_() for name, tensor in weights.items()}
    version = torch.zeros((), dtype=torch.int64).share_memory_()
    lock = context.Lock()

    def publish() -> None:
        with lock:
            for name, tensor in weights.items():
                shared[name].copy_(tensor)
            version.add_(1)

    arguments = [(lock, shared, version, _shapes(params))] * count
    with program.readers(context, _load, arguments) as running:
        running.await_all()
        yield running, _ways(publish)


ROWS: dict[str, Callable[[Sizes], Measurement]] = {
    "weights sent": program.receive(_sent),
    "weights sent and copied": program.receive(functools.partial(_sent, private=True)),
    "weights locked": program.receive(_locked),
}
