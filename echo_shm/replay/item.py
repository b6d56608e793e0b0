"""What an item of a table is: one step, a transition over several steps, or a part of an episode.

An item describes itself in JSON, for the schemas of a store and of a ring of batches: whoever opens one of them makes
the same arrays. ``layout.py`` says what a batch of such items looks like.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from echo_shm.replay.validation import at_least_zero, integer

#: A leaf of a step, or all leaves of a subtree: a key at the top of the step's tree, or a path of two or more keys.
Name: TypeAlias = str | int | tuple[str | int, ...]

Path: TypeAlias = tuple[str | int, ...]

#: The fields of an item as JSON.
_Json: TypeAlias = Any


#: Fewest steps that no item can have: ES_STORE_MAX_SPAN.
_MAX_STEPS = 2**20


class Item:
    """What an item of a table is. The base of all kinds."""

    #: The kind's name in a schema.
    kind: ClassVar[str]

    def describe(self) -> _Json:
        """The same as JSON: :func:`item_from` reads it."""
        return [self.kind, {name: _plain(name, value) for name, value in vars(self).items()}]


@dataclass(frozen=True)
class Step(Item):
    """An item is one step.

    ``batch.data`` is the steps' tree. Each leaf has shape ``(n, *leaf.shape)``.
    """

    kind: ClassVar[str] = "step"


@dataclass(frozen=True, init=False)
class NStep(Item):
    """An item is a transition over ``n`` steps, or fewer where the episode ends.

    ``batch.data`` is a dict of all leaves of the step at which the transition begins, and of four more entries. Only
    ``reward`` is not that step's own: it is the sum of the rewards of all steps, each discounted by ``gamma`` for each
    step before it.

    - ``"next"``: the observations that follow the last of these steps, as a dict of the ``observation`` leaves alone.
    - ``"discount"``: what the value of ``"next"`` counts, ``gamma ** steps``, or 0 if the episode was terminated before
      it. Shape ``(n,)``, the reward's dtype.
    - ``"n"``: of how many steps the rewards were summed. Shape ``(n,)``, int64.

    A step's tree that is no dict is the entry ``"step"`` as a whole.

    A truncated episode ends with the observations given to ``add(final=...)``. Without them no transition begins at its
    last step, because what follows it is not known. Without them the ``"next"`` of a terminated episode is its last
    step's observations, whose discount is 0.

    Args:
        n: Most steps, 1 or more.
        gamma: The discount of one step, 0 to 1.
        observation: The names of what a policy sees: a list of them.
        reward: The name of the leaf to sum, float32 or float64, of any shape.
        stack: How many steps are stacked of a leaf, by its name: of shape ``(n, stack, *leaf.shape)``, and the last one
            is the step itself. For an observation, ``"next"`` is stacked likewise.
        pad: What is in the place of steps before an episode's first one: ``"first"``, that one, or ``"zero"``, zeros.

    A name is a key at the top of the step's tree, or a tuple of the keys that lead to a nested leaf. The name of a
    subtree is that of all its leaves.

    Raises:
        ValueError: A number is out of range, or a name is empty.
        TypeError: A name is something else.

    """

    kind: ClassVar[str] = "n_step"

    n: int
    gamma: float
    observation: tuple[Name, ...]
    reward: Name
    stack: Mapping[Name, int] = field(hash=False)
    pad: Literal["first", "zero"]

    def __init__(
        self,
        n: int,
        gamma: float,
        observation: Iterable[Name] | str,
        reward: Name = "reward",
        stack: Mapping[Name, int] | None = None,
        pad: Literal["first", "zero"] = "first",
    ) -> None:
        if at_least_zero("gamma", gamma) > 1:
            raise ValueError(f"gamma={gamma!r}: use a number from 0 to 1")
        names = _names("observation", observation)
        if not names:
            raise ValueError("observation=(): name at least one leaf")
        if pad not in ("first", "zero"):
            raise ValueError(f"pad={pad!r}: use 'first' or 'zero'")
        if stack is not None and not isinstance(stack, Mapping):
            raise TypeError(f"stack={stack!r}: use a dict of names and numbers, for example {{'obs': 4}}")
        stacks = {_name("stack", name): _steps(f"stack[{name!r}]", k) for name, k in (stack or {}).items()}
        _set(
            self,
            n=_steps("n", n),
            gamma=float(gamma),
            observation=names,
            reward=_name("reward", reward),
            stack=stacks,
            pad=pad,
        )


@dataclass(frozen=True, init=False)
class Sequence(Item):
    """An item is ``length`` steps of one episode, one after the other.

    ``batch.data`` is a dict of all leaves of the steps, of shape ``(n, length, *leaf.shape)``, and of ``"mask"``: bool
    of shape ``(n, length)``, False after the last step of an item that is shorter. A step's tree that is no dict is the
    entry ``"step"`` as a whole.

    Args:
        length: Steps of an item, 1 or more.
        period: How many steps later the next item begins, 1 to ``length``. None: ``length``, so that none overlap. 1:
            every window of the length is an item, and costs less than a byte: see :class:`Table`.
        pad: What becomes of the steps that are left when an episode ends. ``"zero"``: they are an item, too, with zeros
            after them. None: they are in no item of this table.
        state: The names of leaves of which an item has the first step's alone, of shape ``(n, *leaf.shape)``: the
            state that a recurrent policy begins with. Names are those of :class:`NStep`.

    Raises:
        ValueError: A number is out of range, or a name is empty.
        TypeError: A name is something else.

    """

    kind: ClassVar[str] = "sequence"

    length: int
    period: int
    pad: Literal["zero"] | None
    state: tuple[Name, ...]

    def __init__(
        self,
        length: int,
        period: int | None = None,
        pad: Literal["zero"] | None = "zero",
        state: Iterable[Name] | str = (),
    ) -> None:
        length = _steps("length", length)
        period = length if period is None else _steps("period", period)
        if period > length:
            raise ValueError(f"period={period}: use at most length={length}, or steps would be in no item")
        if pad not in ("zero", None):
            raise ValueError(f"pad={pad!r}: use 'zero' or None")
        _set(self, length=length, period=period, pad=pad, state=_names("state", state))


@dataclass(frozen=True, init=False)
class Episode(Item):
    """An item is a whole episode. One of more than ``max_length`` steps comes in pieces.

    ``batch.data`` is that of a :class:`Sequence` of ``max_length`` steps with zeros after the last one, and
    ``"length"``: how many steps there are. Shape ``(n,)``, int64.

    Args:
        max_length: Most steps of an item, 1 or more.

    Raises:
        ValueError: The number is out of range.

    """

    kind: ClassVar[str] = "episode"

    max_length: int

    def __init__(self, max_length: int) -> None:
        _set(self, max_length=_steps("max_length", max_length))


@dataclass(frozen=True, init=False)
class Column:
    """What an item of a :class:`Trajectory` table has of one leaf: some of its steps, or one.

    Args:
        name: The leaf, named as for :class:`NStep`.
        length: How many steps: the array of a batch has shape ``(n, length, *leaf.shape)``. None: one, and the array
            has shape ``(n, *leaf.shape)``.

    Raises:
        ValueError: A number is out of range, or the name is empty.
        TypeError: The name is something else.

    """

    name: Name
    length: int | None

    def __init__(self, name: Name, length: int | None = None) -> None:
        object.__setattr__(self, "name", _name("name", name))
        object.__setattr__(self, "length", None if length is None else _steps("length", length))


@dataclass(frozen=True, init=False)
class Trajectory(Item):
    """An item is what its writer says: see :meth:`Writer.create_item`.

    Args:
        signature: The tree of ``batch.data``, of dicts, lists and tuples. Each leaf is a :class:`Column`.
        keep: An item may refer to so many of its writer's last steps. None: to as many as the longest column has.

    Raises:
        ValueError: A number is out of range, or there is no column.
        TypeError: The signature has a leaf that is no column, or another kind of node.

    """

    kind: ClassVar[str] = "trajectory"

    signature: Any = field(hash=False)
    keep: int

    def __init__(self, signature: Any, keep: int | None = None) -> None:
        longest = max((one.length or 1 for one in columns(signature)), default=0)
        if not longest:
            raise ValueError("signature: it has no column: use at least one")
        if keep is not None and _steps("keep", keep) < longest:
            raise ValueError(f"keep={keep}: a column has {longest} steps: keep at least as many")
        _set(self, signature=signature, keep=longest if keep is None else keep)

    def describe(self) -> _Json:
        """The same as JSON: :func:`item_from` reads it."""
        return [self.kind, {"signature": _tree_to_json(self.signature), "keep": self.keep}]


def columns(signature: Any) -> list[Column]:
    """The columns of a signature, in no particular order.

    Raises:
        TypeError: It has other leaves or nodes.

    """
    if isinstance(signature, Column):
        return [signature]
    if type(signature) is dict and all(type(key) in (str, int) for key in signature):
        return [one for child in signature.values() for one in columns(child)]
    if type(signature) in (list, tuple):
        return [one for child in signature for one in columns(child)]
    raise TypeError(
        f"signature: got {signature!r:.100}: use Column(name, length) in dicts (keys: str or int), lists and tuples"
    )


def _tree_to_json(tree: Any) -> _Json:
    if isinstance(tree, Column):
        return {"column": [list(path_of(tree.name)), tree.length]}
    if type(tree) is dict:
        return {"dict": [[key, _tree_to_json(child)] for key, child in tree.items()]}
    return {type(tree).__name__: [_tree_to_json(child) for child in tree]}


def _tree_from_json(said: _Json) -> Any:
    ((kind, value),) = said.items()
    if kind == "column":
        path, length = value
        return Column(tuple(path), length)
    if kind == "dict":
        return {key: _tree_from_json(child) for key, child in value}
    return {"list": list, "tuple": tuple}[kind](_tree_from_json(child) for child in value)


def item_from(said: _Json) -> Item:
    """The item that was described so. The description is not trusted.

    Raises:
        ValueError: There is no such item.

    """
    try:
        kind, fields = said
        fields = {name: _from_plain(name, value) for name, value in fields.items()}
        item: Item = {one.kind: one for one in (Step, NStep, Sequence, Episode, Trajectory)}[kind](**fields)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"no kind of item is {said!r:.200} ({error!r:.200})") from None
    return item


def path_of(name: Name) -> Path:
    """The keys that lead to what a name names."""
    return name if isinstance(name, tuple) else (name,)


# --- fields ------------------------------------------------------------------


def _set(item: Item, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(item, name, value)


def _steps(label: str, value: object) -> int:
    if integer(label, value, 1) >= _MAX_STEPS:
        raise ValueError(f"{label}={value!r}: use an integer below {_MAX_STEPS}")
    return integer(label, value, 1)


def _name(label: str, value: object) -> Name:
    """A name: of a path of one key, that key."""
    keys = value if isinstance(value, tuple) else (value,)
    if not keys:
        raise ValueError(f"{label}: an empty tuple names nothing: use a key, or a tuple of keys")
    if not all(type(key) in (str, int) for key in keys):
        raise TypeError(f"{label}: {value!r} is no name: use a key of the step's tree, or a tuple of keys")
    return keys[0] if len(keys) == 1 else keys


def _names(label: str, value: object) -> tuple[Name, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise TypeError(f"{label}={value!r}: use a list of names")
    return tuple(_name(label, one) for one in value)


def _plain(field_name: str, value: Any) -> _Json:
    """A field as JSON has it: a name as a list of keys."""
    if field_name == "reward":
        return list(path_of(value))
    if isinstance(value, Mapping):
        return [[list(path_of(name)), k] for name, k in value.items()]
    return [list(path_of(name)) for name in value] if isinstance(value, tuple) else value


def _from_plain(field_name: str, value: _Json) -> Any:
    if field_name == "reward":
        return tuple(value)
    if field_name == "signature":
        return _tree_from_json(value)
    if field_name == "stack":
        return {tuple(path): k for path, k in value}
    return [tuple(path) for path in value] if isinstance(value, list) else value
