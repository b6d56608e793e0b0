"""The names of the rings that take batches out of a replay."""

from echo_shm.ring.lockfile import BATCHES


def ring_name(replay: str, table: int, n: int) -> str:
    """The name of the ring with batches of n items of a table."""
    return f"{replay}.{table}x{n}{BATCHES}"


def is_batch_ring(replay: str, ring: str) -> bool:
    """Whether a ring of that name takes batches out of that replay."""
    return table_of(replay, ring) is not None


def table_of(replay: str, ring: str) -> int | None:
    """The number of the table whose batches that ring takes; None if it is no such ring of that replay."""
    if not (ring.startswith(replay + ".") and ring.endswith(BATCHES)):
        return None
    table, x, n = ring[len(replay) + 1 : -len(BATCHES)].partition("x")
    return int(table) if x and table.isdecimal() and n.isdecimal() else None
