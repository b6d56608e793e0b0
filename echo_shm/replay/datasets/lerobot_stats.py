"""The statistics that LeRobot keeps of features, for an episode and for all: policies are normalised by them.

Those of an array are over all its dimensions but the last one. Those of images are over each channel, between 0 and 1,
of shape (channels, 1, 1).
"""

from typing import Any, TypeAlias

import numpy as np

from echo_shm.replay.datasets.lerobot_features import Feature
from echo_shm.spec import Array

#: ``"min"``, ``"max"``, ``"mean"``, ``"std"``, ``"count"`` of frames, and quantiles, as ``"q01"``.
Stats: TypeAlias = "dict[str, Array]"

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}

#: In LeRobot's order.
NAMES = ("min", "max", "mean", "std", "count", *_QUANTILES)


def stats_of(feature: Feature, array: Array) -> Stats:
    """The statistics of an array with a leading n, at least 1."""
    if feature.is_image:
        return _of_images(array if feature.is_channels_first else np.moveaxis(array, -1, 1))
    with np.errstate(all="ignore"):  # of numbers that are not finite
        values = array.reshape(-1, feature.shape[-1]).astype(np.float64)
        found = {
            "min": values.min(0),
            "max": values.max(0),
            "mean": values.mean(0),
            "std": values.std(0),
            "count": np.array([len(array)]),
        }
        found |= dict(zip(_QUANTILES, np.quantile(values, list(_QUANTILES.values()), 0), strict=True))
    return found


def merged(one: Stats, other: Stats) -> Stats:
    """The statistics of both together. As in LeRobot, a quantile is the weighted mean of quantiles: about right."""
    n, more = int(one["count"][0]), int(other["count"][0])
    weight = more / (n + more)
    with np.errstate(all="ignore"):
        mean = one["mean"] + (other["mean"] - one["mean"]) * weight
        variance = sum(
            share * (part["std"] ** 2 + (part["mean"] - mean) ** 2)
            for share, part in ((1 - weight, one), (weight, other))
        )
        found = {
            "min": np.minimum(one["min"], other["min"]),
            "max": np.maximum(one["max"], other["max"]),
            "mean": mean,
            "std": np.sqrt(variance),
            "count": np.array([n + more]),
        }
        found |= {name: one[name] + (other[name] - one[name]) * weight for name in _QUANTILES}
    return found


def _of_images(array: Array) -> Stats:
    """The statistics of uint8 of shape (n, channels, height, width), from how often each value is there."""
    level = np.arange(256) / 255
    columns: dict[str, list[Any]] = {name: [] for name in NAMES if name != "count"}
    for channel in np.moveaxis(array, 1, 0):
        counts = np.bincount(channel.reshape(-1), minlength=256)
        up_to = counts.cumsum()
        mean = float(counts @ level / up_to[-1])
        there = np.flatnonzero(counts)
        columns["min"].append(level[there[0]])
        columns["max"].append(level[there[-1]])
        columns["mean"].append(mean)
        columns["std"].append(float(np.sqrt(counts @ (level - mean) ** 2 / up_to[-1])))
        for name, quantile in _QUANTILES.items():
            columns[name].append(level[np.searchsorted(up_to, quantile * up_to[-1])])
    found = {name: np.reshape(values, (-1, 1, 1)) for name, values in columns.items()}
    return {**found, "count": np.array([len(array)])}
