"""The process of a store in a directory is killed at each system call that its files get; and the machine goes down."""

import tempfile

from harness.programs import run_python

#: A child makes a store, uses and syncs it, and is killed at its n-th call. Its parent goes on with what is left.
SCRIPT = """
import json, logging, os, shutil, signal, sys
import numpy as np
from echo_shm import Replay, SegmentError, Table
from echo_shm.replay import Fifo, disk, files, new_files, new_store, snapshots, syncing

logging.disable()
CALLS = {"mkdir", "open", "ftruncate", "posix_fallocate", "pwrite", "write", "fsync", "fdatasync", "replace"}
CAPACITY = 30
new_store._spare = lambda capacity: 6
syncing.Syncing.start = lambda self: None


class Calls:
    def __init__(self, left):
        self.left = left

    def __getattr__(self, name):
        if name in CALLS:
            self.count()
        return getattr(os, name)

    def count(self):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


def killed_at(n, life):
    "Runs life(told) in a child, which is killed at its n-th call: how often it has told, and whether it was killed."
    mine, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        disk.os = files.os = new_files.os = snapshots.os = calls = Calls(n)
        restore = snapshots.Snapshots.restore
        snapshots.Snapshots.restore = lambda self, records: (calls.count(), restore(self, records))[1]
        life(lambda: os.write(its, b"."))
        os._exit(0)
    os.close(its)
    status = os.waitpid(pid, 0)[1]
    told = len(os.read(mine, 10_000))
    os.close(mine)
    assert status in (0, signal.SIGKILL), status
    return told, status != 0


def step(at):
    return {"obs": np.arange(at, at + 300, dtype=np.float32), "at": at}


def go_on(replay, first, n, told=lambda: None):
    for at in range(first, first + n):
        replay.add(step(at))
        told()


def content(replay):
    "The numbers of the steps that are stored; each is whole."
    if len(replay) == 0:
        return []
    data = replay.sample(400).data
    for obs, at in zip(data["obs"], data["at"]):
        assert np.array_equal(obs, step(at)["obs"]), at
    return sorted({*data["at"].tolist()})


def expected(n):
    return list(range(max(0, n - CAPACITY), n))


def after_a_loss(path):
    "What is left of a copy once the machine has gone down."
    copy = path.rstrip("/") + ".copy/"
    shutil.copytree(path, copy)
    said = json.load(open(copy + "manifest.json"))
    json.dump({**said, "name": said["name"] + "-copy"}, open(copy + "manifest.json", "w"))
    boot, disk.boot_id = disk.boot_id, lambda: b"another"
    with Replay.attach(copy) as replay:
        left = content(replay)
    disk.boot_id = boot
    shutil.rmtree(copy)
    return left


def create(path, told):
    name = os.path.basename(path.rstrip("/"))
    replay = Replay({"obs": np.zeros(300, np.float32), "at": np.int64(0)}, CAPACITY, [Table("t", remover=Fifo())],
                    store=path, sync_every=1000.0, name=name)
    go_on(replay, 0, 20, told)
    replay._store.syncing.sync()
    go_on(replay, 20, 40, told)
    replay.close()


def test_create(root, name):
    for n in range(10_000):
        path = f"{root}/{name}-{n}/"
        told, killed = killed_at(n, lambda told: create(path, told))
        try:
            replay = Replay.attach(path)
        except SegmentError as error:
            assert told == 0 and ("being made" in str(error) or "no directory" in str(error)), error
            unfinished = n
            shutil.rmtree(path, ignore_errors=True)
            continue
        assert content(replay) == expected(told), (n, told)
        left = after_a_loss(path)
        assert left in [expected(k) for k in range(told + 1)], (n, left)
        some = min(5, replay._core.room())
        go_on(replay, told, some)
        assert after_a_loss(path) == left, n  # rows that the snapshot has were left alone
        go_on(replay, told + some, 60)
        replay.close()
        assert after_a_loss(path) == expected(told + some + 60)
        shutil.rmtree(path)
        if not killed:
            return unfinished, n
    raise AssertionError("it does not end")


def test_recover(root, name):
    base = f"{root}/{name}-base/"

    def leave(told):
        create(base, told)
        replay = Replay.attach(base)
        go_on(replay, 60, 5)
        os.kill(os.getpid(), signal.SIGKILL)

    killed_at(10_000, leave)
    for n in range(10_000):
        path = f"{root}/{name}-r{n}/"
        shutil.copytree(base, path)
        disk.boot_id = lambda: b"another"
        told, killed = killed_at(n, lambda told: go_on(Replay.attach(path), 60, 8, told))
        with Replay.attach(path) as replay:
            assert content(replay) == expected(60 + told), (n, told)
        shutil.rmtree(path)
        if not killed:
            return n
    raise AssertionError("it does not end")


print(*test_create(*sys.argv[1:]), test_recover(*sys.argv[1:]))
"""


def test_killed_at_each_call(name):
    """A store that is not complete is refused. Any other goes on with all its steps, and so does its last snapshot."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:  # where flushing takes no time
        unfinished, created, recovered = map(int, run_python(SCRIPT, root, name).stdout.split())
    assert unfinished > 20
    assert created > unfinished + 20
    assert recovered > 4
