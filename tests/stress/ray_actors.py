"""The processes of a storm on a replay over nodes, and the files in which they note what they do.

All nodes are on this machine, so the notes are files of one folder. A process notes a thing after it has happened, or
before it begins what a kill may leave half done. A note is a few words in a file that is mapped, or one write to it: a
kill leaves it whole.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from harness import stamped

from echo_shm.adapters.ray import drawing
from echo_shm.adapters.ray.filling import Left
from echo_shm.adapters.ray.limited import LimitedMerger
from echo_shm.errors import ConnectionClosedError

#: Items of a batch of each table.
QUEUED, DRAWN = 16, 32

#: Steps between two flushes.
MANY = 8

#: What is published.
PARAMS = {"w": np.zeros(100)}

#: A worker waits so long for the first weights of its node (seconds).
_WEIGHTS = 60.0

#: What a learner notes of an item; and when it had it (nanoseconds).
_ITEM = np.dtype([("shard", np.int64), ("incarnation", np.int64), ("sequence", np.int64), ("at", np.int64)])


def priority(sequence: int) -> float:
    """The priority in table ``drawn`` that a worker gives to a step."""
    return 1.0 + sequence % 7


class Notes:
    """What one incarnation of a worker notes.

    Attributes:
        number: Of the incarnation, among those of all workers.
        worker: Which worker it is of.
        sent: How many steps ``add`` has taken; the last one perhaps not.
        confirmed: How many steps ``flush`` has confirmed.
        version: Of the weights that it had last.

    """

    def __init__(self, path: Path) -> None:
        self.number = int(path.name.partition("-")[2])
        self._moves = path.with_name(f"moves-{self.number}")
        self._words = np.memmap(path, np.int64, "r+", shape=(4,))

    worker = property(lambda self: int(self._words[0]))
    sent = property(lambda self: int(self._words[1]))
    confirmed = property(lambda self: int(self._words[2]))
    version = property(lambda self: int(self._words[3]))

    def wrote_into(self, shard: int, first: int) -> None:
        """Writes down that the steps of a block, and those that follow, went into that shard, if that is new.

        If the writer has moved while it wrote the block, some of it went into the one before.
        """
        if not self.moves or self.moves[-1][1] != shard:
            with open(self._moves, "a") as file:
                file.write(f"{first} {shard}\n")

    @property
    def moves(self) -> list[tuple[int, int]]:
        """The first step of a block, and the shard that the writer had after it; each time that was another one."""
        if not self._moves.exists():
            return []
        pairs = (line.split() for line in self._moves.read_text().splitlines())
        return [(int(first), int(shard)) for first, shard in pairs]

    def note(self, **words: int) -> None:
        """Writes words down."""
        for name, word in words.items():
            self._words[["worker", "sent", "confirmed", "version"].index(name)] = word

    @classmethod
    def make(cls, folder: Path) -> "Notes":
        """Those of a new incarnation."""
        return cls(_new(folder, "worker", bytes(4 * 8)))

    @classmethod
    def all(cls, folder: Path) -> list["Notes"]:
        """Those of all incarnations that there were."""
        return [cls(path) for path in sorted(folder.glob("worker-*"))]


def _new(folder: Path, kind: str, content: bytes) -> Path:
    """A file with the next number. Its name appears with its content."""
    made = folder / f"making-{kind}-{os.getpid()}"
    made.write_bytes(content)
    number = 0
    while True:
        with contextlib.suppress(FileExistsError):
            os.link(made, folder / f"{kind}-{number}")
            made.unlink()
            return folder / f"{kind}-{number}"
        number += 1


def has_said(folder: Path, word: str) -> bool:
    """Whether the storm has said that."""
    return (folder / word).exists()


def write(writer: Any, i: int, folder: Path) -> None:
    """A worker: sends stamped steps, and looks at the weights, until it is to stop."""
    notes, sent, step = Notes.make(folder), 0, stamped.example()
    notes.note(worker=i)
    notes.wrote_into(writer.shard, 0)
    with writer.subscriber(PARAMS, _WEIGHTS) as weights:
        while not has_said(folder, "stop"):
            for _ in range(MANY):
                stamped.stamp(step, notes.number, sent)
                sent += 1
                notes.note(sent=sent)
                writer.add(step, {"queued": 1.0, "drawn": priority(sent - 1)})
            writer.flush()
            notes.note(confirmed=sent)
            notes.wrote_into(writer.shard, sent - MANY)
            before = weights.version
            if weights.poll():
                with weights.lease() as params:
                    values = set(params["w"].tolist())
                assert values == {float(weights.version)}, f"version {weights.version} has {values}"
            assert weights.version >= before, f"version {weights.version} came after {before}"
            notes.note(version=weights.version)


class Log:
    """The items that one incarnation of a learner has had, batch by batch."""

    def __init__(self, folder: Path) -> None:
        self.path = _new(folder, "learner", b"")
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)

    def note(self, batch: Any) -> None:
        """One batch, which is whole. The size of its note is a power of two: a kill may cut one that crosses a page."""
        self._note(batch.key["shard"], batch.data)

    def note_early(self, one: Left) -> None:
        """An item that is of no batch yet, and done: its shard's number is negative here, that is ``~number``."""
        self._note([~one.number], one.item.data)

    def _note(self, shards: Any, data: Any) -> None:
        items = np.zeros(len(shards), _ITEM)
        items["at"] = time.monotonic_ns()
        items["shard"] = shards
        items["incarnation"], items["sequence"] = data["incarnation"], data["sequence"]
        os.write(self._file, items.tobytes())

    @staticmethod
    def read(folder: Path) -> dict[str, Any]:
        """The notes of each learner."""
        return {path.name: np.fromfile(path, _ITEM) for path in sorted(folder.glob("learner-*"))}


class _Noting(LimitedMerger):
    """Notes the items that it takes before its batch is full, before it says that it is done with them.

    They go with this process if it is killed: see :meth:`RayReplay.dataset_iter`.
    """

    log: "Log"
    _takes_all = False

    def _take_all(self) -> bool:
        self._takes_all = True
        try:
            return super()._take_all()
        finally:
            self._takes_all = False

    def _put(self, one: Left) -> None:
        if not self._takes_all:
            self.log.note_early(one)
        super()._put(one)


def learn(replay: Any, folder: Path) -> int:
    """A learner of table ``queued``: notes what it gets until nothing more comes. Returns how many batches it had."""
    log, count = Log(folder), 0
    drawing.LimitedMerger, _Noting.log = _Noting, log
    while not has_said(folder, "end"):
        with contextlib.closing(replay.dataset_iter(QUEUED, "queued", timeout=0.5)) as batches:
            for batch in batches:
                assert not stamped.torn(batch.data).size, f"torn: {batch}"
                log.note(batch)
                count += 1
                if has_said(folder, "end"):
                    break
    take_rest(replay, log)  # what this process has taken for a batch that is not full, too
    return count


def take_rest(replay: Any, log: Log) -> None:
    """Notes what is left in table ``queued``, item by item, until nothing comes for a moment."""
    for batch in replay.dataset_iter(1, "queued", timeout=0.5):
        assert not stamped.torn(batch.data).size, f"torn: {batch}"
        log.note(batch)


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD")
class StormLearner:
    """A learner in a process of its own. Ray starts it again, and calls run() again."""

    def run(self, replay: Any, folder: Path) -> int:
        """As :func:`learn`."""
        return learn(replay, folder)


def draw(replay: Any, folder: Path, last: list[float], pauses: list[tuple[float, float]]) -> int:
    """A learner of table ``drawn``: checks and updates what it gets. How many batches it had.

    Args:
        replay: The replay.
        folder: Of the notes.
        last: When it got a batch last.
        pauses: Those of a second and more: when one ended, and how long it was.

    """
    count = 0
    for batch in replay.dataset_iter(DRAWN, "drawn"):
        now = time.monotonic()
        if now - last[0] > 1.0:
            pauses.append((now, now - last[0]))
        assert not stamped.torn(batch.data).size, f"torn: {batch}"
        assert (batch.probability > 0).all()
        assert (batch.table_size > 0).all()
        count += 1
        with contextlib.suppress(ConnectionClosedError, TimeoutError, OSError):
            replay.update(batch.key[:4], [priority(int(k)) for k in batch.data["sequence"][:4]], "drawn")
        if has_said(folder, "end"):
            break
        del batch
        last[0] = time.monotonic()
    return count
