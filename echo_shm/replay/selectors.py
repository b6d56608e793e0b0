"""How a table chooses items: one class for each rule. Each can be a table's sampler and its remover.

What an item's weight does to a draw is said here. How the weights of a batch correct for it is in
:class:`Prioritized`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from echo_shm.replay.validation import above_zero, at_least_zero, integer


class Selector:
    """A rule by which a table chooses items.

    Attributes:
        kind: Its number in the C core, of ``enum es_selector_kind``.

    """

    kind: ClassVar[int]


@dataclass(frozen=True)
class Uniform(Selector):
    """Each item is as likely as any other."""

    kind: ClassVar[int] = 1


@dataclass(frozen=True)
class Prioritized(Selector):
    """An item's probability is proportional to ``priority ** alpha``.

    As in Schaul et al., "Prioritized Experience Replay", ICLR 2016, equation 1. The weights of a batch are the
    importance weights of section 3.4, ``(w_i / w_min) ** -beta``. ``w_i`` is ``priority ** alpha``, and ``w_min`` the
    least positive one in the table. So weights are at most 1, and do not depend on the other items of the batch. The
    defaults are those of the paper's proportional variant; it raises beta to 1 during training.

    An item of priority 0 is not drawn, with alpha 0 neither, unless all items of the table have priority 0: then each
    is as likely as any other.

    Args:
        alpha: How much priorities count: 0 or more. With 0 all positive priorities are the same.
        beta: How much the weights correct for the priorities: 0 (not at all) or more; 1 corrects fully. As a
            remover's it means nothing.

    Raises:
        ValueError: A number is out of range.

    """

    alpha: float = 0.6
    beta: float = 0.4

    kind: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", at_least_zero("alpha", self.alpha))
        object.__setattr__(self, "beta", at_least_zero("beta", self.beta))


@dataclass(frozen=True)
class Softmax(Selector):
    """An item's probability is proportional to ``exp(priority / temperature)``. No priority overflows.

    The weights of a batch are ``(w_i / w_min) ** -beta``, as those of :class:`Prioritized`.

    Priorities at an unknown scale may leave all draws to one item or two. With ``target_effective`` the temperature is
    chosen so that ``TableInfo.effective_sample_size`` is that share of the table's items: within 1 % when it is chosen,
    if any temperature gives it. Where several items share the greatest priority, they are the fewest that it can be.
    It is chosen with the first item, and again after as many insertions and updates as a quarter of the items that
    there were, or 16; not at each draw. That takes a pass over the table, and another one to bring the tree up to date.
    It is part of the store: a replay that goes on with it draws the same.

    Args:
        temperature: Above 0. The higher it is, the less priorities count. With ``target_effective`` it counts as long
            as all priorities are the same.
        beta: How much the weights correct for the priorities: 0 (not at all) or more; 1 corrects fully. As a
            remover's it means nothing.
        target_effective: Above 0, at most 1; or None: the temperature stays. A remover cannot have one.

    Raises:
        ValueError: A number is out of range.

    """

    temperature: float = 1.0
    beta: float = 0.0
    target_effective: float | None = None

    kind: ClassVar[int] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", above_zero("temperature", self.temperature))
        object.__setattr__(self, "beta", at_least_zero("beta", self.beta))
        object.__setattr__(self, "target_effective", _share_or_none("target_effective", self.target_effective))


@dataclass(frozen=True)
class HotCold(Selector):
    """The items in two parts, hot and cold: a share of the draws comes from each. It is a sampler only.

    An item is hot when it comes. It becomes cold once :meth:`Replay.learned` was called more than ``age`` times since
    then, or when the hot part holds ``hot_size`` items and one more comes: the oldest goes first. It goes when
    :meth:`Replay.learned` was called more than ``max_age`` times. One call of it changes 4,096 items at most, and twice
    as many as came since the last call; what is left has its turn in the next ones. A learner in another process has
    :meth:`ReplayClient.learned`.

    In its part an item's probability is proportional to ``exp(priority / temperature)``, and each part has its own
    temperature, if that is chosen by ``target_effective``: see :class:`Softmax`. ``Batch.probability`` is that of the
    whole draw: ``share`` times that in the hot part, or ``1 - share`` times that in the cold one; if a part is empty,
    the other one gives all draws. The weights of a batch are ``(N * probability) ** -beta``, with N the items of both
    parts. So they may be above 1.

    For a seed that nobody knows, each draw comes from the hot part with probability ``share``. If the remover is not
    random, and both parts have items, the draws of a table are spread: of any n in a row, ``n * share`` come from
    there, within 3 for n up to 1,000, and n need not be a multiple. That is of the draws of all consumers together:
    what one of several draws in many batches has no such bound. A random remover, as :class:`Uniform`, takes numbers
    from the generator between the draws. Then there is no such bound from batch to batch.

    Args:
        hot_size: Most hot items.
        share: Of the draws, that come from the hot part: 0 to 1.
        age: After how many calls of ``learned()`` an item is hot still.
        max_age: After how many it is in the table still; None: for ever.
        temperature, target_effective: As of :class:`Softmax`. The share is that of each part.
        beta: How much the weights correct for the probabilities: 0 (not at all) or more; 1 corrects fully.

    Raises:
        ValueError: A number is out of range, or ``max_age`` is below ``age``.

    """

    hot_size: int
    share: float = 0.7
    age: int = 1000
    max_age: int | None = None
    temperature: float = 1.0
    target_effective: float | None = None
    beta: float = 0.0

    kind: ClassVar[int] = 9

    def __post_init__(self) -> None:
        object.__setattr__(self, "hot_size", integer("hot_size", self.hot_size, 1))
        object.__setattr__(self, "share", at_least_zero("share", self.share))
        if self.share > 1:
            raise ValueError(f"share={self.share!r}: use a number from 0 to 1")
        object.__setattr__(self, "age", integer("age", self.age, 0))
        if self.max_age is not None:
            object.__setattr__(self, "max_age", integer("max_age", self.max_age, 1))
            if self.max_age < self.age:
                raise ValueError(
                    f"max_age={self.max_age} is below age={self.age}: items would go before they are cold; use a "
                    "larger max_age"
                )
        object.__setattr__(self, "temperature", above_zero("temperature", self.temperature))
        object.__setattr__(self, "target_effective", _share_or_none("target_effective", self.target_effective))
        object.__setattr__(self, "beta", at_least_zero("beta", self.beta))


def _share_or_none(label: str, value: object) -> float | None:
    if value is None:
        return None
    checked = above_zero(label, value)
    if checked > 1:
        raise ValueError(f"{label}={value!r}: use a share of the items, above 0 and at most 1, or None")
    return checked


@dataclass(frozen=True)
class Fifo(Selector):
    """The item that was inserted first. An update does not move an item."""

    kind: ClassVar[int] = 4


@dataclass(frozen=True)
class Lifo(Selector):
    """The item that was inserted last. An update does not move an item."""

    kind: ClassVar[int] = 5


@dataclass(frozen=True)
class MinHeap(Selector):
    """The item of the lowest priority; among equals the one that was inserted or updated longest ago."""

    kind: ClassVar[int] = 6


@dataclass(frozen=True)
class MaxHeap(Selector):
    """The item of the highest priority; among equals the one that was inserted or updated longest ago."""

    kind: ClassVar[int] = 7


class CustomSelector(Selector, ABC):
    """A rule of one's own: a subclass keeps the members of a table, and draws from them.

    The table tells it of each item that comes, changes or goes, and asks it to draw. An item's key is that of
    ``Batch.key``: unique in its table, and never used again. ``key & 0xFFFF_FFFF`` is an index into arrays, which other
    items have later. It is below ``max_size + 257``, or ``capacity + 257`` in a table without ``max_size``. An object
    belongs to one table of one replay, as its sampler or its remover.

    After :meth:`Replay.attach` a new object is told of the same members, in order of insertion, with the priorities
    that they have by then. So a seed repeats the draws across a crash if they depend on that and on ``numbers`` alone.

    With ``replacement=False`` an item that was drawn is removed, and inserted again when the next round begins: all in
    order of insertion, with the priorities that they have by then.

    What a sampler's :meth:`draw`, or :meth:`probability`, raises is raised by the call that asked, and nothing has
    changed. What any other method raises closes the replay, because the selector may have missed a change: the call
    raises ConnectionClosedError with the exception as its cause, and later calls raise it, too. A store in shared
    memory stays, as after a kill.

    All methods run inside a call of the replay, under its lock. They must not call the replay, which raises
    EchoShmError, nor wait for a thread that does. ``Replay(..., thread=True)`` is refused, because no call could raise
    what they raise. The weights of a batch are 1, and ``TableInfo.effective_sample_size`` is not a number.

    ::

        class Newest(CustomSelector):  # the same as Lifo
            def __init__(self):
                self.keys = {}

            def insert(self, key, priority):
                self.keys[key] = priority

            def update(self, key, priority):
                self.keys[key] = priority

            def remove(self, key):
                del self.keys[key]

            def draw(self, numbers):
                newest = next(reversed(self.keys))
                return [newest] * len(numbers), [1.0] * len(numbers)

            def probability(self, key):
                return float(key == next(reversed(self.keys)))
    """

    kind: ClassVar[int] = 8
    _in_use: bool = False

    @abstractmethod
    def insert(self, key: int, priority: float) -> None:
        """An item becomes a member, after all others in the order of insertion.

        Args:
            key: Its key. It is no member.
            priority: Finite, 0 or more.

        """

    @abstractmethod
    def update(self, key: int, priority: float) -> None:
        """A member has a new priority, or the same again.

        Args:
            key: The member.
            priority: Finite, 0 or more.

        """

    @abstractmethod
    def remove(self, key: int) -> None:
        """A member goes.

        Args:
            key: The member.

        """

    @abstractmethod
    def draw(self, numbers: npt.NDArray[np.float64]) -> tuple[npt.ArrayLike, npt.ArrayLike]:
        """Draws members, each independently of the others, with replacement. There is a member.

        Args:
            numbers: For each draw a random number from the table's generator, at least 0 and below 1: shape ``(n,)``,
                1 to 256 of them. A draw uses its own number, and no other source of randomness. Then the same seed
                gives the same batches, however the draws are divided into calls.

        Returns:
            For each draw the key of a member, integers of shape ``(n,)``, and the probability with which it is drawn,
            floats of shape ``(n,)``, above 0 and at most 1. A key that is no member's, another shape or another
            probability is a ValueError.

        """

    @abstractmethod
    def probability(self, key: int) -> float:
        """The probability with which a draw now would give a member: from 0 to 1. ``Replay.get`` asks.

        Args:
            key: The member.

        """
