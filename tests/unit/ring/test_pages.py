"""What is mapped before it is needed, and huge pages."""

import mmap
import os
import resource
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from harness.waiting import LONG, until

from echo_shm import Server, ShmClient
from echo_shm.ring import pages
from echo_shm.spec import Array

PAGE = mmap.PAGESIZE


def faults() -> int:
    """Page faults of this thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def no_thread() -> bool:
    """Whether no thread maps pages."""
    return all(thread.name != "echo_shm-prefault" for thread in threading.enumerate())


def send_all(client: ShmClient, sample: dict[str, Array], slots: int) -> int:
    """How many page faults it takes to write to each slot once."""
    before = faults()
    for _ in range(slots):
        client.send(sample)
    return faults() - before


@pytest.mark.parametrize("buffers", [2, 16])
def test_first_sends_take_no_page_faults(buffers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring of 16 batches is over the limit, and is mapped by a thread."""
    monkeypatch.setattr(pages, "_AT_ONCE", 8 << 20)
    sample = {"frame": np.zeros(16 * PAGE, np.uint8)}
    with Server(sample, 16, num_buffers=buffers) as server:
        taken = {}
        for prefault in (False, True):
            # A mapping of its own, as in another process.
            with ShmClient(server.handle, prefault=prefault) as client:
                until(no_thread)
                taken[prefault] = send_all(client, sample, 16 * buffers)
            for _ in range(buffers):
                server.sample()
    assert taken[False] >= 16 * buffers
    assert taken[True] < 16


def test_background_thread_ends_with_the_attachment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close in the middle ends it: it does not map the rest."""
    monkeypatch.setattr(pages, "_AT_ONCE", 0)
    monkeypatch.setattr(pages, "_STEP", PAGE)
    reached, go_on = threading.Event(), threading.Event()
    done: list[bool] = []
    populate = pages.populate

    def slowly(mapping: mmap.mmap) -> Iterator[bool]:
        for possible in populate(mapping):
            done.append(possible)
            reached.set()
            go_on.wait(LONG)
            yield possible

    with Server({"x": np.zeros(PAGE, np.uint8)}, 64, prefault=False) as server:
        monkeypatch.setattr(pages, "populate", slowly)
        client = ShmClient(server.handle)
        assert reached.wait(LONG)
        client.close()
        go_on.set()
        until(no_thread)
    assert len(done) < 64


def test_system_that_cannot_map_ahead_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 5.14 refuse the advice."""
    monkeypatch.setattr(pages, "_MADV_POPULATE_WRITE", 9999)
    sample = {"x": np.zeros(PAGE, np.uint8)}
    with Server(sample, 4) as server, ShmClient(server.handle) as client:
        for _ in range(4):
            client.send(sample)
        batch = server.sample()
        assert batch is not None
        assert batch.batch["x"].shape == (4, PAGE)


@pytest.mark.parametrize("huge", ["advise", "never"])
def test_huge_pages_where_the_mount_allows_them(huge: str) -> None:
    """In a mount of its own. The last huge page may be cut off by the ring's end."""
    script = textwrap.dedent("""
        import numpy as np
        from echo_shm import Server
        from echo_shm.cli.ls import describe
        with Server({"x": np.zeros(1 << 20, np.uint8)}, 8, num_buffers=2) as server:
            found = describe(server._segment.name)
            print(found["huge_bytes"], found["bytes"])
    """)
    mount = f"mount --make-rprivate / && mount -t tmpfs -o huge={huge},size=64m tmpfs /dev/shm"
    made = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"needs to mount a tmpfs with huge pages: {made.stderr.strip()}")
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "-", sys.executable, "-c", script]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": ""})
    got, size = map(int, out.stdout.split())
    if huge == "never":
        assert got == 0
    else:
        assert size - (2 << 20) <= got <= size


def test_attaching_to_a_large_ring_waits_for_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread maps them, so what is told of the attachment does not depend on it."""
    held = threading.Event()

    def never(mapping: mmap.mmap) -> Iterator[bool]:
        held.wait(LONG)
        yield True

    with Server({"x": np.zeros(PAGE, np.uint8)}, 64, prefault=False) as server:
        monkeypatch.setattr(pages, "_AT_ONCE", 0)
        monkeypatch.setattr(pages, "populate", never)
        with ShmClient(server.handle) as client:
            client.send({"x": np.zeros(PAGE, np.uint8)})
        held.set()


def test_without_a_thread_sends_take_the_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may start no more threads attaches all the same."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Server({"x": np.zeros(PAGE, np.uint8)}, 4, prefault=False) as server:
        monkeypatch.setattr(pages, "_AT_ONCE", 0)
        monkeypatch.setattr(threading.Thread, "start", start)
        with ShmClient(server.handle) as client:
            client.send({"x": np.zeros(PAGE, np.uint8)})
