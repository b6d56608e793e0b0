"""The episodes of a replay, as its steps are stored: for whoever takes them elsewhere."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from echo_shm._core import lib
from echo_shm.replay.items import Items
from echo_shm.spec import Spec, Tree

#: An ``es_stored_step``.
_STORED = np.dtype(
    [(name, np.uint64) for name in ("arrival", "stream", "number")]
    + [(name, np.uint32) for name in ("record", "version", "index", "environment", "episode", "flags")]
)


@dataclass(frozen=True)
class StoredEpisode:
    """An episode, or what is stored of it.

    Attributes:
        steps: The tree of a step, of arrays with a leading n: the steps in their order.
        final: What the episode ended with, if that is known: the tree of a step, whose leaves are zeros where nothing
            was given.
        terminated, truncated: How it ended. Neither: it goes on, or it was left.
        first: The first step's place in the episode. It is 0 unless steps before it are not stored any more.
        stream, environment: Whose episode it is: numbers that are a writer's own.

    """

    steps: Tree
    final: Tree
    terminated: bool
    truncated: bool
    first: int
    stream: int
    environment: int

    def __len__(self) -> int:
        return int(self._n)

    _n: int = 0


def episodes(replay: Items) -> Iterator[StoredEpisode]:
    """The episodes that are stored now, the oldest first. Steps that go meanwhile are left out.

    A step that is missing in the middle of an episode cuts it: what follows comes as an episode of its own, whose
    ``first`` is above 0.

    Raises:
        ConnectionClosedError: The replay is closed.
        ForkedError: Called in a child of the process that opened the replay.

    """
    spec = replay._spec
    listed = replay._core.list_steps()
    if isinstance(listed, int):
        raise replay._error(listed)
    for part in _parts(np.frombuffer(listed, _STORED)):
        yield from _read(replay, spec, part)


def _parts(steps: np.ndarray) -> list[np.ndarray]:
    """The steps of each episode without a gap, in order; the episodes in the order in which their first ones came."""
    steps = steps[np.lexsort([steps["number"], steps["environment"], steps["stream"]])]
    follows = np.zeros(len(steps), bool)
    for name, more in (("stream", 0), ("environment", 0), ("episode", 0), ("number", 1)):
        same = steps[name][1:] == steps[name][:-1] + np.array(more, steps[name].dtype)
        follows[1:] = same if name == "stream" else follows[1:] & same
    parts = np.split(steps, np.flatnonzero(~follows)[1:]) if len(steps) else []
    return sorted(parts, key=lambda part: int(part["arrival"][0]))


def _read(replay: Items, spec: Spec, part: np.ndarray) -> Iterator[StoredEpisode]:
    arrays = tuple(np.empty((len(part), *leaf.shape), leaf.dtype) for leaf in spec.leaves)
    begin = 0
    while begin < len(part):
        rest = tuple(array[begin:] for array in arrays)
        read = replay._core.read_steps(part[begin:].tobytes(), rest)
        if read < 0:
            raise replay._error(read)
        if read:
            yield _episode(spec, part[begin : begin + read], [array[:read] for array in rest])
        begin += read + 1


def _episode(spec: Spec, steps: np.ndarray, arrays: list[np.ndarray]) -> StoredEpisode:
    flags = int(steps["flags"][-1])
    has_final = bool(flags & lib.ES_STEP_FINAL)
    n = len(steps) - has_final
    build = spec.structure.unflatten
    return StoredEpisode(
        steps=build([array[:n] for array in arrays]),
        final=build([array[-1] for array in arrays]) if has_final else None,
        terminated=bool(flags & lib.ES_STEP_TERMINATED),
        truncated=bool(flags & lib.ES_STEP_TRUNCATED),
        first=int(steps["index"][0]),
        stream=int(steps["stream"][0]),
        environment=int(steps["environment"][0]),
        _n=n,
    )
