"""A replay with a hot and a cold part, against a table of one part, and against numpy's softmax of both parts.

All contenders are in this process and take turns. What is timed is the library's call.
"""

import numpy as np

from bench.planning import turns
from bench.scale import Scale
from bench.table import Figure, Floor
from echo_shm import Replay, Table
from echo_shm.planning import HotColdReplay
from echo_shm.replay import MinHeap, Softmax

_DRAWN, _DIM, _SHARE = 256, 8, 0.7
_TEMPERATURE = 1.0
_STEP = {"plan": np.zeros(_DIM, np.float32), "reward": np.zeros((), np.float32)}
#: Items that age in each of the turns that are timed.
_AGEING = 1000


def _filled(n: int, scores: np.ndarray, target: float | None) -> HotColdReplay:
    """Half of the items hot, half cold."""
    replay = HotColdReplay(
        _STEP, n // 2, n - n // 2, hot_share=_SHARE, temperature=_TEMPERATURE, target_effective=target
    )
    replay.extend({"plan": np.zeros((n, _DIM), np.float32), "reward": np.zeros(n, np.float32)}, scores)
    assert replay.parts.cold.size == n - n // 2
    return replay


class _Numpy:
    """Two arrays of scores: each draw takes a softmax of all of them. The steps are gathered, too."""

    def __init__(self, scores: np.ndarray) -> None:
        self._rng = np.random.default_rng(0)
        self._parts = np.array_split(scores.copy(), 2)
        self._rows = [
            {"plan": np.zeros((len(part), _DIM), np.float32), "reward": np.zeros(len(part), np.float32)}
            for part in self._parts
        ]

    def sample_and_update(self, changed: np.ndarray) -> None:
        """A batch of both parts, whose scores then change."""
        hot = round(_SHARE * _DRAWN)
        first, drawn = 0, []
        for part, rows, n in zip(self._parts, self._rows, (hot, _DRAWN - hot), strict=True):
            weights = np.exp((part - part.max()) / _TEMPERATURE)
            probabilities = weights / weights.sum()
            chosen = self._rng.choice(len(part), n, p=probabilities)
            drawn.append([rows["plan"][chosen], rows["reward"][chosen], probabilities[chosen]])
            part[chosen] = changed[first : first + n]
            first += n
        batch = [np.concatenate(both) for both in zip(*drawn, strict=True)]
        assert batch[2].min() > 0


def _sampling(size: Scale) -> list[Figure]:
    """Draws of 256 items, whose scores then change."""
    n, rng = size.replay_steps, np.random.default_rng(0)
    scores, changed = rng.exponential(1.0, n), rng.exponential(1.0, _DRAWN)
    table = Table("all", Softmax(_TEMPERATURE, beta=0.4), MinHeap())
    numpy = _Numpy(scores)
    with (
        _filled(n, scores, None) as ours,
        _filled(n, scores, 0.2) as chosen,
        Replay(_STEP, n, [table]) as plain,
    ):
        plain.extend({"plan": np.zeros((n, _DIM), np.float32), "reward": np.zeros(n, np.float32)}, scores)

        def both(replay: Replay) -> None:
            batch = replay.sample(_DRAWN)
            assert batch is not None
            replay.update(batch.key, changed)

        rates = turns(
            [lambda: both(ours), lambda: both(chosen), lambda: both(plain), lambda: numpy.sample_and_update(changed)],
            size,
        )
    path = f"`HotColdReplay`: `sample({_DRAWN})` and `update`, {n:,} items"
    tuned = f"{path}, temperatures chosen"
    return [
        Figure(path, "batches/s", rates[0], "a table of one part, by softmax", rates[2]),
        Figure(path, "batches/s", rates[0], "numpy's softmax of both parts", rates[3], Floor(50)),
        Figure(tuned, "batches/s", rates[1], "a table of one part, by softmax", rates[2]),
        Figure(tuned, "batches/s", rates[1], "numpy's softmax of both parts", rates[3]),
    ]


def _ageing(size: Scale) -> list[Figure]:
    """Steps that come, become cold and go, in a full replay: a thousand of each for each update of the learner."""
    n = max(size.replay_steps // 10, 4 * _AGEING)
    steps = {"plan": np.zeros((_AGEING, _DIM), np.float32), "reward": np.zeros(_AGEING, np.float32)}
    scores = np.random.default_rng(0).exponential(1.0, _AGEING)
    updates = n // _AGEING
    with (
        HotColdReplay(_STEP, n, n, age_threshold=updates // 2, max_age=updates) as ours,
        HotColdReplay(_STEP, n, 1) as still,
    ):

        def age() -> None:
            ours.extend(steps, scores)
            ours.learned()

        for _ in range(2 * updates):
            age()
        still.extend({name: np.repeat(rows, n // _AGEING, 0) for name, rows in steps.items()}, np.tile(scores, updates))
        rates = turns([age, lambda: still.extend(steps, scores)], size)
        assert ours.parts.aged > 0 < ours.parts.moved
    costs = [[1e6 / rate / _AGEING for rate in one] for one in rates]
    path = f"`HotColdReplay`: a step comes, one becomes cold, and one goes, {ours.capacity // 2:,} items"
    return [Figure(path, "µs", costs[0], "one comes, and the lowest score goes", costs[1])]


def hot_cold(size: Scale, _: object = None) -> list[Figure]:
    """All rows."""
    return [*_sampling(size), *_ageing(size)]
