"""How a table chooses items: one class for each rule. Each can be a table's sampler and its remover.

What an item's weight does to a draw is said here. How the weights of a batch correct for it is in
:class:`Prioritized`.
"""

from dataclasses import dataclass
from typing import ClassVar

from echo_shm.replay.validation import above_zero, at_least_zero


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

    Args:
        temperature: Above 0. The higher it is, the less priorities count.
        beta: How much the weights correct for the priorities: 0 (not at all) or more; 1 corrects fully. As a
            remover's it means nothing.

    Raises:
        ValueError: A number is out of range.

    """

    temperature: float = 1.0
    beta: float = 0.0

    kind: ClassVar[int] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", above_zero("temperature", self.temperature))
        object.__setattr__(self, "beta", at_least_zero("beta", self.beta))


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
