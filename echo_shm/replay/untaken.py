"""What a replay has drawn for learners, and none has taken: it goes with the replay to another process or host.

An item that may be drawn a limited number of times has gone from its table once it is drawn. Until a learner takes it,
it is nowhere but in a ring of batches. So whoever moves such a replay holds what is in its rings of single items, as a
learner does, and writes it to a file. The next replay puts it into rings of its own, before it draws anything.
"""

import io
import time
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from echo_shm.errors import SegmentError
from echo_shm.replay import checkpoint_files as files
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.batch_source import BatchSource, Lease
from echo_shm.ring.lockfile import names
from echo_shm.ring.segment import Segment
from echo_shm.spec import Array

#: The file's name, beside a checkpoint or in the directory of a store.
UNTAKEN = "untaken.npz"

#: How long others may take to reap a dead learner (seconds), and how often it is looked whether they have.
_REAPING, _NAP = 5.0, 1e-3


class Saved(NamedTuple):
    """What is in the file of one table.

    Attributes:
        num_buffers: How many places its ring has.
        leaves: For each leaf of the ring the bytes of the items, in the order in which they were drawn. Each has the
            shape ``(items, bytes of one)``.

    """

    num_buffers: int
    leaves: list[Array]


class Untaken:
    """What is in the rings of single items of some tables, held until :meth:`release` or :meth:`give_back`.

    What learners have leased stays theirs. If this process is killed, learners get what it holds.

    Args:
        replay: The replay's name. It draws nothing of these tables meanwhile.
        tables: The tables' numbers.

    Raises:
        SegmentError: What a dead learner has leased does not come back.

    """

    def __init__(self, replay: str, tables: Collection[int]) -> None:
        self._held: dict[int, tuple[BatchSource, list[Lease]]] = {}
        there = set(names())
        try:
            for table in tables:
                name = BatchRing(table, 1).name(replay)
                if name in there:
                    source = BatchSource(Segment.attach(name), is_bridge=False)
                    leases: list[Lease] = []
                    self._held[table] = source, leases
                    _wait_for_dead(source, name)
                    while (lease := source.take(is_last=True)) is not None:
                        leases.append(lease)
                    leases.sort()  # what was given back has come after younger ones
        except BaseException:
            self.give_back()
            raise

    def save(self, path: Path) -> None:
        """Writes it to a file, whole or not at all. If there is nothing, there is no file."""
        arrays: dict[str, Array] = {}
        for table, (source, leases) in self._held.items():
            if leases:
                arrays[f"{table}"] = np.array(source.num_buffers)
                arrays.update((f"{table}.{i}", leaf) for i, leaf in enumerate(source.copies_of(leases)))
        path.unlink(missing_ok=True)
        if not arrays:
            return
        memory = io.BytesIO()
        np.savez(memory, allow_pickle=False, **arrays)
        unfinished = path.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        files.write_file(unfinished, memory.getvalue())
        unfinished.rename(path)
        files.sync_directory(path.parent)

    def release(self) -> None:
        """It is elsewhere now: nobody gets it here any more. Idempotent."""
        for source, leases in self._held.values():
            for lease in leases:
                source.release(lease)
            source.detach()
        self._held.clear()

    def give_back(self) -> None:
        """Learners get it here. Idempotent."""
        for source, leases in self._held.values():
            for lease in leases:
                source.give_back(lease)
            source.detach()
        self._held.clear()


def _wait_for_dead(source: BatchSource, name: str) -> None:
    """Until what dead learners had leased can be taken."""
    deadline = time.monotonic() + _REAPING
    while not source.is_settled():
        if time.monotonic() > deadline:
            raise SegmentError(f"ring {name!r}: what a dead learner had leased does not come back")
        time.sleep(_NAP)  # another process reaps it: no word of its own says so


def read(path: Path) -> dict[int, Saved]:
    """What a file has, by the tables' numbers; nothing if there is none.

    Raises:
        SegmentError: It is damaged.

    """
    try:
        with np.load(path, allow_pickle=False) as found:
            tables = {int(name): int(found[name]) for name in found.files if name.isdecimal()}
            return {
                table: Saved(
                    num_buffers,
                    [found[f"{table}.{i}"] for i in range(sum(one.startswith(f"{table}.") for one in found.files))],
                )
                for table, num_buffers in tables.items()
            }
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise SegmentError(f"{str(path)!r} cannot be used: it is damaged: {error}") from None
