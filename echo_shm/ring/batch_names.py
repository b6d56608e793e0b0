"""The names of the rings that take batches out of a replay. A name says what is in the ring, and who takes it."""

import re
from typing import NamedTuple

from echo_shm.ring.lockfile import BATCHES

_ENDING = re.compile(r"(\d{1,4})x(\d{1,20})(?:r(\d{1,4})of(\d{1,4}))?")


class BatchRing(NamedTuple):
    """A ring of batches of n items of a table.

    Attributes:
        table: The table's number.
        n: Items in a batch.
        rank, world_size: Which of how many rings it is that get the batches in turns, each for one learner; 0 and 0: of
            none. All learners share its batches then.

    """

    table: int
    n: int
    rank: int = 0
    world_size: int = 0

    def name(self, replay: str) -> str:
        """The ring's name, in a replay of that name."""
        of = f"r{self.rank}of{self.world_size}" if self.world_size else ""
        return f"{replay}.{self.table}x{self.n}{of}{BATCHES}"

    def group(self) -> "list[BatchRing]":
        """The rings that get batches in turns with this one, by rank; without a world_size, this one alone."""
        return [self._replace(rank=rank) for rank in range(max(1, self.world_size))]


def batch_ring(replay: str, ring: str) -> BatchRing | None:
    """What the ring of that name takes out of that replay; None if it is no such ring."""
    if not (ring.startswith(replay + ".") and ring.endswith(BATCHES)):
        return None
    found = _ENDING.fullmatch(ring[len(replay) + 1 : -len(BATCHES)])
    one = None if found is None else BatchRing(*(int(part or 0) for part in found.groups()))
    return one if one is not None and one.name(replay) == ring and one.rank < max(1, one.world_size) else None
