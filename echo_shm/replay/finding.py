"""A replay of this machine by its name alone: what its rings are, or why it cannot be joined."""

import errno

from echo_shm.errors import SegmentError, SpecMismatchError
from echo_shm.replay import listing, store
from echo_shm.replay.writer import ReplayHandle
from echo_shm.ring import lockfile
from echo_shm.ring.handle import Handle
from echo_shm.ring.inbox import inbox_spec, step_spec, tables_of
from echo_shm.ring.lockfile import INBOX, UPDATES, check_name
from echo_shm.spec import Spec, Tree

#: Most names of other replays in a message.
_MAX_NAMES = 5


def find_replay(name: str, example: Tree = None) -> ReplayHandle:
    """The handle of a living replay.

    Args:
        name: The replay's name.
        example: Pytree of numpy arrays, as of one step. It is only needed for trees with node types beyond dict, list,
            tuple and None.

    Raises:
        SegmentError: There is no such replay, its process is dead, or it cannot be read.
        SpecMismatchError: The example does not fit, or one is needed.

    """
    check_name(name, store.FILES)
    seen = _look(name)
    if not seen.alive:
        raise SegmentError(f"the process of replay {name!r} is dead: {_what_to_do(seen)}")
    segments = {one.name[len(name) :]: one.segment for one in seen.rings}
    inbox, updates = segments.get(INBOX), segments.get(UPDATES)
    if inbox is None or updates is None:
        raise SegmentError(f"replay {name!r} has no rings yet, or no more: it is being opened or closed just now")
    tables, step = tables_of(inbox.spec), step_spec(inbox.spec)
    if tables is None or step is None:
        raise SegmentError(f"ring {inbox.name!r} cannot be used: its schema is not that of a replay's inbox")
    if example is not None:
        mine = Spec.from_example(example)
        mine.check_same(step, f"replay {name!r}")
        step = mine
    if step.treespec is None:
        raise SpecMismatchError(
            f"replay {name!r} has steps with node types beyond dict, OrderedDict, list, tuple and None: "
            f"pass an example, ReplayClient({name!r}, example), or its handle in place of its name"
        )
    return ReplayHandle(
        name,
        Handle(inbox.name, inbox.uuid, inbox_spec(step, tables).treespec),
        Handle(updates.name, updates.uuid, updates.spec.treespec),
        tables,
        step.treespec,
    )


def _look(name: str) -> listing.ReplayListing:
    there = listing.names()
    if name in there:
        return listing.look(name)
    if name in lockfile.names():
        owner = listing.parts().get(name)
        if owner is not None:
            raise SegmentError(f"{name!r} is a ring of replay {owner!r}: ReplayClient({owner!r})")
        raise SegmentError(f"{name!r} is a ring, and no replay: ShmClient({name!r}) sends to it")
    others = ", ".join(map(repr, there[:_MAX_NAMES])) + (" and more" if len(there) > _MAX_NAMES else "")
    raise SegmentError(
        errno.ENOENT,
        f"no replay is named {name!r}: {f'there are {others}' if others else 'there is none on this machine'}. "
        "A replay has a name with store='shm', name=...; without that, pass on replay.handle",
    )


def _what_to_do(dead: listing.ReplayListing) -> str:
    if dead.directory is not None:
        return f"Replay.attach({dead.directory!r}) goes on with it"
    if not dead.has_store:
        return "what it held is gone, and `echo-shm gc` removes the rest"
    fault = f"{dead.fault}; " if dead.fault else ""
    return f"{fault}Replay.attach({dead.name!r}) goes on with it, `echo-shm gc {dead.name}` removes it"
