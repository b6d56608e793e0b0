"""Reads a dataset with the package lerobot, and writes what it sees to a file for ``numpy.load``.

HF_HUB_OFFLINE=1 python look.py FOLDER FILE
"""

import sys

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset


def main(folder, file):
    """An array for each feature, of all frames; of the statistics; and of the episodes' borders."""
    dataset = LeRobotDataset("test/seen", root=folder)
    frames = [dataset[i] for i in range(len(dataset))]
    seen = {name: np.stack([np.asarray(frame[name]) for frame in frames]) for name in frames[0]}
    for name, stats in dataset.meta.stats.items():
        seen |= {f"stats/{name}/{key}": value for key, value in stats.items()}
    borders = ("dataset_from_index", "dataset_to_index", "length")
    seen |= {name: np.array(dataset.meta.episodes[name]) for name in borders}
    np.savez(file, fps=dataset.fps, episodes=dataset.num_episodes, robot=str(dataset.meta.robot_type), **seen)


if __name__ == "__main__":
    main(*sys.argv[1:])
