"""The adapter for PyTorch: tensors over batches, datasets for data loaders, and copies to a GPU.

No GPU is needed: ``Cuda`` stands for CUDA's runtime. It says what was called, and copies when a test says so.
"""

import contextlib
import gc
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.packages import need
from harness.programs import run_python
from harness.waiting import Until

need("torch")
need("ml_dtypes")

import ml_dtypes  # noqa: E402
import torch  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from echo_shm import Replay, Server, ShmClient  # noqa: E402
from echo_shm.adapters.torch import ReplayDataset, RingDataset, as_tensors, batches, pin_host_memory  # noqa: E402
from echo_shm.adapters.torch_copies import double_buffered  # noqa: E402

SIZE = 8
EXAMPLE = {"obs": np.zeros(16, np.float32), "act": np.zeros((), np.int64)}


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """What is read after its release is not a number, or -1."""
    monkeypatch.setenv("ECHO_SHM_POISON", "1")


def fill(server: Any, *numbers: int) -> None:
    """Batches whose leaves are those numbers."""
    for number in numbers:
        rows = np.full((SIZE, 16), number, np.float32)
        server.submit_many({"obs": rows, "act": np.full(SIZE, number)}, timeout=10)


def held(server: Server) -> int:
    """How many batches the server has."""
    gc.collect()
    return server._reader._reader.held


# --- tensors ---------------------------------------------------------------------


def test_tensors_share_the_memory_and_hold_the_batch():
    """A tensor reads the ring itself, without a warning, and its batch stays until the tensor goes."""
    with Server(EXAMPLE, SIZE, num_buffers=2) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        fill(server, 1)
        sample = server.sample(1)
        place = sample.batch["obs"].__array_interface__["data"][0]
        made = as_tensors(sample)
        assert made.versions.tolist() == [0] * SIZE
        assert made.info is sample.info
        kept = made.batch["obs"]
        del sample, made
        fill(server, 2)
        assert server.sample(1).batch["act"][0] == 2
        assert (kept.data_ptr(), held(server)) == (place, 1)
        assert (kept == 1).all()
        del kept
        assert held(server) == 0


def test_extension_dtypes_become_pytorchs():
    """bfloat16 and float8 keep their bits; what PyTorch lacks is refused by the leaf's name."""
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        array = np.array([[1.5, -2.0, 0.25]], getattr(ml_dtypes, name))
        (tensor,) = as_tensors([array])
        assert tensor.dtype == getattr(torch, name)
        assert tensor.float().tolist() == [[1.5, -2.0, 0.25]]
        assert tensor.data_ptr() == array.__array_interface__["data"][0]
    for bad in (np.zeros(2, "M8[s]"), np.zeros(2, ">f4"), np.zeros(2, ml_dtypes.float6_e2m3fn)):
        with pytest.raises(TypeError, match=r"leaf \['a'\]\[1\] has dtype .*, of which PyTorch makes no tensor"):
            as_tensors({"a": (np.zeros(2), bad)})


# --- data loaders ------------------------------------------------------------------


def test_a_loader_without_workers_copies_nothing():
    """Its batches are views of the ring, and it ends when the producers have finished."""
    with Server(EXAMPLE, SIZE) as server:
        fill(server, 1, 2, 3)
        got = []
        for batch in DataLoader(RingDataset(server, until=Until(lambda: True)), batch_size=None):
            assert held(server) == 1
            got.append((int(batch["act"][0]), batch["obs"].shape, float(batch["obs"].min())))
    assert got == [(n, (SIZE, 16), n) for n in (1, 2, 3)]


def produce(client: Any, first: int, count: int) -> None:
    """Sends batches of those numbers."""
    for number in range(first, first + count):
        rows = np.full((SIZE, 16), number, np.float32)
        client.send_many({"obs": rows, "act": np.full(SIZE, number)})


@pytest.mark.watchdog(120)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_share_the_batches_and_end_with_the_producers(context):
    """Each batch comes once, from one of the loader's workers; the loop ends when the ring's workers have ended."""
    with Server(EXAMPLE, SIZE, num_buffers=3) as server, server.spawn(produce, 1, [0], [30], context="fork") as workers:
        dataset = RingDataset(server, until=workers, drop_last=False)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
        got = [batch["act"][:, None] * torch.ones(16) == batch["obs"] for batch in loader if len(batch["act"]) == SIZE]
        assert all(bool(one.all()) for one in got)
        del dataset, loader
    assert len(got) == 30


def test_a_killed_worker_ends_the_loop_and_loses_no_batch_of_the_ring():
    """The loader raises, nothing hangs, and what the dead worker had taken goes to another learner.

    In a process of its own, because torch's handler of SIGCHLD raises in whatever runs when the worker's death comes.
    """
    script = """
import os, signal, sys
from torch.utils.data import DataLoader
from echo_shm.adapters.torch import RingDataset
loader = DataLoader(
    RingDataset(sys.argv[1]), batch_size=None, num_workers=1, prefetch_factor=1, multiprocessing_context="fork"
)
iterator = iter(loader)
print(next(iterator)["act"].tolist())
try:
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    next(iterator)
except RuntimeError as error:
    print(error, flush=True)
os._exit(0)
"""
    with Server(EXAMPLE, SIZE, num_buffers=4) as server:
        fill(server, 1)
        first, raised = run_python(script, server.name).stdout.splitlines()[:2]
        assert first == str([1] * SIZE)
        assert "worker" in raised
        fill(server, 2)
        got = [int(server.sample(5).batch["act"][0])]
        while got[-1] != 2:  # the first one again, if its worker had not let go of it
            got.append(int(server.sample(5).batch["act"][0]))
        assert got in ([2], [1, 2])


def test_a_worker_ends_with_its_parent():
    """A loader's worker that waits for a batch does not outlive the process that it works for."""
    script = """
import os, signal, sys
import numpy as np
from torch.utils.data import DataLoader
from echo_shm.adapters.torch import RingDataset
it = iter(DataLoader(RingDataset(sys.argv[1]), batch_size=None, num_workers=1, multiprocessing_context="fork"))
next(it)
print(it._workers[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with Server(EXAMPLE, SIZE) as server:
        fill(server, 1)
        done = run_python(script, server.name, status=-signal.SIGKILL)
        pid = int(done.stdout)
        from harness.waiting import until

        until(lambda: not Path(f"/proc/{pid}").exists() or "Z (zomb" in Path(f"/proc/{pid}/status").read_text())


def test_a_replays_batches_come_from_workers_and_without():
    """Both give Batch tuples of tensors; their keys update priorities; workers need a replay that has a thread."""
    with Replay(EXAMPLE, 100, seed=1) as replay:
        for number in range(50):
            replay.add({"obs": np.full(16, number, np.float32), "act": number})
        batch = next(iter(DataLoader(ReplayDataset(replay, 32), batch_size=None)))
        assert (batch.data["obs"] == batch.data["act"][:, None]).all()
        replay.update(batch.key, torch.rand(32))
        with pytest.raises(ValueError, match=r"Replay\(\.\.\., thread=True\), or num_workers=0"):
            next(iter(DataLoader(ReplayDataset(replay, 32), batch_size=None, num_workers=1)))
    with Replay(EXAMPLE, 100, seed=1, thread=True) as replay:
        for number in range(50):
            replay.add({"obs": np.full(16, number, np.float32), "act": number})
        loader = iter(DataLoader(ReplayDataset(replay, 32), batch_size=None, num_workers=2))
        for _ in range(4):
            batch = next(loader)
            assert batch.key.shape == (32,)
            assert (batch.data["obs"] == batch.data["act"][:, None]).all()
        del loader


def test_bad_sources_are_refused():
    """Each message says what it takes, and where the other kind goes."""
    with Replay(EXAMPLE, 10) as replay, Server(EXAMPLE, SIZE) as server:
        for make, words in (
            (lambda: RingDataset(replay), r"got Replay; a Replay goes into ReplayDataset"),
            (lambda: ReplayDataset(server, 4), r"got Server; a Server goes into RingDataset"),
            (lambda: RingDataset(server, until=3), "until is a WorkerGroup"),
            (lambda: batches(replay), r"a Replay needs batch_size="),
            (lambda: batches(server, batch_size=3), r"nothing else takes them"),
            (lambda: batches(3), "takes a Server, a Replay or an iterable of batches, got int"),
            (lambda: batches([], until=Until(lambda: True)), "until= is for a Server, got a list"),
            (lambda: batches(server, pin_host_memory=True), "for a Server and a CUDA device, got Server and 'cpu'"),
        ):
            with pytest.raises(TypeError, match=words):
                make()


# --- devices -----------------------------------------------------------------------


def test_batches_on_the_cpu_are_views():
    """A server's, a replay's and an iterable's come as they are, and are let go in the loop."""
    with Server(EXAMPLE, SIZE, num_buffers=2) as server:
        fill(server, 1, 2)
        server_thread = threading.Thread(target=lambda: (fill(server, 3, 4), server.close()))
        server_thread.start()
        got = [int(batch["act"][0]) for batch, info in batches(server)]
        server_thread.join()
    assert got == [1, 2, 3, 4]
    with Replay(EXAMPLE, 10) as replay:
        replay.add(EXAMPLE)
        assert next(batches(replay, batch_size=4)).key.tolist() == [next(batches(replay, batch_size=1)).key[0]] * 4
        assert next(batches(replay.dataset_iter(3))).data["obs"].shape == (3, 16)
    assert [one[0].tolist() for one in batches([[np.ones(1)], [np.zeros(1)]])] == [[1.0], [0.0]]


class Stream:
    """A stream whose copies are made when somebody asks: ``run(n)`` makes the next n."""

    def __init__(self, *_: Any) -> None:
        self.todo: list[Any] = []
        self.done = 0

    def run(self, up_to: int) -> None:
        """Makes the copies up to that number."""
        while self.done < up_to:
            self.todo[self.done]()
            self.todo[self.done] = None  # it refers to what it has copied from
            self.done += 1


class Cuda(TorchFunctionMode):
    """CUDA as the adapter sees it. ``calls`` has what was called, in order; tensors "on" the device are the CPU's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuses: int = 0) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self.now = self.default = Stream()
        self.side: Any = None
        self.registered: dict[int, int] = {}
        self.refuses = refuses
        outer = self

        class Event:
            def __init__(self) -> None:
                self.at: int | None = None

            def record(self, stream: Stream) -> None:
                self.stream, self.at = stream, len(stream.todo)

            def query(self) -> bool:
                return self.stream.done >= self.at

            def synchronize(self) -> None:
                outer.calls.append(("synchronize", self.at))
                self.stream.run(self.at)

        @contextlib.contextmanager
        def stream(one: Stream) -> Any:
            before, outer.now, outer.side = outer.now, one, one
            yield
            outer.now = before

        self.default.wait_event = lambda event: self.calls.append(("wait", event.at))  # type: ignore[attr-defined]
        record = lambda tensor, stream: self.calls.append(("record_stream", stream is self.default))  # noqa: E731
        monkeypatch.setattr(torch.Tensor, "record_stream", record)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.default)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and torch.device(kwargs.get("device", "cpu")).type == "cuda":
            return func(*args, **{**kwargs, "device": "cpu"})
        if func is torch.Tensor.copy_:
            assert kwargs == {"non_blocking": True}
            made, source = args
            made.fill_(7)  # it is not there yet
            self.now.todo.append(lambda: made.numpy().__setitem__(..., source.numpy()))
            self.calls.append(("copy", len(self.now.todo)))
            return made
        return func(*args, **kwargs)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        """As CUDA's: 712 if the memory is registered."""
        assert flags == 1
        self.calls.append(("register", address, size))
        code = self.refuses or (712 if address in self.registered else 0)
        self.registered |= {} if code else {address: size}
        return code

    def cudaHostUnregister(self, address: int) -> int:
        """As CUDA's, of memory that must still be mapped."""
        begins = [line.split("-")[0] for line in Path("/proc/self/maps").read_text().splitlines()]
        assert f"{address:08x}" in begins, "it was unmapped before"
        self.calls.append(("unregister", address, self.registered.pop(address)))
        return 0


def test_the_next_copy_is_under_way_and_each_lease_ends_with_its_copy(monkeypatch):
    """While the user has batch k, the copy of k+1 has begun; a batch stays in the ring until its copy is done."""
    cuda = Cuda(monkeypatch)
    with Server(EXAMPLE, SIZE, num_buffers=4) as server, cuda:
        fill(server, 1, 2, 3)
        loop = batches(server, "cuda")
        first, _ = next(loop)
        flat = [("copy", 1), ("copy", 2), ("copy", 3), ("copy", 4)]  # two leaves of two batches
        assert cuda.calls == [*flat, ("wait", 2), ("record_stream", True), ("record_stream", True)]
        assert held(server) == 2
        assert (first["obs"] == 7).all()
        cuda.side.run(2)
        assert (first["obs"] == 1).all()
        second, _ = next(loop)  # lets go of the first, and begins the third
        assert cuda.calls[-5:] == [("copy", 5), ("copy", 6), ("wait", 4), *[("record_stream", True)] * 2]
        assert held(server) == 2
        cuda.calls.clear()
        third, _ = next(loop)  # there is no fourth: nothing waits
        assert cuda.calls == [("wait", 6), *[("record_stream", True)] * 2]
        server.close()
        assert next(loop, None) is None  # before it waited for a fourth, the copies were done
        assert cuda.calls[-2:] == [("synchronize", 4), ("synchronize", 6)]
        assert held(server) == 0
    assert [one["obs"].unique().tolist() for one in (first, second, third)] == [[1], [2], [3]]


def test_a_loop_that_is_left_waits_for_its_copies(monkeypatch):
    """No copy reads a batch that was released, though the user breaks the loop."""
    cuda = Cuda(monkeypatch)
    with Server(EXAMPLE, SIZE) as server, cuda:
        fill(server, 1, 2)
        loop = batches(server, torch.device("cuda", 0))
        batch, _ = next(loop)
        assert held(server) == 2
        loop.close()
        assert held(server) == 0
        assert (batch["obs"] == 1).all()


def test_an_error_of_the_next_batch_comes_after_this_one(monkeypatch):
    """What was taken is not lost by it."""
    cuda = Cuda(monkeypatch)

    def failing():
        raise ValueError("a worker failed")

    taken = iter([lambda: [{"obs": torch.ones(3)}], failing])
    with cuda:
        loop = double_buffered(lambda wait: next(taken)(), torch.device("cuda", 0))
        assert next(loop)["obs"].shape == (3,)
        with pytest.raises(ValueError, match="a worker failed"):
            next(loop)


def test_memory_is_pinned_once_and_unpinned_before_it_is_unmapped(monkeypatch):
    """The whole ring is registered, until the last array over it is gone."""
    cuda = Cuda(monkeypatch)
    with Server(EXAMPLE, SIZE) as server, cuda:
        fill(server, 1, 2, 3)
        loop = batches(server, "cuda", pin_host_memory=True)
        next(loop)
        pin_host_memory(server)
        ((_, address, size),) = [call for call in cuda.calls if call[0] == "register"]
        view = server.sample(1).batch["obs"]
        loop.close()
    del server, loop
    gc.collect()
    assert cuda.registered == {address: size}
    del view
    gc.collect()
    assert cuda.calls[-1] == ("unregister", address, size)


def test_a_refused_registration_says_what_to_do(monkeypatch):
    """The error has CUDA's number. What unregisters works once, and the memory can be registered again."""
    cuda = Cuda(monkeypatch, refuses=2)
    with Server(EXAMPLE, SIZE) as server:
        with pytest.raises(RuntimeError, match=r"cudaHostRegister returned error 2.*ulimit -l"):
            pin_host_memory(server)
        cuda.refuses = 0
        undo = pin_host_memory(server)
        undo()
        undo()
        pin_host_memory(server)
        assert [call[0] for call in cuda.calls] == ["register", "register", "unregister", "register"]


# --- all of it ---------------------------------------------------------------------


def guess(client: ShmClient, seed: int) -> None:
    """Plays a bandit at random, whose better arm stands in the observation."""
    rng = np.random.default_rng(seed)
    for _ in range(300):
        obs, act = rng.standard_normal((SIZE, 16), np.float32), rng.integers(2, size=SIZE)
        client.send_many({"obs": obs, "act": act})


def test_a_policy_learns_from_a_loader():
    """The values of a bandit's arms are learned from batches of the ring; it then chooses the better arm."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Linear(16, 2)
    with Server(EXAMPLE, 4 * SIZE, num_buffers=8) as server, server.spawn(guess, 2, [0, 1], context="fork") as workers:
        for batch in DataLoader(RingDataset(server, until=workers), batch_size=None):
            reward = ((batch["obs"][:, 3] > 0) == (batch["act"] == 1)).float()
            loss = (net(batch["obs"]).gather(1, batch["act"][:, None])[:, 0] - reward).square().mean()
            with torch.no_grad():
                for weight, grad in zip(net.parameters(), torch.autograd.grad(loss, [*net.parameters()]), strict=True):
                    weight -= 0.1 * grad
    obs = torch.randn(500, 16)
    assert ((obs[:, 3] > 0) == (net(obs).argmax(1) == 1)).float().mean() > 0.9


def test_a_missing_package_is_named():
    """One line says which extra to install."""
    done = run_python("import sys\nsys.modules['torch'] = None\nimport echo_shm.adapters.torch", status=1)
    assert done.stderr.splitlines()[-1].endswith("echo_shm.adapters.torch needs PyTorch: pip install 'echo-shm[torch]'")
