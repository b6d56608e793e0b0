"""WorkerGroup.stop: workers finish by themselves, and what they have sent is delivered."""

import contextlib
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
from harness import stamped, workers
from harness.processes import is_gone, stop
from harness.programs import TESTS
from harness.waiting import LONG, until

from echo_shm import Server, ShmClient
from echo_shm.ring.metrics import RingView

CONTEXTS = pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])


def _drain(server, group):
    return [s for sample in server.dataset_iter(until=group, drop_last=False) for s in stamped.stamps(sample.batch)]


def _waiting(server):
    return RingView(server._segment).snapshot().producers_waiting


@CONTEXTS
@pytest.mark.parametrize("how", ["stop", "leave", "raise"])
def test_stopped_workers_clean_up(serve, tmp_path, context, how):
    """Workers that send, or wait on a full ring, run their ``finally`` blocks. All they have sent is delivered."""
    server, paths = serve(4, 2), [str(tmp_path / f"sent{i}") for i in range(3)]
    came = Counter()

    def work():
        with server.spawn(workers.send_and_count, 3, [0, 1, 2], paths, context=context) as group:
            until(lambda: RingView(server._segment).snapshot().active_producers == 3, "all are attached")
            for _ in range(5):
                came.update(stamped.stamps(server.sample(timeout=LONG).batch))
            until(lambda: _waiting(server) == 3, "all wait")
            if how == "stop":
                group.stop(LONG)
            if how == "raise":
                raise ZeroDivisionError
        return group

    if how == "raise":
        with pytest.raises(ZeroDivisionError):
            work()
    else:
        group = work()
        assert group.exitcodes == [0, 0, 0]
        group.check()
    came.update(s for sample in server.dataset_iter(until=_Over, drop_last=False) for s in stamped.stamps(sample.batch))
    sent = [int(Path(path).read_text()) for path in paths]
    assert came == Counter((i, n) for i in range(3) for n in range(sent[i]))


class _Over:
    finished = True

    @staticmethod
    def check():
        """Nothing fails."""


def test_sample_ends_after_a_stop(serve, tmp_path):
    """Within the block, sample() gives what is left after a stop, and then None."""
    server = serve(1, 4)
    with server.spawn(workers.send_and_count, 1, [1], [str(tmp_path / "sent")], context="fork") as group:
        until(lambda: _waiting(server) == 1, "the ring is full")
        group.stop(LONG)
        left = [stamped.stamps(server.sample(timeout=LONG).batch) for _ in range(4)]
        assert left == [[(1, n)] for n in range(4)]
        assert server.sample(timeout=LONG) is None


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_a_reservation_ends_after_a_stop(serve, tmp_path, how):
    """A worker that is stopped inside ``reserve()`` commits or aborts, and its next send is refused."""
    server, path = serve(1, 4), tmp_path / "pid"
    with server.spawn(workers.reserve_across_a_stop, 1, [5], [str(path)], [how], context="fork") as group:
        until(path.exists, "it has reserved")
        until(lambda: _waiting(server) == 1, "the ring is full")
        group.stop(LONG)
        assert group.exitcodes == [0]
        came = _drain(server, group)
    assert came == [(5, 0)] * (how == "commit") + [(6, n) for n in range(3)]


def test_a_wait_for_weights_ends_with_a_stop(serve, tmp_path):
    """A worker that waits for weights when it is stopped has finished, and needs no SIGTERM."""
    server, path = serve(1, 4), tmp_path / "pid"
    server.publisher({"w": np.zeros(3)})
    with server.spawn(workers.wait_for_weights, 1, [str(path)], context="fork") as group:
        until(path.exists, "it has subscribed")
        group.stop(LONG)
    assert group.exitcodes == [0]


def test_only_this_group_stops(serve, tmp_path):
    """Another group, and a producer that nobody has spawned, go on."""
    server, paths = serve(1, 4), [str(tmp_path / f"sent{i}") for i in range(2)]
    with (
        ShmClient(server.handle) as client,
        server.spawn(workers.send_and_count, 1, [1], paths[:1], context="fork") as one,
        server.spawn(workers.send_and_count, 1, [2], paths[1:], context="fork") as two,
    ):
        until(lambda: _waiting(server) == 2, "both wait")
        one.stop(LONG)
        assert (one.exitcodes, two.exitcodes) == ([0], [None])
        came = []
        while (3, 0) not in came or sum(who == 2 for who, _ in came) < 20:
            came += stamped.stamps(server.sample(timeout=LONG).batch)
            with contextlib.suppress(TimeoutError):
                client.send(stamped.stamp(stamped.example(), 3, 0), timeout=0)
        assert two.exitcodes == [None]


def test_a_worker_that_was_stopped_by_a_signal(serve, tmp_path):
    """A worker that is stopped by SIGSTOP goes on, and finishes."""
    server, path = serve(1, 2), tmp_path / "sent"
    with server.spawn(workers.send_and_count, 1, [1], [str(path)], context="fork") as group:
        until(lambda: _waiting(server) == 1, "the ring is full")
        stop(group.pids[0])
        group.stop(LONG)
        assert group.exitcodes == [0]
    assert path.read_text() == "2"


@pytest.mark.parametrize(
    ("fn", "code"),
    [
        (workers.say_and_wait, -signal.SIGTERM),
        (workers.go_on_after_a_stop, -signal.SIGTERM),
        (workers.keep_the_gil, -signal.SIGTERM),
        (workers.say_at_sigterm, 7),
        (workers.ignore_sigterm, -signal.SIGKILL),
    ],
)
def test_a_worker_that_does_not_finish(serve, tmp_path, caplog, monkeypatch, fn, code):
    """After the timeout it gets SIGTERM, for which it may have a handler, and then SIGKILL. It is no failure."""
    monkeypatch.setattr("echo_shm.workers.group._SIGTERM_GRACE", 0.3)
    server, path = serve(1, 2), tmp_path / "pid"
    with server.spawn(fn, 1, [str(path)], context="fork", restart=True) as group:
        until(path.exists, "it runs")
        group.stop(timeout=0.2)
        assert group.exitcodes == [code]
        group.join(timeout=0)
    assert "workers [0] have not stopped within 0.2 s: SIGTERM" in caplog.text
    assert ("SIGKILL" in caplog.text) == (code == -signal.SIGKILL)
    assert group.restarts == 0


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_worker_that_has_not_connected(serve, tmp_path, background, context):
    """A worker that is stopped before it has its arguments does not run its function, and has finished."""
    server, path, ran = serve(1, 2), tmp_path / "go", tmp_path / "ran"
    argument = workers.SlowToLoad(str(path))
    with server.spawn(workers.say_and_wait_for, 1, [str(ran)], [argument], context=context) as group:
        until(Path(f"{path}.loading").exists, "it starts")
        stopping = background(group.stop, LONG)
        until(lambda: group._stopping, "it is about to be told")
        with group._changed:  # and now it is
            path.touch()
        stopping.result()
        assert group.exitcodes == [0]
    assert not ran.exists()


def test_nothing_is_restarted_after_a_stop(serve, tmp_path):
    """A worker that is killed while it finishes is not started again, and that is no error."""
    server, path = serve(1, 2), tmp_path / "pid"
    with server.spawn(workers.end_at_a_stop_by, 1, [str(path)], ["kill"], context="fork", restart=True) as group:
        until(lambda: _waiting(server) == 1, "the ring is full")
        group.stop(LONG)
        assert (group.exitcodes, group.restarts) == ([-signal.SIGKILL], 0)
        group.join(timeout=0)


def test_a_failure_at_the_stop_is_one(serve, tmp_path, caplog):
    """What a worker raises in its ``finally`` block is its failure. stop() does not raise it; join() and the log do."""
    server, path = serve(1, 2), tmp_path / "pid"
    with server.spawn(workers.end_at_a_stop_by, 1, [str(path)], ["plain"], context="fork") as group:
        until(lambda: _waiting(server) == 1, "the ring is full")
        group.stop(LONG)
        assert "1 failed" in repr(group)
        with pytest.raises(KeyError, match="plain failure"):
            group.join(timeout=0)


def test_a_failure_before_the_stop_stays_one(serve):
    """A worker that has exited with a status above 0 has failed, whatever comes later."""
    server = serve(1, 2)
    with server.spawn(workers.fail, 1, ["exit"], context="fork") as group:
        until(lambda: group.finished, "it has ended")
        group.stop()
        with pytest.raises(RuntimeError, match="status 3"):
            group.join(timeout=0)


def test_stopping_twice_and_from_two_threads(serve, tmp_path, background):
    """Both calls return when all have ended. The shorter timeout counts."""
    server, paths = serve(1, 2), [str(tmp_path / "pid")]
    with server.spawn(workers.say_and_wait, 1, paths, context="fork") as group:
        until(Path(paths[0]).exists, "it runs")
        patient = background(group.stop, None)
        until(lambda: group._stopping, "it is told")
        group.stop(timeout=0.1)
        patient.result()
        assert group.exitcodes == [-signal.SIGTERM]
        group.stop()
        group.stop(None)


def test_a_stop_hides_no_exception(serve, tmp_path):
    """stop() in a ``finally`` block lets the exception under way pass."""
    server = serve(1, 2)
    group = server.spawn(workers.end_at_a_stop_by, 1, [str(tmp_path / "pid")], ["plain"], context="fork")

    def work():
        try:
            until(lambda: _waiting(server) == 1, "the ring is full")
            raise LookupError
        finally:
            group.stop(LONG)

    with pytest.raises(LookupError):
        work()
    assert group.finished


def test_an_interrupted_stop_kills(serve, tmp_path, background):
    """Ctrl-C while stop() waits ends the workers at once, and comes out."""
    server, path = serve(1, 2), tmp_path / "pid"
    with server.spawn(workers.ignore_sigterm, 1, [str(path)], context="fork") as group:
        until(path.exists, "it runs")

        def interrupt():
            until(lambda: group._stopping, "it is told")
            os.kill(os.getpid(), signal.SIGINT)

        background(interrupt)
        with pytest.raises(KeyboardInterrupt):
            group.stop(timeout=None)
        assert group.exitcodes == [-signal.SIGKILL]


def test_workers_leave_ctrl_c_to_their_parent(serve, tmp_path):
    """SIGINT does nothing to a worker. Handlers of the parent for SIGINT and SIGTERM are not the worker's."""
    server, path, handled = serve(1, 2), tmp_path / "sent", tmp_path / "handled"
    before = {n: signal.signal(n, lambda *_: handled.touch()) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        with server.spawn(workers.send_and_count, 1, [1], [str(path)], context="fork") as group:
            until(lambda: _waiting(server) == 1, "it waits")
            os.kill(group.pids[0], signal.SIGINT)
            for _ in range(20):
                stamped.stamps(server.sample(timeout=LONG).batch)
            assert group.exitcodes == [None]
            os.kill(group.pids[0], signal.SIGTERM)
            until(lambda: group.finished, "it has ended")
            assert group.exitcodes == [-signal.SIGTERM]
            with pytest.raises(RuntimeError, match="SIGTERM"):
                group.join(timeout=0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert not handled.exists()


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_have_their_own_random_numbers(context):
    """No two workers draw the same numbers from the global generators, even if they come from one forkserver."""
    with Server(np.zeros(2), 4) as server, server.spawn(workers.send_random_numbers, 4, context=context):
        batch = server.sample(timeout=LONG).batch
        assert len(np.unique(batch)) == batch.size


#: Workers with environments in processes of their own. argv: name, start method, file for each worker, how it ends.
_VECTOR = """
import os, sys, time
import gymnasium, numpy as np
from echo_shm import Server
from echo_shm.workers import group as groups

groups._STOP_TIMEOUT = 50.0  # processes end as soon as the machine lets them

def play(client, path):
    envs = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    try:
        envs.reset()
        with open(path, "w") as file:
            file.write("plays")
        while True:
            client.send(np.ascontiguousarray(envs.step(envs.action_space.sample())[0]))
    finally:
        envs.close()
        with open(path, "w") as file:
            file.write("closed")

def main(name, context, how, *paths):
    with Server(np.zeros((2, 4), np.float32), 4, name=name) as server:
        try:
            with server.spawn(play, len(paths), paths, context=context) as group:
                while not all(os.path.exists(path) for path in paths):
                    time.sleep(0.001)
                print("plays", flush=True)
                if how == "ctrl-c":
                    for batch, info in server.dataset_iter(until=group):
                        pass
                sys.stdin.readline()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(group.exitcodes, flush=True)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.parametrize(("context", "how"), [("spawn", "ctrl-c"), ("forkserver", "leave"), ("fork", "ctrl-c")])
def test_vector_environments_are_closed(name, program, tmp_path, context, how):
    """Workers close their AsyncVectorEnv when the block is left. They print nothing, and nothing is left of them."""
    script, paths = tmp_path / "vector.py", [tmp_path / f"worker{i}" for i in range(2)]
    script.write_text(_VECTOR)
    shared = set(os.listdir("/dev/shm"))
    env = {"PYTHONPATH": str(TESTS)}
    running = program(sys.executable, str(script), name, context, how, *map(str, paths), terminal=True, env=env)
    running.wait_for("plays\r\n")
    pids = [p.pid for p in psutil.Process(running.pid).children(recursive=True)]
    assert len(pids) >= 2 + 2 * 2
    running.type(b"\x03" if how == "ctrl-c" else b"\n")
    assert running.result() == 0, running.output
    assert [path.read_text() for path in paths] == ["closed"] * 2, running.output
    printed = running.output.split("\r\n")
    assert [line for line in printed if line] == ["plays", *["interrupted"] * (how == "ctrl-c"), "[0, 0]"]
    until(lambda: all(is_gone(pid) for pid in pids), "every process is gone")
    assert set(os.listdir("/dev/shm")) == shared


@CONTEXTS
def test_children_that_a_worker_leaves_do_not_count(serve, tmp_path, context):
    """A worker has ended when its process has, whatever it has started."""
    server, path = serve(1, 2), tmp_path / "child"
    try:
        with server.spawn(workers.leave_a_child, 1, [str(path)], context=context) as group:
            group.join(LONG)
            assert group.exitcodes == [0]
        assert not is_gone(int(path.read_text()))
    finally:
        os.kill(int(path.read_text()), signal.SIGKILL)
