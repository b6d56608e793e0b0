"""What an engine says of itself to other processes: its figures, on a board in shared memory."""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from echo_shm.errors import SegmentError
from echo_shm.planning.backbones.limits import Limiter
from echo_shm.planning.rollouts.config import Counts
from echo_shm.planning.rollouts.decoder import LocalDecoder
from echo_shm.planning.rollouts.fleet import Fleet
from echo_shm.planning.rollouts.tracker import Efficiency
from echo_shm.ring.rollouts import RolloutFigures, RolloutsBoard, full_name

#: How often the board is written (seconds).
_INTERVAL = 0.25


class Reporter:
    """Writes a board again and again, in a task of the running event loop. So the figures are of one moment.

    Args:
        name: The board's; None: a unique one, and an engine that gets no board goes on without it.
        look: The figures now.

    Raises:
        ValueError: Nothing can have that name.

    """

    def __init__(self, name: str | None, look: Callable[[], RolloutFigures]) -> None:
        self._may_fail = name is None
        self.name = full_name(f"{os.getpid()}-{secrets.token_hex(4)}" if name is None else name)
        self._look = look
        self._board: RolloutsBoard | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Makes the board.

        Raises:
            SegmentError: The name that was asked for is another engine's, or there is no room in shared memory.

        """
        try:
            self._board = RolloutsBoard(self.name)
        except SegmentError as error:
            if not self._may_fail:
                raise
            logging.getLogger("echo_shm").warning("no board, so `echo-shm` does not show these rollouts: %s", error)
            return
        self._board.write(self._look())
        self._task = asyncio.get_running_loop().create_task(self._write(self._board))

    async def _write(self, board: RolloutsBoard) -> None:
        try:
            while True:
                await asyncio.sleep(_INTERVAL)
                board.write(self._look())
        finally:
            board.remove()  # an engine that nobody closes ends with its loop

    def close(self) -> None:
        """Removes the board. Idempotent."""
        if self._task is not None:
            self._task.cancel()
        if self._board is not None:
            self._board.remove()


def figures(
    counts: Counts,
    efficiency: Efficiency,
    running: int,
    fleet: Fleet | None,
    decoder: LocalDecoder | None,
    limiter: object,
) -> RolloutFigures:
    """An engine's figures. ``limiter``: a remote backbone's, if it has one."""
    of_backbone: dict[str, Any] = {}
    if decoder is not None:
        longest, bound = decoder.longest_wait
        pool = decoder.blocks.pool
        of_backbone = {"blocks": pool.num_blocks, "blocks_free": pool.num_free}
        of_backbone |= {"longest_wait": longest, "wait_bound": bound}
    elif isinstance(limiter, Limiter):
        of_backbone = {"requests": limiter.requests, "requests_retried": limiter.retried}
        of_backbone |= {"input_tokens": limiter.input_tokens, "remote_cost": limiter.cost}
    return RolloutFigures(
        pid=os.getpid(),
        time=time.time(),
        running=running,
        waiting=counts.submitted - sum(counts.ended.values()) - running,
        workers=0 if fleet is None else len(fleet.pids),
        workers_max=0 if fleet is None else fleet.num_workers,
        eta=efficiency.eta,
        reuse_rate=efficiency.reuse_rate,
        etps=efficiency.etps,
        cost_per_success=efficiency.cost_per_success,
        **asdict(counts),
        **asdict(efficiency),
        **of_backbone,
    )
