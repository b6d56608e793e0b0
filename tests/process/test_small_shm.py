"""A /dev/shm of 64 MB, as Docker makes it, and one that cannot be used: clear errors, and nothing is left."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from harness import stamped
from harness.containers import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, Box, Mount, contain, probe, shm

from echo_shm import Replay, SegmentError, Server, ShmClient
from echo_shm.ring import allocation, segment

MB = 1 << 20


@pytest.fixture
def boxed(act):
    """Runs a function in a container with such a /dev/shm, and returns what it says."""
    why = act(probe).hear()
    if why:
        pytest.skip(f"no containers can be made here: {why}")

    def run(fn, *args, dev_shm=None):
        return act(contain, Box((dev_shm or shm("size=64m"),)), fn, *args).hear()

    return run


def _example(megabytes):
    return {"x": np.zeros(megabytes * MB, np.uint8)}


def _refusal(example, batch_size):
    """The message of what Server raises; asserts that nothing is left in /dev/shm."""
    before = sorted(os.listdir("/dev/shm"))
    with pytest.raises(SegmentError) as caught:
        Server(example, batch_size)
    assert sorted(os.listdir("/dev/shm")) == before
    assert caught.value.__cause__ is None
    return str(caught.value)


def _figures(message):
    """From the message: bytes needed, bytes free, bytes of the advised --shm-size."""
    found = re.search(
        r"needs ([\d,]+) bytes of shared memory, and ([\d,]+) bytes are free in /dev/shm .*"
        r"smaller batch_size or num_buffers.*docker run --shm-size=(\d+)g",
        message,
    )
    assert found, message
    needed, free, advised = (int(figure.replace(",", "")) for figure in found.groups())
    return needed, free, advised << 30


# --- too small -------------------------------------------------------------------


def _too_large(conn):
    conn.send(_refusal(_example(1), 64))


def test_a_ring_that_does_not_fit_is_refused(boxed):
    """The error says what is needed, what is free, and what to do; the advised size suffices."""
    needed, free, advised = _figures(boxed(_too_large))
    assert 256 * MB < needed < 257 * MB
    assert 63 * MB < free <= 64 * MB
    assert advised > needed


def _too_large_unforeseen(conn):
    allocation._free_bytes = lambda fd: None  # as if other processes took the space just after the check
    conn.send(_refusal(_example(1), 64))


def test_space_that_is_gone_while_it_is_taken(boxed):
    """When the allocation fails after the check, the error is the same, and what was taken is freed."""
    message = boxed(_too_large_unforeseen)
    assert "/dev/shm (No space left on device)" in message
    assert "docker run --shm-size=" in message


def _fill(path):
    """Takes what is free, to the last page."""
    with open(path, "wb", buffering=0) as file:
        for size in (MB, 4096):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass
    assert os.statvfs("/dev/shm").f_bavail == 0


def _nearly_all(conn):
    with Server(_example(1), 5, num_buffers=12) as server:
        assert segment.Segment.attach(server.name, read_only=True).size > 60 * MB
        refused = _refusal(_example(1), 5)
        _fill("/dev/shm/filler")
        refused_again = _refusal({"x": np.zeros(1)}, 1)
        with ShmClient(server.handle) as client:
            for i in range(130):  # every slot, twice
                client.send({"x": np.full(MB, i % 251, np.uint8)})
                if i % 5 == 4:
                    x = server.sample(timeout=20).batch["x"]
                    assert (x == np.arange(i - 4, i + 1)[:, None] % 251).all()
            clients = [ShmClient(server.handle) for _ in range(100)]  # pages of the owner table beyond the first
            for one in clients:
                one.close()
        os.unlink("/dev/shm/filler")
    conn.send((refused, refused_again, os.listdir("/dev/shm")))


def test_a_ring_that_nearly_fills_it_works_to_the_last_page(boxed):
    """A ring's memory is allocated: it works when no page is free. A second ring is refused."""
    refused, refused_again, left = boxed(_nearly_all)
    needed, free, _ = _figures(refused)
    assert free < 4 * MB < needed
    assert _figures(refused_again)[1] == 0
    assert left == []


def _replays(conn):
    example = {"x": np.zeros(1)}
    with Replay(example, 100, store="shm", name="first"):
        files = {file.name: file.stat() for file in os.scandir("/dev/shm")}
        sparse = [name for name, status in files.items() if status.st_blocks * 512 < status.st_size]
        rest = sum(status.st_size for name, status in files.items() if name != "echo_shm_board.first")
        _fill("/dev/shm/filler")
        os.truncate("/dev/shm/filler", os.path.getsize("/dev/shm/filler") - rest - 10 * 4096)
        with pytest.raises(SegmentError) as caught:
            Replay(example, 100, store="shm", name="second")
        left = [name for name in os.listdir("/dev/shm") if "second" in name]
    conn.send((sparse, str(caught.value), left))


def test_all_of_a_replay_is_allocated(boxed):
    """Also its board: a process that wrote to a page which is not there, and cannot be had, would be killed."""
    sparse, message, left = boxed(_replays)
    assert sparse == []
    assert "board 'second' needs 65,536 bytes of shared memory, and 40,960 bytes are free" in message
    assert left == []


# --- unusable --------------------------------------------------------------------


def _refused_with(conn):
    conn.send(_refusal(stamped.example(), 2))


@pytest.mark.parametrize("inodes", [1, 2])
def test_no_file_can_be_made(boxed, inodes):
    """No inode for the lock file, or none for the ring: a clear error, and nothing is left."""
    message = boxed(_refused_with, dev_shm=shm(f"size=64m,nr_inodes={inodes}"))
    assert "/dev/shm" in message
    assert "No space left on device" in message


def test_read_only(boxed):
    """The error for a read-only /dev/shm names the place and the reason."""
    message = boxed(_refused_with, dev_shm=shm("size=64m", MS_RDONLY))
    assert "/dev/shm" in message
    assert "Read-only file system" in message


def _use(conn):
    with Server(stamped.example(), 2) as server:
        for i in range(2):
            server.submit(stamped.stamp(stamped.example(), 1, i))
        conn.send(stamped.stamps(server.sample(timeout=20).batch))


def test_noexec_is_no_hindrance(boxed):
    """A /dev/shm that is nosuid, nodev and noexec, as Docker mounts it, will do."""
    assert boxed(_use, dev_shm=shm("size=64m", MS_NOSUID | MS_NODEV | MS_NOEXEC)) == [(1, 0), (1, 1)]


# --- from a shell ------------------------------------------------------------------


def _shell(conn, *words):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, input="", timeout=50)
    files = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else None
    conn.send((done.returncode, done.stdout, done.stderr, files))


DEMO = ("-m", "echo_shm", "demo", "--seconds", "1")


def test_demo_says_that_shared_memory_is_too_small(boxed):
    """The demo ends with status 1 and one message: no traceback, no file."""
    status, out, err, files = boxed(_shell, *DEMO, "--batch-size", "1000000")
    assert status == 1, err
    assert out == ""
    assert err.startswith("echo-shm: ")
    assert _figures(err)[0] > 64 * MB
    assert err.count("\n") == 1
    assert files == []


def test_demo_says_that_shared_memory_is_read_only(boxed):
    """The same where /dev/shm is read-only."""
    status, _, err, files = boxed(_shell, *DEMO, dev_shm=shm("size=64m", MS_RDONLY))
    assert status == 1, err
    assert "Read-only file system" in err
    assert "Traceback" not in err
    assert files == []


@pytest.mark.parametrize("words", [DEMO, ("-m", "echo_shm", "ls"), ("-m", "echo_shm", "gc")])
def test_without_dev_shm(boxed, words):
    """Without a /dev/shm the demo says so, and ls and gc find no segments."""
    status, out, err, files = boxed(_shell, *words, dev_shm=Mount("/dev", "tmpfs", 0, "size=1m"))
    assert "Traceback" not in err
    if words == DEMO:
        assert status == 1, err
        assert "/dev/shm" in err
    else:
        assert (status, out) == (0, "no segments\n")
    assert files is None
