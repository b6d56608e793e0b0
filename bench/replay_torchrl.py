"""TorchRL, set up as its documentation shows. Runs in an environment that has torchrl, tensordict and torch alone.

What it is given is made before the clock starts: a TensorDict for each step and each block.
"""

import contextlib
import multiprocessing
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch.distributed import rpc
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    RemoteTensorDictReplayBuffer,
    ReplayBuffer,
)
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, SliceSampler

from bench import replay_program as program
from bench import weights_torchrl
from bench.replay_program import Leaves, Measurement, Sizes

_STORAGES = {"LazyTensorStorage": LazyTensorStorage, "LazyMemmapStorage": LazyMemmapStorage, "ListStorage": ListStorage}

_THREADS = torch.get_num_threads()


def _stacked(leaves: Leaves) -> TensorDict:
    """A TensorDict of many steps."""
    n = len(next(iter(leaves.values())))
    return TensorDict({name: torch.from_numpy(leaf) for name, leaf in leaves.items()}, batch_size=[n])


def _steps(leaves: Leaves) -> list[TensorDict]:
    """A TensorDict for each step."""
    return [
        TensorDict({name: torch.from_numpy(leaf) for name, leaf in step.items()}, batch_size=[])
        for step in program.steps(leaves)
    ]


def _fill(buffer: Any, n: int, make: Callable[[int], Leaves]) -> Any:
    for block in program.filling(n, make):
        buffer.extend(_stacked(block))
    return buffer


def _uniform(n: int, make: Callable[[int], Leaves]) -> Any:
    return _fill(ReplayBuffer(storage=LazyTensorStorage(n), batch_size=program.BATCH_SIZE), n, make)


def _read(batch: Any) -> float:
    return program.read(leaf.numpy() for leaf in batch.values())


def _rate(work: Callable[[], Any], units: int, seconds: float) -> list[float]:
    """Units a second, with one thread or with all, whichever is faster: on a busy machine they wait for each other."""
    rates = []
    for threads in {1, _THREADS}:
        torch.set_num_threads(threads)
        rates.append(program.rate(work, units, seconds / 2))
    return max(rates)


def _add(buffer: Any, leaves: Leaves, seconds: float) -> Measurement:
    steps, add = _steps(leaves), buffer.add

    def work() -> None:
        for step in steps:
            add(step)

    return lambda: _rate(work, len(steps), seconds)


def _sample(buffer: Any, seconds: float) -> Measurement:
    return lambda: _rate(lambda: _read(buffer.sample()), 1, seconds)


def _extend_atari(sizes: Sizes) -> Measurement:
    buffer, block = _uniform(sizes.atari, program.atari), _stacked(program.atari(program.EXTENDED))
    return lambda: _rate(lambda: buffer.extend(block), program.EXTENDED, sizes.seconds)


def _set_priorities(buffer: Any, n: int) -> None:
    buffer.update_priority(torch.arange(n), torch.from_numpy(program.priorities(n).astype(np.float32)))


def _errors() -> list[torch.Tensor]:
    return [torch.from_numpy(error.astype(np.float32)) for error in program.td_errors()]


def _prioritized(sizes: Sizes) -> Measurement:
    # Of its two classes, the one that does less and is faster: the other adds weights and indices to the TensorDict.
    buffer = PrioritizedReplayBuffer(
        alpha=program.ALPHA,
        beta=program.BETA,
        storage=LazyTensorStorage(sizes.cartpole),
        batch_size=program.BATCH_SIZE,
    )
    _fill(buffer, sizes.cartpole, program.cartpole)
    _set_priorities(buffer, sizes.cartpole)
    errors = _errors()

    def work() -> None:
        for error in errors:
            batch, info = buffer.sample(return_info=True)
            _read(batch)
            buffer.update_priority(info["index"], error)

    return lambda: _rate(work, len(errors), sizes.seconds)


def _rfc(storage: str) -> Callable[[Sizes], Measurement]:
    """Bare tensors, which are faster here than a TensorDict of one tensor."""

    def prepare(sizes: Sizes) -> Measurement:
        buffer = ReplayBuffer(storage=_STORAGES[storage](program.RFC_STORED), batch_size=program.RFC_BATCH_SIZE)
        buffer.extend(torch.from_numpy(program.rfc()))
        return lambda: _rate(lambda: buffer.sample().numpy().item(0), 1, sizes.seconds)

    return prepare


def _sequences(sizes: Sizes, cached: bool) -> Measurement:
    # Its documentation calls the end's key faster than the episode's.
    sampler = SliceSampler(slice_len=program.LENGTH, end_key="done", truncated_key=None, cache_values=cached)
    storage = LazyTensorStorage(sizes.cartpole)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=program.SEQUENCES * program.LENGTH)
    return _sample(_fill(buffer, sizes.cartpole, program.episodes), sizes.seconds)


@contextlib.contextmanager
def _running(target: Any, arguments: list[tuple[Any, ...]], counts: list[Any]) -> Iterator[None]:
    """Processes that add for ever, for the length of the block; each has added something when it is entered."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=args, daemon=True) for args in arguments]
    try:
        for process in processes:
            process.start()
        while not all(count.value for count in counts):
            if any(process.exitcode is not None for process in processes):
                raise RuntimeError("a worker ended at once; its traceback is on stderr")
            time.sleep(0.01)
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _counts() -> list[Any]:
    context = multiprocessing.get_context("spawn")
    return [context.Value("Q", 0, lock=False) for _ in range(program.WORKERS)]


def _timed(cycle: Callable[[], Any], counts: list[Any], seconds: float) -> list[float]:
    cycle()
    before, batches, start = sum(count.value for count in counts), 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        cycle()
        batches += 1
    return [(sum(count.value for count in counts) - before) / elapsed, batches / elapsed]


# --- shared=True: uniform only, for a PrioritizedSampler refuses to be sent to another process -----------------------


def _add_for_ever(buffer: Any, count: Any) -> None:
    torch.set_num_threads(1)
    steps = _steps(program.cartpole(1000))
    while True:
        for step in steps:
            buffer.add(step)
            count.value += 1


def _with_workers(sizes: Sizes) -> Measurement:
    def measure() -> list[float]:
        # A new one each time: a process that is killed may hold its lock.
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(sizes.cartpole, shared_init=True), batch_size=program.BATCH_SIZE, shared=True
        )
        _fill(buffer, sizes.cartpole, program.cartpole)
        counts = _counts()
        with _running(_add_for_ever, [(buffer, count) for count in counts], counts):
            return _timed(lambda: _read(buffer.sample()), counts, sizes.seconds)

    return measure


# --- torch.distributed.rpc: prioritized ------------------------------------------------------------------------------

_remote_buffer: Any = None


def _add_here(step: TensorDict) -> None:
    _remote_buffer.add(step)


def _join(name: str, rank: int, port: int) -> None:
    os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=program.WORKERS)
    rpc.init_rpc(name, rank=rank, world_size=1 + program.WORKERS, rpc_backend_options=options)


def _add_remotely(rank: int, port: int, count: Any) -> None:
    torch.set_num_threads(1)
    _join(f"worker{rank}", rank, port)
    steps = _steps(program.cartpole(1000))
    while True:
        for step in steps:
            rpc.rpc_sync("learner", _add_here, args=(step,))
            count.value += 1


def _with_remote_workers(sizes: Sizes) -> Measurement:
    """For one measurement: rpc does not start a second time in a process whose peers were killed."""

    def measure() -> list[float]:
        global _remote_buffer
        buffer = _remote_buffer = RemoteTensorDictReplayBuffer(
            storage=LazyTensorStorage(sizes.cartpole),
            sampler=PrioritizedSampler(sizes.cartpole, program.ALPHA, program.BETA),
            batch_size=program.BATCH_SIZE,
        )
        _fill(buffer, sizes.cartpole, program.cartpole)
        _set_priorities(buffer, sizes.cartpole)
        errors, counts, cycles = _errors(), _counts(), 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]

        def cycle() -> None:
            nonlocal cycles
            batch, info = buffer.sample(return_info=True)
            _read(batch)
            buffer.update_priority(info["index"], errors[cycles % len(errors)])
            cycles += 1

        arguments = [(rank, port, count) for rank, count in enumerate(counts, 1)]
        joining = threading.Thread(
            target=_join, args=("learner", 0, port), daemon=True
        )  # it returns when all are there
        joining.start()
        with _running(_add_remotely, arguments, counts):
            return _timed(cycle, counts, sizes.seconds)

    return measure


ROWS: dict[str, Callable[[Sizes], Measurement]] = {
    "add cartpole": lambda sizes: _add(
        _uniform(sizes.cartpole, program.cartpole), program.cartpole(1000), sizes.seconds
    ),
    "add atari": lambda sizes: _add(_uniform(sizes.atari, program.atari), program.atari(64), sizes.seconds),
    "extend atari": _extend_atari,
    "sample cartpole": lambda sizes: _sample(_uniform(sizes.cartpole, program.cartpole), sizes.seconds),
    "sample atari": lambda sizes: _sample(_uniform(sizes.atari, program.atari), sizes.seconds),
    "prioritized": _prioritized,
    **{f"rfc {storage}": _rfc(storage) for storage in _STORAGES},
    "sequences": lambda sizes: _sequences(sizes, cached=False),
    "sequences cached": lambda sizes: _sequences(sizes, cached=True),
    "workers": _with_workers,
    "remote workers": _with_remote_workers,
    **weights_torchrl.ROWS,
}

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    ours = sys.argv[1] == "weights locked"  # and needs torch alone
    program.serve(f"torch {version('torch')}" if ours else f"TorchRL {version('torchrl')}", ROWS)
