"""``echo-shm replay``: a replay in a process of its own, with workers and learners, kills, and signals."""

import logging
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from harness.containers import Box, contain, inhabitants, probe
from harness.programs import ECHO_SHM, Program
from harness.waiting import LONG, until

from echo_shm import ConnectionClosedError, EchoShmError, Replay, ReplayClient, SegmentError
from echo_shm.cli import main as cli
from echo_shm.cli import progress, replay_serve
from echo_shm.cli.console import UsageError
from echo_shm.replay import RemoteWriter, rings

STEP = {"obs": np.zeros(3, np.float32), "number": np.array(0, np.int64)}

#: Each item goes to one batch, in order.
CONFIG = """\
name = "NAME"
capacity = 5000
store = "shm"
[example]
obs = { dtype = "float32", shape = [3] }
number = { dtype = "int64" }
[[tables]]
name = "q"
rate_limiter = { type = "Queue", size = 4000 }
"""


def step(number):
    """A step that says its number."""
    return {"obs": np.full(3, number, np.float32), "number": number}


@pytest.fixture
def config(tmp_path, name):
    """The path of a configuration. Nothing of the replay is left after the test."""
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.replace("NAME", name))
    yield path
    for file in Path("/dev/shm").glob(f"echo_shm*.{name}*"):
        file.unlink()


@pytest.fixture
def served(request):
    """Starts ``echo-shm replay``, and waits until it serves."""

    def start(config, *, ready=r"steps in .*\n", terminal=False, **env):
        program = Program(*ECHO_SHM, "replay", str(config), env=env, terminal=terminal)
        request.addfinalizer(program.discard)
        program.wait_for(ready)
        return program

    return start


def write(conn, name, first, n):
    """An actor: writes n steps, one after the other, and says so."""
    with ReplayClient(name) as replay, replay.writer() as writer:
        for number in range(first, first + n):
            writer.add(step(number), timeout=LONG)
            if number == first + n // 2:
                conn.send("half")
                conn.recv()
        writer.flush(timeout=LONG)
    conn.send("written")


def learn(conn, name, n):
    """An actor: takes batches until the replay ends; then says all numbers."""
    got = []
    with ReplayClient(name) as replay:
        conn.send("here")
        for batch in replay.dataset_iter(n):
            assert (batch.data["obs"] == batch.data["number"][:, None]).all()
            got += batch.data["number"].tolist()
            del batch
    conn.send(got)


def left(name):
    """What is in shared memory of a replay."""
    return [file.name for file in Path("/dev/shm").glob(f"echo_shm*.{name}*")]


def test_workers_and_learners_survive_its_kill(act, served, config, name):
    """The same command goes on with the store: each step is delivered once. SIGTERM ends all in order."""
    first = served(config)
    writers = [act(write, name, 2000 * i, 2000) for i in range(2)]
    learners = [act(learn, name, 8) for _ in range(2)]
    for one in learners:
        assert one.hear() == "here"
    for one in writers:
        assert one.hear() == "half"
    first.kill()
    for one in writers:
        one.say()
    second = served(config)
    assert f"replay {name!r}: its process was killed; this one goes on with what it held" in second.output
    for one in writers:
        assert one.hear() == "written"
    with ReplayClient(name) as replay:
        until(lambda: replay.info().sampled == 4000)
    second.send_signal(signal.SIGTERM)
    got = [number for one in learners for number in one.hear()]
    assert second.result() == 0
    assert sorted(got) == list(range(4000))
    assert second.output.endswith("closing\n")
    assert left(name) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(served, config, name, number):
    """Its clients get ConnectionClosedError, and its store is removed."""
    program = served(config)
    with ReplayClient(name) as replay, replay.writer() as writer:
        writer.add(step(1))
        writer.flush()
        program.send_signal(number)
        assert program.result() == 0
        with pytest.raises(ConnectionClosedError):
            writer.add(step(2))
    assert left(name) == []


def test_a_killed_replay_in_memory_begins_anew(served, config, name):
    """Its clients are told, so that no update of a lost item hits a new one."""
    config.write_text(config.read_text().replace('"shm"', '"memory"'))
    first = served(config)
    with ReplayClient(name) as replay, replay.writer() as writer:
        writer.add(step(1))
        batches = replay.dataset_iter(1, timeout=LONG)
        key = next(batches).key.copy()
        first.kill()
        second = served(config)
        with pytest.raises(ConnectionClosedError):
            writer.add(step(2))
        with pytest.raises(ConnectionClosedError):
            replay.update(key, [3.0])
        assert list(batches) == []
    with ReplayClient(name) as replay:
        assert replay.info().inserted == 0
    second.send_signal(signal.SIGTERM)
    assert second.result() == 0
    assert left(name) == []


def test_checkpoints(served, config, name, tmp_path):
    """SIGUSR1 writes one, and the replay goes on; SIGTERM does so at the end. The same command restores the newest."""
    config.write_text(config.read_text().replace('"shm"', '"memory"\ncheckpoint = "saved"'))

    def write(number, inserted):
        with ReplayClient(name) as replay, replay.writer() as writer:
            writer.add(step(number))
            writer.flush(timeout=LONG)
            until(lambda: replay.info().inserted == inserted)

    first = served(config)
    write(1, 1)
    first.send_signal(signal.SIGUSR1)
    first.wait_for(r"checkpoint .*saved/000001\n")
    write(2, 2)
    first.kill()
    second = served(config)
    assert f"replay {name!r}: restored from {tmp_path}/saved/000001" in second.output
    write(3, 2)
    second.send_signal(signal.SIGTERM)
    assert second.result() == 0
    third = served(config)
    write(4, 3)
    with ReplayClient(name) as replay:
        batches = replay.dataset_iter(1, timeout=LONG)
        assert [int(next(batches).data["number"][0]) for _ in range(3)] == [1, 3, 4]
    (tmp_path / "saved").rename(tmp_path / "elsewhere")
    (tmp_path / "saved").write_text("")
    third.send_signal(signal.SIGUSR1)
    third.wait_for(r"cannot be written")
    third.send_signal(signal.SIGTERM)
    assert third.result() == 1
    assert left(name) == []


def test_a_checkpoint_on_a_terminal(served, config):
    """A bar shows how far it is, and is cleared before the next line of the log."""
    config.write_text(config.read_text().replace('"shm"', '"memory"\ncheckpoint = "saved"'))
    running = served(config, terminal=True)
    running.send_signal(signal.SIGUSR1)
    running.wait_for(r"checkpoint .*saved/000001\r?\n")
    assert re.search(
        r"\r[^\r\n]*checkpoint [█░]{34} +[0-9]+ % of [^\r\n]*\x1b\[K.*\r\x1b\[K[0-9-]{10} ", running.output, re.S
    )
    running.send_signal(signal.SIGTERM)
    assert running.result() == 0


def test_a_checkpoint_in_a_log(caplog, monkeypatch):
    """A line says now and then how far it is."""
    monkeypatch.setattr(progress, "_IN_LOG", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with caplog.at_level("INFO"), progress.Progress("checkpoint", logging.getLogger("echo_shm.cli")) as tell:
        tell(1_000_000, 4_000_000)
    assert caplog.messages == ["checkpoint: 25 % of 4.0 MB"]


def test_files(served, config, name, tmp_path):
    """Killed or ended in order, the same command goes on with what is in the directory."""
    config.write_text(config.read_text().replace('"shm"', '"files/"'))
    first = served(config)
    assert f"files in {tmp_path}/files/" in first.output
    for n, program in enumerate((first, None, None), start=1):
        if program is None:
            program = served(config)
            assert f"replay {name!r}: it goes on with its files" in program.output
        with ReplayClient(name) as replay, replay.writer() as writer:
            writer.add(step(n))
            writer.flush(timeout=LONG)
            until(lambda n=n, replay=replay: replay.info().inserted == n)
        if n == 1:
            program.kill()
        else:
            program.send_signal(signal.SIGTERM)
            assert program.result() == 0
            assert left(name) == []
    config.write_text(config.read_text().replace("5000", "6000"))
    with pytest.raises(UsageError, match=r"capacity=5000, now 6000.*rm -r .*files/"):
        replay_serve.run(str(config))


def test_a_store_of_another_configuration_is_kept(served, config, name):
    """It says what differs, and what to do."""
    text = config.read_text()
    served(config).kill()
    for old, new, says in (
        ("5000", "6000", "capacity=5000, now 6000."),
        ('"q"', '"p"', "tables 'q', now 'p'."),
        ("4000", "100", "table 'q': max_diff=4000.0, now 100.0."),
        ("[3]", "[4]", "the example does not fit replay"),
    ):
        config.write_text(text.replace(old, new))
        with pytest.raises(UsageError) as refused:
            replay_serve.run(str(config))
        says = f"replay {name!r} was killed, and its store was made for another configuration: {says}"
        assert str(refused.value).startswith(f"{config}: {says}")
        assert f"`echo-shm gc {name}`" in str(refused.value)
    config.write_text(text)
    assert "goes on with what it held" in served(config).output


def test_a_name_that_is_taken(served, config, name):
    """Another process has the replay: the second one says which, and ends."""
    program = served(config)
    for store in ("shm", "memory"):
        config.write_text(config.read_text().replace('"shm"', f'"{store}"'))
        says = f"a replay named {name!r} exists already; process {program.pid} has it. Choose another name"
        with pytest.raises(SegmentError, match=says):
            replay_serve.run(str(config))


def test_other_hosts(served, config, name):
    """Workers on other hosts send to its transport."""
    config.write_text(config.read_text() + '[transport]\nport = 0\nauthkey_file = "key"\n')
    (config.parent / "key").write_bytes(b"0123456789abcdef")
    program = served(config)
    port = int(program.wait_for(r"port (\d+)\n")[1])
    with RemoteWriter("127.0.0.1", port, STEP, authkey=b"0123456789abcdef") as writer:
        writer.add(step(5))
        writer.flush(timeout=LONG)
    with ReplayClient(name) as replay:
        assert next(replay.dataset_iter(1, timeout=LONG)).data["number"] == [5]
    program.send_signal(signal.SIGTERM)
    assert program.result() == 0


MODULE = """\
import numpy as np
from echo_shm import Table
from echo_shm.replay import CustomSelector


class Newest(CustomSelector):
    def __init__(self):
        self.keys = {}

    def insert(self, key, priority):
        self.keys[key] = priority

    update = insert

    def remove(self, key):
        del self.keys[key]

    def draw(self, numbers):
        newest = next(reversed(self.keys))
        return [newest] * len(numbers), [1.0] * len(numbers)

    def probability(self, key):
        return float(key == next(reversed(self.keys)))


def make():
    return {
        "example": {"obs": np.zeros(3, np.float32), "number": np.array(0, np.int64)}, "capacity": 10,
        "tables": [Table("a", sampler=Newest())], "store": "shm", "name": "NAME",
    }
"""


def test_a_function_with_a_selector_of_its_own(served, config, name, monkeypatch):
    """Without a thread the process itself works. After a kill the selector is told of what is there."""
    (config.parent / "of_a_user.py").write_text(MODULE.replace("NAME", name))
    monkeypatch.chdir(config.parent)
    where = {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    first = served("of_a_user:make", **where)
    with ReplayClient(name) as replay, replay.writer() as writer:
        for number in (1, 2):
            writer.add(step(number))
        writer.flush(timeout=LONG)
        first.kill()
        second = served("of_a_user:make", **where)
        batches = replay.dataset_iter(2, timeout=LONG)
        assert next(batches).data["number"].tolist() == [2, 2]
        batches.close()
    second.send_signal(signal.SIGTERM)
    assert second.result() == 0


# --- the process itself -----------------------------------------------------------


def serve_and_log(conn, path):
    """An actor: serves, with a line in the log every 50 ms."""
    replay_serve._LOG_INTERVAL, replay_serve._SLICE = 0.05, 0.01
    lines = []
    replay_serve._log.info = lambda text, *args: (lines.append(text % args), conn.send(lines[-1]))
    conn.send(replay_serve.run(path))


def test_the_log(act, config, name):
    """Once in a while a line says how full it is, what goes in and out, and who waits for what."""
    config.write_text(config.read_text().replace("size = 4000", "size = 2"))
    process = act(serve_and_log, str(config))

    def hear(pattern):
        while not re.search(pattern, line := process.hear()):
            pass
        return line

    hear(rf"replay {name!r}: process {process.pid}, 0 steps in shared memory")
    hear("0 of 5,000 steps; table 'q': 0 items, 0/s in, 0/s out; 0 writers; 0 learners$")
    with ReplayClient(name) as replay, replay.writer() as writer:
        for number in range(4):
            writer.add(step(number))
        line = hear("2 parked items of table 'q' wait for [1-9] s")
        assert "table 'q': 2 items" in line
        assert "1 writer; 0 learners; " in line
        assert "the limiter of table 'q' lets nobody insert before more is sampled" in line
        batches = replay.dataset_iter(8, timeout=0.5)
        assert list(batches) == []
        line = hear("learners of batches of 8 of table 'q' wait for [1-9] s: table 'q' holds 0 items")
    os.kill(process.pid, signal.SIGTERM)
    hear("closing")
    assert process.hear() == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_ends_it(monkeypatch):
    """Whoever starts the process again is told, and does not find it hanging."""
    monkeypatch.setattr(rings, "_SLICE", 0.01)
    with Replay(STEP, 10, thread=True) as replay:
        replay._rings.check()
        monkeypatch.setattr(replay._rings, "_work", lambda: 1 / 0)
        thread = replay._rings._thread
        until(lambda: not thread.is_alive())
        with pytest.raises(Exception, match="the replay's thread has died") as died:
            replay._rings.check()
        assert type(died.value).__name__ == "EchoShmError"


def serve_and_fail(conn, path):
    """An actor: the command. Something of the replay cannot go on once a client has come."""
    check = rings.Rings.check

    def fail(self):
        check(self)
        if self._feed.senders():
            raise EchoShmError("it cannot go on")

    rings.Rings.check = fail
    try:
        replay_serve.run(path)
    except EchoShmError as error:
        conn.send(str(error))


def test_an_error_keeps_the_store(act, served, config, name):
    """It ends as if it was killed: the next one goes on with what it held."""
    process = act(serve_and_fail, str(config))
    with until(lambda: client_of(name), "it serves") as replay, replay.writer() as writer:
        writer.add(step(7))
        writer.flush(timeout=LONG)
        assert process.hear() == "it cannot go on"
        assert "goes on with what it held" in served(config).output
        assert next(replay.dataset_iter(1, timeout=LONG)).data["number"] == [7]


def client_of(name):
    """A client of that replay; None if it does not serve yet."""
    try:
        return ReplayClient(name)
    except SegmentError:
        return None


def serve(conn, path):
    """An actor: the command."""
    conn.send(cli.main(["replay", path]))


def test_in_a_container(act, config, name):
    """As process 1 of a container that shares /dev/shm: clients outside find it by name. SIGTERM ends it."""
    why = act(probe).hear()
    if why:
        pytest.skip(f"no containers can be made here: {why}")
    container = act(contain, Box(pid=1), serve, str(config))
    with until(lambda: client_of(name), "it serves") as replay, replay.writer() as writer:
        writer.add(step(7))
        writer.flush(timeout=LONG)
        assert next(replay.dataset_iter(1, timeout=LONG)).data["number"] == [7]
    os.kill(inhabitants(container)[1], signal.SIGTERM)
    assert container.hear() == 0
    assert left(name) == []
