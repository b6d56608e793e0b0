"""Several environments that are stepped together: which rows of a call are steps, and what their episodes end with."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echo_shm._send import send_vector
from echo_shm.replay import arguments
from echo_shm.replay.finals import rows_of_final
from echo_shm.ring.fast_path import plan_vector
from echo_shm.ring.inbox import Tables, VectorHeads
from echo_shm.spec import Array, Spec, Tree

if TYPE_CHECKING:
    from echo_shm._core import Ring

_MODES = ("next_step", "same_step", "disabled")


def check_mode(autoreset: object) -> None:
    """Raises ValueError unless it is the name of a mode of ``add_vector()``."""
    if autoreset not in _MODES:
        raise ValueError(f"autoreset={autoreset!r}: use {', '.join(map(repr, _MODES))}")


def no_reset(row: int) -> str:
    """That a row ends an episode, though it must be a reset."""
    return (
        f"row {row} ends an episode, and so did the call before: with autoreset='next_step' it is a reset. Do the "
        "environments have another mode?"
    )


class Rows(NamedTuple):
    """What to send: heads, and the leaves of steps. ``sent`` notes that it was."""

    heads: Array
    leaves: Sequence[Array]
    sent: Callable[[], None]


class Vector:
    """The environments of one writer.

    Args:
        tables: The replay's.
        steps: What a step looks like.
        n: How many environments.
        finals: The leaves that an episode's last observations must have, by number.
        ring: Takes the samples; None: it is on another machine.

    """

    def __init__(self, tables: Tables, steps: Spec, n: int, finals: Sequence[int], ring: "Ring | None") -> None:
        heads = self._heads = VectorHeads(tables, n)
        self._steps = steps
        self._finals = finals
        layout = heads.stream, heads.environments, heads.num_tables, heads.size
        self._plan = None if ring is None else plan_vector(steps, ring, finals, *layout)

    def send(self, steps: Tree, terminated: object, truncated: object, autoreset: object, final: Tree) -> int | None:
        """Sends the samples of a call of ``add_vector()``, if it is a common one and the ring has room.

        Returns:
            None: They were sent, and that is noted. Otherwise how many of them were sent: those of :meth:`rows`.

        """
        return 0 if self._plan is None else send_vector(self._plan, steps, terminated, truncated, autoreset, final)

    def rows(
        self, leaves: Sequence[Array], ends: Array | None, autoreset: object, final: Tree, priorities: Array | None
    ) -> Rows:
        """The samples of one call of ``add_vector()``, whose arguments these are: the steps, then the finals."""
        n = self._heads.n
        if len(leaves[0]) != n:
            raise ValueError(
                f"got steps of {len(leaves[0])} environments, and {n} in the calls before: use a new writer"
            )
        check_mode(autoreset)
        flags = np.zeros(n, np.uint8) if ends is None else ends
        over = flags != 0
        skips_resets = autoreset == "next_step"
        if skips_resets:
            resets = self._heads.environments["resets"] != 0
            if (wrong := np.flatnonzero(over & resets)).size:
                raise ValueError(no_reset(int(wrong[0])))
            chosen = np.flatnonzero(~resets)
        else:
            chosen = np.arange(n)
        return self._rows(leaves, chosen, flags, final, priorities, skips_resets)

    def _rows(
        self, leaves: Sequence[Array], chosen: Array, flags: Array, final: Tree, priorities: Any, skips_resets: bool
    ) -> Rows:
        if priorities is None:
            priorities = np.full((self._heads.n, self._heads.num_tables), arguments.HIGHEST)
        known = (flags != 0) & (final is not None)  # what the episode ends with
        parts: list[list[Array]] = [list(leaves) if len(chosen) == len(flags) else [leaf[chosen] for leaf in leaves]]
        if known.any():
            parts.append(rows_of_final(self._steps, final, known, self._finals))
        rows = parts[0] if len(parts) == 1 else [np.concatenate(both) for both in zip(*parts, strict=True)]
        mine = flags[chosen], known[chosen]
        heads = self._heads.make(chosen, *mine, priorities[chosen])
        return Rows(heads, rows, lambda: self._heads.sent(chosen, *mine, skips_resets))

    def end_episodes(self) -> None:
        """The next step of each environment begins an episode."""
        self._heads.end_episodes()
