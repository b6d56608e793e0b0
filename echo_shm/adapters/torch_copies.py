"""Batches on a device: copies beside its computations, from memory that CUDA may have pinned.

``echo_shm.adapters.torch`` has what users call.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import optree
import torch

from echo_shm import Finishing, Replay, Server
from echo_shm.adapters.torch_pinning import pin_host_memory as pin
from echo_shm.adapters.torch_tensors import as_tensors, map_leaves
from echo_shm.spec import Tree

#: Takes a batch: a list of one tree of tensors. Empty: the end, or with False, that there is none at once.
Take = Callable[[bool], list[Tree]]


def batches(
    source: Server | Replay | Iterable[Tree],
    device: "torch.device | str" = "cpu",
    *,
    batch_size: int | None = None,
    table: str | None = None,
    until: Finishing | None = None,
    non_blocking: bool = True,
    pin_host_memory: bool = False,
) -> Iterator[Any]:
    """Yields batches as tensors on a device: samples of a server, ``Batch`` of a replay, or trees as they come.

    On the CPU they are :func:`as_tensors` of each batch, without a copy. On a CUDA device they are copies that belong
    to the caller. They are made on a stream of their own, and the current stream waits for them, but this process does
    not. A batch's space in the ring is taken until its copy is done, and no longer.

    With a Server or a Replay, the next batch is taken and its copy begun before one is yielded, if there is one at
    once. So a replay draws it before the priorities of the one before are updated, and a loop that is left loses it.
    Any other source is asked when the caller asks; then the copy goes on while the GPU still computes what the caller
    has queued.

    Args:
        source: A :class:`Server`; a :class:`Replay`; or an iterable, such as ``server.dataset_iter(max_age=20)`` or
            ``ReplayClient(...).dataset_iter(256)``.
        device: Where the tensors are to be.
        batch_size, table: Of a Replay, as for :meth:`Replay.sample`.
        until: Of a Server, as for :meth:`Server.sample`.
        non_blocking: False: each batch is copied when it is asked for, and this process waits for the copy.
        pin_host_memory: Of a Server, and a CUDA device: call :func:`pin_host_memory` first.

    Raises:
        TypeError: The source is something else, or an argument does not go with it.
        TypeError: A leaf has a dtype that PyTorch does not have, as for :func:`as_tensors`.
        RuntimeError: As for :func:`pin_host_memory`.

    """
    take, device = _taker(source, batch_size, table, until), torch.device(device)
    if pin_host_memory:
        if not (isinstance(source, Server) and device.type == "cuda"):
            got = f"{type(source).__name__} and {str(device)!r}"
            raise TypeError(f"pin_host_memory=True is for a Server and a CUDA device, got {got}")
        pin(source)
    if device.type == "cuda" and non_blocking:
        return double_buffered(take, device)
    return _one_by_one(take, device)


def _taker(
    source: Server | Replay | Iterable[Tree], batch_size: int | None, table: str | None, until: Finishing | None
) -> Take:
    """What takes from the source."""
    if isinstance(source, Replay) != (batch_size is not None) or (table is not None and batch_size is None):
        raise TypeError(f"batch_size={batch_size!r}, table={table!r} with a {type(source).__name__}: a Replay needs "
                        "batch_size=, and may have table=; nothing else takes them")  # fmt: skip
    if until is not None and not isinstance(source, Server):
        raise TypeError(f"until= is for a Server, got a {type(source).__name__}")
    if isinstance(source, Server):
        return lambda wait: _now(lambda: source.sample(None if wait else 0, until), wait)
    if isinstance(source, Replay):
        size = 1 if batch_size is None else batch_size
        return lambda wait: _now(lambda: source.sample(size, table, None if wait else 0), wait)
    if not hasattr(source, "__iter__"):
        raise TypeError(f"batches() takes a Server, a Replay or an iterable of batches, got {type(source).__name__}")
    rest = map(as_tensors, source)
    return lambda wait: list(itertools.islice(rest, 1)) if wait else []


def _now(sample: Callable[[], Tree | None], wait: bool) -> list[Tree]:
    try:
        taken = sample()
    except TimeoutError:
        if wait:
            raise
        return []
    return [] if taken is None else [as_tensors(taken)]


def _one_by_one(take: Take, device: "torch.device") -> Iterator[Tree]:
    while box := take(True):
        # The generator itself must not refer to the batch while its user works on it.
        yield map_leaves(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, box.pop())


class _Copies:
    """Copies trees to a CUDA device, on a stream of its own. It keeps what it copies from until the copy is done."""

    def __init__(self, device: "torch.device") -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        # The event after each copy, and what is being copied from.
        self._flying: deque[tuple[Any, list[torch.Tensor]]] = deque()

    def start(self, tree: Tree) -> tuple[Tree, Any]:
        """Starts to copy. Returns the copies, which are not there yet, and the event that says when they are."""
        sources: list[torch.Tensor] = []

        def copy(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            sources.append(leaf)
            return torch.empty(leaf.shape, dtype=leaf.dtype, device=self._device).copy_(leaf, non_blocking=True)

        event = torch.cuda.Event()
        try:
            with torch.cuda.stream(self._stream):
                return map_leaves(copy, tree), event
        finally:
            event.record(self._stream)
            self._flying.append((event, sources))

    def deliver(self, copies: Tree, event: Any) -> Tree:
        """The copies, for the current stream: what it computes from now on comes after them. Nothing waits here."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for leaf in optree.tree_leaves(copies):
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(current)  # a later copy gets its memory only after that
        return copies

    def let_go(self, wait: bool) -> None:
        """Drops what was copied from, where the copy is done. ``wait``: it waits for the others."""
        while self._flying:
            event = self._flying[0][0]
            if wait:
                event.synchronize()
            elif not event.query():
                return
            self._flying.popleft()


def double_buffered(take: Take, device: "torch.device") -> Iterator[Tree]:
    """Yields copies on a CUDA device. The next one is under way by then, if there was something to copy at once."""
    copies, ahead = _Copies(device), list[tuple[Tree, Any]]()
    try:
        while True:
            if not ahead:
                copies.let_go(wait=True)  # producers may need that room for the batch that is waited for
                ahead += [copies.start(tree) for tree in take(True)]
                if not ahead:
                    return
            now, failed = [ahead.pop()], None
            copies.let_go(wait=False)
            try:
                ahead += [copies.start(tree) for tree in take(False)]
            except Exception as error:  # it is about the next batch: this one comes first
                failed = error
            yield copies.deliver(*now.pop())
            if failed is not None:
                raise failed
    finally:
        copies.let_go(wait=True)
