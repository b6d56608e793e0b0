"""What can be said of a few seeds: bootstrap intervals, paired permutation tests, and Holm's correction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_shm.planning.arguments import real_array
from echo_shm.replay.validation import integer

Doubles = npt.NDArray[np.float64]

#: Up to so many pairs, all ways to turn their signs are looked at: 2**16 of them.
MOST_EXACT = 16

#: Beyond that, so many are drawn.
_DRAWN = 99_999

#: Differences of sums that are less than this part of the largest are rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Interval:
    """An estimate and its bounds."""

    estimate: float
    low: float
    high: float


def _sample(label: str, values: Sequence[float]) -> Doubles:
    array: Doubles = real_array(label, values, np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"{label}={values!r:.200}: use one finite number or more")
    return array


def bootstrap(
    values: Sequence[float] | Doubles,
    statistic: Callable[..., Any] = np.mean,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """The percentile interval of a statistic (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 13).

    With few seeds it is too narrow: it knows nothing beyond the values. Of one value it is that value.

    Args:
        values: ``(n,)``: one for each seed; or ``(n, k)``, rows that are drawn together.
        statistic: Called with an array ``(resamples, n)`` or ``(resamples, n, k)`` and ``axis=1``.
        level: Of the interval.
        resamples: How often n values are drawn with replacement.
        seed: Of what is drawn.

    Raises:
        ValueError: There is no value, or one is not finite, or a number is out of range.

    """
    array = np.asarray(values, np.float64)
    if array.ndim not in (1, 2) or not array.size or not np.isfinite(array).all():
        raise ValueError(f"values={values!r:.200}: use one finite number or more")
    if not 0 < level < 1:
        raise ValueError(f"level={level!r}: use a number between 0 and 1")
    n = len(array)
    drawn = np.random.default_rng(seed).integers(n, size=(integer("resamples", resamples, 1), n))
    found = np.asarray(statistic(array[drawn], axis=1), np.float64)
    found = found[np.isfinite(found)]  # a ratio may have drawn zeros alone
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2]) if len(found) else (np.nan, np.nan)
    return Interval(float(statistic(array[None], axis=1)[0]), float(low), float(high))


def paired_test(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> float:
    """The two-sided p-value of no difference between pairs: Fisher's permutation of signs.

    If there is no difference, each pair may as well be the other way round. The p-value is the share of all ``2**n``
    ways whose sum of differences is at least as far from 0 as the one that was seen. With n pairs none is below
    ``2 / 2**n``. With more than 16 pairs, ways are drawn, and the one that was seen counts as one of them.

    Args:
        first: ``(n,)``.
        second: ``(n,)``: each belongs to that of ``first`` at its place, as having the same seed.
        seed: Of what is drawn.

    Raises:
        ValueError: There are not as many in both, or none; or one is not finite.

    """
    a, b = _sample("first", first), _sample("second", second)
    if len(a) != len(b):
        raise ValueError(f"first has {len(a)} values and second has {len(b)}: use pairs")
    differences = a - b
    n = len(differences)
    if n <= MOST_EXACT:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], (_DRAWN, n))
    seen = abs(differences.sum())
    as_far = np.abs(signs @ differences) >= seen - _ROUNDING * np.abs(differences).sum()
    if n <= MOST_EXACT:
        return float(as_far.mean())
    return float((as_far.sum() + 1) / (len(signs) + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values for many comparisons at once (Holm, 1979, Scandinavian Journal of Statistics 6).

    The chance that one or more of those below a level are so by accident is at most that level.

    Args:
        p_values: From 0 to 1.

    Returns:
        As many, in the same order, none smaller than before.

    Raises:
        ValueError: One is out of range.

    """
    given = [float(one) for one in p_values]
    for i, one in enumerate(given):
        if not 0 <= one <= 1:
            raise ValueError(f"p_values[{i}]={one!r}: use numbers from 0 to 1")
    adjusted, least = [0.0] * len(given), 0.0
    for rank, i in enumerate(sorted(range(len(given)), key=given.__getitem__)):
        least = max(least, min(1.0, (len(given) - rank) * given[i]))
        adjusted[i] = least
    return adjusted
