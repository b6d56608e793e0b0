"""A batch stays leased for as long as anything refers to its memory, and not longer."""

import copy
import gc
import os
import pickle
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from harness.programs import run_python
from harness.valid import problem_of
from harness.waiting import until

from echo_shm import BatchesHeldError, Server, ShmClient

EXAMPLE = {"obs": np.zeros(4, np.float32), "act": np.zeros((), np.int64)}


def row(value):
    """The sample of a number."""
    return {"obs": np.full(4, value, np.float32), "act": np.int64(value)}


def fill(server, start, n):
    """Submits n samples from start on, without waiting."""
    for i in range(start, start + n):
        server.submit(row(i), timeout=0)


def alone(monkeypatch):
    """Nobody else may drop a batch: pytest's own threads do not count, nor does JAX, which another test may import."""
    monkeypatch.setattr("echo_shm.ring.stuck.only_thread", lambda: True)
    monkeypatch.setattr("echo_shm.ring.stuck._ASYNCHRONOUS", ())


def held(server):
    """Batches that the server's own learner leases."""
    return server._reader._reader.held


HOLDERS = {
    "sample": lambda sample: sample,
    "tree": lambda sample: sample.batch,
    "leaf": lambda sample: sample.batch["obs"],
    "slice": lambda sample: sample.batch["obs"][1:, ::2],
    "transposed": lambda sample: sample.batch["obs"].T,
    "other dtype": lambda sample: sample.batch["obs"].view(np.uint8)[0],
    "memoryview": lambda sample: memoryview(sample.batch["obs"])[0:1],
    "pickle buffer": lambda sample: pickle.PickleBuffer(sample.batch["obs"]),
    "dlpack": lambda sample: np.from_dlpack(sample.batch["obs"]),
    "buffer": lambda sample: np.frombuffer(sample.batch["act"], np.int32),
    "broadcast": lambda sample: np.broadcast_to(sample.batch["act"], (3, 2)),
    "iterator": lambda sample: iter(sample.batch["obs"]),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS.keys())
def test_whatever_refers_to_a_batch_keeps_it(holder):
    """The batch cannot be overwritten before its last holder dies, and can be at once after."""
    with Server(EXAMPLE, 2, num_buffers=2, writable=True) as server:
        fill(server, 0, 4)
        kept = holder(server.sample(1))
        assert held(server) == 1
        assert server.sample(1).batch["act"].tolist() == [2, 3]
        gc.collect()
        with pytest.raises(TimeoutError):
            server.submit(row(9), timeout=0)
        del kept
        assert held(server) == 0
        fill(server, 4, 2)


def test_an_element_or_a_copy_keeps_nothing():
    """Numbers, copies and pickles have their own memory."""
    with Server(EXAMPLE, 2, num_buffers=2) as server:
        fill(server, 0, 2)
        sample = server.sample(1)
        number, row_of_one = sample.batch["act"][1], sample.batch["obs"].copy()[1]
        samples = [pickle.loads(pickle.dumps(sample, protocol)) for protocol in (2, 5)]
        samples.append(copy.deepcopy(sample))
        trees = [pickle.loads(pickle.dumps(sample.batch)), *(one.batch for one in samples)]
        del sample
        assert held(server) == 0
        fill(server, 2, 4)
        assert number == 1
        assert row_of_one.tolist() == [1] * 4
        for tree in trees:
            assert tree["act"].tolist() == [0, 1]
            assert tree["obs"].tolist() == [[0] * 4, [1] * 4]
        for one in samples:
            assert one.info.samples_inserted_total == 2
            one.release()
        assert server.sample(1).batch["act"].tolist() == [2, 3]


def test_a_short_batch_keeps_its_leases():
    """The last batch is a copy. What it was copied from stays leased as long, so it is not lost with this process."""
    with Server(EXAMPLE, 4, num_buffers=2) as server:
        fill(server, 0, 3)
        server.close()
        (sample,) = server.dataset_iter(drop_last=False)
        view = sample.batch["obs"][2]
        del sample
        assert held(server) == 1
        assert view.tolist() == [2] * 4
        del view
        assert held(server) == 0


def test_cycles_are_collected_before_a_learner_is_stuck():
    """A batch in a reference cycle comes back when the learner needs it."""
    with Server(EXAMPLE, 1, num_buffers=2) as server:
        fill(server, 0, 2)
        for _ in range(2):
            cycle = [server.sample(5)]
            cycle.append(cycle)
        del cycle
        assert held(server) == 2
        with pytest.raises(TimeoutError):
            server.sample(0)
        fill(server, 2, 2)


def test_a_learner_that_refers_to_everything_is_told(monkeypatch):
    """It hears within a second, and in the TimeoutError, how many it holds and what to do. Then it goes on."""
    alone(monkeypatch)
    with Server(EXAMPLE, 1, num_buffers=3) as server:
        fill(server, 0, 3)
        kept = [server.sample(1).batch["obs"] for _ in range(3)]
        with pytest.raises(TimeoutError, match="still refers to 3 of 3 batches"):
            server.sample(0)
        with pytest.raises(BatchesHeldError, match=r"still refers to 3 of 3 batches .*num_buffers"):
            server.sample()
        with pytest.raises(BatchesHeldError), server.lease():
            pytest.fail("entered")
        kept.clear()
        fill(server, 3, 1)
        assert server.sample(1).batch["act"].tolist() == [3]


def test_a_learner_that_only_looks_is_told_too(monkeypatch):
    """It never waits for long in one call, as a learner of several shards. A pause in which it asks for nothing counts
    for nothing."""
    alone(monkeypatch)
    with Server(EXAMPLE, 1, num_buffers=3) as server:
        fill(server, 0, 3)
        kept = [server.sample(1).batch["obs"] for _ in range(3)]
        clock = 0.0
        monkeypatch.setattr("echo_shm.ring.stuck.time", SimpleNamespace(monotonic=lambda: clock))

        def looks(seconds):
            nonlocal clock
            for _ in range(round(seconds / 0.1)):
                server._reader._held.check(server._reader._reader, clock)
                clock += 0.1

        looks(0.7)
        clock += 5.0
        looks(0.7)
        with pytest.raises(BatchesHeldError, match="still refers to 3 of 3 batches"):
            looks(0.3)
        kept.clear()
        looks(0.1)
        fill(server, 3, 3)
        kept = [server.sample(1).batch["obs"] for _ in range(3)]
        looks(0.7)
        assert len(kept) == 3


@pytest.mark.parametrize("each_call", [False, True])
def test_a_learner_is_told_however_long_a_look_takes(monkeypatch, each_call):
    """On a loaded machine a slice of the wait may take seconds, and the collection of cycles as well."""
    alone(monkeypatch)
    with Server(EXAMPLE, 1, num_buffers=3) as server:
        fill(server, 0, 3)
        kept = [server.sample(1).batch["obs"] for _ in range(3)]
        clock, collections = 100.0, 0

        def collect():
            nonlocal clock, collections
            clock += 2.0
            collections += 1

        monkeypatch.setattr("echo_shm.ring.stuck.time", SimpleNamespace(monotonic=lambda: clock))
        monkeypatch.setattr("echo_shm.ring.stuck.gc", SimpleNamespace(collect=collect))
        started = clock

        def looks():
            nonlocal clock
            for _ in range(5):
                server._reader._held.check(server._reader._reader, clock if each_call else started)
                clock += 0.3 if each_call else 1.0

        with pytest.raises(BatchesHeldError, match="still refers to 3 of 3 batches"):
            looks()
        assert len(kept) == 3
        assert collections == 1


def test_a_learner_is_not_told_of_what_the_collection_has_freed(monkeypatch):
    """The batch was in a reference cycle, and looks are so slow that the grace is over by then."""
    alone(monkeypatch)
    with Server(EXAMPLE, 1, num_buffers=3) as server:
        fill(server, 0, 3)
        kept = [server.sample(1).batch["obs"] for _ in range(3)]
        clock = 100.0
        monkeypatch.setattr("echo_shm.ring.stuck.time", SimpleNamespace(monotonic=lambda: clock))
        monkeypatch.setattr("echo_shm.ring.stuck.gc", SimpleNamespace(collect=kept.clear))
        for _ in range(3):
            server._reader._held.check(server._reader._reader, 100.0)
            clock += 1.0
        assert not kept


def test_a_learner_that_only_looks_is_told_however_large_its_heap_is(monkeypatch):
    """Each of its calls ends with a TimeoutError, for which cycles are collected, too."""
    alone(monkeypatch)
    with Server(EXAMPLE, 1, num_buffers=3) as server:
        fill(server, 0, 3)
        kept = [server.sample(1).batch["obs"] for _ in range(3)]
        clock = 100.0

        def collect():
            nonlocal clock
            clock += 2.0

        monkeypatch.setattr("echo_shm.ring.stuck.time", SimpleNamespace(monotonic=lambda: clock))
        monkeypatch.setattr("echo_shm.ring.stuck.gc", SimpleNamespace(collect=collect))

        def looks():
            nonlocal clock
            for _ in range(300):
                server._reader._held.check(server._reader._reader, clock)
                clock += 0.005
                assert server._reader._held.stuck_for_good(server._reader._reader) == 3

        with pytest.raises(BatchesHeldError, match="still refers to 3 of 3 batches"):
            looks()
        assert len(kept) == 3


def test_a_batch_that_comes_late_does_not_stop_producers(background):
    """With order="ready" an early batch may come after later ones. The loop refers to it while producers need it."""
    with (
        Server(EXAMPLE, 1, num_buffers=3, order="ready") as server,
        ShmClient(server.handle) as slow,
        ShmClient(server.handle) as fast,
    ):
        claim = slow.reserve()
        slot = claim.__enter__()
        fast.send_many({"obs": np.zeros((2, 4), np.float32), "act": np.array([1, 2])})
        last = [server.sample(1).batch["act"].item() for _ in range(2)]
        slot["obs"][...], slot["act"][...] = 0, 0
        claim.__exit__(None, None, None)
        late = server.sample(1)
        background(lambda: fast.send(row(3)))
        following = server.sample(30)
        assert [*last, late.batch["act"].item(), following.batch["act"].item()] == [1, 2, 0, 3]


def test_one_old_batch_is_enough_to_be_told(monkeypatch):
    """Producers fill batches in order. One that is kept stops the ring though others are free."""
    alone(monkeypatch)
    with Server(EXAMPLE, 1, num_buffers=3) as server:
        fill(server, 0, 3)
        first = server.sample(1).batch
        for _ in range(2):
            server.sample(1)
        with pytest.raises(BatchesHeldError, match="still refers to 1 of 3 batches"):
            server.sample()
        assert first["act"].tolist() == [0]


def test_a_slow_producer_is_no_held_batch(background, monkeypatch):
    """A learner that refers to its last batch waits for a producer that takes its time over the only other one."""
    alone(monkeypatch)
    with Server(EXAMPLE, 1, num_buffers=2) as server:
        fill(server, 0, 1)
        kept = server.sample(1)
        claimed = threading.Event()

        def write():
            with server._writer.reserve() as slot:
                slot["obs"][...], slot["act"][...] = 1, 1
                claimed.set()
                threading.Event().wait(1.5)

        writing = background(write)
        assert claimed.wait(30)
        assert server.sample(30).batch["act"].tolist() == [1]
        assert kept.batch["act"].tolist() == [0]
        writing.result()


def test_with_other_threads_it_is_a_warning(background):
    """Another thread may drop a batch: the learner is warned, and waits."""
    with Server(EXAMPLE, 1, num_buffers=2) as server:
        fill(server, 0, 2)
        kept = [server.sample(1) for _ in range(2)]

        def drop():
            until(lambda: len(warned), "the learner is warned")
            kept.clear()
            server.submit(row(2))

        warned = pytest.warns(RuntimeWarning, match="still refers to 2 of 2 batches")
        dropping = background(drop)
        with warned:
            sample = server.sample(30)
        assert sample.batch["act"].tolist() == [2]
        dropping.result()


def test_close_takes_nothing_away():
    """A closed learner, further or not, still has what it refers to. A further one leaves with the last of it."""
    server = Server(EXAMPLE, 1, num_buffers=4)
    fill(server, 0, 4)
    with server.lease(1), server.lease(1):
        other = Server.attach(server.handle)
        kept = other.lease(1).__enter__()
    view = kept.batch["obs"][0]
    del kept
    other.close()
    assert other.sample() is None
    fill(server, 4, 2)
    with pytest.raises(TimeoutError):
        server.submit(row(9), timeout=0)
    assert view.tolist() == [2] * 4
    del view
    fill(server, 6, 1)
    assert problem_of(server._ring) is None
    last = server.sample(1).batch["obs"]
    server.close()
    del server
    gc.collect()
    assert last[0].tolist() == [3] * 4


def test_two_learners_loop_in_a_ring_of_two(background):
    """Learners that share a ring get copies and keep no batch while they wait, so no loop stops the other."""
    with Server(EXAMPLE, 1, num_buffers=2) as server:
        fill(server, 0, 2)
        first = server.sample(1)  # when it is the only learner: a view
        other = Server.attach(server.handle)
        got, kept = [], []

        def loop(learner):
            for sample in learner.dataset_iter():
                kept.append(sample)
                got.append(int(sample.batch["act"][0]))

        def send():
            for i in range(2, 200):
                server.submit(row(i), timeout=30)
            server.close()

        threads = [background(send), background(loop, other)]
        assert server.sample(30).batch["act"].tolist() == [1]  # the other learner leaves it to this one
        assert first.batch["act"].tolist() == [0]
        del first
        threads.append(background(loop, server))
        for thread in threads:
            thread.result()
        assert sorted(got) == list(range(2, 200))
        assert sorted(sample.batch["act"][0] for sample in kept) == list(range(2, 200))
        other.close()


def test_threads_share_a_server(background):
    """Each thread's batch is its own until it drops it."""
    with Server(EXAMPLE, 1, num_buffers=6) as server:
        got = []

        def loop():
            for sample in server.dataset_iter():
                number = int(sample.batch["act"][0])
                assert (sample.batch["obs"] == number).all()
                got.append(number)

        threads = [background(loop) for _ in range(3)]
        for i in range(500):
            server.submit(row(i), timeout=30)
        server.close()
        for thread in threads:
            thread.result()
        assert sorted(got) == list(range(500))


def test_a_forked_child_owns_nothing():
    """The child's copies of a sample die without a release: the parent's batch stays."""
    with Server(EXAMPLE, 1, num_buffers=2) as server:
        fill(server, 0, 2)
        sample = server.sample(1)
        pid = os.fork()
        if pid == 0:
            try:
                sample.release()
                del sample
                gc.collect()
            finally:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        with pytest.raises(TimeoutError):
            server.submit(row(9), timeout=0)
        assert sample.batch["act"].tolist() == [0]


def test_arrays_outlive_the_interpreters_end():
    """Arrays in globals die after the exit handlers, which have left the ring: nothing crashes, nothing is left."""
    run_python(
        "import numpy as np, echo_shm\n"
        "server = echo_shm.Server(np.zeros(3), 1)\n"
        "other = echo_shm.Server.attach(server.handle)\n"
        "for i in range(3): server.submit(np.full(3, float(i)))\n"
        "kept = server.sample(1).batch, other.lease(1).__enter__().batch, other.sample(1)\n"
        "import builtins; builtins.kept_longer = kept[1][0:]\n"
    )


def test_a_subinterpreter_is_refused():
    """The import says what to use instead."""
    inside = "import sys; sys.path[:] = {path!r}\ntry:\n  import echo_shm\nexcept ImportError as e:\n  print(e)\n"
    script = (
        "import sys\n"
        "try:\n"
        "    import _xxsubinterpreters as interpreters\n"
        "except ImportError:\n"
        "    import _interpreters as interpreters\n"
        f"interpreters.run_string(interpreters.create(), {inside!r}.format(path=sys.path))\n"
    )
    assert "subinterpreter" in run_python(script).stdout
