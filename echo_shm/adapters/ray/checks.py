"""What a replay over several nodes cannot have, and where its shards go."""

import glob
import itertools
import os
from collections.abc import Sequence

from echo_shm.adapters.ray import budgets, nodes
from echo_shm.adapters.ray.merging import ORDERED
from echo_shm.adapters.ray.shards import shard_folder
from echo_shm.errors import SegmentError
from echo_shm.replay import Prioritized, Softmax, Table, Uniform
from echo_shm.spec import Spec

_SAMPLERS = (Uniform, Prioritized, Softmax, *ORDERED)


def with_those_before(chosen: list[tuple[str, str]], folders: Sequence[str | None]) -> list[tuple[str, str]]:
    """Nodes for all shards that an earlier replay has left there: some have several if there are fewer nodes now."""
    names = itertools.chain.from_iterable(glob.glob(shard_folder(one, "*")) for one in folders if one is not None)
    numbers = (int(name.rpartition("-")[2]) for name in names if name.rpartition("-")[2].isdigit())
    count = max(len(chosen), max(numbers, default=-1) + 1)
    return list(itertools.islice(itertools.cycle(chosen), count))


def chosen_nodes(shards: object) -> list[tuple[str, str]]:
    """The nodes that get a shard, with their addresses."""
    there = nodes.alive()
    if shards == "per_node":
        return list(there.items())
    if isinstance(shards, str) or not isinstance(shards, Sequence) or not shards:
        raise ValueError(f"shards={shards!r:.80}: use 'per_node', or a list of the ids of nodes")
    unknown = [one for one in shards if one not in there]
    if unknown:
        raise ValueError(f"shards: {unknown[0]!r} is no node that lives: use ids of {', '.join(there)}")
    return [(node, there[node]) for node in shards]


def folder(what: str, given: str | os.PathLike[str] | None) -> str | None:
    """The whole path of a directory that somebody has given."""
    if given is None:
        return None
    if not os.fspath(given):
        raise ValueError(f"{what}={given!r}: use the path of a directory that all nodes see")
    return os.path.abspath(given)


def table(given: Table, shards: int) -> None:
    """Raises ValueError if shards cannot have such a table."""
    sampler = given.sampler
    if not isinstance(sampler, _SAMPLERS) or (isinstance(sampler, Softmax) and sampler.target_effective is not None):
        names = ", ".join(one.__name__ for one in _SAMPLERS)
        raise ValueError(
            f"table {given.name!r}: sampler={sampler!r}: a table over several shards has one of {names}; a Softmax "
            "with a temperature of its own, without target_effective"
        )
    if not given.replacement:
        raise ValueError(f"table {given.name!r}: a table over several shards is drawn with replacement=True")
    if budgets.is_limited(given.rate_limiter):
        budgets.check(given, shards)


def room(spec: Spec, steps: int, asked: Sequence[nodes.Node]) -> None:
    """Raises SegmentError if a node has too little shared memory."""
    wanted = steps * sum(leaf.nbytes for leaf in spec.leaves)
    for node in asked:
        if node.room < wanted:
            raise SegmentError(
                f"node {node.id} ({node.host}) has {node.room:,} bytes of free shared memory in /dev/shm, and its "
                f"shard of {steps:,} steps takes {wanted:,} and more: use a smaller capacity, more nodes, or a larger "
                "/dev/shm"
            )
