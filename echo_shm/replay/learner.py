"""A learner in another process than the replay: it takes batches that the replay draws into a ring."""

import contextlib
import errno
import time
from collections.abc import Callable, Generator
from typing import cast

import optree

from echo_shm._core import lib
from echo_shm.errors import ConnectionClosedError, SegmentError
from echo_shm.replay.batch import Batch
from echo_shm.replay.batch_rings import spec_of_batches
from echo_shm.replay.stock import LocalStock
from echo_shm.ring import ranks
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.batch_reader import BatchReader
from echo_shm.ring.batch_source import BatchSource
from echo_shm.ring.board import made_or_refused
from echo_shm.ring.handle import Handle
from echo_shm.ring.lockfile import CREATOR_BYTE
from echo_shm.ring.metrics import RingView
from echo_shm.ring.segment import Segment
from echo_shm.spec import Array

#: Times between two looks for the ring that was asked for (seconds): at first, and at most.
_SOONEST, _LATEST = 1e-3, 20e-3

#: How often the replay is asked again: the one that was asked may be dead (seconds).
_ASK_AGAIN = 1.0


def batches(
    replay: str,
    one: BatchRing,
    treespec: optree.PyTreeSpec,
    timeout: float | None,
    grace: float | None,
    ask: Callable[[], None],
) -> Generator[Batch | None]:
    """Yields batches of items of a table of another process's replay; None where nothing came in time.

    Args:
        replay: Its name.
        one: The ring.
        treespec: The structure of a step.
        timeout: Seconds; None: no limit.
        grace: How many seconds to wait for the next replay if this one was killed; None: no limit.
        ask: Asks the replay for the ring.

    """
    while (segment := _find(replay, one, treespec, timeout, grace, ask)) is None:
        yield None
    attachment = Attachment(segment, lib.ES_ROLE_LEARNER, f"ring {segment.name!r}", prefault=True)
    reader, replays = BatchReader(attachment, writable=True), _Replays(replay, segment, grace)
    with contextlib.ExitStack() as leaving:
        leaving.callback(reader.close)
        while one.world_size and not _take_rank(replay, one, attachment, timeout, replays, leaving):
            yield None
        while box := _next(reader, timeout, replays):
            # The generator itself must not refer to the batch while its user works on it, or waits for the next.
            yield box.pop()


def _take_rank(
    replay: str,
    one: BatchRing,
    attachment: Attachment,
    timeout: float | None,
    replays: "_Replays",
    leaving: contextlib.ExitStack,
) -> bool:
    """Makes this process the only one of its rank. False: the batches of a dead one were not given back in time.

    Raises:
        SegmentError: Another iteration has that rank.

    """
    lockfile = attachment.segment.lockfile
    assert lockfile is not None
    if not ranks.take(lockfile):
        raise SegmentError(ranks.why_taken(replay, one, ranks.taken_by(lockfile)))
    leaving.callback(ranks.leave, lockfile)
    # What a dead process of this rank had comes first, so it must be back.
    started = time.monotonic()
    while attachment.reaper.reap_and_check() != (0, True):
        replays.check()
        if timeout is not None and time.monotonic() - started > timeout:
            return False
        time.sleep(_SOONEST)  # another process reaps it, or it exits: nothing tells when
    return True


def stock(
    replay: str,
    one: BatchRing,
    treespec: optree.PyTreeSpec,
    timeout: float,
    grace: float | None,
    ask: Callable[[], None],
    inbox: Handle,
) -> LocalStock | None:
    """As :func:`batches`, for a learner that takes several before it is done with any. None: there is no ring yet.

    ``inbox``: the ring by which steps come. A replay that goes elsewhere closes it first.
    """
    view = RingView(Segment.attach(inbox.name, inbox.uuid, read_only=True))
    segment = _find(replay, one, treespec, timeout, grace, ask)
    if segment is None:
        return None
    build = cast("Callable[[list[Array]], Batch]", segment.spec.structure.unflatten)
    check, source = _Replays(replay, segment, grace).check, BatchSource(segment, is_bridge=False)
    return LocalStock(source, build, check, lambda: bool(view.snapshot().closed))


def _next(reader: BatchReader, timeout: float | None, replays: "_Replays") -> list[Batch | None]:
    """The next batch in a list; None in it if nothing came in time; an empty list at the end."""
    try:
        sample = reader.next(timeout, replays, True)
    except TimeoutError:
        return [None]
    return [] if sample is None else [sample.batch]


class _Replays:
    """What a learner waits for beside batches: that there is a replay, which may be another one than at first."""

    #: The replay never says that nothing more will come; it closes the ring.
    finished = False

    def __init__(self, name: str, segment: Segment, grace: float | None) -> None:
        assert segment.lockfile is not None
        self._name = name
        self._locks = segment.lockfile.locks
        self._grace = grace
        self._alone_since: float | None = None

    def check(self) -> None:
        """Raises ConnectionClosedError if there was none for too long."""
        if lib.es_segment_locks_held(self._locks, CREATOR_BYTE) != 0:
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = since = self._alone_since or now
        if self._grace is not None and now - since >= self._grace:
            raise _nobody_came(self._name, self._grace)


def _find(
    replay: str,
    one: BatchRing,
    treespec: optree.PyTreeSpec,
    timeout: float | None,
    grace: float | None,
    ask: Callable[[], None],
) -> Segment | None:
    """The ring, which the replay makes when it is asked. None: it did not in time, or it is closed."""
    ring, started, nap = one.name(replay), time.monotonic(), _SOONEST
    asked: float | None = None
    limit = min((one for one in (timeout, grace) if one is not None), default=None)
    while True:
        made, refusal = made_or_refused(replay, ring)
        segment = _segment(ring, treespec) if made else None
        if segment is not None:
            return segment
        now = time.monotonic()
        if asked is not None and refusal is not None:
            raise SegmentError(
                f"replay {replay!r} cannot make batches of {one.n} items in shared memory; a smaller n or prefetch may "
                f"help: {refusal}"
            )
        if limit is not None and now - started > limit:
            if limit == timeout:
                return None
            raise _nobody_came(replay, limit)
        if asked is None or now - asked >= _ASK_AGAIN:
            try:
                ask()
            except ConnectionClosedError:
                return None
            asked = now
        time.sleep(nap)  # there is no ring yet whose word could wake this process
        nap = min(2 * nap, _LATEST)


def _segment(ring: str, treespec: optree.PyTreeSpec) -> Segment | None:
    """None: there is no such ring, or not any more."""
    try:
        segment = Segment.attach(ring)
    except SegmentError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    segment.spec = spec_of_batches(segment.spec, treespec, f"ring {ring!r}")
    return segment


def _nobody_came(replay: str, grace: float) -> ConnectionClosedError:
    return ConnectionClosedError(f"replay {replay!r} was killed, and no other one came for {grace} s (learner_grace)")
