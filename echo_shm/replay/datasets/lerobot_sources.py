"""Which leaf of a replay's steps is which feature of a LeRobot dataset."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import optree

from echo_shm.replay.datasets.common import part_of
from echo_shm.replay.datasets.lerobot_features import OWN, Info, is_image
from echo_shm.spec import Array, Spec, Tree

#: What an observation of one array can be.
_OBSERVATIONS = ("observation.state", "observation.image", "observation")


class Source(NamedTuple):
    """The feature that a leaf is."""

    leaf: int
    name: str
    argument: str


class Made(NamedTuple):
    """A part of a step that a function makes."""

    argument: str
    part: Tree
    get: Callable[[Mapping[str, Array]], Tree]


def sources_of(
    spec: Spec, observation: Any, action: Any, reward: Any, others: Mapping[Any, str], info: Info | None = None
) -> list[Source]:
    """The feature of each leaf that the arguments name."""
    named = [
        ("observation", observation, "observation"),
        ("action", action, "action"),
        ("reward", reward, "next.reward"),
    ]
    named += [("others", key, name) for key, name in others.items()]
    found = []
    for argument, key, prefix in named:
        if key is None:
            continue
        above = len(key) if isinstance(key, tuple) else 1
        for i in optree.tree_leaves(part_of(spec, argument, key)):
            rest = spec.structure.paths()[i][above:]
            name = ".".join(map(str, (prefix, *rest)))
            if argument == "observation" and not rest:
                name = _observation(is_image(spec.leaves[i]), info)
            found.append(Source(i, name, f"others[{key!r}]" if argument == "others" else argument))
    return found


def _observation(image: bool, info: Info | None) -> str:
    """The feature of an observation that is one array: what the dataset has, if there is no choice."""
    known = [name for name in _OBSERVATIONS if info is not None and name in info.features]
    if len(known) == 1:
        return known[0]
    return "observation.image" if image else "observation.state"


def check_names(names: list[str]) -> None:
    """Raises ValueError unless a dataset can have these features."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two leaves are the feature {name!r}: name one otherwise, with others={{key: name}}")
        if name in OWN or name == "task" or "/" in name or not name:
            raise ValueError(f"no feature can be called {name!r}: LeRobot has its own use for it, or it has a '/'")


def check_leaves(spec: Spec, taken: list[int]) -> None:
    """Raises ValueError unless each leaf has one source."""
    missing = [leaf.path for i, leaf in enumerate(spec.leaves) if i not in taken]
    if missing or len(set(taken)) != len(taken):
        what = f"{', '.join(missing)} of the replay's steps" if missing else "a leaf that two arguments name"
        raise ValueError(f"{what}: each leaf needs one source: observation, action, reward, or others={{key: ...}}")


def tree_of(info: Info, prefix: str, what: str) -> Tree:
    """The part of an example that features with a common prefix make."""
    found = {name: one for name, one in info.features.items() if name == prefix or name.startswith(prefix + ".")}
    if not found:
        info.feature(prefix, what)  # raises
    zeros = {name: info.feature(name, what).zeros() for name in found}
    if len(zeros) == 1 and next(iter(zeros)) in (prefix, *_OBSERVATIONS):
        return next(iter(zeros.values()))
    rests = {name[len(prefix) + 1 :]: array for name, array in zeros.items()}
    if "" in rests or any(other.startswith(rest + ".") for rest in rests for other in rests):
        return rests  # a dict and an array would have one name
    tree: dict[str, Any] = {}
    for rest, array in rests.items():
        *above, last = rest.split(".")
        inner = tree
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = array
    return tree
