"""A plan that all rollouts share, and how surprising a plan is: the distance from it.

A plan is a vector of ``dim`` numbers, float32 or float64. Where all are float32, so are squares of differences and the
sums of 512 of them: such a distance has a relative error of some 5e-7, and squares above 3.4e38 overflow. The order of
the additions is the same on every processor, and so is the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from echo_shm._core import ffi, lib
from echo_shm.planning.arguments import Doubles, Numbers, place, real_array
from echo_shm.replay.validation import at_least_zero, integer, number

if TYPE_CHECKING:
    from echo_shm._core import CData

Plans: TypeAlias = Numbers | npt.NDArray[Any]

#: Instructions of this processor.
_BEST = lib.es_plan_best()


class EmaPlan:
    """The exponential moving average of plans: the shared plan.

    The first plan is copied. Each later one changes it to ``decay * ema + (1 - decay) * plan``, computed in float64 and
    rounded to ``dtype``. A call that raises changes nothing. Threads that use one must take turns.

    Args:
        dim: Numbers of a plan, at least 1.
        decay: From 0 (the latest plan) to below 1.
        dtype: float32 or float64.

    Raises:
        ValueError: A number is out of range, or the dtype is another one.

    """

    def __init__(self, dim: int, decay: float = 0.99, dtype: npt.DTypeLike = np.float32) -> None:
        self._dim = integer("dim", dim, 1)
        self._decay = number("decay", decay)
        if not 0 <= self._decay < 1:
            raise ValueError(f"decay={decay!r}: use a number from 0 to below 1")
        self._dtype = np.dtype(dtype)
        if self._dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype={dtype!r}: use float32 or float64")
        self._plan: npt.NDArray[Any] | None = None  # never written to, once it is here
        self._updates = 0

    @property
    def dim(self) -> int:
        """Numbers of a plan."""
        return self._dim

    @property
    def decay(self) -> float:
        """What is left of the shared plan when it takes another one."""
        return self._decay

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the shared plan."""
        return self._dtype

    @property
    def updates(self) -> int:
        """How many plans it has taken."""
        return self._updates

    @property
    def plan(self) -> npt.NDArray[Any] | None:
        """The shared plan, ``(dim,)`` of ``dtype``, or None before the first. Read-only; updates do not change it."""
        return self._plan

    def update(self, plans: Plans) -> None:
        """Takes a plan, or several, one after the other.

        Args:
            plans: ``(dim,)`` or ``(n, dim)`` of real numbers. They are converted to ``dtype``.

        Raises:
            ValueError: The shape is another one, or a number is NaN or infinite.

        """
        rows = _rows("plans", plans, self._dim, self._dtype)
        self._take(rows)

    def score_and_update(
        self, plans: Plans, rewards: Numbers, *, plan_weight: float = 1.0, reward_weight: float = 1.0
    ) -> float | Doubles:
        """Takes plans one after the other, in one pass: each is scored as by :func:`plan_surprise` before it is taken.

        Args:
            plans: ``(dim,)`` or ``(n, dim)``, as for :meth:`update`.
            rewards: A number, or ``(n,)``.
            plan_weight: At least 0.
            reward_weight: At least 0.

        Returns:
            float64 ``(n,)``; a float for one plan.

        Raises:
            ValueError: A shape is wrong, or a number is NaN, infinite or out of range, or a score overflows.

        """
        rows = _rows("plans", plans, self._dim, self._dtype)
        weights = at_least_zero("plan_weight", plan_weight), at_least_zero("reward_weight", reward_weight)
        earned = _per_row("rewards", rewards, len(rows))
        before = self._plan, self._updates
        distances = self._take(rows)
        try:
            scores = _scores(rows, distances, earned, weights)
        except ValueError:
            self._plan, self._updates = before
            raise
        return scores if np.ndim(plans) > 1 else float(scores[0])

    @property
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What a checkpoint has to keep: two arrays, which are copies.

        ``"plan"`` is ``(dim,)`` of ``dtype``, zeros before the first. ``"updates"`` is an int64 of shape ``()``.
        Setting the state takes such a mapping over.

        Raises:
            ValueError: A key, shape or dtype is another one, or a number is NaN, infinite or out of range.

        """
        plan = np.zeros(self._dim, self._dtype) if self._plan is None else self._plan.copy()
        return {"plan": plan, "updates": np.array(self._updates)}

    @state.setter
    def state(self, state: Mapping[str, npt.ArrayLike]) -> None:
        if set(state) != {"plan", "updates"}:
            raise ValueError(f"the state of an EmaPlan has 'plan' and 'updates', this one {sorted(state)}")
        plan, updates = np.asarray(state["plan"]), integer("updates", np.asarray(state["updates"]).item(), 0)
        if plan.dtype != self._dtype or plan.shape != (self._dim,):
            raise ValueError(
                f"the state's plan is {plan.dtype}{list(plan.shape)}, this EmaPlan's {self._dtype}[{self._dim}]"
            )
        _all_finite("the state's plan", plan)
        self._plan = _frozen(plan.copy()) if updates else None
        self._updates = updates

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A pickle or a deep copy of the plan has lost that it is read-only."""
        self.__dict__.update(state)
        if self._plan is not None:
            _frozen(self._plan)

    def _take(self, rows: npt.NDArray[Any]) -> Doubles:
        """Takes the rows. Returns the distance of each before it was taken; 0 for the first of all."""
        distances = np.zeros(len(rows))
        if len(rows) == 0:
            return distances
        first = self._plan is None
        plan = rows[0].copy() if self._plan is None else self._plan.copy()
        rest, out = rows[first:], distances[first:]
        if len(rest):
            take = lib.es_plan_take_f32 if self._dtype == np.float32 else lib.es_plan_take_f64
            take(_BEST, _data(plan), _data(rest), len(rest), self._dim, self._decay, _data(out))
        if not np.isfinite(plan).all():  # a NaN or infinity stays, whatever comes after it
            _all_finite("plans", rows)
            raise ValueError("the shared plan overflows: use smaller plans")
        self._plan = _frozen(plan)
        self._updates += len(rows)
        return distances


def plan_surprise(
    plans: Plans,
    ema: EmaPlan | npt.ArrayLike | None,
    rewards: Numbers,
    plan_weight: float = 1.0,
    reward_weight: float = 1.0,
) -> float | Doubles:
    """How surprising plans are: ``plan_weight * ||plan - ema||² + reward_weight * |reward|``.

    All are compared with one shared plan. To score each before the shared plan takes it, and the next one after that,
    use :meth:`EmaPlan.score_and_update`.

    Args:
        plans: ``(dim,)`` or ``(n, dim)`` of real numbers.
        ema: The shared plan: an :class:`EmaPlan`, or ``(dim,)``. Before the first plan (None, or an ``EmaPlan`` that
            has taken none) the reward alone counts.
        rewards: A number, or ``(n,)``.
        plan_weight: At least 0.
        reward_weight: At least 0.

    Returns:
        float64 ``(n,)``; a float for one plan.

    Raises:
        ValueError: A shape is wrong, or a number is NaN, infinite or out of range, or a score overflows.

    """
    dim = ema.dim if isinstance(ema, EmaPlan) else None
    mean = ema.plan if isinstance(ema, EmaPlan) else ema
    rows = _rows("plans", plans, dim)
    weights = at_least_zero("plan_weight", plan_weight), at_least_zero("reward_weight", reward_weight)
    earned = _per_row("rewards", rewards, len(rows))
    if mean is None:
        _all_finite("plans", rows)
        scores = _scores(rows, np.zeros(len(rows)), earned, weights)
    else:
        scores = _surprise(rows, _rows("ema", mean, rows.shape[1], one=True), earned, weights)
    return scores if np.ndim(plans) > 1 else float(scores[0])


def temporal_kl(plans: Plans, previous: Plans, sigma: Numbers = 1.0) -> float | Doubles:
    """``||plan - previous||² / (2 sigma²)``: the KL divergence between Gaussians of one spread around two plans.

    Args:
        plans: ``(dim,)`` or ``(n, dim)``.
        previous: Of the same shape; or ``(dim,)``, which all are compared with.
        sigma: The standard deviation in each dimension: a number, or ``(n,)``; above 0.

    Returns:
        float64 ``(n,)``; a float for one plan.

    Raises:
        ValueError: A shape is wrong, or a number is NaN, infinite or out of range, or a result overflows.

    """
    rows = _rows("plans", plans, None)
    others = _rows("previous", previous, rows.shape[1])
    if len(others) != len(rows) and np.ndim(previous) > 1:
        raise ValueError(f"previous has {len(others)} plans, plans {len(rows)}: use as many, or one of shape (dim,)")
    spread = _per_row("sigma", sigma, len(rows))
    if not ((spread > 0) & (spread < np.inf)).all():
        raise ValueError(f"sigma is {sigma!r}: use finite numbers above 0")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        result = _distances(rows, others) / (2 * spread**2)
    if not np.isfinite(result).all():
        _all_finite("plans", rows)
        _all_finite("previous", others)
        raise ValueError("a divergence overflows: use smaller plans, or a larger sigma")
    return result if np.ndim(plans) > 1 else float(result[0])


def _rows(
    label: str, value: object, dim: int | None, dtype: npt.DTypeLike | None = None, *, one: bool = False
) -> npt.NDArray[Any]:
    """Plans as a C-contiguous array ``(n, dim)``, float64 unless a dtype is given or theirs is float32."""
    array = real_array(label, value, dtype)
    if dtype is None and array.dtype != np.float32:
        array = real_array(label, array, np.float64)
    most = 1 if one else 2
    if not 1 <= array.ndim <= most or array.shape[-1] == 0 or dim not in (None, array.shape[-1]):
        size = "dim" if dim is None else str(dim)
        raise ValueError(f"{label} has shape {array.shape}: use ({size},){'' if one else f' or (n, {size})'}")
    return array.reshape(-1, array.shape[-1])


def _per_row(label: str, value: Numbers, n: int) -> Doubles:
    """A number for all rows, or one for each."""
    array = real_array(label, value, np.float64)
    if array.shape not in ((), (n,)):
        raise ValueError(f"{label} has shape {array.shape}: use one number, or ({n},) as there are {n} plans")
    return array


def _distances(rows: npt.NDArray[Any], others: npt.NDArray[Any]) -> Doubles:
    """The squared distance of each row from the same row of the others, or from their only one."""
    if rows.dtype != others.dtype:
        rows, others = rows.astype(np.float64), others.astype(np.float64)
    distances = np.empty(len(rows))
    if len(rows):
        distance = lib.es_plan_distances_f32 if rows.dtype == np.float32 else lib.es_plan_distances_f64
        n, dim = rows.shape
        stride = 0 if len(others) == 1 else dim
        distance(_BEST, _data(rows), _data(others), stride, n, dim, _data(distances))
    return distances


def _surprise(rows: npt.NDArray[Any], ema: npt.NDArray[Any], rewards: Doubles, weights: tuple[float, float]) -> Doubles:
    """The weighted sums of distances from one plan and of rewards, in one pass."""
    if rows.dtype != ema.dtype:
        rows, ema = rows.astype(np.float64), ema.astype(np.float64)
    n, dim = rows.shape
    surprise = lib.es_plan_surprise_f32 if rows.dtype == np.float32 else lib.es_plan_surprise_f64
    scores, stride, finite = np.empty(n), 1 if rewards.ndim else 0, 0
    if n:
        finite = surprise(_BEST, _data(rows), _data(ema), n, dim, _data(rewards), stride, *weights, _data(scores))
    if n == 0 or finite < n:
        _find_the_cause(scores, rewards=rewards, plans=rows, ema=ema[0])
    return scores


def _scores(rows: npt.NDArray[Any], distances: Doubles, rewards: Doubles, weights: tuple[float, float]) -> Doubles:
    """The weighted sums, in the array of distances."""
    n, stride, finite = len(distances), 1 if rewards.ndim else 0, 0
    if n:
        finite = lib.es_plan_scores(_data(distances), _data(rewards), stride, n, *weights)
    if n == 0 or finite < n:
        _find_the_cause(distances, rewards=rewards, plans=rows)
    return distances


def _find_the_cause(scores: Doubles, **arrays: npt.NDArray[Any]) -> None:
    """Raises an error that says why a score is not finite. Without scores, too, the arrays must be."""
    for label, array in arrays.items():
        _all_finite(label, array)
    if len(scores):
        first = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise ValueError(f"the score of plan {first} overflows: use smaller plans, rewards or weights")


def _all_finite(label: str, array: npt.NDArray[Any]) -> None:
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        first = int(bad[0])
        what = "" if array.dtype == np.float64 else f" as {array.dtype}"
        raise ValueError(f"{label}{place(array.shape, first)} is {array.flat[first]}{what}: use finite numbers")


def _data(array: npt.NDArray[Any]) -> CData:
    return ffi.from_buffer("float[]" if array.dtype == np.float32 else "double[]", array)


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
