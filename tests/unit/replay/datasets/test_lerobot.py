"""Datasets of LeRobot: what comes back, what is in the files, and what the package has written."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from harness.episodes import ENDS, filled, same_bytes

from echo_shm import Replay
from echo_shm.replay.datasets import lerobot as lerobot_format
from echo_shm.replay.datasets import lerobot_example, lerobot_files, read_lerobot, write_lerobot

pytest.importorskip("pyarrow", reason="the extra 'lerobot' is not installed")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("PIL.Image")

HERE = Path(__file__).parent / "lerobot"
DATASET = HERE / "dataset"

EXAMPLE = {
    "obs": {
        "state": np.zeros(3, np.float32),
        "images": {"top": np.zeros((5, 7, 3), np.uint8), "wrist": np.zeros((3, 5, 7), np.uint8)},
        "stack": np.zeros((2, 4, 2), np.uint8),
        "grid": np.zeros((2, 3), np.float64),
        "touch": np.zeros((), bool),
        "half": np.zeros(2, np.float16),
    },
    "action": np.zeros((), np.int64),
    "reward": np.zeros((), np.float32),
}
SMALL = {"obs": np.zeros(2, np.float32), "action": np.zeros((), np.int64), "reward": np.zeros((), np.float32)}
MADE = {
    "obs": {
        "state": np.zeros(2, np.float32),
        "images": {"top": np.zeros((4, 5, 3), np.uint8)},
        "grid": np.zeros((2, 3), np.uint8),
    },
    "action": np.zeros((), np.int64),
    "reward": np.zeros(()),
}


def script():
    """The module that made the dataset."""
    spec = importlib.util.spec_from_file_location("make_lerobot", HERE / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said(folder):
    """What a dataset says of itself."""
    return json.loads((folder / "meta/info.json").read_text())


def same_steps(got, expected):
    """Asserts that two replays have the same episodes, apart from final observations. Returns how many."""
    got, expected = list(got.episodes()), list(expected.episodes())
    assert [len(one) for one in got] == [len(one) for one in expected]
    for one, was in zip(got, expected, strict=True):
        assert same_bytes(one.steps, was.steps)
        assert one.final is None
        assert (one.terminated, one.truncated) == (was.terminated, was.truncated)
    return len(got)


@pytest.mark.parametrize("chunk", [8 << 20, 1])
def test_there_and_back(chunk, tmp_path, monkeypatch):
    """Every step and end comes back, byte by byte, in pieces of any size. So do the borders of episodes."""
    monkeypatch.setattr(lerobot_format, "_CHUNK", chunk)
    ends = [*ENDS, (2, True, True, True)]
    with filled(EXAMPLE, ends) as replay:
        n = sum(steps for steps, *_ in ends)
        assert write_lerobot(replay, tmp_path / "new" / "it", fps=20) == n
        example = lerobot_example(tmp_path / "new" / "it")
        assert same_bytes(example, EXAMPLE)
        with Replay(example, 100) as other:
            other.add(EXAMPLE)  # of another episode, though it has not ended
            assert read_lerobot(other, tmp_path / "new" / "it") == n
            assert [len(episode) for episode in other.episodes()] == [1, *(steps for steps, *_ in ends)]
        with Replay(example, 100) as other:
            assert read_lerobot(other, tmp_path / "new" / "it") == n
            assert same_steps(other, replay) == len(ends)


@pytest.mark.parametrize("chunk", [8 << 20, 1])
def test_what_is_in_the_files(chunk, tmp_path, monkeypatch):
    """A row a step, with LeRobot's own columns, and an entry an episode; info.json counts them."""
    monkeypatch.setattr(lerobot_format, "_CHUNK", chunk)
    with filled(SMALL, ENDS) as replay:
        write_lerobot(replay, tmp_path, fps=4, task="walk", robot_type="cat")
        stored = list(replay.episodes())
    lengths = [len(episode) for episode in stored]
    data = pq.read_table(tmp_path / "data/chunk-000/file-000.parquet")
    assert data["frame_index"].to_pylist() == [i for n in lengths for i in range(n)]
    assert data["timestamp"].to_pylist() == [i / 4 for n in lengths for i in range(n)]
    assert data["episode_index"].to_pylist() == [number for number, n in enumerate(lengths) for _ in range(n)]
    assert data["index"].to_pylist() == list(range(sum(lengths)))
    assert data["next.done"].to_pylist() == [
        i == n - 1 and one[1] for n, one in zip(lengths, ENDS, strict=True) for i in range(n)
    ]
    assert data["next.truncated"].to_pylist() == [
        i == n - 1 and one[2] for n, one in zip(lengths, ENDS, strict=True) for i in range(n)
    ]
    assert data["observation.state"].to_pylist() == np.concatenate([one.steps["obs"] for one in stored]).tolist()
    entries = pq.read_table(tmp_path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [one["length"] for one in entries] == lengths
    assert [one["dataset_from_index"] for one in entries] == np.cumsum([0, *lengths[:-1]]).tolist()
    assert [one["tasks"] for one in entries] == [["walk"]] * len(ENDS)
    assert pq.read_table(tmp_path / "meta/tasks.parquet").to_pylist() == [{"task_index": 0, "task": "walk"}]
    info = said(tmp_path)
    assert (info["codebase_version"], info["fps"], info["robot_type"]) == ("v3.0", 4, "cat")
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (len(ENDS), sum(lengths), 1)
    assert info["splits"] == {"train": f"0:{len(ENDS)}"}
    assert info["features"]["observation.state"] == {"dtype": "float32", "shape": [2], "names": None}


def test_statistics(tmp_path):
    """Those of all steps are exact, whatever the pieces; quantiles are about right. Images are between 0 and 1."""
    example = {"obs": np.zeros((6, 5, 3), np.uint8), "action": np.zeros(2, np.float32)}
    rng = np.random.default_rng(0)
    with Replay(example, 100) as replay:
        for i in range(60):
            image = rng.integers(0, 256, (6, 5, 3), np.uint8)
            replay.add({"obs": image, "action": rng.normal(size=2).astype(np.float32)}, terminated=i % 20 == 19)
        write_lerobot(replay, tmp_path, fps=1, reward=None)
        steps = [episode.steps for episode in replay.episodes()]
    stats = json.loads((tmp_path / "meta/stats.json").read_text())
    arrays = {
        "action": np.concatenate([one["action"] for one in steps]).astype(float),
        "observation.image": np.concatenate([one["obs"] for one in steps]).reshape(-1, 3) / 255,
    }
    for name, array in arrays.items():
        found = {key: np.ravel(value) for key, value in stats[name].items()}
        expected = {"min": array.min(0), "max": array.max(0), "mean": array.mean(0), "std": array.std(0)}
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, atol=1e-12)
        np.testing.assert_allclose(found["q50"], np.median(array, 0), atol=0.3)
        assert found["count"].tolist() == [60]
    assert np.shape(stats["observation.image"]["mean"]) == (3, 1, 1)


def test_a_full_file_gets_no_further_episode(tmp_path, monkeypatch):
    """Episodes go on in the next file, and in the next folder. None is cut."""
    monkeypatch.setattr(lerobot_files, "_FILE_MB", 0)
    monkeypatch.setattr(lerobot_files, "FILES_PER_CHUNK", 2)
    monkeypatch.setattr(lerobot_files, "_EPISODES", 2)
    monkeypatch.setattr(lerobot_format, "_CHUNK", 1)
    with filled(SMALL, ENDS) as replay:
        write_lerobot(replay, tmp_path, fps=1)
        files = sorted(str(file.relative_to(tmp_path / "data")) for file in tmp_path.glob("data/*/*"))
        assert files == [f"chunk-00{i // 2}/file-00{i % 2}.parquet" for i in range(len(ENDS))]
        entries = pq.read_table(tmp_path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
        places = [(one["data/chunk_index"], one["data/file_index"]) for one in entries]
        assert places == [(i // 2, i % 2) for i in range(len(ENDS))]
        with Replay(SMALL, 100) as other:
            read_lerobot(other, tmp_path)
            assert same_steps(other, replay) == len(ENDS)


def test_what_the_package_has_written():
    """Each step of a dataset of the package lerobot, with an image that it encoded, and the ends of its episodes."""
    assert same_bytes(lerobot_example(DATASET), MADE)
    with Replay(MADE, 100) as replay:
        assert read_lerobot(replay, DATASET) == 9
        got = list(replay.episodes())
    module = script()
    assert [(len(one), one.terminated, one.truncated) for one in got] == [
        (n, over, False) for n, over in module.EPISODES
    ]
    for one, frames in zip(got, module.frames(), strict=True):
        for i, frame in enumerate(frames):
            assert same_bytes(one.steps["obs"]["state"][i], frame["observation.state"])
            assert same_bytes(one.steps["obs"]["images"]["top"][i], frame["observation.images.top"])
            assert same_bytes(one.steps["obs"]["grid"][i], frame["observation.grid"])
            assert one.steps["action"][i] == frame["action"]
            assert one.steps["reward"][i] == frame["next.reward"]


def test_other_parts(tmp_path):
    """The rest of a step becomes features, and comes from there or from a function. Names may lead into a tree."""
    example = {"at": {"eye": np.zeros(2)}, "a": {"arm": np.zeros(1, np.float32)}, "core": {"c": np.zeros(2, np.int8)}}
    names = {"observation": None, "action": "a", "reward": None}
    with Replay(example, 10) as replay:
        for i in range(3):
            step = {
                "at": {"eye": np.full(2, i / 2)},
                "a": {"arm": np.full(1, i, np.float32)},
                "core": {"c": np.full(2, -i, np.int8)},
            }
            replay.add(step, terminated=i == 2)
        others = {("at", "eye"): "observation.eye", "core": "extra"}
        write_lerobot(replay, tmp_path, fps=1, others=others, **names)
        assert list(said(tmp_path)["features"])[:3] == ["action.arm", "observation.eye", "extra.c"]
        with Replay({**example, "age": np.zeros((), np.int64)}, 10) as other:
            others["age"] = lambda features: features["frame_index"] + len(features["extra.c"])
            assert read_lerobot(other, tmp_path, others=others, **names) == 3
            (episode,) = other.episodes()
            assert same_bytes({key: episode.steps[key] for key in example}, next(replay.episodes()).steps)
            assert episode.steps["age"].tolist() == [3, 4, 5]
    got = lerobot_example(tmp_path, reward=None)
    assert same_bytes(got, {"obs": {"eye": np.zeros(2)}, "action": {"arm": np.zeros((), np.float32)}})
