"""Stores in a directory: files that other programs read, that outlive the replay, and that belong to one at a time."""

import collections
import errno
import json
import os
import pathlib
import re
import threading

import ml_dtypes
import numpy as np
import pytest
from harness.programs import ECHO_SHM, run, run_python
from harness.waiting import until

from echo_shm import Replay, ReplayClient, SegmentError, SpecMismatchError, Table
from echo_shm.replay import Fifo, Prioritized, Uniform, Writer, disk, listing, new_files, new_store, snapshots, syncing
from echo_shm.spec import Spec

EXAMPLE = {"obs": np.zeros(3, np.float32), "act": np.zeros((), np.int64)}

#: Stores 50 steps, and is killed.
KILLED = """
import os, signal, sys
import numpy as np
from echo_shm import Replay
replay = Replay({"obs": np.zeros(3, np.float32), "act": np.int64(0)}, 40, store=sys.argv[1], name=sys.argv[2])
for i in range(50):
    replay.add({"obs": np.full(3, i, np.float32), "act": i})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path):
    """The path of a directory that does not exist yet."""
    return f"{tmp_path}/replay/"


def fill(replay, n, first=0):
    """Stores n steps, whose leaves are their numbers."""
    for i in range(first, first + n):
        replay.add({"obs": np.full(3, i, np.float32), "act": i})


def stored(replay):
    """The numbers of the steps that are stored."""
    data = replay.sample(600).data
    np.testing.assert_array_equal(data["obs"], np.repeat(data["act"].astype(np.float32), 3).reshape(-1, 3))
    return set(data["act"].tolist())


# --- files ----------------------------------------------------------------------


def test_close_and_attach(path):
    """What was stored is there when the store is opened again, and it goes on; a path object names it, too."""
    tables = [Table("a", Prioritized(1.0), max_size=30), Table("b", Uniform(), remover=Fifo())]
    with Replay(EXAMPLE, 40, tables, store=path, seed=5) as replay:
        fill(replay, 100)
        keys = np.unique(replay.sample(100, "a").key)
        replay.update(keys, np.arange(len(keys)) + 1.0, "a")
        before, infos = replay.get(keys, "a"), replay.info("b")
    with Replay.attach(pathlib.Path(path)) as replay:
        assert vars(replay.info("b")) == {**vars(infos), "bytes": replay.info("b").bytes}
        after = replay.get(keys, "a")
        for leaf in EXAMPLE:
            np.testing.assert_array_equal(before.data[leaf], after.data[leaf])
        np.testing.assert_array_equal(before.priority, after.priority)
        fill(replay, 40, 100)
        assert set(replay.sample(600, "b").data["act"].tolist()) == set(range(100, 140))


def test_numpy_reads_the_columns(path):
    """Each leaf is a .npy file by the name of its path, with a row for each step."""
    example = {
        "obs": {"image": np.zeros((4, 5, 3), np.uint8), "speed": (np.zeros(2, np.float64), np.zeros((), np.bool_))},
        "odd name/..": np.zeros(3, [("x", "<f4"), ("y", "<i8", 2)]),
        "half": np.zeros(7, ml_dtypes.bfloat16),
        "none": np.zeros((0, 3), np.float32),
    }
    with Replay(example, 20, store=path) as replay:
        replay.add(
            {
                "obs": {"image": np.full((4, 5, 3), 9, np.uint8), "speed": (np.array([1.5, 2.5]), np.True_)},
                "odd name/..": np.ones(3, example["odd name/.."].dtype),
                "half": np.full(7, 3, ml_dtypes.bfloat16),
                "none": np.zeros((0, 3), np.float32),
            }
        )
        found = {file: np.load(path + file, mmap_mode="r") for file in os.listdir(path) if file.endswith(".npy")}
        assert set(found) == {"obs.image.npy", "obs.speed.0.npy", "obs.speed.1.npy", "odd_name_...npy", "half.npy",
                              "none.npy"}  # fmt: skip
        assert found["obs.image.npy"].shape == (42, 4, 5, 3)  # capacity, two more, and as many that are spare
        assert (found["obs.image.npy"][0] == 9).all()
        np.testing.assert_array_equal(found["obs.speed.0.npy"][0], [1.5, 2.5])
        assert found["obs.speed.1.npy"][:2].tolist() == [True, False]
        assert found["odd_name_...npy"].dtype == example["odd name/.."].dtype
        assert found["odd_name_...npy"][0]["y"].tolist() == [[1, 1]] * 3
        assert (found["half.npy"].view(ml_dtypes.bfloat16)[0] == 3).all()
        assert found["none.npy"].shape == (42, 0, 3)
    with Replay.attach(path) as replay:
        np.testing.assert_array_equal(replay.sample(1).data["half"], np.full((1, 7), 3, ml_dtypes.bfloat16))


def test_names_that_are_equal_as_files(path):
    """Leaves whose paths make the same file name have files of their own; so has a step that is one array."""
    leaves = Spec.from_example({"a": {"b": np.zeros(1)}, "a.b": np.zeros(2), "a b": np.zeros(3)}).leaves
    assert sorted(new_files.column_files(leaves)) == ["a.b-2.npy", "a.b.npy", "a_b.npy"]
    with Replay(np.zeros(2), 5, store=path) as replay:
        replay.add(np.ones(2))
        assert os.path.exists(path + "step.npy")


def test_the_store_without_syncs_has_no_spare_rows(path):
    """With sync_every=None there are as many rows as in other stores; a close syncs it."""
    with Replay(EXAMPLE, 20, store=path, sync_every=None) as replay:
        fill(replay, 30)
        assert np.load(path + "act.npy", mmap_mode="r").shape == (22,)
    with Replay.attach(path) as replay:
        fill(replay, 50, 30)
        assert stored(replay) == set(range(60, 80))


# --- whose it is --------------------------------------------------------------------


def test_a_killed_replay_goes_on(path, name):
    """Nothing is lost with its process; meanwhile ``ls`` and ``gc`` know where its files are, and keep its rings."""
    assert run_python(KILLED, path, name, status=None).returncode == -9
    assert f"Replay.attach('{path}')" in run(*ECHO_SHM, "ls").stdout
    assert f"Replay.attach('{path}')" in run(*ECHO_SHM, "gc").stdout
    with pytest.raises(SegmentError, match=r"is dead: Replay\.attach\('/.*/'\) goes on"):
        ReplayClient(name)
    with Replay.attach(path) as replay:
        assert replay.name == name
        assert stored(replay) == set(range(10, 50))
    assert name not in listing.names()
    assert os.path.exists(path + disk.MANIFEST)


def test_gc_by_name_removes_the_rings_alone(path, name):
    """The files are the user's: they are whole after that."""
    assert run_python(KILLED, path, name, status=None).returncode == -9
    run(*ECHO_SHM, "gc", name)
    assert name not in listing.names()
    with Replay.attach(path) as replay:
        assert stored(replay) == set(range(10, 50))


def test_one_process_at_a_time(path):
    """A directory in use cannot be attached to or created again; after a close it can only be attached to."""
    with Replay(EXAMPLE, 5, store=path):
        with pytest.raises(SegmentError, match="this process has it"):
            Replay.attach(path)
        script = "import sys; from echo_shm import Replay; Replay.attach(sys.argv[1])"
        assert f"process {os.getpid()} has it" in run_python(script, path, status=1).stderr
    with pytest.raises(SegmentError, match=r"exists already. Go on with it: Replay\.attach\('.*'\), or remove"):
        Replay(EXAMPLE, 5, store=path)
    with Replay.attach(path) as replay:
        fill(replay, 1)


@pytest.mark.parametrize("thread", [False, True])
def test_steps_of_workers(path, name, monkeypatch, thread):
    """Steps that come through its inbox wait for syncs as those of add() do."""
    monkeypatch.setattr(new_store, "_spare", lambda capacity: 3)
    monkeypatch.setattr(syncing.Syncing, "start", lambda self: None)
    with Replay(EXAMPLE, 10, store=path, name=name, thread=thread, sync_every=1000.0) as replay:
        fill(replay, 10)
        replay._store.syncing.sync()
        synced = replay._store.directory.snapshots.time
        with Writer(replay.handle) as writer:
            for i in range(200):
                writer.add({"obs": np.full(3, i, np.float32), "act": i})
            until(lambda: replay.info().inserted == 210)
        assert len(replay) == 10
        assert stored(replay) <= set(range(200))
        assert replay._store.directory.snapshots.time > synced


# --- syncs ------------------------------------------------------------------------


def test_it_is_synced_at_intervals(path):
    """A thread does so. If the machine goes down then, the steps of before are there."""
    with Replay(EXAMPLE, 40, store=path, sync_every=0.05) as replay:
        fill(replay, 30)
        snapshot = replay._store.directory.snapshots
        first = snapshot.time
        until(lambda: snapshot.time > first)
        assert any(thread.name == "echo_shm-sync" for thread in threading.enumerate())
    assert not any(thread.name == "echo_shm-sync" for thread in threading.enumerate())


def test_a_boot_between(path, monkeypatch, caplog):
    """After a clean close nothing is lost with the machine. Otherwise the log says since when."""
    with Replay(EXAMPLE, 40, store=path) as replay:
        fill(replay, 30)
    monkeypatch.setattr(disk, "boot_id", lambda: b"second")
    with Replay.attach(path) as replay:
        assert stored(replay) == set(range(30))
        assert not caplog.records
        fill(replay, 5, 30)
        replay._store.syncing.stop(sync=False)
        monkeypatch.setattr(replay._store.syncing, "stop", lambda *, sync: None)
    monkeypatch.setattr(disk, "boot_id", lambda: b"third")
    with Replay.attach(path) as replay:
        assert stored(replay) == set(range(30))
        assert "goes on from its last sync" in caplog.text


def test_a_flush_that_fails(path, monkeypatch):
    """It is not tried again. Steps come in until the spare rows are used up, and close() says it, too."""
    monkeypatch.setattr(new_store, "_spare", lambda capacity: 4)
    monkeypatch.setattr(syncing.Syncing, "start", lambda self: None)

    def fail(fd):
        raise OSError(errno.EIO, "Input/output error")

    replay = Replay(EXAMPLE, 20, store=path)
    fill(replay, 20)
    replay._store.syncing.sync()
    with monkeypatch.context() as patch:
        patch.setattr(snapshots.os, "fdatasync", fail)
        with pytest.raises(SegmentError, match=r"cannot be synced any more.*Input/output error"):
            fill(replay, 20, 20)
    with pytest.raises(SegmentError, match="cannot be synced any more"):
        fill(replay, 1, 40)
    assert len(replay) == 20
    with pytest.raises(SegmentError, match="cannot be synced any more"):
        replay.close()
    with Replay.attach(path) as replay:  # nobody knows which rows of later steps are on the disk
        assert stored(replay) == set(range(20))


def test_the_last_observation_waits_for_a_sync_with_its_step(path, monkeypatch):
    """A step and the observation that its episode ends with are stored both or not at all."""
    monkeypatch.setattr(new_store, "_spare", lambda capacity: 1)
    monkeypatch.setattr(syncing.Syncing, "start", lambda self: None)
    final = {"obs": np.ones(3, np.float32), "act": np.int64(7)}
    table = Table("t", remover=Fifo())
    with Replay(EXAMPLE, 4, [table], store=path) as replay:
        fill(replay, 4)
        replay._store.syncing.sync()
        for i in range(40):
            step = {"obs": np.full(3, i, np.float32), "act": i}
            replay.add(step, truncated=True, final=final if i % 2 else None)
        assert replay.info().inserted == 44


# --- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["disk", "1", 7, "replay"])
def test_a_store_that_is_no_kind(kind):
    """A path needs a slash, so that a slip of the pen makes no directory."""
    with pytest.raises((ValueError, TypeError), match="with a slash in it"):
        Replay(EXAMPLE, 5, store=kind)


@pytest.mark.parametrize("every", [0, -1.0, float("nan"), float("inf"), "1"])
def test_times_that_cannot_be(path, every):
    """Seconds between syncs are finite, and above 0."""
    with pytest.raises(ValueError, match="sync_every"):
        Replay(EXAMPLE, 5, store=path, sync_every=every)
    assert not os.path.exists(path)


def test_a_full_disk(path, monkeypatch):
    """It is noticed when the files are made, and none of them stays."""
    made, allocate = [], os.posix_fallocate

    def full(fd, offset, size):
        made.append(size)
        if len(made) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SegmentError, match=r"needs [\d,]+ bytes.*No space left.*smaller capacity") as caught:
        Replay(EXAMPLE, 5, store=path)
    assert caught.value.errno == errno.ENOSPC
    assert not os.path.exists(path)
    os.mkdir(path)
    made.clear()
    with pytest.raises(SegmentError, match="No space left"):
        Replay(EXAMPLE, 5, store=path)
    assert os.listdir(path) == []  # an empty one that was there stays


def test_more_than_any_disk_has(path):
    """The file system itself refuses."""
    with pytest.raises(SegmentError, match="cannot be made"):
        Replay({"x": np.zeros(1 << 30, np.uint8)}, 1 << 25, store=path)
    assert not os.path.exists(path)


def test_a_replay_that_cannot_be_opened_leaves_nothing(path, name):
    """Its rings' name is taken."""
    with Replay(EXAMPLE, 5, store="shm", name=name):
        with pytest.raises(SegmentError, match="choose another name"):
            Replay(EXAMPLE, 5, store=path, name=name)
        assert not os.path.exists(path)


def test_places_where_nothing_can_be_made(tmp_path, monkeypatch):
    """A missing parent, a file in its place, other files there, a file system that is read-only."""
    with pytest.raises(SegmentError, match="make its parent first"):
        Replay(EXAMPLE, 5, store=tmp_path / "no" / "where")
    (tmp_path / "file").write_text("x")
    with pytest.raises(SegmentError, match="cannot be made: Not a directory"):
        Replay(EXAMPLE, 5, store=tmp_path / "file")
    with pytest.raises(SegmentError, match="holds other files, 'file' for one"):
        Replay(EXAMPLE, 5, store=tmp_path)
    assert os.listdir(tmp_path) == ["file"]

    def refuse(path, *rest, **more):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(SegmentError, match="Read-only file system: choose a place"):
        Replay(EXAMPLE, 5, store=tmp_path / "new")


def closed(path):
    """A store that was closed."""
    with Replay(EXAMPLE, 5, store=path) as replay:
        fill(replay, 8)


@pytest.mark.parametrize("file", ["manifest.json", "records", "act.npy", "snapshot.1", "boot_id", "lock"])
def test_a_missing_file(path, file):
    """The error names it."""
    closed(path)
    os.unlink(path + file)
    with pytest.raises(SegmentError, match=rf"'{re.escape(file)}' is missing|being made"):
        Replay.attach(path)


@pytest.mark.parametrize("file", ["records", "act.npy", "snapshot.0"])
def test_a_file_of_another_size(path, file):
    """A page beyond the end of a file would kill whoever touches it."""
    closed(path)
    os.truncate(path + file, 100)
    with pytest.raises(SegmentError, match=f"its file '{file}' has 100 bytes, and the manifest says"):
        Replay.attach(path)


def test_files_that_are_no_files(path):
    """Links and FIFOs are not opened."""
    closed(path)
    os.rename(path + "act.npy", path + "other")
    os.symlink("other", path + "act.npy")
    with pytest.raises(SegmentError, match=r"cannot be opened: act\.npy"):
        Replay.attach(path)
    os.unlink(path + "act.npy")
    os.mkfifo(path + "act.npy")
    with pytest.raises(SegmentError, match="is no regular file"):
        Replay.attach(path)


def test_what_is_no_replay(tmp_path):
    """No directory, an empty one, a file."""
    for where in (tmp_path / "none", tmp_path, tmp_path / "file"):
        (tmp_path / "file").write_text("x")
        with pytest.raises(SegmentError, match=r"no directory|holds no manifest"):
            Replay.attach(where)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 9}, "have version 9, and this echo_shm reads version 1: use the newer"),
        ({"version": 0}, "use the older"),
        ({"uuid": "xyz"}, "damaged"),
        ({"name": "../x"}, "damaged"),
        ({"sync_every": -1}, "damaged"),
        ({"parts": []}, "damaged"),
        ({"parts": [{"file": "records", "bytes": 4096}, {"file": "../../etc/passwd", "bytes": 1}]}, "damaged"),
        ({"parts": None}, "damaged"),
    ],
)
def test_a_manifest_that_does_not_fit(path, change, says):
    """Another version's, or one that somebody has changed."""
    closed(path)
    with open(path + disk.MANIFEST) as file:
        said = json.load(file)
    with open(path + disk.MANIFEST, "w") as file:
        json.dump({**said, **change}, file)
    with pytest.raises(SegmentError, match=says):
        Replay.attach(path)


def test_a_manifest_that_is_no_json(path):
    """It is another program's, perhaps."""
    closed(path)
    pathlib.Path(path + disk.MANIFEST).write_bytes(b"\xff\x00")
    with pytest.raises(SegmentError, match="is damaged, or another program's"):
        Replay.attach(path)


def test_columns_that_do_not_fit_the_records(path):
    """Two columns in each other's place would give rows of other leaves."""
    closed(path)
    with open(path + disk.MANIFEST) as file:
        said = json.load(file)
    said["parts"][1:] = said["parts"][:0:-1]
    with open(path + disk.MANIFEST, "w") as file:
        json.dump(said, file)
    with pytest.raises(SegmentError, match="do not fit its other files"):
        Replay.attach(path)


@pytest.mark.parametrize("more", [-4096, 65536])
def test_records_of_another_size(path, more):
    """The columns would not be where the core looks for them."""
    closed(path)
    size = os.stat(path + disk.RECORDS).st_size + more
    os.truncate(path + disk.RECORDS, size)
    for file in disk.SNAPSHOTS:
        os.truncate(path + file, size + 4096)
    with open(path + disk.MANIFEST) as file:
        said = json.load(file)
    said["parts"][0]["bytes"] = size
    with open(path + disk.MANIFEST, "w") as file:
        json.dump(said, file)
    with pytest.raises(SegmentError, match=r"damaged|cannot be used"):
        Replay.attach(path)


def test_an_empty_directory_that_was_there_stays(path, name):
    """Its files go when the replay cannot be opened."""
    os.mkdir(path)
    with Replay(EXAMPLE, 5, store="shm", name=name), pytest.raises(SegmentError, match="choose another name"):
        Replay(EXAMPLE, 5, store=path, name=name)
    assert os.listdir(path) == []


def test_damage_is_no_crash(path):
    """Whatever is in the records: an error, or spoilt items."""
    closed(path)
    whole = pathlib.Path(path + disk.RECORDS).read_bytes()
    numbers = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        bytes_ = np.frombuffer(whole, np.uint8).copy()
        bytes_[numbers.integers(0, len(whole), 40)] = numbers.integers(0, 256, 40)
        bytes_[numbers.integers(0, 1024, 1)] ^= np.uint8(1 << numbers.integers(8))
        bytes_.tofile(path + disk.RECORDS)
        try:
            with Replay.attach(path) as replay:
                fill(replay, 12)
        except (SegmentError, SpecMismatchError):
            refused += 1
    assert refused > 20


def test_a_store_that_needs_an_example(path):
    """The message says how to pass it."""
    point = collections.namedtuple("point", "x y")
    with Replay(point(np.zeros(2), np.zeros(())), 5, store=path) as replay:
        replay.add(point(np.ones(2), 1.0))
    with pytest.raises(SpecMismatchError, match=r"Replay\.attach\('/.*/replay/', example\)"):
        Replay.attach(path)
    with Replay.attach(path, point(np.zeros(2), np.zeros(()))) as replay:
        assert replay.sample(1).data.y.tolist() == [1.0]
