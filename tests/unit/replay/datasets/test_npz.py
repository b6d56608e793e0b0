"""Folders of ``.npz`` files: what comes back, and what a damaged one says."""

import json
import zipfile
from typing import NamedTuple

import numpy as np
import pytest
from harness.episodes import ENDS, EXAMPLE, filled, same_bytes, same_episodes

from echo_shm import Replay, SpecMismatchError, Table
from echo_shm.replay import NStep, RateLimiter
from echo_shm.replay.datasets import npz_example, read_npz, write_npz

SMALL = {"obs": np.zeros(2, np.float32), "reward": np.zeros((), np.float32)}


@pytest.mark.parametrize("options", [{}, {"compress": True}])
def test_there_and_back(options, tmp_path):
    """Every step, end and final observation comes back, byte by byte. So do the items that they make."""
    with filled() as replay:
        n = sum(steps for steps, *_ in ENDS)
        assert write_npz(replay, tmp_path / "new" / "folder", **options) == n
        folder = tmp_path / "new" / "folder"
        with zipfile.ZipFile(folder / "episode-00000000.npz") as archive:
            kind = zipfile.ZIP_DEFLATED if options else zipfile.ZIP_STORED
            assert {member.compress_type for member in archive.infolist()} == {kind}
        assert same_bytes(npz_example(folder), EXAMPLE)
        tables = [Table("t", item=NStep(2, 0.9, ["obs"], "reward"))]
        with Replay(npz_example(folder), 100, tables) as other:
            other.add(EXAMPLE)
            other.add(EXAMPLE)  # of another episode, though it has not ended
            assert read_npz(other, folder) == n
            assert [len(episode) for episode in other.episodes()] == [2, *(steps for steps, *_ in ENDS)]
            other.add(EXAMPLE)
            assert len(list(other.episodes())[-1]) == 1
        with Replay(EXAMPLE, 100, tables) as other:
            read_npz(other, folder)
            assert same_episodes(other, replay) == len(ENDS)
            assert other.info().size == replay.info().size


def test_what_numpy_reads(tmp_path):
    """Others read the files with ``numpy.load``: the arrays have plain names."""
    with filled() as replay:
        write_npz(replay, tmp_path)
        first = next(replay.episodes())
    with np.load(tmp_path / "episode-00000000.npz") as archive:
        np.testing.assert_array_equal(archive["obs/image"], first.steps["obs"]["image"])
        np.testing.assert_array_equal(archive["final/obs/image"], first.final["obs"]["image"])
        assert archive["terminated"].tolist() == [False, False, True]
        assert archive["truncated"].tolist() == [False, False, False]
        np.testing.assert_array_equal(archive["final/['final/x']"], first.final["final/x"])
        np.testing.assert_array_equal(archive["['terminated']"], first.steps["terminated"])
        assert archive["stream"] == first.stream


def test_a_step_that_is_one_array(tmp_path):
    """A tree of one leaf has no key that could be a name."""
    with Replay(np.zeros(2, np.int32), 10) as replay:
        replay.add(np.array([1, 2], np.int32))
        write_npz(replay, tmp_path)
        with Replay(npz_example(tmp_path), 10) as other:
            read_npz(other, tmp_path)
            assert same_episodes(other, replay) == 1


def rewrite(folder, change, number=0):
    """Writes an episode's file again, with other arrays."""
    file = folder / f"episode-{number:08d}.npz"
    with np.load(file) as archive:
        arrays = dict(archive)
    change(arrays)
    np.savez(file, **arrays)


def redescribe(folder, **changes):
    """Changes what a folder says of itself."""
    said = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**said, **changes}))


class Pair(NamedTuple):
    """A node type that no file can name."""

    x: np.ndarray
    y: np.ndarray


def test_an_example_of_a_users_type(tmp_path):
    """Nobody but the user can make one; the steps come back all the same."""
    example = Pair(np.zeros(2), np.zeros(()))
    with Replay(example, 10) as replay:
        replay.add(example)
        write_npz(replay, tmp_path)
    with pytest.raises(
        ValueError, match="has node types beyond dict, OrderedDict, list, tuple and None: no example can be made"
    ):
        npz_example(tmp_path)
    with Replay(example, 10) as other:
        assert read_npz(other, tmp_path) == 1


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda f: (f / "dataset.json").unlink(), ValueError, "has written to its end: dataset.json cannot be read"),
        (lambda f: (f / "dataset.json").write_text("{"), ValueError, "dataset.json is not a dataset that this version"),
        (
            lambda f: (f / "dataset.json").write_text('{"format": "x", "version": 1}'),
            ValueError,
            "it is 'x' of version 1",
        ),
        (lambda f: redescribe(f, version=99), ValueError, "of version 99"),
        (lambda f: redescribe(f, names=["obs", "obs"]), ValueError, "its names are no names of leaves"),
        (lambda f: (f / "episode-00000001.npz").unlink(), ValueError, "has 1 episodes, but dataset.json says 2"),
        (lambda f: (f / "episode-00000001.npz").write_bytes(b"PK"), ValueError, "episode-00000001.npz cannot be read"),
        (lambda f: rewrite(f, lambda a: a.pop("obs"), 1), ValueError, "episode-00000001.npz has no 'obs'"),
        (
            lambda f: rewrite(f, lambda a: a.update(obs=a["obs"].astype(float)), 1),
            SpecMismatchError,
            r"episode-00000001.npz: obs: got float64\[2, 2\], expected float32\[2, 2\]",
        ),
        (
            lambda f: rewrite(f, lambda a: a.update(reward=a["reward"][:1]), 1),
            SpecMismatchError,
            r"reward: got float32\[1\], expected float32\[2\]",
        ),
        (
            lambda f: rewrite(f, lambda a: a.update(terminated=a["terminated"].astype(int)), 1),
            SpecMismatchError,
            r"terminated: got int64\[2\], expected bool\[n\]",
        ),
        (
            lambda f: rewrite(f, lambda a: a.update(truncated=np.zeros(3, bool)), 1),
            SpecMismatchError,
            r"truncated: got bool\[3\], expected bool\[n\]",
        ),
        (
            lambda f: rewrite(f, lambda a: a.update({name: a[name][:0] for name in a if a[name].shape[:1] == (2,)}), 1),
            SpecMismatchError,
            r"terminated: got bool\[0\], expected bool\[n\], n >= 1",
        ),
        (
            lambda f: rewrite(f, lambda a: a.update(terminated=np.True_), 1),
            SpecMismatchError,
            r"terminated: got bool\[\], expected bool\[n\]",
        ),
        (
            lambda f: rewrite(f, lambda a: a.update(reward=a["reward"].view("V1")), 1),
            SpecMismatchError,
            r"reward: got \|V1\[8\], expected float32\[2\]",
        ),
        (
            lambda f: rewrite(f, lambda a: a.update(reward=a["reward"].view([("a", "i4")])), 1),
            SpecMismatchError,
            r"reward: got \[\('a', '<i4'\)\]\[2\], expected float32\[2\]",
        ),
        (
            lambda f: rewrite(f, lambda a: a.update(truncated=np.array([True, False])), 1),
            ValueError,
            "truncated is true before the last step",
        ),
        (lambda f: rewrite(f, lambda a: a.pop("final/obs"), 1), ValueError, "has no 'final/obs', and a table's NStep"),
        (
            lambda f: rewrite(f, lambda a: a.update(terminated=np.zeros(2, bool)), 1),
            ValueError,
            "its last step is neither terminated nor truncated",
        ),
    ],
)
def test_what_is_damaged_is_refused(damage, error, message, tmp_path):
    """The message names the file and what is wrong. What came before it is stored, and nothing of it is."""
    with filled(SMALL, [(3, False, True, False), (2, True, False, True)]) as replay:
        write_npz(replay, tmp_path)
    damage(tmp_path)
    with Replay(SMALL, 10, [Table("t", item=NStep(2, 0.9, ["obs"], "reward"))]) as other:
        with pytest.raises(error, match=message):
            read_npz(other, tmp_path)
        assert other.num_steps in (0, 3)


def test_what_no_table_needs_may_be_missing(tmp_path):
    """Of what an episode ended with, leaves that no item has."""
    with filled(SMALL, [(2, True, False, True)]) as replay:
        write_npz(replay, tmp_path)
        (expected,) = replay.episodes()
    rewrite(tmp_path, lambda arrays: arrays.pop("final/reward"))
    with Replay(SMALL, 10, [Table("t", item=NStep(2, 0.9, ["obs"], "reward"))]) as other:
        assert read_npz(other, tmp_path) == 2
        (episode,) = other.episodes()
    assert same_bytes(episode.final["obs"], expected.final["obs"])
    assert episode.final["reward"] == 0


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({**SMALL, "obs": np.zeros(3, np.float32)}, r"got \['obs'\]: float32\[2\], expected \['obs'\]: float32\[3\]"),
        ({**SMALL, "x": np.zeros(())}, r"only the replay has \['x'\]: float64\[\]"),
        ({"obs": SMALL["obs"]}, r"only the dataset has \['reward'\]: float32\[\]"),
    ],
)
def test_other_steps_are_refused(example, message, tmp_path):
    """A replay of other steps takes nothing."""
    with filled(SMALL, ENDS) as replay:
        write_npz(replay, tmp_path)
    with Replay(example, 10) as other, pytest.raises(SpecMismatchError, match=message):
        read_npz(other, tmp_path)


def test_other_containers_are_refused(tmp_path):
    """A tuple is no list, though the leaves agree."""
    with Replay([np.zeros(2)], 10) as replay:
        replay.add([np.zeros(2)])
        write_npz(replay, tmp_path)
    with Replay((np.zeros(2),), 10) as other, pytest.raises(SpecMismatchError, match="the containers differ"):
        read_npz(other, tmp_path)


def test_a_folder_with_files_is_left_alone(tmp_path):
    """Nothing is overwritten."""
    (tmp_path / "mine").write_text("x")
    with filled(SMALL) as replay, pytest.raises(FileExistsError, match="has files"):
        write_npz(replay, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_limiter_ends_it(tmp_path):
    """If a limiter forbids more, the error says how many steps are stored in all. The next step begins an episode."""
    with filled(SMALL, [(3, True, False, False)] * 4) as replay:
        write_npz(replay, tmp_path)
    limiter = RateLimiter(1, 1.0, -1e9, 8.0)
    with Replay(SMALL, 100, [Table("t", rate_limiter=limiter)]) as other:
        with pytest.raises(TimeoutError, match="8 steps are stored") as caught:
            read_npz(other, tmp_path)
        assert caught.value.sent == other.num_steps == 8
        other.sample(8)
        other.add(SMALL)
        assert [len(episode) for episode in other.episodes()] == [3, 3, 2, 1]


def test_an_unfinished_folder_is_refused(tmp_path, monkeypatch):
    """dataset.json is written last: what was cut short is not taken for whole."""
    with filled(SMALL) as replay:
        monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_npz(replay, tmp_path)
        with pytest.raises(ValueError, match=r"dataset\.json cannot be read"):
            read_npz(replay, tmp_path)
