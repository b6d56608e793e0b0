"""Stores in shared memory: they outlive a killed process, belong to one at a time, and leave nothing behind."""

import collections
import contextlib
import glob
import mmap
import os
import signal
import threading

import numpy as np
import pytest
from harness.programs import run_python

from echo_shm import Replay, SegmentError, SpecMismatchError, Table
from echo_shm.errors import EchoShmError
from echo_shm.replay import Fifo, NStep, Prioritized, SampleToInsertRatio, Sequence, Step
from echo_shm.replay.described import about_items, items_of
from echo_shm.replay.new_store import create_store
from echo_shm.replay.settings import differences
from echo_shm.replay.store import FILES
from echo_shm.replay.table import lay_out_table, table_config
from echo_shm.ring import lockfile
from echo_shm.spec import Spec

EXAMPLE = {"obs": np.zeros(3, np.float32), "act": np.zeros((), np.int64)}

#: A replay of three steps that is killed. Two items were sampled, and one has priority 5.
KILLED = """
import os, signal, sys
import numpy as np
from echo_shm import Replay, Table
from echo_shm.replay import Fifo, Prioritized, SampleToInsertRatio
example = {"obs": np.zeros(3, np.float32), "act": np.zeros((), np.int64)}
tables = [Table("p", Prioritized(1.0, 0.5), max_size=50), Table("q", Fifo(), max_times_sampled=1,
          rate_limiter=SampleToInsertRatio(1.0, 1, 4.0))]
replay = Replay(example, 100, tables, store="shm", name=sys.argv[1])
for i in range(3):
    replay.add({"obs": np.full(3, i, np.float32), "act": i}, terminated=i == 0)
replay.update(replay.sample(1, "q").key, [5.0], "q")
replay.update(replay.get(np.unique(replay.sample(100, "p").key), "p").key[:1], [5.0], "p")
replay.sample(1, "q")
replay.set_limits("q", -7.0, 2.5)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def name(name):
    """A name; what is left of its store is removed after the test."""
    yield name
    for file in glob.glob(f"/dev/shm/echo_shm*{name}*"):
        os.unlink(file)


def files():
    """The files of stores in shared memory."""
    return sorted(one for one in os.listdir("/dev/shm") if one.startswith("echo_shm_replay"))


def killed(name):
    """Leaves the store of a replay that was killed."""
    assert run_python(KILLED, name, status=None).returncode == -signal.SIGKILL


def test_a_killed_replay_goes_on(name):
    """Items, priorities, counters and settings are as they were; the names are, too."""
    killed(name)
    tables = [
        Table("p", Prioritized(1.0, 0.5), max_size=50),
        Table("q", Fifo(), max_times_sampled=1, rate_limiter=SampleToInsertRatio(1.0, 1, 4.0)),
    ]
    assert differences(name, EXAMPLE, 100, tables) == []  # the limits that it was made with
    with Replay.attach(name) as replay:
        assert (replay.name, replay.capacity, replay.tables) == (name, 100, ("p", "q"))
        assert (replay.num_steps, replay.info("p").size, replay.info("q").size) == (3, 3, 1)
        info = replay.info("q")
        assert (info.inserted, info.sampled, info.deleted) == (3, 2, 2)
        assert (info.limiter.min_diff, info.limiter.max_diff) == (-7.0, 2.5)
        assert replay.info("p").max_size == 50
        batch = replay.sample(1, "q")
        assert (batch.data["act"].tolist(), batch.data["obs"].tolist()) == ([2], [[2, 2, 2]])
        priorities = replay.sample(200, "p").priority
        assert sorted(set(priorities)) == [1.0, 5.0]
        replay.add({"obs": np.zeros(3, np.float32), "act": 9})
        assert set(replay.sample(200, "p").data["act"]) == {0, 1, 2, 9}
    assert files() == []


def test_one_process_at_a_time(name):
    """Who has it is named: this process, or another."""
    with Replay(EXAMPLE, 10, store="shm", name=name) as replay:
        with pytest.raises(SegmentError, match=rf"replay '{name}' is in use: this process has it"):
            Replay.attach(name)
        with pytest.raises(SegmentError, match=r"exists already; this process has it. Choose another name"):
            Replay(EXAMPLE, 10, store="shm", name=name)
        script = "import sys; from echo_shm import Replay; Replay.attach(sys.argv[1])"
        failed = run_python(script, name, status=1)
        assert f"replay {name!r} is in use: process {os.getpid()} has it" in failed.stderr
        replay.add({"obs": np.zeros(3, np.float32), "act": 9})  # the attempts have changed nothing
        assert len(replay) == 1


def test_close_removes_and_a_failed_attach_does_not(name):
    """So the next attempt finds it."""
    killed(name)
    with pytest.raises(SpecMismatchError, match="act") as kept:
        Replay.attach(name, {"obs": np.zeros(3, np.float32), "act": np.zeros((), np.int32)})
    replay = Replay.attach(name, EXAMPLE)
    assert kept.tb is not None  # its frames refer to the first attempt's lock file
    assert len(files()) == 2
    replay.close()
    assert files() == []
    with pytest.raises(SegmentError, match=f"no replay is named '{name}'"):
        Replay.attach(name)


def test_a_name_that_a_dead_replay_has(name):
    """The error says how to go on with it, and how to remove it."""
    killed(name)
    with pytest.raises(SegmentError, match=rf"is dead. Go on with it: Replay.attach\('{name}'\)"):
        Replay(EXAMPLE, 10, store="shm", name=name)
    assert len(files()) == 2


@pytest.mark.parametrize(
    "end",
    ["replay.close()", "del replay", "", "raise SystemExit(0)", "import threading; t = threading.Thread("
     "target=lambda: [replay.sample(4096) for _ in iter(int, 1)], daemon=True); t.start()"],
    ids=["close", "del", "exit", "SystemExit", "busy daemon"],
)  # fmt: skip
def test_an_ordered_end_leaves_nothing(end):
    """However a living process ends its replay, its files go."""
    script = f"""
import numpy as np
from echo_shm import Replay
replay = Replay(np.zeros(100), 10, store="shm")
replay.add(np.zeros(100))
{end}
"""
    assert run_python(script).stderr == ""
    assert files() == []


def test_segments_and_stores_do_not_see_each_other(name):
    """``echo-shm ls`` finds neither file, and the same name may be a segment's."""
    with Replay(EXAMPLE, 10, store="shm", name=name):
        assert name not in lockfile.names()
        assert name in lockfile.names(FILES)
        assert not lockfile.collect(name, FILES)
        assert len(files()) == 2
    killed(name)
    assert lockfile.collect(name, FILES)
    assert files() == []


def test_trees_that_need_an_example(name):
    """A schema has no node types but dict, OrderedDict, list, tuple and None."""
    example = collections.defaultdict(None, a=np.zeros(2))
    script = """
import collections, os, sys
import numpy as np
from echo_shm import Replay
replay = Replay(collections.defaultdict(None, a=np.zeros(2)), 10, store="shm", name=sys.argv[1])
replay.add(collections.defaultdict(None, a=np.ones(2)))
os.kill(os.getpid(), 9)
"""
    run_python(script, name, status=None)
    with pytest.raises(SpecMismatchError, match="pass an example"):
        Replay.attach(name)
    with Replay.attach(name, example) as replay:
        data = replay.sample(1).data
        assert type(data) is collections.defaultdict
        assert data["a"].tolist() == [[1, 1]]


def test_a_forked_child_leaves_the_store(name):
    """Neither its close() nor its exit removes it."""
    with Replay(EXAMPLE, 10, store="shm", name=name) as replay:
        child = os.fork()
        if child == 0:
            replay.close()
            replay._end()
            os._exit(0)
        os.waitpid(child, 0)
        assert len(files()) == 2
        replay.add({"obs": np.zeros(3, np.float32), "act": 9})
        failed = run_python("import sys; from echo_shm import Replay; Replay.attach(sys.argv[1])", name, status=1)
        assert "is in use" in failed.stderr


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20])
def test_what_is_no_store(name, size):
    """SegmentError, whatever is there, and it is left alone."""
    for prefix in (FILES.locks, FILES.shm):
        with open(f"/dev/shm/{prefix}{name}", "wb") as file:
            file.write(bytes(size if prefix == FILES.shm else 0))
    with pytest.raises(SegmentError, match=rf"replay '{name}' cannot be used"):
        Replay.attach(name)
    assert len(files()) == 2
    os.unlink(f"/dev/shm/{FILES.shm}{name}")
    with pytest.raises(SegmentError, match="only a lock file"):
        Replay.attach(name)


def test_a_schema_that_lies_about_the_leaves(name):
    """The core and Python must agree about each leaf's size: otherwise a batch would be written past its end."""
    about, table = about_items([Step()]), Table("t")
    mine = Spec.from_example(EXAMPLE, about)
    theirs = Spec.from_example({**EXAMPLE, "obs": np.zeros(3, np.float16)}, about)
    lie, layout = Spec(mine.treespec, mine.leaves, theirs.schema), lay_out_table(table, mine)
    create_store("shm", name, lie, 10, 10, 0, [table_config(table, layout, 10)], layout.outputs).release()
    with pytest.raises(SegmentError, match=f"replay '{name}' cannot be used: its schema does not fit its layout"):
        Replay.attach(name)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Sequence(4), "its schema does not fit its layout"),
        (Step(), "its schema does not fit its layout"),
        (NStep(1, 1.0, ["obs"], "gain"), "its schema is damaged: reward: the steps have no 'gain'"),
    ],
)
def test_a_schema_that_lies_about_the_items(name, item, message):
    """Batches are made as the schema says, and written as the layout says: so they must agree."""
    table, lie = Table("t", item=Sequence(3)), Spec.from_example(EXAMPLE, about_items([item]))
    layout = lay_out_table(table, lie)
    create_store("shm", name, lie, 10, 10, 0, [table_config(table, layout, 10)], layout.outputs).release()
    with pytest.raises(SegmentError, match=f"replay '{name}' cannot be used: {message}"):
        Replay.attach(name)


@pytest.mark.parametrize("about", [None, 3, {}, {"items": 3}, {"items": []}, {"items": [["step", {}]] * 2}])
def test_a_schema_that_says_nothing_of_the_items(about):
    """It is refused, and so is one that describes what there is not."""
    with pytest.raises(SegmentError, match=r"replay 'x' cannot be used: its schema describes [02] tables of 1"):
        items_of(Spec.from_example(EXAMPLE, about), 1, "replay 'x'")
    with pytest.raises(SegmentError, match="replay 'x' cannot be used: its schema is damaged: no kind of item"):
        items_of(Spec.from_example(EXAMPLE, {"items": [["steps", {}]]}), 1, "replay 'x'")


def test_damage_is_no_crash(name):
    """A store with one byte changed, anywhere: an error, or it can be used."""
    killed(name)
    path = f"/dev/shm/{FILES.shm}{name}"
    with open(path, "rb") as file:
        whole = file.read()
    rng = np.random.default_rng(0)
    used = 0
    for _ in range(60):
        at = int(rng.integers(0, min(len(whole), 4096))) if rng.random() < 0.5 else int(rng.integers(0, len(whole)))
        with open(path, "r+b") as file:
            file.write(whole)
            file.seek(at)
            file.write(bytes([whole[at] ^ int(rng.integers(1, 256))]))
        try:
            replay = Replay.attach(name)
        except EchoShmError:
            continue
        with contextlib.suppress(EchoShmError, TimeoutError):
            replay.add({"obs": np.zeros(3, np.float32), "act": 9})
            replay.sample(10, "p", timeout=0)
            replay.sample(1, "q", timeout=0)
        used += 1
        replay._rings.leave()
        replay._core.close()
        replay._store.release()
        replay._end.detach()
    assert 0 < used < 60


def test_a_highest_priority_that_was_scribbled_on(name):
    """The store says what the highest priority was, for the next process. This one knows it."""
    highest = 12345.678
    with Replay(np.zeros((), np.int64), 10, [Table("t", Prioritized(1.0, 1.0))], store="shm", name=name) as replay:
        replay.add(1, priority=highest)
        with open(f"/dev/shm/{FILES.shm}{name}", "r+b") as file, mmap.mmap(file.fileno(), 0) as store:
            for _ in range(2):  # the item's own, and the table's
                at = store.find(np.float64(highest).tobytes())
                assert at > 0
                store[at : at + 8] = np.float64(np.nan).tobytes()
        replay.add(2)
        batch = replay.sample(64)
        assert set(batch.data.tolist()) == {1, 2}
        assert set(batch.priority[batch.data == 2].tolist()) == {highest}
        assert set(batch.probability.tolist()) == {0.5}


def test_two_threads_attach_at_once(name):
    """One gets it."""
    killed(name)
    got, barrier = [], threading.Barrier(8)

    def attach():
        barrier.wait()
        try:
            got.append(Replay.attach(name))
        except SegmentError as error:
            assert "is in use: this process" in str(error)  # noqa: PT017

    threads = [threading.Thread(target=attach) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    got[0].close()


def test_too_little_shared_memory():
    """The error says what was asked for, and what to do. Nothing is left."""
    with pytest.raises(SegmentError, match=r"replay '.*' needs [\d,]+ bytes.*Use a smaller capacity, or enlarge"):
        Replay(np.zeros(1 << 20), 1 << 24, store="shm")
    assert files() == []


def test_too_little_memory():
    """The same for the process's own."""
    with pytest.raises(MemoryError, match="use a smaller capacity"):
        Replay(np.zeros(1 << 27), 1 << 30)


def test_the_settings_of_a_table_survive():
    """What info() says after attach is what the Table said, with a name beyond ASCII."""
    table = Table("Läufe", Prioritized(0.5, 0.25), max_size=7, rate_limiter=SampleToInsertRatio(2.0, 3, 6.0))
    with Replay(EXAMPLE, 10, [table, Table("b", Fifo())]) as replay:
        limiter = replay.info("Läufe").limiter
        assert (limiter.min_size, limiter.ratio, limiter.min_diff, limiter.max_diff) == (3, 2.0, 0.0, 12.0)
        assert replay.info("Läufe").max_size == 7


def test_close_gives_the_memory_back(name):
    """At once, though somebody still refers to the replay and to a batch."""
    replay = Replay(EXAMPLE, 1000, store="shm", name=name)
    replay.add({"obs": np.zeros(3, np.float32), "act": 9})
    batch = replay.sample(1)
    with open("/proc/self/maps", encoding="ascii") as maps:
        assert name in maps.read()
    replay.close()
    with open("/proc/self/maps", encoding="ascii") as maps:
        assert name not in maps.read()
    assert batch.data["act"].tolist() == [9]
