"""The episodes of a replay, as its steps are stored: for whoever takes them elsewhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import optree

from echo_shm._core import lib
from echo_shm.replay.items import Items
from echo_shm.spec import Array, Tree

#: An ``es_stored_step``.
_STORED = np.dtype(
    [(name, np.uint64) for name in ("arrival", "stream", "number")]
    + [(name, np.uint32) for name in ("record", "version", "index", "environment", "episode", "flags")]
)

#: How much one call of the C core copies (bytes). Other threads have their turn in between.
CHUNK = 32 << 20


@dataclass(frozen=True)
class StoredEpisode:
    """An episode, or what is stored of it. Its ``len()`` is the number of steps, at least 1.

    Attributes:
        steps: The tree of a step, of arrays of shape ``(len(episode), *leaf.shape)``: the steps in their order. They
            are copies.
        final: What the episode ended with, if that was given and is still stored: the tree of a step, of arrays of
            shape ``leaf.shape``, with zeros in the leaves that were not given. Otherwise None. It is stored as long as
            an item refers to it, as those of an :class:`NStep` do, and until the writer's next step comes.
        terminated, truncated: How it ended with its last step. Neither: it goes on, or it was left, or its last steps
            are not stored any more.
        first: The first step's place in the episode. It is 0 unless steps before it are not stored any more.
        stream: The number of the writer, which is random.
        environment: The number of the writer's environment.

    """

    steps: Tree
    final: Tree
    terminated: bool
    truncated: bool
    first: int
    stream: int
    environment: int

    def __len__(self) -> int:
        return len(optree.tree_leaves(self.steps)[0])


class Piece(NamedTuple):
    """Steps of one episode that follow each other; the last one may be what the episode ended with.

    Attributes:
        listed: Their ``es_stored_step``.
        leaves: An array for each leaf, of shape ``(len(listed), *leaf.shape)``.
        goes_on: Whether they follow the piece before.

    """

    listed: Array
    leaves: list[Array]
    goes_on: bool

    @property
    def final(self) -> bool:
        """Whether the last one is no step, but what the episode ended with."""
        return bool(self.listed["flags"][-1] & lib.ES_STEP_FINAL)

    @property
    def terminated(self) -> bool:
        """Whether the episode ends here, and nothing follows from its last state."""
        return bool(self.listed["flags"][-1] & (lib.ES_STEP_TERMINATED | lib.ES_STEP_ENDS_TERMINATED))

    @property
    def truncated(self) -> bool:
        """Whether the episode ends here, and would have gone on."""
        return bool(self.listed["flags"][-1] & (lib.ES_STEP_TRUNCATED | lib.ES_STEP_ENDS_TRUNCATED))


def episodes(replay: Items) -> Iterator[StoredEpisode]:
    """The episodes that are stored now, as :meth:`Replay.episodes` says."""
    build = replay._spec.structure.unflatten
    for piece in pieces(replay):
        n = len(piece.listed) - piece.final
        if n == 0:
            continue  # the steps before what it ended with are gone
        yield StoredEpisode(
            steps=build([array[:n] for array in piece.leaves]),
            final=build([array[n] for array in piece.leaves]) if piece.final else None,
            terminated=piece.terminated,
            truncated=piece.truncated,
            first=int(piece.listed["index"][0]),
            stream=int(piece.listed["stream"][0]),
            environment=int(piece.listed["environment"][0]),
        )


def pieces(replay: Items, most: int | None = None) -> Iterator[Piece]:
    """The steps that are stored now, episode by episode, the oldest first. Those that go meanwhile are left out.

    Args:
        replay: The replay.
        most: Longer pieces are cut, but what an episode ended with comes with its last step, even for 1. None: each
            piece is as long as can be.

    Raises:
        ConnectionClosedError: The replay is closed.
        ForkedError: Called in a child of the process that opened the replay.

    """
    replay._rings.look()
    listed = replay._core.list_steps()
    if isinstance(listed, int):
        raise replay._error(listed)
    for run in _runs(np.frombuffer(listed, _STORED)):
        begin, goes_on = 0, False
        while begin < len(run):
            wanted = run[begin : begin + most] if most else run[begin:]
            rest = run[begin + len(wanted) :]
            if len(rest) and rest["flags"][0] & lib.ES_STEP_FINAL:  # only with it is it known how its step ended
                wanted = wanted[:-1] if len(wanted) > 1 else run[begin:]
            leaves = [np.empty((len(wanted), *leaf.shape), leaf.dtype) for leaf in replay._spec.leaves]
            n = _read(replay, wanted, leaves)
            if n:
                yield Piece(wanted[:n], [array[:n] for array in leaves], goes_on)
            # The step at n is gone, if there is one.
            goes_on = n == len(wanted)
            begin += n if goes_on else n + 1


def _runs(steps: npt.NDArray[np.void]) -> list[npt.NDArray[np.void]]:
    """The steps of each episode without a gap, in order; the episodes in the order in which their first ones came."""
    steps = steps[np.lexsort([steps["number"], steps["environment"], steps["stream"]])]
    before, after = steps[:-1], steps[1:]
    follows = after["number"] == before["number"] + np.uint64(1)
    for name in ("stream", "environment", "episode"):
        follows &= after[name] == before[name]
    runs = np.split(steps, np.flatnonzero(~follows) + 1) if len(steps) else []
    return sorted(runs, key=lambda run: int(run["arrival"][0]))


def _read(replay: Items, wanted: npt.NDArray[np.void], leaves: list[Array]) -> int:
    """Copies steps into arrays: how many, fewer than wanted if the next one is gone."""
    chunk = max(1, CHUNK // max(1, replay._spec.sample_bytes))
    done = 0
    while done < len(wanted):
        part = wanted[done : done + chunk]
        n = replay._core.read_steps(part.tobytes(), tuple(array[done : done + len(part)] for array in leaves))
        if n < 0:
            raise replay._error(n)
        done += n
        if n < len(part):
            break
    return done
