"""JAX: batches as arrays over the same memory, where JAX makes them.

It needs ``pip install 'echo-shm[jax]'``.
"""

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import optree

try:
    import jax
except ModuleNotFoundError as _error:
    if _error.name != "jax":
        raise
    raise ModuleNotFoundError("echo_shm.adapters.jax needs JAX: pip install 'echo-shm[jax]'", name="jax") from None

from echo_shm import Finishing, Sample, Server
from echo_shm.replay import Batch
from echo_shm.spec import Tree

__all__ = ["as_arrays", "batches"]

#: How long a wait for a batch lasts before it has JAX drop what it no longer needs: at first, and at most (seconds).
_SOONEST, _LATEST = 2e-4, 2e-2


def as_arrays(batch: Tree, *, device: Any = None, copy: bool = False) -> Tree:
    """The same tree with a ``jax.Array`` for each array. What is no array stays as it is; so do a replay's 64-bit keys.

    On the CPU, a leaf becomes an array over the same memory if JAX can use it as it is: its batch begins at a multiple
    of 64 bytes, and its dtype is one that JAX has. Then the array holds its batch, and so does each computation that
    reads it, until it is done. All other leaves are copied: those that begin elsewhere, 64-bit ones unless
    ``jax_enable_x64`` is set (they become 32-bit ones), and all that go to another device.

    Such an array may be donated to a jitted function (``donate_argnums``): JAX owns no memory of the ring, so it takes
    a copy, and the batch stays as it is.

    Args:
        batch: A :class:`Sample`, a :class:`~echo_shm.replay.Batch`, or any tree of arrays.
        device: A device or a sharding of JAX. None: JAX's default.
        copy: Copy every leaf first. Then nothing holds the batch once this returns. In a loop that may be faster:
            workers do not wait until JAX lets go of a batch.

    Raises:
        TypeError: JAX has no such dtype. The message names the leaf.

    """

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        return jax.device_put(np.array(leaf) if copy else leaf, device)

    try:
        if not isinstance(batch, Sample):
            converted: Any = optree.tree_map(convert, batch)
            return converted._replace(key=batch.key) if isinstance(batch, Batch) else converted
        made = Sample(optree.tree_map(convert, batch.batch), batch.info)
        made._versions = np.array(batch.versions)
        return made
    except TypeError as error:
        for accessor, leaf in zip(optree.tree_accessors(batch), optree.tree_leaves(batch), strict=True):
            try:
                convert(leaf)
            except TypeError:
                raise TypeError(
                    f"leaf {accessor.codify('')} has dtype {leaf.dtype}, of which JAX makes no array: leave it out of "
                    "the example, or send it as another dtype, such as the integers of .view()"
                ) from error
        raise


def batches(
    source: Server | Iterable[Tree], device: Any = None, *, until: Finishing | None = None, copy: bool = False
) -> Iterator[Any]:
    """Yields :func:`as_arrays` of each batch.

    JAX drops what a computation has read some time after it: when it is called next, or when Python collects garbage. A
    loop that waits for a batch does neither, and the workers may wait for that space. So with a Server, this has JAX
    drop it while it waits. With other sources a batch may be held longer.

    Args:
        source: A :class:`Server`, or an iterable, such as ``replay.dataset_iter(256)``.
        device, copy: As for :func:`as_arrays`.
        until: Of a Server, as for :meth:`Server.sample`.

    Raises:
        TypeError: The source is something else, or ``until`` does not go with it; or as for :func:`as_arrays`.

    """
    if isinstance(source, Server):
        return _of_server(source, device, until, copy)
    if until is not None or not hasattr(source, "__iter__"):
        raise TypeError(
            "batches() takes a Server, which may have until=, or an iterable of batches, which may not; got "
            f"{type(source).__name__} with until={until!r}"
        )
    return (as_arrays(batch, device=device, copy=copy) for batch in source)


def _of_server(server: Server, device: Any, until: Finishing | None, copy: bool) -> Iterator[Sample]:
    while box := _take(server, until):
        # The generator itself must not refer to the batch while its user works on it.
        yield as_arrays(box.pop(), device=device, copy=copy)


def _take(server: Server, until: Finishing | None) -> list[Sample]:
    """The next sample in a list, or an empty list at the end."""
    pause = 0.0
    while True:
        try:
            sample = server.sample(pause, until)
            return [] if sample is None else [sample]
        except TimeoutError:
            gc.collect(0)  # JAX drops its own garbage whenever Python does
            pause = min(max(2 * pause, _SOONEST), _LATEST)
