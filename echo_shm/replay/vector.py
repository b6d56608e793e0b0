"""Several environments that are stepped together: which rows of a call are steps, and what their episodes end with."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from echo_shm.replay import arguments
from echo_shm.replay.finals import rows_of_final
from echo_shm.ring.inbox import Tables, VectorHeads
from echo_shm.spec import Array, Spec, Tree

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

    """

    def __init__(self, tables: Tables, steps: Spec, n: int, finals: Sequence[int]) -> None:
        self._heads = VectorHeads(tables, n)
        self._num_tables = len(tables)
        self._steps = steps
        self._finals = finals
        self._over = np.zeros(n, bool)  # whose episodes have ended, so that the next row is a reset

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
        if autoreset == "next_step":
            if (wrong := np.flatnonzero(over & self._over)).size:
                raise ValueError(no_reset(int(wrong[0])))
            chosen = np.flatnonzero(~self._over)
        else:
            chosen = np.arange(n)
        return self._rows(leaves, chosen, flags, final, priorities, next_over=over & (autoreset == "next_step"))

    def _rows(
        self, leaves: Sequence[Array], chosen: Array, flags: Array, final: Tree, priorities: Any, next_over: Array
    ) -> Rows:
        if priorities is None:
            priorities = np.full((self._heads.n, self._num_tables), arguments.HIGHEST)
        known = (flags != 0) & (final is not None)  # what the episode ends with
        parts: list[list[Array]] = [list(leaves) if len(chosen) == len(flags) else [leaf[chosen] for leaf in leaves]]
        if known.any():
            parts.append(rows_of_final(self._steps, final, known, self._finals))
        rows = parts[0] if len(parts) == 1 else [np.concatenate(both) for both in zip(*parts, strict=True)]
        mine = flags[chosen], known[chosen]
        heads = self._heads.make(chosen, *mine, priorities[chosen])

        def sent() -> None:
            self._heads.sent(chosen, *mine)
            self._over = next_over

        return Rows(heads, rows, sent)

    def end_episodes(self) -> None:
        """The next step of each environment begins an episode."""
        self._heads.end_episodes()
        self._over[:] = False
