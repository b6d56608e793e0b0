"""What a store of files needs after the machine went down: its records as they were at the last sync.

The records are the truth about a store. They are changed in place, in a mapped file, and the kernel writes its pages
to the disk when it likes. So after a loss of power the file is a mixture of times, and of no use. Therefore two more
files, the snapshots, have copies of the records. They are written in turn, and one of them always counts.

A sync does this, in this order:

1. With the replay's lock, the records are copied to the older snapshot: only pages that differ. From now on the rows
   of all steps that the copy refers to stay as they are, even if the steps go.
2. The columns' files are flushed. They have all rows that the copy refers to.
3. The copy is flushed. Its header still has an old number, or none that can be read, so it does not count.
4. The header is written, with a number higher than the other's, and flushed. From now on this snapshot counts.
5. The rows that only the one before refers to are free.

When the machine goes down at any of these points, one snapshot with the highest number is whole, and the rows that it
refers to are whole: those of the older one are not written to before 5. A header lies in one sector and has a
checksum; one that is torn does not count.

Rows that are held (1) are not there for new steps. A store has spare rows for these, so that it can go on while a
sync is under way. When they are used up, a step waits until a sync is done. Nothing but the time since the last sync
is lost, whatever the tables remove, and in whatever order.

When a process dies alone, nothing that it has written is lost, and the next one goes on with the records as they are.
It flushes both snapshots first: the dead one may have written a header that is not on the disk yet. A file has the
boot id of the time in which the records were last in use. If it is another one now, the machine went down, and the
records are copied from the snapshot. The id is written after that, so whoever is killed in between leaves it to the
next one.

Without syncs (``sync_every=None``) there are no spare rows. The snapshot of the last close counts until the first row
that it refers to is needed. Then both headers are cleared, and flushed, first. From then on nothing but a close makes
a snapshot again.

A flush that fails is not tried again: the kernel may have dropped the pages, and a second flush would succeed
without them. No snapshot is made any more, the last one stays whole, and the replay says so when spare rows are used
up. The file with the boot id is emptied then. So the next process takes the snapshot in place of the records: it
cannot know which of the rows that came later are on the disk.
"""

import logging
import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from echo_shm._core import ffi
from echo_shm._replay import Core
from echo_shm.errors import SegmentError

_log = logging.getLogger("echo_shm")

#: Bytes before a snapshot's copy of the records.
HEADER = 4096

_MAGIC = b"es-snap1"

#: Magic, number, bytes of the copy, the store's uuid, time of the sync (ns since 1970); a CRC-32 of these follows.
_FIELDS = struct.Struct("<8sQQ16sq")
_CRC = struct.Struct("<I")


class Header(NamedTuple):
    """What a snapshot says of itself. The one with the higher number counts."""

    number: int
    time_ns: int


class Snapshots:
    """The two snapshots of a store, open in the process that has it.

    Args:
        paths: Of the two files. They are there, with :data:`HEADER` + ``size`` bytes each.
        size: Bytes of the records.
        uuid: Of the store: 16 bytes.
        columns: Descriptors of the columns' files.
        what: The store, in messages.
        on_failure: Is called when a flush has failed. It sees to it that the records are not trusted any more.

    """

    def __init__(
        self,
        paths: Sequence[str],
        size: int,
        uuid: bytes,
        columns: Sequence[int],
        what: str,
        on_failure: Callable[[], None],
    ) -> None:
        self._size = size
        self._uuid = uuid
        self._columns = columns
        self._what = what
        self._on_failure = on_failure
        self._fds: list[int] = []
        self._maps: list[mmap.mmap] = []
        self._failed: OSError | None = None
        try:
            for path in paths:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                self._fds.append(fd)
                self._maps.append(mmap.mmap(fd, HEADER + size))
        except BaseException:
            self.close()
            raise
        headers = [self._read(each) for each in self._maps]
        self._headers = headers

    def _read(self, snapshot: mmap.mmap) -> Header | None:
        """A header; None if it is not one of this store."""
        end = _FIELDS.size
        magic, number, size, uuid, time_ns = _FIELDS.unpack_from(snapshot, 0)
        (crc,) = _CRC.unpack_from(snapshot, end)
        whole = magic == _MAGIC and (size, uuid) == (self._size, self._uuid) and crc == zlib.crc32(snapshot[:end])
        return Header(number, time_ns) if whole else None

    @property
    def last(self) -> int | None:
        """Which snapshot counts; None if none does."""
        there = [(header.number, i) for i, header in enumerate(self._headers) if header is not None]
        return max(there)[1] if there else None

    @property
    def time(self) -> float | None:
        """When the last snapshot was made, on the clock of ``time.time()``; None if there is none."""
        last = self.last
        header = None if last is None else self._headers[last]
        return None if header is None else header.time_ns / 1e9

    def _address(self, i: int) -> int:
        return int(ffi.cast("uintptr_t", ffi.from_buffer(self._maps[i]))) + HEADER

    def flush(self) -> None:
        """Brings to the disk what a dead process may have left in memory."""
        for fd in self._fds:
            os.fdatasync(fd)

    def restore(self, records: memoryview) -> bool:
        """Copies the snapshot that counts to the records: whether that has changed them."""
        last = self.last
        if last is None:
            raise SegmentError(
                f"{self._what} cannot be used: the machine went down while it was open, and it was not synced since it "
                "was opened (sync_every=None): its steps are lost. Remove the directory, and start anew"
            )
        copy = memoryview(self._maps[last])[HEADER:]
        changed = copy != records
        records[:] = copy
        copy.release()
        return changed

    def hold(self, core: Core) -> None:
        """Has the replay leave the rows alone that the last snapshot refers to. It was opened just now."""
        last = self.last
        if last is not None:
            core.hold(self._address(last))

    def write(self, core: Core) -> None:
        """Makes a snapshot of the replay as it is now. One thread at a time calls it.

        Raises:
            SegmentError: It could not be brought to the disk, now or earlier.

        """
        last = self.last
        i = 0 if last is None else 1 - last
        header = self._headers[last] if last is not None else None
        if core.closed:
            return
        self._refuse_failed()
        if core.snapshot(self._address(i)) < 0:
            return  # closed just now, or a forked child's
        try:
            for fd in (*self._columns, self._fds[i]):
                os.fdatasync(fd)
            if self._fds:
                self._write_header(i, Header(1 if header is None else header.number + 1, time.time_ns()))
        except OSError as error:
            # A finalizer that this thread happens to run may have closed the replay, and the files, meanwhile.
            if self._fds:
                self._fail(error)
        core.snapshot_done()

    def write_first(self, records: memoryview) -> None:
        """Makes the snapshot of a store that was formatted just now. Whoever creates it flushes everything."""
        copy = memoryview(self._maps[0])[HEADER:]
        copy[:] = records
        copy.release()
        self._write_header(0, Header(1, time.time_ns()))

    def clear(self, core: Core) -> None:
        """Says that no snapshot counts any more, and lets the replay use all rows."""
        self._refuse_failed()
        last = self.last or 0
        try:
            for i in (1 - last, last):  # otherwise the older one would count in between
                self._write_header(i, None)
        except OSError as error:
            self._fail(error)
        core.hold(0)

    def _write_header(self, i: int, header: Header | None) -> None:
        fields = b""
        if header is not None:
            fields = _FIELDS.pack(_MAGIC, header.number, self._size, self._uuid, header.time_ns)
            fields += _CRC.pack(zlib.crc32(fields))
        os.pwrite(self._fds[i], fields.ljust(_FIELDS.size + _CRC.size, b"\0"), 0)
        os.fdatasync(self._fds[i])
        self._headers[i] = header

    def _fail(self, error: OSError) -> None:
        self._failed = error
        self._on_failure()
        _log.error("%s cannot be synced any more: %s", self._what, error)
        self._refuse_failed()

    def _refuse_failed(self) -> None:
        if self._failed is not None:
            when = "never" if self.time is None else time.strftime("%F %T", time.localtime(self.time))
            raise SegmentError(
                self._failed.errno,
                f"{self._what} cannot be synced any more, since a flush failed ({self._failed.strerror}): what "
                f"came after the last sync ({when}) is lost when this process ends. Look at the disk, and save "
                "elsewhere what you need",
            )

    def close(self) -> None:
        """Closes the files."""
        for each in self._maps:
            each.close()
        for fd in self._fds:
            os.close(fd)
        self._maps, self._fds = [], []
