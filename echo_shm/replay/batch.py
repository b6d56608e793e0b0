"""What a replay returns: batches, and what a table says of itself."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from echo_shm._core import lib
from echo_shm.spec import Tree

if TYPE_CHECKING:
    from echo_shm._core import CTableInfo, TableConfig


_Info = TypeVar("_Info")


class Batch(NamedTuple):
    """n items of a table. It is a named tuple, and so a pytree of arrays.

    The arrays are the caller's: they may be written to, and no later call changes them. Their memory is used again
    once nothing refers to any of them, no view and no tensor either.

    Attributes:
        data: The items: a tree as the table's ``item`` says. Of steps it is the steps' tree, and each leaf is an array
            of shape ``(n, *leaf.shape)`` and the leaf's dtype.
        key: Names each item, for :meth:`Replay.update` and others: unique in its table, and never used again. The
            same item may come several times. Shape ``(n,)``, uint64, as the others have shape ``(n,)``.
        probability: With which the item was drawn; float64.
        weight: The importance weight, which corrects a mean over the batch for the probabilities; 1 where the sampler
            does not go by priorities; at most 1, but with :class:`HotCold`; float64.
        priority: The item's; float64. Of a table without records (see :class:`Table`) 1.
        times_sampled: How often it was, this draw included; int64. Of a table without records -1: nobody counts.
        table_size: How many items the table held when it was drawn; int64.
        age: How many items were inserted into the table after it; int64. Of a table without records, how many steps
            were stored after its last one.
        versions: The version of the weights that the item's last step was made with; 0: without weights; int64. See
            :attr:`Writer.version` and :attr:`Replay.version`. Those beyond 2**32 - 1 come as that.

    """

    data: Tree
    key: npt.NDArray[np.uint64]
    probability: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]
    priority: npt.NDArray[np.float64]
    times_sampled: npt.NDArray[np.int64]
    table_size: npt.NDArray[np.int64]
    age: npt.NDArray[np.int64]
    versions: npt.NDArray[np.int64]


#: The dtypes of what comes after ``data``.
COLUMNS: tuple[np.dtype[Any], ...] = tuple(np.dtype(kind) for kind in ("u8", "f8", "f8", "f8", "i8", "i8", "i8", "i8"))


@dataclass(frozen=True)
class LimiterInfo:
    """A table's rate limiter: its settings, and what it allows now.

    Attributes:
        min_size, ratio: As of :class:`RateLimiter`.
        min_diff, max_diff: Those that it has now: see :meth:`Replay.set_limits`.
        diff: ``inserted * ratio - sampled``.
        can_sample, can_insert: Whether one item can be sampled, or inserted.

    """

    min_size: int
    ratio: float
    min_diff: float
    max_diff: float
    diff: float
    can_sample: bool
    can_insert: bool


@dataclass(frozen=True)
class PartInfo:
    """One part of a table whose sampler is :class:`HotCold`.

    Attributes:
        size: Items in it.
        temperature: That of its draws now.
        effective_sample_size: As of :class:`TableInfo`, of draws from this part.

    """

    size: int
    temperature: float
    effective_sample_size: float


@dataclass(frozen=True)
class HotColdInfo:
    """What a table says whose sampler is :class:`HotCold`.

    Attributes:
        hot, cold: Its parts.
        moved: Items that became cold.
        aged: Items that went because they were older than ``max_age``.
        updates: How often :meth:`Replay.learned` was called.

    """

    hot: PartInfo
    cold: PartInfo
    moved: int
    aged: int
    updates: int


@dataclass(frozen=True)
class TableInfo:
    """A table's figures. All but ``size``, ``max_size``, ``parked``, ``episodes`` and ``bytes`` count from the start.

    Attributes:
        size: Items in it.
        max_size: Most items.
        inserted: Items that came.
        sampled: Draws.
        deleted: Items that went: those that were deleted, sampled as often as allowed, or evicted.
        evicted: Of those, the ones that the remover chose, or that went because the replay needed room for a step.
        parked: Items that wait until the limiter lets them in.
        episodes: Different episodes among the items.
        limiter: The rate limiter, and what it allows.
        effective_sample_size: How many equally likely items would vary a draw as much: ``1 / sum(probability ** 2)``.
            Not a number with a :class:`CustomSelector`.
        bytes: All memory of the table, beside the steps themselves.
        temperature: That of a :class:`Softmax` sampler now; 0 for other samplers.
        hot_cold: The parts of a :class:`HotCold` sampler; None for other samplers.
        mass: The sum of the weights by which the sampler draws: with :class:`Uniform` how many items it may draw, with
            :class:`Prioritized` the sum of their ``priority ** alpha``. Not a number with other samplers.
        least_weight: The least positive weight of an item, or 0 if there is none; with :class:`Uniform` 1. Not a number
            with other samplers.
        log_mass: The natural logarithm of the sum of the weights of the items that the sampler may draw now. A weight
            ``w`` is 1 with :class:`Uniform`, ``priority ** alpha`` with :class:`Prioritized`, and ``exp(priority /
            temperature)`` with :class:`Softmax`, so that ``probability = exp(log(w) - log_mass)``. ``-inf`` if none is
            positive. Not a number with other samplers.
        least_log_weight: The natural logarithm of the least positive weight of all items: the importance weight of an
            item is ``exp(-beta * (log(w) - least_log_weight))``. 0 with :class:`Uniform`; ``inf`` if no weight is
            positive. Not a number with other samplers.

    """

    size: int
    max_size: int
    inserted: int
    sampled: int
    deleted: int
    evicted: int
    parked: int
    episodes: int
    limiter: LimiterInfo
    effective_sample_size: float
    bytes: int
    temperature: float = 0.0
    hot_cold: HotColdInfo | None = None
    # They follow from what the items are, and are no numbers for some samplers: two of those never compare equal.
    mass: float = field(default=math.nan, compare=False)
    least_weight: float = field(default=math.nan, compare=False)
    log_mass: float = field(default=math.nan, compare=False)
    least_log_weight: float = field(default=math.nan, compare=False)


class Settings(NamedTuple):
    """What an open store says of a table."""

    max_size: int
    min_size: int
    ratio: float
    is_protected: bool
    exponents: tuple[float, ...]
    #: Whether the sampler, and the remover, is a :class:`CustomSelector`.
    is_custom: tuple[bool, bool]
    is_softmax: bool
    is_hot_cold: bool

    @classmethod
    def from_c(cls, config: "TableConfig") -> "Settings":
        """Reads an ``es_table_config``."""
        return cls(
            max_size=config.max_size,
            min_size=config.min_size,
            ratio=config.ratio,
            is_protected=bool(config.is_protected),
            exponents=tuple(
                one.parameter for one in (config.sampler, config.remover) if one.kind == lib.ES_PRIORITIZED
            ),
            is_custom=(config.sampler.kind == lib.ES_CUSTOM, config.remover.kind == lib.ES_CUSTOM),
            is_softmax=config.sampler.kind == lib.ES_SOFTMAX,
            is_hot_cold=config.sampler.kind == lib.ES_HOT_COLD,
        )


def table_info(config: Settings, info: "CTableInfo") -> TableInfo:
    """What the C core says of a table."""
    return TableInfo(
        size=info.size,
        max_size=config.max_size,
        inserted=info.inserted,
        sampled=info.sampled,
        deleted=info.deleted,
        evicted=info.evicted,
        parked=info.parked,
        episodes=info.episodes,
        limiter=LimiterInfo(
            min_size=config.min_size,
            ratio=config.ratio,
            min_diff=info.min_diff,
            max_diff=info.max_diff,
            diff=info.inserted * config.ratio - info.sampled,
            can_sample=bool(info.can_sample),
            can_insert=bool(info.can_insert),
        ),
        effective_sample_size=info.effective_sample_size,
        bytes=info.bytes,
        mass=info.mass,
        least_weight=info.least_weight,
        log_mass=info.log_mass,
        least_log_weight=info.least_log_weight,
        temperature=info.temperature[0] if config.is_softmax else 0.0,
        hot_cold=_hot_cold_info(info) if config.is_hot_cold else None,
    )


def _hot_cold_info(info: "CTableInfo") -> HotColdInfo:
    sizes = (info.hot, info.size - info.hot)
    hot, cold = (PartInfo(sizes[i], info.temperature[i], info.part_effective[i]) for i in (0, 1))
    return HotColdInfo(hot, cold, info.moved, info.aged, info.updates)


def read_table_info(said: object) -> TableInfo:
    """What a board says of a table.

    Raises:
        TypeError: A figure is missing or is none, or there are others.

    """
    given = dict(said) if isinstance(said, dict) else {}
    parts = given.pop("hot_cold", None)
    if parts is not None:
        whole = dict(parts) if isinstance(parts, dict) else {}
        both = [_read(PartInfo, whole.pop(name, None)) for name in ("hot", "cold")]
        parts = _read(HotColdInfo, whole, hot=both[0], cold=both[1])
    return _read(TableInfo, given, limiter=_read(LimiterInfo, given.pop("limiter", None)), hot_cold=parts)


def _read(cls: type[_Info], said: object, **read: object) -> _Info:
    """One of these figures: numbers, and what of it is read already."""
    given = said if isinstance(said, dict) else {}
    for name, value in given.items():
        kind = cls.__annotations__.get(name)
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits or (type(value) is int and not 0 <= value < 2**64):
            raise TypeError(f"{name}={value!r:.80}")
    return cls(**given, **read)


def why_no_sample(name: str, info: TableInfo) -> str:
    """Why no item of a table can be sampled now: its limiter, and the limiter's numbers."""
    limiter = info.limiter
    if info.size < limiter.min_size:
        return (
            f"table {name!r} holds {info.size} items, and its limiter waits for min_size={limiter.min_size} "
            f"({_counts(info)})"
        )
    if limiter.diff - 1 < limiter.min_diff:
        return (
            f"the limiter of table {name!r} lets nobody sample before more is inserted: inserted * ratio - sampled = "
            f"{limiter.diff:g}, and with one more sample it would be below min_diff={limiter.min_diff:g} "
            f"({_counts(info)})"
        )
    return f"table {name!r} has no item that may be sampled ({_counts(info)})"


def why_no_insert(name: str, info: TableInfo) -> str:
    """Why nothing can be inserted into a table now."""
    limiter = info.limiter
    return (
        f"the limiter of table {name!r} lets nobody insert before more is sampled: inserted * ratio - sampled = "
        f"{limiter.diff:g}, and with one more item it would be above max_diff={limiter.max_diff:g} ({_counts(info)})"
    )


def _counts(info: TableInfo) -> str:
    return (
        f"{info.inserted} inserted, {info.sampled} sampled, {info.deleted} deleted; min_size={info.limiter.min_size}, "
        f"ratio={info.limiter.ratio:g}, min_diff={info.limiter.min_diff:g}, max_diff={info.limiter.max_diff:g}"
    )
