"""Parameters as numpy arrays: numpy's own, torch's tensors and JAX's arrays, without importing either."""

import sys
from typing import Any

import numpy as np
import optree

from echo_shm.errors import SpecMismatchError
from echo_shm.spec import Array, Spec, Tree


def as_array(leaf: Any, path: str) -> Array:
    """A leaf as a numpy array. It shares the leaf's memory wherever numpy can.

    Args:
        leaf: A numpy array or scalar; a tensor of torch; any other array with ``__array__``, as JAX's.
        path: What indexes the leaf in its tree, for messages.

    Raises:
        TypeError: It is something else, or bfloat16 without the package ml_dtypes.

    """
    if isinstance(leaf, np.ndarray):
        return leaf
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        return _from_torch(torch, leaf.detach(), path)
    if isinstance(leaf, np.generic) or hasattr(leaf, "__array__"):
        return np.asarray(leaf)
    raise TypeError(
        f"All leaves must be arrays: params{path} is {type(leaf).__name__}; "
        "wrap it, for instance np.asarray(value, np.float32)"
    )


def _from_torch(torch: Any, tensor: Any, path: str) -> Array:
    host = tensor.cpu()
    if host.dtype != torch.bfloat16:
        array: Array = host.numpy()
        return array
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            f"params{path} is bfloat16, which numpy has with the package ml_dtypes: pip install ml_dtypes"
        ) from None
    bits: Array = host.view(torch.int16).numpy()
    return bits.view(ml_dtypes.bfloat16)


def spec_of(params: Tree) -> Spec:
    """The Spec of parameters.

    Raises:
        TypeError, ValueError: As :func:`as_array`; or there are no leaves.

    """
    leaves, structure = optree.tree_flatten(params)
    paths = [accessor.codify("") for accessor in structure.accessors()]
    return Spec.from_example(structure.unflatten(map(as_array, leaves, paths)))


def flat(spec: Spec) -> Spec:
    """The Spec of the same weights as a tuple of their leaves, for code that passes them on.

    What says what they look like, the schema, is the same: whoever attaches sees their own structure.
    """
    structure = optree.tree_structure(tuple(range(len(spec.leaves))))  # type: ignore[arg-type]
    return Spec(structure, spec.leaves, spec.schema, spec.about)


def arrays_of(spec: Spec, params: Tree, what: str) -> list[Array]:
    """The leaves of parameters as arrays of the dtypes and shapes of ``spec``. ``what`` names what has that Spec.

    Raises:
        SpecMismatchError: The structure, a dtype or a shape differs. The message names the first leaf that does.
        TypeError: As :func:`as_array`.

    """
    leaves, structure = optree.tree_flatten(params)
    if structure != spec.structure:
        raise SpecMismatchError(f"the structure is not that of {what}: {spec.structure_difference(params)}")
    arrays = []
    for leaf, value in zip(spec.leaves, leaves, strict=True):
        array = as_array(value, leaf.path)
        if array.dtype != leaf.dtype or array.shape != leaf.shape:
            raise SpecMismatchError(
                f"{leaf.name}: got {array.dtype}{list(array.shape)}, expected {leaf.dtype}{list(leaf.shape)} as in "
                f"{what}"
            )
        arrays.append(array)
    return arrays
