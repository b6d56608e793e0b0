"""What a sample looks like: the pytree's structure, and each leaf's dtype and shape.

A :class:`Spec` is made from an example pytree, or from a schema. The schema is JSON that the segment holds, so that
a process can attach by name alone. Only dict and OrderedDict (with str or int keys), list, tuple and None can be
rebuilt from a schema. It names other node types, and a process that attaches then needs an example, or a handle, which
has the structure.
"""

import json
import math
import re
from collections import OrderedDict
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import optree

from echo_shm.errors import SegmentError, SpecMismatchError

#: A pytree of arrays: a sample, an example or a batch. Its type is the user's own.
Tree: TypeAlias = Any

#: What ``json.loads`` returns.
_Json: TypeAlias = Any

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_MAX_DIMENSION = 2**62

#: Most paths that a message names.
_MAX_PATHS = 5

#: The largest size of a leaf (bytes). Dimensions of 0 count as 1.
_MAX_LEAF = 2**40

#: numpy's notation for dtypes that have no fields.
_DTYPE = re.compile(r"[<>|=][a-zA-Z]\d*(\[\w+\])?")

#: The only package whose dtypes a schema may name.
_EXTENSION_MODULE = "ml_dtypes"


class Leaf(NamedTuple):
    """One array of a sample. ``path`` is what indexes it in the tree: ``['obs'][0]``."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one sample of this leaf."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def name(self) -> str:
        """The leaf's name in messages."""
        return f"leaf {self.path}" if self.path else "the leaf"

    def __str__(self) -> str:
        return f"{self.path or 'the leaf'}: {self.dtype}{list(self.shape)}"


class Spec:
    """Structure, dtypes and shapes of one sample.

    Attributes:
        treespec: The optree structure, or None if the schema has node types that need an example.
        leaves: One :class:`Leaf` for each array, in optree's flattening order.
        schema: The same as canonical JSON, as bytes.
        about: What else the schema says of the samples, as JSON; None for nothing. It is not checked here.

    """

    def __init__(
        self, treespec: optree.PyTreeSpec | None, leaves: tuple[Leaf, ...], schema: bytes, about: _Json = None
    ) -> None:
        self.treespec = treespec
        self.leaves = leaves
        self.schema = schema
        self.about = about

    @property
    def structure(self) -> optree.PyTreeSpec:
        """``treespec``, for code that runs only when it is known."""
        assert self.treespec is not None
        return self.treespec

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return sum(leaf.nbytes for leaf in self.leaves)

    @classmethod
    def from_example(cls, example: Tree, about: _Json = None) -> "Spec":
        """Reads structure, dtypes and shapes from an example pytree. Its values do not matter.

        Args:
            example: The pytree.
            about: What else the schema is to say, as JSON; None for nothing.

        Raises:
            TypeError: A leaf is not a numpy array (or numpy scalar), or its dtype has no fixed size.
            ValueError: The example has no leaves.

        """
        arrays, treespec = optree.tree_flatten(example)
        if not arrays:
            raise ValueError(f"the example has no array leaves: got {example!r}")
        paths = [accessor.codify("") for accessor in treespec.accessors()]
        leaves = []
        for path, array in zip(paths, arrays, strict=True):
            if not isinstance(array, np.ndarray | np.generic):
                raise TypeError(
                    f"All leaves must be numpy arrays: example{path} is {type(array).__name__}; "
                    + (_instead_of_space(array) or "wrap it, for instance np.asarray(value, np.float32)")
                )
            if array.dtype.hasobject or array.dtype.kind == "T":
                raise TypeError(
                    f"example{path} has dtype {array.dtype}, whose items have no fixed size; "
                    "use a numeric, bool, datetime64, bytes or structured dtype"
                )
            leaves.append(Leaf(path, array.dtype, array.shape))
        return cls(treespec, tuple(leaves), _to_schema(treespec, leaves, about), about)

    @classmethod
    def from_schema(cls, schema: bytes, what: str) -> "Spec":
        """Rebuilds a Spec from a segment's schema. The schema is not trusted: any process may have written it.

        Raises:
            SegmentError: It is not a valid schema.

        """
        try:
            data = json.loads(schema)
            leaves = tuple(
                Leaf(str(leaf["path"]), _dtype_from_json(leaf["dtype"]), tuple(int(n) for n in leaf["shape"]))
                for leaf in data["leaves"]
            )
            if any(n < 0 or n > _MAX_DIMENSION or len(leaf.shape) > 60 for leaf in leaves for n in leaf.shape):
                raise ValueError("a dimension out of range")
            if any(math.prod(max(n, 1) for n in (x.dtype.itemsize, *x.shape)) > _MAX_LEAF for x in leaves):
                raise ValueError("a leaf out of range")
            example = _example_from_json(data["tree"])
            treespec = None if example is _NEEDS_EXAMPLE else optree.tree_structure(example)
            if treespec is not None and treespec.num_leaves != len(leaves):
                raise ValueError("the tree and the leaves disagree")
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError) as error:
            raise SegmentError(f"{what} cannot be used: its schema is damaged ({error!r})") from None
        return cls(treespec, leaves, schema, data.get("about"))

    def check_same(self, theirs: "Spec", what: str) -> None:
        """Raises SpecMismatchError, which names the first leaf that differs, unless both describe the same samples."""
        if self.schema == theirs.schema:
            return
        for mine, other in zip(self.leaves, theirs.leaves, strict=False):
            if mine != other:
                raise SpecMismatchError(f"the example does not fit {what}: got {mine}, expected {other}")
        if len(self.leaves) != len(theirs.leaves):
            longer = max(self.leaves, theirs.leaves, key=len)
            extra = longer[min(len(self.leaves), len(theirs.leaves))]
            side = "the example" if longer is self.leaves else "the segment"
            raise SpecMismatchError(
                f"the example does not fit {what}: got {len(self.leaves)} leaves, expected {len(theirs.leaves)}; "
                f"only {side} has {extra}"
            )
        mine_json, other_json = json.loads(self.schema), json.loads(theirs.schema)
        part = "about" if mine_json["tree"] == other_json["tree"] else "tree"
        differ = "what else is said of them differs" if part == "about" else "the containers differ"
        raise SpecMismatchError(
            f"the example does not fit {what}: the leaves agree, but {differ}: "
            f"got {json.dumps(mine_json.get(part))}, expected {json.dumps(other_json.get(part))}"
        )

    def structure_difference(self, tree: Tree) -> str:
        """How the structure of a tree differs from this one: the paths that are missing, and those that are extra."""
        got = [accessor.codify("") for accessor in optree.tree_accessors(tree)]
        mine = [leaf.path for leaf in self.leaves]
        missing = _listed([path or "the leaf" for path in mine if path not in set(got)], "missing")
        extra = _listed([path or "one leaf alone" for path in got if path not in set(mine)], "not expected")
        parts = [part for part in (missing, extra) if part]
        if not parts:
            parts = [f"the containers differ: got {optree.tree_structure(tree)!s:.400}"]
        return "; ".join([*parts, f"expected {self.treespec!s:.400}"])

    def exact(self, index: int, value: Any, shape: tuple[int, ...] | None = None) -> Array:
        """Returns ``value`` as a C-contiguous array of the dtype and shape of leaf ``index``. Nothing is cast.

        ``shape`` replaces the leaf's shape, for stacked samples. If the shape is ``()``, ``value`` may be a Python
        or numpy scalar.

        Raises:
            SpecMismatchError: ``value`` has another dtype, shape or type.

        """
        leaf = self.leaves[index]
        want = leaf.shape if shape is None else shape
        if isinstance(value, np.ndarray):
            if value.dtype != leaf.dtype or value.shape != want:
                hint = f": use .astype({str(leaf.dtype)!r})" if value.shape == want else ""
                raise SpecMismatchError(
                    f"{leaf.name}: got an array of {value.dtype}{list(value.shape)}, "
                    f"expected {leaf.dtype}{list(want)}; nothing is cast or broadcast{hint}"
                )
            # A subclass (a matrix, a masked array) may copy in a way of its own.
            return np.ascontiguousarray(value.view(np.ndarray)).reshape(want)
        if want == ():
            return self._from_scalar(leaf, value)
        raise SpecMismatchError(
            f"{leaf.name}: got {type(value).__name__}, expected a numpy array of {leaf.dtype}{list(want)}; "
            "np.asarray(...) makes one"
        )

    @staticmethod
    def _from_scalar(leaf: Leaf, value: Any) -> Array:
        if isinstance(value, np.generic):
            # numpy scalars are in native byte order, and string scalars are as short as possible.
            same_kind = value.dtype.kind == leaf.dtype.kind and value.dtype.kind in "SU"
            if value.dtype in (leaf.dtype, leaf.dtype.newbyteorder("=")) or (
                same_kind and value.itemsize <= leaf.dtype.itemsize
            ):
                return np.asarray(value, leaf.dtype)
        elif _python_scalar_fits(value, leaf.dtype):
            try:
                with np.errstate(over="ignore"):
                    array = np.asarray(value, leaf.dtype)
                if _is_altered(value, array):
                    raise OverflowError("out of range")
                return array
            except (OverflowError, ValueError) as error:
                raise SpecMismatchError(f"{leaf.name}: {value!r} is no {leaf.dtype}: {error}") from None
        got = f"a numpy {value.dtype}" if isinstance(value, np.generic) else f"{type(value).__name__} {value!r:.40}"
        raise SpecMismatchError(
            f"{leaf.name}: got {got}, expected a scalar of {leaf.dtype}; nothing is cast: "
            f"pass np.asarray(value, {str(leaf.dtype)!r})"
        )


def _listed(paths: list[str], what: str) -> str:
    """The first few paths, and what they are; ``""`` if there are none."""
    if not paths:
        return ""
    more = f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else ""
    return f"{', '.join(paths[:_MAX_PATHS])}{more} {'is' if len(paths) == 1 else 'are'} {what}"


def _instead_of_space(leaf: Any) -> str:
    """What to write in place of a space of Gymnasium; ``""`` if the leaf is not one. Gymnasium is not imported."""
    names = [kind.__name__ for kind in type(leaf).__mro__ if kind.__module__.split(".")[0] in ("gymnasium", "gym")]
    if "Space" not in names:
        return ""
    if "Dict" in names:
        return "write a dict of arrays in place of the space: {k: np.zeros(s.shape, s.dtype) for k, s in space.items()}"
    if "Tuple" in names:
        return "write a tuple of arrays in place of the space: tuple(np.zeros(s.shape, s.dtype) for s in space)"
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        return "values of this space have no fixed shape, and so cannot be a leaf; choose an array that holds them"
    zeros = f"np.zeros({shape}, {str(dtype)!r})"
    return f"write an array in place of the space: np.zeros(space.shape, space.dtype), here {zeros}"


def _is_altered(value: Any, array: Array) -> bool:
    """Whether the conversion made a number infinite, wrapped it, or dropped its fraction."""
    if isinstance(value, bytes | str):
        return False
    if "int" in array.dtype.name:
        return bool(int(array) != value)
    return bool(np.isfinite(complex(value)) and not np.isfinite(array.astype(complex)))


def _python_scalar_fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a Python scalar fits a dtype. A float fits a float of any width, but not an int. A bool is an int."""
    kind = dtype.kind if dtype.names is None else ""
    if kind == "V" and dtype.type is not np.void:  # a float of ml_dtypes
        kind = "f"
    accepted: dict[str, tuple[type, ...]] = {"f": (int, float), "c": (int, float, complex), "i": (int,), "u": (int,)}
    if kind == "b":
        return isinstance(value, bool)
    if kind == "S":
        return isinstance(value, bytes) and len(value) <= dtype.itemsize
    if kind == "U":
        return isinstance(value, str) and 4 * len(value) <= dtype.itemsize
    return isinstance(value, accepted.get(kind, ()))


# --- spec to schema -----------------------------------------------------------

#: Node types with keys that a schema can rebuild. PyTorch's state_dict() is an OrderedDict.
_MAPPINGS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict}


def _to_schema(treespec: optree.PyTreeSpec, leaves: list[Leaf], about: _Json) -> bytes:
    data: dict[str, _Json] = {} if about is None else {"about": about}
    data |= {
        "tree": _treespec_to_json(treespec),
        "leaves": [{"path": x.path, "dtype": _dtype_to_json(x.dtype), "shape": list(x.shape)} for x in leaves],
    }
    return canonical(data)


def canonical(data: _Json) -> bytes:
    """JSON as a schema has it: ASCII, sorted keys, no spaces."""
    return json.dumps(data, separators=(",", ":"), sort_keys=True).encode()


def _treespec_to_json(treespec: optree.PyTreeSpec) -> _Json:
    if treespec.is_leaf():
        return "leaf"
    kind = treespec.type
    children = [_treespec_to_json(child) for child in treespec.children()]
    if kind is type(None):
        return None
    if kind in (list, tuple):
        return {kind.__name__: children}
    assert kind is not None
    if kind in _MAPPINGS.values() and all(type(key) in (str, int) for key in treespec.entries()):
        return {kind.__name__: [[key, child] for key, child in zip(treespec.entries(), children, strict=True)]}
    return {"node": f"{kind.__module__}.{kind.__qualname__}", "children": children}


def _dtype_to_json(dtype: np.dtype[Any]) -> _Json:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _dtype_to_json(base), "shape": list(shape)}
    if dtype.names is not None and dtype.fields is not None:
        return {
            "names": list(dtype.names),
            "formats": [_dtype_to_json(dtype.fields[name][0]) for name in dtype.names],
            "offsets": [dtype.fields[name][1] for name in dtype.names],
            "itemsize": dtype.itemsize,
            "titles": [(*dtype.fields[name], None)[2] for name in dtype.names],
        }
    if dtype.type.__module__ == _EXTENSION_MODULE:
        return {"extension": dtype.type.__name__}
    return dtype.str


# --- schema to spec -----------------------------------------------------------

_NEEDS_EXAMPLE = object()


def _example_from_json(node: _Json) -> Tree:
    """A tree of the described structure, with 0 at its leaves."""
    if node is None:
        return None
    if node == "leaf":
        return 0
    ((kind, children),) = ((k, v) for k, v in node.items() if k != "children")
    if kind == "node":
        return _NEEDS_EXAMPLE
    keys = [key for key, _ in children] if kind in _MAPPINGS else []
    parts = [_example_from_json(child) for child in ([c for _, c in children] if kind in _MAPPINGS else children)]
    if any(part is _NEEDS_EXAMPLE for part in parts):
        return _NEEDS_EXAMPLE
    if kind in _MAPPINGS:
        return _MAPPINGS[kind](zip(keys, parts, strict=True))
    return {"list": list, "tuple": tuple}[kind](parts)


def _dtype_from_json(data: _Json) -> np.dtype[Any]:
    if isinstance(data, str):
        # numpy may take other strings for code of a tuple, or for a list of fields.
        dtype = np.dtype(data if _DTYPE.fullmatch(data) else "O")
        if dtype.str != data or dtype.hasobject:
            raise ValueError(f"{data!r} is not a dtype of fixed size")
        return dtype
    if "base" in data:
        return np.dtype((_dtype_from_json(data["base"]), tuple(data["shape"])))
    if "extension" in data:
        return _extension_dtype(data["extension"])
    fields: Any = {key: data[key] for key in ("names", "offsets", "itemsize")}
    if any(title is not None for title in data["titles"]):
        fields["titles"] = [None if title is None else str(title) for title in data["titles"]]
    fields["formats"] = [_dtype_from_json(f) for f in data["formats"]]
    structured: np.dtype[Any] = np.dtype(fields)
    return structured


def _extension_dtype(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError(f"dtype {name} needs the package ml_dtypes: pip install ml_dtypes") from None
    kind = getattr(ml_dtypes, name)
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        raise ValueError(f"ml_dtypes.{name} is not a dtype")
    return np.dtype(kind)
