"""``echo-shm gc``: removes segments, replays and rollouts that no process uses. What any process holds stays."""

from collections.abc import Callable
from typing import NamedTuple

from echo_shm.cli import console, ls
from echo_shm.errors import SegmentError
from echo_shm.replay import listing
from echo_shm.ring import lockfile, rollouts, segment

#: What ``gc`` prints, for its ``--help``.
HELP = """\
what it prints:
  removed    nobody was attached; all its files are gone from /dev/shm
  garbage    nobody is attached; without --dry-run it would be removed
  in use     a process is attached, even if the creator is dead
  kept       nothing tells whether a process is attached; the line says why.
             Or it is a replay's store, whose steps nobody else has: it is
             removed only if it is named
"""


def run(name: str | None, *, dry_run: bool) -> int:
    """Removes what nobody uses. Returns the exit status.

    Args:
        name: The only segment or replay to remove; None: all of them, but for replays' stores.
        dry_run: Only say what would be removed.

    Raises:
        SegmentError: There is none of that name, or a process uses it.
        UsageError: Nothing can have that name.

    """
    if name is not None:
        return _remove(name, dry_run=dry_run)
    segments, parts, replays, engines = lockfile.names(), listing.parts(), listing.names(), rollouts.names()
    for one in segments:
        if one not in parts:
            _collect(_SEGMENT, one, dry_run=dry_run)
    for one in replays:
        _collect_replay(one, dry_run=dry_run)
    for one in engines:
        _collect(_ROLLOUTS, one, dry_run=dry_run)
    if not segments and not replays and not engines:
        print("no segments")
    return 0


class _Kind(NamedTuple):
    """What goes when no process holds its lock file."""

    names: Callable[[], list[str]]
    #: Whether one is in use, and its size to print.
    look: Callable[[str], tuple[bool, str]]
    #: Removes it unless it is in use. Returns whether it was not.
    collect: Callable[[str], bool]


def _look_at_segment(name: str) -> tuple[bool, str]:
    seen = segment.listing(name)
    return seen.locked, f" ({console.size(seen.segment.size)})" if seen.segment is not None else ""


_SEGMENT = _Kind(lockfile.names, _look_at_segment, lockfile.collect)
_ROLLOUTS = _Kind(rollouts.names, lambda name: (rollouts.look(name).alive, ""), rollouts.collect)


def _collect(kind: _Kind, name: str, *, dry_run: bool) -> bool:
    """Removes one unless it is used, and says so. Returns whether nobody used it."""
    try:
        used, size = kind.look(name)
    except SegmentError as error:
        if name in kind.names():  # otherwise it was closed just now
            print(f"kept     {name}: {error}")
        return False
    if not used and dry_run:
        print(f"garbage  {name}{size}: would be removed")
        return True
    if not used and kind.collect(name):
        print(f"removed  {name}{size}")
        return True
    print(f"in use   {name}{size}")
    return False


def _collect_replay(name: str, *, dry_run: bool) -> None:
    """Removes what a dead replay without a store has left, and says so."""
    try:
        seen = listing.look(name)
        size = f" ({console.size(seen.bytes)})"
        if seen.alive or (seen.attached and not seen.goes_on):
            print(f"in use   {name}{size}")
        elif seen.fault:
            print(f"kept     {name}{size}: {seen.fault}; `echo-shm gc {name}` removes it")
        elif seen.goes_on:
            print(f"kept     {name}{size}: its process is dead. {ls.what_to_do(name, seen.directory)}")
        elif dry_run:
            print(f"garbage  {name}{size}: would be removed")
        else:
            listing.remove(name)
            print(f"removed  {name}{size}")
    except SegmentError as error:
        if name in listing.names():  # otherwise it was closed just now
            print(f"kept     {name}: {error}")


def _remove(name: str, *, dry_run: bool) -> int:
    """Removes one segment, one replay with its store, or one engine's figures."""
    try:
        lockfile.check_name(name)
    except ValueError as error:
        raise console.UsageError(str(error)) from None
    part_of = listing.parts().get(name)
    if part_of is not None and name in lockfile.names():
        raise SegmentError(f"{name!r} is a ring of replay {part_of!r}: `echo-shm gc {part_of}` removes both")
    if name not in listing.names():
        if name in rollouts.names() and name not in lockfile.names():
            return 0 if _collect(_ROLLOUTS, name, dry_run=dry_run) else 1
        if name not in lockfile.names():
            raise SegmentError(f"no segment and no replay is named {name!r}: `echo-shm ls` lists those that exist")
        return 0 if _collect(_SEGMENT, name, dry_run=dry_run) else 1
    seen = listing.look(name)
    size = f" ({console.size(seen.bytes)})"
    if dry_run and not seen.attached:
        print(f"garbage  {name}{size}: would be removed")
        return 0
    listing.remove(name)
    print(f"removed  {name}{size}")
    return 0
