"""The processes of a storm on a replay, and the memory in which they note what they do.

A process notes a thing after it has happened, or before it begins what a kill may leave half done. So after any kill
the notes say what must be there, and what may be.
"""

import contextlib
import logging
import mmap
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from harness import stamped
from harness.waiting import until

from echo_shm import Replay, Table, TcpTransport
from echo_shm.replay import Prioritized, Queue, RemoteWriter, ReplayClient, Sequence, Uniform

#: Items of the table ``all``, by which steps are accounted for. Between two looks fewer come.
SIZE = 2048

#: Steps that the store has room for. Table ``rest`` would hold more: its items go for want of room alone.
CAPACITY = SIZE + SIZE // 2

WRITERS, LEARNERS = 4, 2

#: Learners, and one that takes batches over TCP, as on another host.
ALL_LEARNERS = LEARNERS + 1

#: The writer that sends over TCP, as on another host. It is not killed: what it has sent may not be in the inbox yet.
REMOTE = 1

HOST, KEY = "127.0.0.1", b"the key of a storm's bridge"

#: How many steps a writer may send between two looks.
ALLOWANCE = 240

#: Steps of an ``extend()``: so many may be stored and not noted when a writer is killed.
MANY = 8

#: Items of a batch. Those of table ``each`` are gone with the process that was just drawing them.
BATCH = 16

#: How many steps an item of table ``windows`` has, and how many steps after one the next one begins.
WINDOWS = (5, 3)

#: Added to priorities, so that they say who gave them.
BY_CLIENT, BY_REPLAY = 1000, 2000

INCARNATIONS = 1 << 16

#: What a replay's process tells the client: keys, and whose steps they are.
_PACKET = BATCH * 3 * 8


def first_priority(sequence: Any) -> Any:
    """The priority in table ``some`` that a writer gives to a step."""
    return 1.0 + sequence % 7


def goes_into_each(sequence: Any) -> Any:
    """Whether a step has an item in table ``each``."""
    return sequence // MANY % 4 != 3


def goes_into_taken(sequence: Any) -> Any:
    """Whether a step has an item in table ``taken``."""
    return sequence // MANY % 4 != 2


def create(conn: Any, name: str, seed: int) -> None:
    """Makes the replay, and says how others reach it. Its process does no more."""
    tables = [
        # Without replacement: a batch of twice their size has every item of these two.
        Table("all", max_size=SIZE, replacement=False),
        Table("some", Prioritized(0.6, 0.4), max_size=SIZE // 2, replacement=False),
        Table("drawn", Prioritized(0.6, 0.4), remover=Uniform(), max_size=SIZE // 4),
        Table("each", rate_limiter=Queue(256)),
        Table("taken", rate_limiter=Queue(256)),
        Table("rest", max_size=2 * CAPACITY),
        Table("windows", max_size=SIZE // 4, item=Sequence(*WINDOWS)),
    ]
    replay = Replay(stamped.example(), CAPACITY, tables, store="shm", name=name, seed=seed)
    conn.send(replay.handle)
    time.sleep(3600)


class Notes:
    """Numbers in memory that the processes of a storm share, two logs and a pipe. It is made before they are forked.

    Attributes:
        sent: By incarnation of a writer, how many of its steps ``add`` has taken.
        confirmed: The same for ``flush``.
        of_writer: By writer, how many steps its incarnations have sent.
        of_writer_confirmed: The same for steps that ``flush`` has confirmed.
        quota: By writer, how many it may send.
        ended: By writer: 1 once everything is flushed for good.
        ending: 1: writers are to end.
        attaching: The number of the latest life of the replay that has begun to attach.
        attached: The same once it has attached.
        drawing: How many items that life may have drawn from table ``each`` which are in no log.
        whole: How many items have been read, each of them whole.
        from_afar: How many batches the learner on another host has had.

    """

    def __init__(self, folder: Path) -> None:
        words = np.frombuffer(mmap.mmap(-1, 8 * (2 * INCARNATIONS + 4 * WRITERS + 6)), np.int64)
        self.sent, self.confirmed = words[: 2 * INCARNATIONS].reshape(2, -1)
        of_writers, singles = words[2 * INCARNATIONS : -6], words[-6:]
        self.of_writer, self.of_writer_confirmed, self.quota, self.ended = of_writers.reshape(4, -1)
        self.ending, self.attaching, self.attached, self.drawing, self.whole, self.from_afar = singles.reshape(6, 1)
        self.each, self.taken, self.deleted = folder / "each", folder / "taken", folder / "deleted"
        for log in (self.each, self.taken, self.deleted):
            log.touch()
        self._read, self._write = os.pipe2(os.O_DIRECT)
        os.set_blocking(self._write, False)

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._read)
        os.close(self._write)

    def tell(self, packet: bytes) -> None:
        """Tells the client of some items, unless it has enough to do."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, packet)

    def hear(self) -> Any:
        """Waits for what a replay tells: (key, incarnation, sequence) of each item."""
        return np.frombuffer(os.read(self._read, _PACKET), np.int64).reshape(-1, 3)


def _stamps(data: Any) -> Any:
    return np.stack([data["incarnation"], data["sequence"]], axis=1)


def log(path: Path, stamps: Any) -> None:
    """Adds a line of BATCH stamps. Its size is a power of two: a kill may cut a line that crosses a page."""
    line = np.full((BATCH, 2), -1, np.int64)
    line[: len(stamps)] = stamps
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(file, line.tobytes())
    os.close(file)


def read_log(path: Path) -> list[tuple[int, int]]:
    """All stamps of a log."""
    stamps = np.fromfile(path, np.int64).reshape(-1, 2)
    return [(a, b) for a, b in stamps[stamps[:, 0] >= 0].tolist()]


# -- writers and clients


def write_here(handle: Any, notes: Notes, writer: int, incarnation: int) -> None:
    """Sends stamped steps through the inbox."""
    with ReplayClient(handle) as client, client.writer() as replay:
        _write(replay, notes, writer, incarnation)


def write_from_afar(port: int, notes: Notes, writer: int, incarnation: int) -> None:
    """Sends stamped steps through whatever bridge is at that port."""

    logging.disable()  # connections are lost all the time

    def connect() -> RemoteWriter | None:
        with contextlib.suppress(OSError):  # no bridge is there yet
            return RemoteWriter(HOST, port, stamped.example(), authkey=KEY)
        return None

    with until(connect) as replay:
        _write(replay, notes, writer, incarnation)


def bridge(handle: Any, port: int) -> None:
    """Brings to the inbox what comes to that port."""

    def listen() -> bool:
        with contextlib.suppress(OSError):  # the one before still ends
            TcpTransport(port, host=HOST, authkey=KEY).start(handle.inbox)
            return True
        return False

    logging.disable()
    until(listen)
    time.sleep(3600)


def _write(replay: Any, notes: Notes, writer: int, incarnation: int) -> None:
    """Sends stamped steps, and flushes now and then. At the end it flushes, and stays."""
    rng, sent = random.Random(incarnation), 0
    one, many = stamped.example(), stamped.examples(MANY)

    def flush() -> None:
        replay.flush()
        notes.of_writer_confirmed[writer] += sent - notes.confirmed[incarnation]
        notes.confirmed[incarnation] = sent

    while not notes.ending[0]:
        if notes.of_writer[writer] >= notes.quota[writer]:
            flush()
            time.sleep(0.001)
            continue
        before = sent
        terminated = rng.random() < 0.02
        if sent % MANY == 0 and rng.random() < 0.5:
            numbers = np.arange(sent, sent + MANY)
            given = {"all": None, "some": first_priority(numbers), "drawn": None, "rest": None, "windows": None}
            ends = np.full(MANY, terminated)
            given |= {"each": None} if goes_into_each(sent) else {}
            given |= {"taken": None} if goes_into_taken(sent) else {}
            replay.extend(stamped.stamp_many(many, incarnation, sent), given, terminated=ends)
            sent += MANY
        else:
            given = {"all": None, "some": first_priority(sent), "drawn": None, "rest": None, "windows": None}
            given |= {"each": None} if goes_into_each(sent) else {}
            given |= {"taken": None} if goes_into_taken(sent) else {}
            replay.add(stamped.stamp(one, incarnation, sent), given, terminated=terminated)
            sent += 1
        notes.sent[incarnation] = sent
        notes.of_writer[writer] += sent - before
        if rng.random() < 0.06:
            flush()
    flush()
    notes.ended[writer] = 1
    time.sleep(3600)


def change(handle: Any, notes: Notes, seed: int) -> None:
    """Updates and deletes items that a replay has told of."""
    rng = random.Random(seed)
    with ReplayClient(handle) as client:
        while True:
            told = notes.hear()
            keys = told[:, 0].astype(np.uint64)
            if rng.random() < 0.7:
                client.update(keys, BY_CLIENT + keys % 97, "some")
            else:
                log(notes.deleted, told[:, 1:])
                client.delete(keys, "some")


def learn(handle: Any, notes: Notes) -> None:
    """Takes batches of table ``taken``. One that it has noted and not given back when it is killed comes again."""
    with ReplayClient(handle) as client:
        for batch in client.dataset_iter(BATCH, "taken", prefetch=ALL_LEARNERS + 1):
            _note_taken(notes, batch)
            del batch


def learn_from_afar(port: int, notes: Notes) -> None:
    """The same through whatever bridge is at that port."""
    logging.disable()

    def connect() -> ReplayClient | None:
        with contextlib.suppress(OSError):
            return ReplayClient(f"tcp://{HOST}:{port}", authkey=KEY)
        return None

    with until(connect) as client:
        for batch in client.dataset_iter(BATCH, "taken", prefetch=ALL_LEARNERS + 1):
            _note_taken(notes, batch)
            notes.from_afar[0] += 1


def _note_taken(notes: Notes, batch: Any) -> None:
    assert not stamped.torn(batch.data).size, f"torn in a batch: {stamped.torn(batch.data)}"
    log(notes.taken, _stamps(batch.data))


# -- the replay


def warm_up() -> None:
    """Does once what every process does first, so that those that are forked from this one find it done."""
    with Replay(stamped.example(), 8, store="shm") as replay, ReplayClient(replay.handle) as client:
        with client.writer() as writer:
            writer.add(stamped.example())
            writer.extend(stamped.examples(2))
        batch = replay.sample(2)
        assert batch is not None
        replay.update(batch.key, np.ones(2))
        replay.info()


def live(name: str, notes: Notes, life: int, seed: int, turn: int) -> None:
    """Waits for its turn: a byte of that pipe. Then it goes on with the replay, and does all that a learner does."""
    rng = random.Random(seed)
    os.read(turn, 1)
    notes.attaching[0] = life
    replay = Replay.attach(name, thread=rng.random() < 0.5)
    notes.attached[0] = life
    while True:
        with contextlib.suppress(TimeoutError):
            _act(replay, notes, rng)


def _act(replay: Replay, notes: Notes, rng: random.Random) -> None:
    choice = rng.randrange(8)
    if choice < 2:
        notes.drawing[0] = BATCH  # it stays so after a TimeoutError: what was drawn comes first in the next batch
        batch = _sample(replay, notes, "each")
        log(notes.each, _stamps(batch.data))
        notes.drawing[0] = 0
    elif choice == 2:
        batch = _sample(replay, notes, rng.choice(["all", "drawn"]))
        replay.update(batch.key, rng.random() + batch.key % 5, "drawn")
    elif choice < 5:
        batch = _sample(replay, notes, "some")
        stamps = _stamps(batch.data)
        if choice == 3:
            replay.update(batch.key, BY_REPLAY + batch.key % 97, "some")
            notes.tell(np.column_stack([batch.key.astype(np.int64), stamps]).tobytes())
        else:
            log(notes.deleted, stamps[:2])
            replay.delete(batch.key[:2], "some")
    elif choice == 5:
        _check_windows(replay, notes)
    elif choice == 6:
        assert replay.num_steps <= replay.capacity
        for info in replay.info().values():
            assert info.size <= info.max_size, info
    else:
        time.sleep(0.001)


def _sample(replay: Replay, notes: Notes, table: str, n: int = BATCH) -> Any:
    batch = replay.sample(n, table, timeout=0)
    assert batch is not None
    assert not stamped.torn(batch.data).size, f"torn in {table}: {stamped.torn(batch.data)}"
    notes.whole[0] += n
    return batch


def _check_windows(replay: Replay, notes: Notes) -> None:
    """Steps of one writer, one after the other, each of them whole, and then nothing. A key names the same for ever."""
    batch = replay.sample(BATCH, "windows", timeout=0)
    assert batch is not None
    data, mask = batch.data, batch.data["mask"]
    length = WINDOWS[0]
    counts = mask.sum(1)
    assert (mask == (np.arange(length) < counts[:, None])).all(), mask
    steps = {name: leaf[mask] for name, leaf in data.items() if name != "mask"}
    assert not stamped.torn(steps).size, f"torn in windows: {stamped.torn(steps)}"
    first = data["sequence"][:, :1]
    wanted = np.where(mask, first + np.arange(length), 0)
    assert (np.where(mask, data["sequence"], 0) == wanted).all(), data["sequence"]
    assert (np.where(mask, data["incarnation"], data["incarnation"][:, :1]) == data["incarnation"][:, :1]).all()
    _, at, back = np.unique(batch.key, return_index=True, return_inverse=True)
    assert (first[at][back] == first).all()
    notes.whole[0] += BATCH


# -- looking


def look(conn: Any, name: str, notes: Notes, last: bool) -> None:
    """Says what is in the tables. The last time it stores first what has been sent, and removes the replay then."""
    process = psutil.Process()
    before = process.memory_info().rss  # what it has from the process that forked it
    replay = Replay.attach(name)
    if last:
        _store_all(replay, notes)
    whole = {}
    for table in ("all", "some"):
        size = len(replay)
        # One turn may bring more than there were. Without replacement, twice the size has every item.
        try:
            batch = _sample(replay, notes, table, 2 * (size + 300))
        except TimeoutError:  # while writers wait for a processor, all that there is may be deleted
            assert table == "some"
            whole[table] = (np.zeros(0, np.uint64), np.zeros((0, 2), np.int64), np.zeros(0))
            continue
        _, at = np.unique(batch.key, return_index=True)
        oldest_first = at[np.argsort(-batch.age[at], kind="stable")]
        whole[table] = (batch.key[oldest_first], _stamps(batch.data)[oldest_first], batch.priority[oldest_first])
        del batch
    footprint = {"memory": process.memory_info().rss - before, "descriptors": process.num_fds()}
    found = (whole, replay.info(), replay.num_steps, footprint)
    if last:
        replay.close()
    conn.send(found)
    conn.recv()


def _store_all(replay: Replay, notes: Notes) -> None:
    """Stores what is in the inbox, and draws what waits in the tables ``each`` and ``taken``. Nobody sends any more."""
    quiet = 0
    with ReplayClient(replay.handle) as client:
        while quiet < 3:
            quiet += 1
            assert replay.num_steps > 0  # the call draws batches
            for batch in client.dataset_iter(BATCH, "taken", timeout=0.02):
                _note_taken(notes, batch)
                del batch
                quiet = 0
            if _empty_each(replay, notes):
                quiet = 0
    for table in ("each", "taken"):
        assert replay.info(table).parked == 0, replay.info(table)


def _empty_each(replay: Replay, notes: Notes) -> int:
    """Draws what waits in table ``each``: how many."""
    drawn = quiet = 0
    while quiet < 10:
        notes.drawing[0] = 1
        try:
            batch = _sample(replay, notes, "each", 1)
        except TimeoutError:
            quiet += 1
            continue
        log(notes.each, _stamps(batch.data))
        notes.drawing[0] = quiet = 0
        drawn += 1
    return drawn
