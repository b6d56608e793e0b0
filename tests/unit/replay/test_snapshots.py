"""A store in a directory after the machine went down, at any moment, with any of its pages on the disk.

A disk is simulated: a file's sectors on it are those of the last flush, or any that the file had since, each for
itself. The machine goes down before and after each system call that a sync makes, while steps come in between.
"""

import contextlib
import json
import logging
import os
import random
import shutil

import numpy as np
import pytest
from harness.lost_power import mix

from echo_shm import Replay, SegmentError, Table
from echo_shm.replay import Fifo, NStep, Prioritized, Uniform, disk, new_store, snapshots, syncing

CAPACITY, SPARE = 24, 7

TABLES = [
    Table("p", Prioritized(), remover=Uniform(), max_size=18),
    Table("n", Uniform(), remover=Fifo(), max_size=12, item=NStep(2, gamma=0.5, observation=("obs",), reward="reward")),
]
EXAMPLE = {"obs": np.zeros(40, np.float32), "reward": np.zeros((), np.float32), "at": np.zeros((), np.int64)}


def step(at):
    """A step whose bytes all depend on its number."""
    return {"obs": np.arange(at, at + 40, dtype=np.float32), "reward": np.float32(at % 7), "at": at}


def check_rows(data):
    """No row is torn, or another step's."""
    for obs, reward, at in zip(data["obs"], data["reward"], data["at"], strict=True):
        np.testing.assert_array_equal(obs, step(at)["obs"])
        assert reward == step(at)["reward"]


class Driver:
    """Stores steps in a replay, which gets what it draws and updates from their numbers."""

    def __init__(self, replay, at=0):
        self.replay, self.at = replay, at

    def go_on(self, n):
        """Stores n steps, and draws and updates in between."""
        for _ in range(n):
            self.replay.add(step(self.at), 1.0 + self.at % 5, terminated=self.at % 11 == 10)
            self.at += 1
            if self.at % 4 == 0:
                batch = self.replay.sample(2, "p")
                self.replay.update(batch.key, [2.0, 3.0], "p")


def picture(path):
    """All that a copy of a store says and will say: attached, drawn from, and used on."""
    replay = Replay.attach(path)
    seen = []

    def look():
        for table in ("p", "n"):
            seen.append(vars(replay.info(table)))
            if len(replay) and replay.can_sample(1, table):
                batch = replay.sample(60, table)
                if table == "p":
                    check_rows(batch.data)
                seen.append(batch)

    with contextlib.closing(replay):
        look()
        Driver(replay, 10_000).go_on(2 * CAPACITY)
        look()
    return seen


def assert_same(one, other):
    """Two pictures, element by element."""
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        if isinstance(mine, dict):
            assert {**mine, "bytes": 0} == {**theirs, "bytes": 0}
        else:
            for a, b in zip(leaves(mine), leaves(theirs), strict=True):
                np.testing.assert_array_equal(a, b)


def leaves(batch):
    """All arrays of a batch."""
    return [array for key in sorted(batch.data) for array in flat(batch.data[key])] + list(batch[1:])


def flat(tree):
    """The arrays of a tree of dicts."""
    return [tree[key] for key in sorted(tree)] if isinstance(tree, dict) else [tree]


class Disk:
    """What a disk may hold of a directory's files, sector by sector."""

    def __init__(self, path):
        self.path = path
        self.versions = {}  # of each file: arrays of its bytes, from the last flush on

    def read(self, file):
        """What the file is now."""
        return np.fromfile(os.path.join(self.path, file), np.uint8)

    def look(self):
        """Notes what the files are now: any of it may be on the disk from now on."""
        for file in os.listdir(self.path):
            now = self.read(file)
            seen = self.versions.setdefault(file, [])
            if not seen or not np.array_equal(seen[-1], now):
                seen.append(now)

    def flush(self, file):
        """All that the file is now is on the disk."""
        self.look()
        del self.versions[file][:-1]

    def crash(self, to, choose):
        """A directory as the machine may find it. ``choose(n)`` picks one of n versions of a sector."""
        os.mkdir(to)
        for file, versions in self.versions.items():
            mix(versions, choose).tofile(os.path.join(to, file))
        rename(to)


def rename(path):
    """The copy of a store is a replay of its own."""
    manifest = os.path.join(path, disk.MANIFEST)
    with open(manifest) as file:
        said = json.load(file)
    said["name"] = os.path.basename(path.rstrip("/")) + f"-{os.getpid()}"
    with open(manifest, "w") as file:
        json.dump(said, file)
    os.chmod(os.path.join(path, disk.LOCK), 0o600)


class Calls:
    """The module os, as ``snapshots.py`` sees it: each call that matters is a moment for the machine to go down."""

    def __init__(self, world):
        self._world = world

    def __getattr__(self, name):
        return getattr(os, name)

    def fdatasync(self, fd):
        """All that the file was is on the disk."""
        if not self._world.busy:
            self._world.moment()
            self._world.disk.flush(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            self._world.moment()

    def pwrite(self, fd, content, offset):
        """The header of a snapshot."""
        assert os.pwrite(fd, content, offset) == len(content)
        self._world.moment()


class World:
    """A replay on a simulated disk, and what it was at each sync that may count."""

    def __init__(self, shm_path, monkeypatch, seed, sync_every):
        self.tmp, self.random, self.patch = shm_path, random.Random(seed), monkeypatch
        self.path = f"{shm_path}/store/"
        monkeypatch.setattr(syncing.Syncing, "start", lambda this: None)  # the test says when
        monkeypatch.setattr(new_store, "_spare", lambda capacity: SPARE)
        self.replay = Replay(EXAMPLE, CAPACITY, TABLES, store=self.path, sync_every=sync_every, seed=seed)
        self.driver = Driver(self.replay)
        self.disk = Disk(self.path)
        self.disk.look()
        self.copies = self.recovered = self.lost = 0
        self.busy = False  # in a moment, whose own calls are no moments
        monkeypatch.setattr(snapshots, "os", Calls(self))
        self.states = [self.state()]
        write = snapshots.Snapshots.write

        def noted(this, core):
            if self.busy:
                write(this, core)
                return
            self.states.append(self.state())
            write(this, core)
            del self.states[0]

        monkeypatch.setattr(snapshots.Snapshots, "write", noted)

    def copy(self):
        """The path of a directory that is not there."""
        self.copies += 1
        return f"{self.tmp}/copy{self.copies}"

    def state(self):
        """The picture of what a process would find that attached now."""
        copy = self.copy()
        shutil.copytree(self.path, copy)
        rename(copy)
        self.busy = True
        seen = picture(copy + "/")
        self.busy = False
        shutil.rmtree(copy)
        return seen

    def moment(self):
        """The machine goes down, in several ways; or it does not, and steps come."""
        if self.busy:
            return
        self.busy = True
        self.disk.look()
        for choose in (lambda n: 0, lambda n: n - 1, self.random.randrange):
            self.crash(choose)
        if self.replay._core.room() > 4:
            self.driver.go_on(2)
        self.busy = False

    def crash(self, choose):
        """What is found after it is what was there at a sync."""
        copy = self.copy()
        self.disk.crash(copy, choose)
        with self.patch.context() as patch:
            patch.setattr(disk, "boot_id", lambda: b"another")
            try:
                seen = picture(copy + "/")
            except SegmentError as error:
                assert "its steps are lost" in str(error)  # noqa: PT017
                self.lost += 1
                seen = None
        shutil.rmtree(copy)
        if seen is not None:
            self.recovered += 1
            for state in self.states[:-1]:
                with contextlib.suppress(AssertionError):
                    assert_same(seen, state)
                    return
            assert_same(seen, self.states[-1])


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, "echo_shm")


@pytest.fixture
def world(shm_path, monkeypatch):
    """Makes a World, which ends with the test."""
    made = []

    def make(*args):
        made.append(World(shm_path, monkeypatch, *args))
        return made[0]

    yield make
    for one in made:
        one.busy = True
        one.replay.close()


@pytest.mark.parametrize("seed", range(2))
def test_the_machine_goes_down_around_syncs(world, seed):
    """Whatever is on the disk, the store is what it was at the last sync, and goes on from there."""
    one = world(seed, 1000.0)
    for steps in (5, 30, 12):
        one.driver.go_on(steps)
        one.moment()
        one.replay._store.syncing.sync()
    assert one.recovered > 90
    assert one.lost == 0


def test_the_machine_goes_down_while_spare_rows_are_used_up(world):
    """Steps that come without a pause wait for syncs; what a sync has is whole all the same."""
    one = world(3, 1000.0)
    one.driver.go_on(CAPACITY)
    one.replay._store.syncing.sync()
    before = one.recovered
    one.driver.go_on(CAPACITY)
    assert one.recovered > before + 30
    assert one.lost == 0


def test_the_machine_goes_down_without_syncs(world, shm_path):
    """What was there at the last close is recovered as long as it is whole; after that all is lost, and said to be."""
    one = world(4, None)
    one.driver.go_on(20)
    one.replay.close()
    one.replay = Replay.attach(one.path)
    one.driver = Driver(one.replay, one.driver.at)
    one.disk.look()
    one.moment()
    assert one.recovered > 0
    assert one.lost == 0
    one.driver.go_on(3 * CAPACITY)
    one.moment()
    assert one.lost >= 3
