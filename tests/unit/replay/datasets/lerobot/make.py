"""Makes two datasets with the package lerobot. Without arguments: ``dataset`` and ``video``, which the tests read.

    HF_HUB_OFFLINE=1 python make.py [FOLDER]

The steps are those of :func:`frames` and :func:`films`, which need numpy alone.
"""

import sys
from pathlib import Path

import numpy as np

FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    "observation.images.top": {"dtype": "image", "shape": (4, 5, 3), "names": ["height", "width", "channels"]},
    "observation.grid": {"dtype": "uint8", "shape": (2, 3), "names": None},
    "action": {"dtype": "int64", "shape": (1,), "names": None},
    "next.reward": {"dtype": "float64", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
}

#: How long each episode is, and whether it terminated.
EPISODES = [(3, True), (2, False), (4, True)]


def frames():
    """The frames of each episode."""
    number = 0
    for steps, terminated in EPISODES:
        episode = []
        for i in range(steps):
            number += 1
            rng = np.random.default_rng(number)
            frame = {
                "observation.state": np.array([number, -number / 2], np.float32),
                "observation.images.top": rng.integers(0, 256, (4, 5, 3), np.uint8),
                "observation.grid": rng.integers(0, 256, (2, 3), np.uint8),
                "action": np.array([number * 10], np.int64),
                "next.reward": np.array([number / 8]),
                "next.done": np.array([terminated and i == steps - 1]),
            }
            episode.append(frame)
        yield episode


FILM_FEATURES = {
    "observation.images.top": {"dtype": "video", "shape": (64, 96, 3), "names": ["height", "width", "channels"]},
    "action": {"dtype": "float32", "shape": (2,), "names": None},
}


def films():
    """The frames of episodes with a video: the left half is as bright as the step's number, the right one is red."""
    number = 0
    for steps in (4, 3, 5):
        episode = []
        for _ in range(steps):
            number += 1
            image = np.zeros((64, 96, 3), np.uint8)
            image[:, :48] = number * 20
            image[:, 48:, 0] = 200
            episode.append({"observation.images.top": image, "action": np.full(2, number, np.float32)})
        yield episode


def write(folder, features, episodes, use_videos):
    """Writes a dataset."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset.create("test/made", 10, features, root=folder, use_videos=use_videos)
    for number, episode in enumerate(episodes):
        for frame in episode:
            dataset.add_frame({**frame, "task": f"task {number % 2}"})
        dataset.save_episode()
    dataset.finalize()


def main(folder):
    """Writes both."""
    write(folder / "dataset", FEATURES, frames(), False)
    write(folder / "video", FILM_FEATURES, films(), True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
