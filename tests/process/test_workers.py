"""Server.spawn: workers that start, work, fail, are restarted and are taken down."""

import functools
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from harness import stamped, workers
from harness.processes import is_gone, stop
from harness.waiting import Until, until

from echo_shm import ShmClient, WorkerError

CONTEXTS = pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Many workers here never send, so that nothing stops them before SIGTERM."""
    monkeypatch.setattr("echo_shm.workers.group._STOP_TIMEOUT", 0.3)


def _take_all(server, group, drop_last=False):
    return [s for sample in server.dataset_iter(until=group, drop_last=drop_last) for s in stamped.stamps(sample.batch)]


def _paths(tmp_path, n):
    return [str(tmp_path / f"pid{i}") for i in range(n)]


def _running(paths):
    """The PIDs that workers have written, when all have."""
    until(lambda: all(os.path.exists(path) for path in paths), "every worker runs")
    return [int(Path(path).read_text()) for path in paths]


@CONTEXTS
def test_workers_get_their_arguments_and_everything_comes(serve, context):
    """Worker i gets entry i of each argument; the iterator ends when they have and the ring is empty."""
    server = serve(4, 2)
    with server.spawn(workers.send_some, 3, [10, 11, 12], [5, 6, 0], context=context) as group:
        came = _take_all(server, group)
        assert sorted(came) == [(10, i) for i in range(5)] + [(11, i) for i in range(6)]
        assert group.finished
        assert group.exitcodes == [0, 0, 0]
        group.join(timeout=0)


def test_drop_last_leaves_out_what_fills_no_batch(serve):
    """Only full batches come with drop_last."""
    server = serve(4, 4)
    with server.spawn(workers.send_some, 1, [1], [10], context="fork") as group:
        assert _take_all(server, group, drop_last=True) == [(1, i) for i in range(8)]


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_function_that_does_not_pickle(serve, context):
    """A function that cannot be pickled is an error at once, and no worker is left."""
    server = serve()
    with pytest.raises(Exception, match=r"[Pp]ickle"):
        server.spawn(functools.partial(print, threading.Lock()), 2, context=context)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_an_argument_that_does_not_pickle(serve, tmp_path, context):
    """An argument that cannot be pickled is an error; the workers that were started before it are ended."""
    server, path = serve(), tmp_path / "pid"
    with pytest.raises(Exception, match=r"[Pp]ickle"):
        server.spawn(workers.say_and_wait, 2, [str(path), lambda: None], context=context)


@CONTEXTS
def test_an_exception_is_raised_again(serve, context):
    """join() and the iterator raise a worker's exception, type and message; the worker's traceback is its cause."""
    server = serve()
    with server.spawn(workers.fail, 1, ["plain"], context=context) as group:
        with pytest.raises(KeyError, match="plain failure") as caught:
            group.join(timeout=60)
        assert "in fail" in str(caught.value.__cause__)
        assert 'raise KeyError("plain failure")' in str(caught.value.__cause__)
        with pytest.raises(KeyError, match="plain failure"):
            next(server.dataset_iter(until=group))
        assert group.exitcodes == [1]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("odd", "OddError: twoarguments"),
        ("unpicklable", "ValueError: with a lambda"),
        ("local", "LocalError: a class of nowhere"),
        ("module", "TheirError: their own"),
        ("exit", "exited with status 3"),
        ("_exit", "exited with status 4"),
        ("group", "exited with status 1"),
    ],
)
def test_failures_that_cannot_be_sent_over(serve, how, text):
    """A failure that cannot be pickled is a WorkerError with what is known: the worker's traceback, or its status."""
    server = serve()
    with server.spawn(workers.fail, 1, [how], context="forkserver") as group:
        with pytest.raises(WorkerError) as caught:
            group.join(timeout=60)
        assert text in str(caught.value)


@CONTEXTS
def test_a_very_long_traceback(serve, context):
    """A traceback longer than a pipe's buffer does not block a worker, and comes whole."""
    server = serve()
    with server.spawn(workers.fail, 3, ["long"] * 3, context=context) as group:
        with pytest.raises(ValueError, match="xxx") as caught:
            group.join(timeout=60)
        assert len(str(caught.value)) == 1 << 20
        until(lambda: group.finished, "all have failed")


def test_a_failure_is_raised_while_others_go_on(serve, tmp_path):
    """The iterator raises a worker's failure while the others go on."""
    server, path = serve(), tmp_path / "flowing"
    with server.spawn(workers.fail_second, 2, [0, 1], [str(path)] * 2, context="fork") as group:

        def work():
            for _ in server.dataset_iter(until=group):
                path.touch()

        with pytest.raises(LookupError, match="the second worker"):
            work()
        assert group.exitcodes[0] is None


@pytest.mark.parametrize("how", ["join", "iterate", "sample", "leave"])
def test_a_killed_worker_is_an_error(serve, how):
    """A worker killed from outside is an error once what it and the others have sent was delivered: of any call."""
    server, came, groups = serve(1, 20), [], []

    def work():
        with server.spawn(workers.send_and_end_by, 2, [1, 2], [5, 3], ["return", "kill"], context="fork") as group:
            groups.append(group)
            if how == "join":
                group.join(timeout=60)
            elif how == "iterate":
                for sample in server.dataset_iter(until=group):
                    came.extend(stamped.stamps(sample.batch))
            elif how == "sample":
                while (sample := server.sample(timeout=60)) is not None:
                    came.extend(stamped.stamps(sample.batch))
            else:
                until(lambda: group.finished, "all have ended")

    with pytest.raises(WorkerError, match=r"worker 1 \(pid \d+\) was killed by SIGKILL\..*restart=True"):
        work()
    assert groups[0].exitcodes == [0, -signal.SIGKILL]
    if how in ("iterate", "sample"):
        assert sorted(came) == [(1, i) for i in range(5)] + [(2, i) for i in range(3)]


def test_what_leaving_the_block_kills_is_no_error(serve, tmp_path):
    """Signals of the group itself are none that it did not expect, and an exception in the block is not hidden."""
    server, paths = serve(), _paths(tmp_path, 1)
    with server.spawn(workers.say_and_wait, 1, paths, context="fork"):
        _running(paths)

    def work():
        with server.spawn(workers.fail, 1, ["kill"], context="fork") as group:
            until(lambda: group.finished, "it has ended")
            raise LookupError

    with pytest.raises(LookupError):
        work()


def test_a_killed_worker_may_be_ignored(serve):
    """With on_death="ignore" a killed worker counts as finished: the exit codes have it, and nothing is raised."""
    server = serve()
    with server.spawn(workers.fail, 1, ["kill"], context="fork", on_death="ignore") as group:
        group.join(timeout=60)
        assert group.exitcodes in ([-signal.SIGKILL], [-signal.SIGTERM])
        assert _take_all(server, group) == []


def test_a_worker_that_dies_at_once_is_given_up(serve, tmp_path):
    """It is started again a few times, each time later, and then the error says how often."""
    server, path = serve(), tmp_path / "starts"
    started = time.monotonic()

    def work():
        arguments = [str(path)], ["kill"]
        with server.spawn(workers.count_starts, 1, *arguments, context="fork", restart=True, max_restarts=4) as group:
            group.join(timeout=60)

    with pytest.raises(WorkerError, match=r"worker 0 .* after 4 restarts, 4 of them within a minute"):
        work()
    assert path.read_text() == "x" * 5
    assert time.monotonic() - started > 0.1 + 0.2 + 0.4


def test_leaving_the_block_before_a_restart(serve, tmp_path):
    """A worker that waits to be started again is not started any more, and nobody waits for it."""
    server, path = serve(), tmp_path / "starts"
    with server.spawn(workers.count_starts, 1, [str(path)], ["kill"], context="fork", restart=True) as group:
        until(lambda: path.exists() and len(path.read_text()) >= 4, "it waits longer and longer")
        until(lambda: group._workers[0].restart_at is not None, "it waits to be started again")
    starts = path.read_text()
    assert group.exitcodes in ([-signal.SIGKILL], [-signal.SIGTERM])
    time.sleep(1.5)
    assert path.read_text() == starts


def test_join_times_out(serve, tmp_path):
    """join() raises TimeoutError, and says which workers still run."""
    server, paths = serve(), _paths(tmp_path, 2)
    with server.spawn(workers.say_and_wait, 2, paths, context="fork") as group:
        _running(paths)
        with pytest.raises(TimeoutError, match=r"\[0, 1\] still run after 0.05 s"):
            group.join(timeout=0.05)
        assert group.exitcodes == [None, None]
        assert not group.finished


def test_join_on_a_full_ring(serve, monkeypatch):
    """join() says that the workers wait for this thread. With another thread, which may take batches, it waits."""
    monkeypatch.setattr("echo_shm.ring.stuck.only_thread", lambda: True)  # pytest has threads of its own
    server = serve(1, 2)
    with server.spawn(workers.send_some, 1, [1], [4], context="fork") as group:
        for timeout in (None, 60):
            with pytest.raises(TimeoutError, match=r"1 producers wait, because ring .* iterate dataset_iter"):
                group.join(timeout)
        monkeypatch.setattr("echo_shm.ring.stuck.only_thread", lambda: False)
        with pytest.raises(TimeoutError, match="still run"):
            group.join(2)
        assert len(_take_all(server, group)) == 4
        group.join(60)


def test_of_many_that_fail_one_speaks(serve, caplog):
    """The log has one traceback and how many failed like that."""
    server = serve()
    with server.spawn(workers.fail, 6, ["plain"] * 6, context="fork") as group:
        until(lambda: group.finished, "all have failed")
    assert caplog.text.count("Traceback") == 1
    assert "failed (6 workers failed, 6 of them so)" in caplog.text
    assert caplog.text.count("raise its exception") == 1


@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_a_killed_worker_is_restarted(serve, tmp_path, context):
    """With restart=True a killed worker starts its function again; the next sample gets its open slot."""
    server, path = serve(2, 2), tmp_path / "once"
    with server.spawn(workers.die_once, 1, [7], [str(path)], context=context, restart=True) as group:
        assert _take_all(server, group) == [(7, 0), (7, 1)]
        assert group.restarts == 1
        assert group.exitcodes == [0]


def test_killed_from_outside_again_and_again(serve):
    """A group with restart=True keeps its number of workers through eight kills."""
    server = serve(4, 2)
    with server.spawn(workers.send_without_end, 2, [1, 2], context="fork", restart=True) as group:
        for kill in range(8):
            before = group.pids
            os.kill(before[kill % 2], signal.SIGKILL)
            until(lambda: group.restarts == kill + 1, "it is restarted")  # noqa: B023
            assert group.pids[kill % 2] != before[kill % 2]
            for _ in range(3):
                stamped.stamps(server.sample(timeout=30).batch)
        assert group.exitcodes == [None, None]


@pytest.mark.parametrize("how", ["raise", "return"])
def test_only_the_killed_are_restarted(serve, tmp_path, how):
    """A worker that raised or returned is not started again."""
    server, path = serve(), tmp_path / "starts"
    with server.spawn(workers.count_starts, 1, [str(path)], [how], context="fork", restart=True) as group:
        until(lambda: group.finished, "it ended")
        assert group.restarts == 0
    assert path.read_text() == "x"


@CONTEXTS
def test_leaving_the_block_takes_everybody_down(serve, tmp_path, context):
    """At the end of the block workers are ended, whether they wait or are stopped."""
    server, paths = serve(), _paths(tmp_path, 2)
    with server.spawn(workers.say_and_wait, 2, paths, context=context) as group:
        pids = _running(paths)
        assert pids == group.pids
        stop(pids[1])
    assert all(is_gone(pid) for pid in pids)
    assert group.exitcodes == [-signal.SIGTERM] * 2
    group.terminate()
    group.join(timeout=0)


def test_a_worker_deaf_to_sigterm(serve, tmp_path):
    """A worker that ignores SIGTERM is killed after two seconds, stopped or not."""
    server, paths = serve(), _paths(tmp_path, 2)
    with server.spawn(workers.ignore_sigterm, 2, paths, context="fork", restart=True) as group:
        pids = _running(paths)
        stop(pids[0])
        started = time.monotonic()
    assert time.monotonic() - started >= 1.9
    assert all(is_gone(pid) for pid in pids)
    assert group.exitcodes == [-signal.SIGKILL] * 2


def test_an_exception_in_the_block(serve, tmp_path):
    """An exception in the block comes out, and the workers are ended."""
    server, paths = serve(), _paths(tmp_path, 1)

    def work():
        with server.spawn(workers.say_and_wait, 1, paths, context="fork"):
            _running(paths)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert is_gone(_running(paths)[0])


@pytest.mark.parametrize("fn", [workers.start_child, workers.multiply])
def test_workers_may_start_processes(serve, tmp_path, fn):
    """A worker may start processes by fork, exec and multiprocessing; its own client keeps working."""
    server, path = serve(2, 2), tmp_path / "done"
    with server.spawn(fn, 1, [str(path)], context="forkserver") as group:
        came = _take_all(server, group)
        assert came[0] == (0, 0)
        assert group.exitcodes == [0]


def test_two_groups_side_by_side(serve):
    """Two groups have their own workers, and each its own end."""
    server = serve(2, 2)
    with (
        server.spawn(workers.send_some, 1, [1], [3], context="fork") as one,
        server.spawn(workers.send_some, 1, [2], [3], context="fork") as two,
    ):
        both = Until(lambda: one.finished and two.finished, lambda: (one.check(), two.check()))
        came = _take_all(server, both)
    assert sorted(came) == [(i, j) for i in (1, 2) for j in range(3)]


@pytest.mark.parametrize("read", ["sample", "lease", "try_sample"])
def test_a_failure_is_raised_by_whatever_reads(serve, read):
    """sample(), lease() and try_sample() of the server that has started the worker raise its exception."""
    server = serve()
    with server.spawn(workers.fail, 1, ["plain"], context="fork") as group:
        until(lambda: group.finished, "it has failed")
        reading = server.lease().__enter__ if read == "lease" else getattr(server, read)
        with pytest.raises(KeyError, match="plain failure"):
            reading()
    with pytest.raises(TimeoutError):
        server.sample(0)  # the group was left, and its failure with it


def test_sample_ends_with_the_workers(serve):
    """When all workers have finished and nobody else is attached, sample() returns None. It goes on with new ones."""
    server = serve(4, 3)
    with server.spawn(workers.send_some, 2, [1, 2], [4, 6], context="fork"):
        came = []
        while (sample := server.sample(timeout=60)) is not None:
            came += stamped.stamps(sample.batch)
        assert len(came) == 8
        assert server.try_sample() is None
        with server.lease() as sample:
            assert sample is None
        other = ShmClient(server.handle)
        with pytest.raises(TimeoutError):
            server.sample(0.05)  # the other producer may send
        other.close()
        assert server.sample(timeout=60) is None
        with server.spawn(workers.send_some, 1, [3], [2], context="fork"):
            assert len(server.sample(timeout=60).batch["sequence"]) == 4


def test_sample_until(serve):
    """With until, sample() ends with it, and with nothing else."""
    server = serve(1, 2)
    over = Until(lambda: True)
    server.submit(stamped.example())
    assert server.sample(until=over) is not None
    assert server.sample(until=over) is None
    with pytest.raises(TypeError, match="has finished and check"):
        server.sample(until="workers")
    with pytest.raises(TimeoutError):
        server.sample(0)


def test_a_waiting_producer_reaps(serve, act):
    """A producer that waits on a full ring gets the slot of a dead one, though no learner looks."""
    server = serve(2, 1)
    client = ShmClient(server.handle)
    dying = act(_claim_and_wait, server.handle)
    assert dying.hear() == "claimed"
    client.send(stamped.example())
    with pytest.raises(TimeoutError):
        client.send(stamped.example(), timeout=0)
    os.kill(dying.pid, signal.SIGKILL)
    client.send(stamped.example(), timeout=30)
    client.close()


def _claim_and_wait(conn, handle):
    with ShmClient(handle) as client, client.reserve():
        conn.send("claimed")
        time.sleep(1000)
