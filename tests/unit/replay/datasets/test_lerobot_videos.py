"""Videos of LeRobot datasets: which frame comes to which step, and what cannot be decoded."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from harness.episodes import same_bytes

from echo_shm import Replay
from echo_shm.replay.datasets import lerobot as lerobot_format
from echo_shm.replay.datasets import lerobot_example, read_lerobot

pytest.importorskip("pyarrow", reason="the extra 'lerobot' is not installed")
pytest.importorskip("PIL.Image")
av = pytest.importorskip("av", reason="the extra 'lerobot-video' is not installed")

VIDEO = Path(__file__).parent / "lerobot" / "video"
EXAMPLE = {"obs": {"images": {"top": np.zeros((64, 96, 3), np.uint8)}}, "action": np.zeros(2, np.float32)}


def read(folder=VIDEO, **options):
    """The episodes of a dataset."""
    with Replay(EXAMPLE, 100) as replay:
        assert read_lerobot(replay, folder, **{"reward": None, **options}) == 12
        return [episode.steps for episode in replay.episodes()]


@pytest.mark.parametrize("chunk", [8 << 20, 1])
def test_each_step_has_its_frame(chunk, monkeypatch):
    """Three episodes are in one video. The frame of step n has 20 n on the left, and red on the right."""
    monkeypatch.setattr(lerobot_format, "_CHUNK", chunk)
    assert same_bytes(lerobot_example(VIDEO, reward=None), EXAMPLE)
    episodes = read()
    assert [len(steps["action"]) for steps in episodes] == [4, 3, 5]
    images = np.concatenate([steps["obs"]["images"]["top"] for steps in episodes]).astype(int)
    numbers = np.concatenate([steps["action"] for steps in episodes])[:, 0]
    assert numbers.tolist() == list(range(1, 13))
    left, right = images[:, 8:-8, 8:40], images[:, 8:-8, 56:-8]
    assert np.abs(left - 20 * numbers[:, None, None, None]).max() < 8  # it is encoded with loss
    assert np.abs(right - [200, 0, 0]).max() < 8


def test_a_function_may_look_at_some_frames(monkeypatch):
    """Frames that nobody asks for are skipped. The next ones are still the right ones."""
    monkeypatch.setattr(lerobot_format, "_CHUNK", 1)
    top = "observation.images.top"

    def some(features):
        assert top in list(features)
        number = int(features["action"][0, 0])
        return features[top] if number % 5 == 1 else np.zeros((1, 64, 96, 3), np.uint8)

    images = np.concatenate(
        [steps["obs"]["images"]["top"] for steps in read(observation=None, others={("obs", "images", "top"): some})]
    )
    found = images[:, 32, 16].astype(int).max(1)
    for number, brightness in enumerate(found, 1):
        assert abs(brightness - (20 * number if number % 5 == 1 else 0)) < 8


def test_without_the_decoder(monkeypatch):
    """The message says what to install. What needs no video is read all the same."""
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"this needs av .*pip install 'echo-shm\[lerobot-video\]'"):
        read()
    with Replay({"action": np.zeros(2, np.float32)}, 100) as replay:
        assert read_lerobot(replay, VIDEO, observation=None, reward=None) == 12


def cut(file):
    """Writes a video again, with four frames."""
    with av.open(str(file)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)][:4]
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), r"episode 0, feature 'observation.images.top': .*file-000.mp4 cannot be decoded"),
        (lambda file: file.write_bytes(b"no video"), r"file-000.mp4 cannot be decoded"),
        (cut, r"episode 1, feature .*file-000.mp4 has no frame at 0.400 s"),
    ],
)
def test_a_damaged_video_is_refused(damage, message, tmp_path, monkeypatch):
    """The message names the episode, the feature and the file."""
    monkeypatch.setattr(lerobot_format, "_CHUNK", 1)
    folder = tmp_path / "video"
    shutil.copytree(VIDEO, folder)
    damage(next(folder.glob("videos/*/*/*.mp4")))
    with pytest.raises(ValueError, match=message):
        read(folder)
