"""The pages of a segment: huge ones where the system has them, and mapped before a sample needs them."""

import contextlib
import ctypes
import mmap
import re
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from echo_shm._core import ffi

if TYPE_CHECKING:
    from echo_shm._core import CData

#: From linux/mman.h, since Linux 5.14: maps pages for writing as a write would, and reports what a write cannot.
_MADV_POPULATE_WRITE = 23

#: How much one call maps (bytes). A thread that maps the rest ends within a few milliseconds.
_STEP = 16 << 20

#: Bytes of a huge page, on most machines. Where it is larger, some are read twice.
_HUGE_PAGE = 2 << 20

#: A larger segment is mapped in the background (bytes): a process that attaches waits a few milliseconds at most.
_AT_ONCE = 32 << 20


def ask_for_huge_pages(mapping: mmap.mmap) -> None:
    """Asks for huge pages wherever the mount of /dev/shm allows them. Without them everything works, too."""
    with contextlib.suppress(OSError, AttributeError):
        mapping.madvise(mmap.MADV_HUGEPAGE)


def populate(mapping: mmap.mmap) -> Iterator[bool]:
    """Maps all pages for writing, one step for each item. An item is false if this system cannot; it is the last."""
    # Not mapping.madvise(): it would keep all other threads of Python waiting.
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    memory = ffi.from_buffer(mapping)  # the mapping stays while this is here
    base, size = _address(memory), len(mapping)
    for start in range(0, size, _STEP):
        step = ctypes.c_size_t(min(_STEP, size - start))
        if madvise is None or madvise(ctypes.c_void_p(base + start), step, _MADV_POPULATE_WRITE) != 0:
            yield False
            return
        yield True


class Prefault:
    """Maps all pages of a segment into this process, at once or in a thread of its own.

    Otherwise each process takes a page fault at its first write to each page, inside its sends.

    Args:
        mapping: The mapping, writable. The thread keeps it alive until it ends, at most one step after :meth:`stop`.

    """

    def __init__(self, mapping: mmap.mmap) -> None:
        stopped = threading.Event()
        if len(mapping) <= _AT_ONCE:
            _run(mapping, stopped)
        else:
            thread = threading.Thread(target=_run, args=(mapping, stopped), name="echo_shm-prefault", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread can be started: then sends take the page faults
                thread.start()
        self._stop = weakref.finalize(self, stopped.set)

    def stop(self) -> None:
        """Ends the thread soon. Idempotent."""
        self._stop()


def _run(mapping: mmap.mmap, stopped: threading.Event) -> None:
    for possible in populate(mapping):
        if stopped.is_set() or not possible:
            return


def huge_bytes(mapping: mmap.mmap) -> int | None:
    """How many bytes of a mapping are in huge pages, or None where /proc does not say.

    /proc tells only what this process has mapped, so this reads a byte of each huge page.
    """
    for start in range(0, len(mapping), _HUGE_PAGE):
        mapping[start]
    memory = ffi.from_buffer(mapping)
    base, inside, huge = _address(memory), False, None
    with contextlib.suppress(OSError), open("/proc/self/smaps", encoding="ascii", errors="replace") as file:
        for line in file:
            area = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
            if area is not None:
                inside = int(area[1], 16) <= base < int(area[2], 16)
            elif inside and line.startswith(("ShmemPmdMapped:", "FilePmdMapped:")):
                huge = (huge or 0) + int(line.split()[1]) * 1024
    return huge


def _address(memory: "CData") -> int:
    return int(ffi.cast("uintptr_t", memory))
