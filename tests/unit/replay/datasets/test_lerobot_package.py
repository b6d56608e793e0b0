"""The package lerobot reads what is written here, and the other way round.

It wants other versions of PyTorch and numpy, so it has an interpreter of its own: ``ECHO_SHM_LEROBOT_PYTHON``.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from harness.episodes import ENDS, filled

from echo_shm import Replay
from echo_shm.replay.datasets import lerobot_example, read_lerobot, write_lerobot

pytest.importorskip("pyarrow", reason="the extra 'lerobot' is not installed")
pytest.importorskip("PIL.Image")

HERE = Path(__file__).parent / "lerobot"
PYTHON = os.environ.get("ECHO_SHM_LEROBOT_PYTHON")

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="ECHO_SHM_LEROBOT_PYTHON names no interpreter that has lerobot"),
    pytest.mark.watchdog(300),
]

EXAMPLE = {
    "obs": {
        "state": np.zeros(3, np.float32),
        "images": {"top": np.zeros((5, 7, 3), np.uint8), "wrist": np.zeros((3, 5, 7), np.uint8)},
        "stack": np.zeros((2, 4, 2), np.uint8),
        "grid": np.zeros((2, 3), np.float64),
        "touch": np.zeros((), bool),
    },
    "action": np.zeros((), np.int64),
    "reward": np.zeros((), np.float32),
}


def run(tmp_path, name, *arguments):
    """Runs a script with lerobot, which reaches nothing but the files."""
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [str(PYTHON), str(HERE / name), *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, **home}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_lerobot_reads_what_is_written(tmp_path):
    """Each feature of each frame, the borders of episodes, and the statistics."""
    with filled(EXAMPLE, ENDS) as replay:
        n = write_lerobot(replay, tmp_path / "it", fps=20, task="go", robot_type="cat")
        episodes = list(replay.episodes())
    run(tmp_path, "look.py", tmp_path / "it", tmp_path / "seen.npz")
    steps = [episode.steps for episode in episodes]
    with np.load(tmp_path / "seen.npz") as seen:
        assert (seen["fps"], seen["episodes"], seen["robot"]) == (20, len(ENDS), "cat")
        assert seen["task"].tolist() == ["go"] * n
        assert seen["length"].tolist() == [len(episode) for episode in episodes]
        assert seen["dataset_to_index"].tolist() == np.cumsum(seen["length"]).tolist()
        assert seen["index"].tolist() == list(range(n))
        for name in ("state", "stack", "grid", "touch"):
            expected = np.concatenate([one["obs"][name] for one in steps])
            got = seen[f"observation.{name}"]
            with np.errstate(over="ignore"):
                np.testing.assert_array_equal(got, expected.astype(got.dtype))  # PyTorch makes float32 of float64
        for name, key in (("action", "action"), ("next.reward", "reward")):
            np.testing.assert_array_equal(seen[name], np.concatenate([one[key] for one in steps]))
        for name in ("top", "wrist"):
            image = np.concatenate([one["obs"]["images"][name] for one in steps])
            image = np.moveaxis(image, -1, 1) if name == "top" else image
            np.testing.assert_allclose(seen[f"observation.images.{name}"], image / 255, atol=1e-6)
            mean = seen[f"stats/observation.images.{name}/mean"]
            np.testing.assert_allclose(mean, image.mean((0, 2, 3)).reshape(3, 1, 1) / 255)
        assert seen["next.done"].tolist() == [i == k - 1 and over for k, over, *_ in ENDS for i in range(k)]
        assert seen["next.truncated"].tolist() == [i == k - 1 and over for k, _, over, _ in ENDS for i in range(k)]


def test_what_lerobot_writes_is_read(tmp_path):
    """The datasets that are kept, made anew, have the same steps."""
    run(tmp_path, "make.py", tmp_path / "made")
    found = []
    for folder in (tmp_path / "made", HERE):
        with Replay(lerobot_example(folder / "dataset"), 100) as replay:
            assert read_lerobot(replay, folder / "dataset") == 9
            found.append([(episode.terminated, episode.steps) for episode in replay.episodes()])
    np.testing.assert_equal(*found)


def test_frames_of_videos_are_those_of_lerobot(tmp_path):
    """Both decode the same."""
    pytest.importorskip("av", reason="the extra 'lerobot-video' is not installed")
    run(tmp_path, "look.py", HERE / "video", tmp_path / "seen.npz")
    with Replay(lerobot_example(HERE / "video", reward=None), 100) as replay:
        read_lerobot(replay, HERE / "video", reward=None)
        images = np.concatenate([episode.steps["obs"]["images"]["top"] for episode in replay.episodes()])
    with np.load(tmp_path / "seen.npz") as seen:
        expected = seen["observation.images.top"] * 255
    np.testing.assert_allclose(np.moveaxis(images, -1, 1), expected, atol=2)  # versions of FFmpeg convert colors
