"""Naming a segment to another process, and what attaching by handle, name or example comes to."""

from dataclasses import dataclass
from typing import Any

from echo_shm.errors import SegmentError, SpecMismatchError
from echo_shm.ring.segment import Segment
from echo_shm.spec import Spec


@dataclass(frozen=True)
class Handle:
    """Names a segment for another process of the same user: pickle it to wherever the worker runs.

    Attributes:
        name: The segment's name.
        uuid: Which segment of that name.
        treespec: The samples' structure, so that trees with node types beyond
            dict, list, tuple and None need no example.

    """

    name: str
    uuid: bytes
    treespec: Any


def attach_segment(handle_or_name: Handle | str, example: Any, *, caller: str) -> Segment:
    """Maps a segment and settles its treespec, from the handle, the example or the schema.

    Raises:
        SegmentError: See :meth:`Segment.attach`; or the handle is of other leaves than the segment.
        SpecMismatchError: The example is not what the segment holds, or one is needed.

    """
    if isinstance(handle_or_name, Handle):
        segment = Segment.attach(handle_or_name.name, handle_or_name.uuid)
        # The same uuid says that it is the same segment, unless somebody has rewritten what is in it.
        ours, theirs = handle_or_name.treespec.num_leaves, len(segment.spec.leaves)
        if ours != theirs:
            raise SegmentError(
                f"segment {segment.name!r} cannot be used: its schema has {theirs} leaves, the samples of its handle "
                f"have {ours}"
            )
        segment.spec.treespec = handle_or_name.treespec
    elif isinstance(handle_or_name, str):
        segment = Segment.attach(handle_or_name)
    else:
        raise TypeError(
            f"{caller} takes a segment's name or server.handle, not {type(handle_or_name).__name__} {handle_or_name!r}"
        )
    if example is not None:
        mine = Spec.from_example(example)
        mine.check_same(segment.spec, f"segment {segment.name!r}")
        segment.spec = mine
    if segment.spec.treespec is None:
        raise SpecMismatchError(
            f"segment {segment.name!r} holds samples with node types beyond dict, list, tuple and None: pass an "
            f"example, {caller}({segment.name!r}, example), or the server's handle in place of its name"
        )
    return segment
