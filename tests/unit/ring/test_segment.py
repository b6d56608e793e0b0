"""Segments: permissions, space, names, and when they go away."""

import contextlib
import errno
import gc
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from harness.programs import run_python

from echo_shm import SegmentError, Server, ShmClient
from echo_shm._core import lib
from echo_shm.ring import allocation, lockfile, segment
from echo_shm.ring.attachment import Attachment

SHM = Path("/dev/shm")
EXAMPLE = np.zeros(1000)
OWN = str(os.getpid())


def name(what):
    """A segment's name; another run of these tests has other names."""
    return f"test-{what}-{os.getpid()}"


def files(name):
    """The segment's and the lock file's paths."""
    return SHM / f"echo_shm.{name}", SHM / f"echo_shm_locks.{name}"


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_the_user_may_read(umask):
    """Segment and lock file have mode 0600 whatever the umask, and belong to this user."""
    before = os.umask(umask)
    try:
        with Server(EXAMPLE, 2) as server:
            for path in files(server.name):
                status = path.stat()
                assert stat.S_IMODE(status.st_mode) == 0o600
                assert status.st_uid == os.geteuid()
    finally:
        os.umask(before)


def test_space_is_really_allocated():
    """All of the segment's pages are set aside when it is made."""
    with Server(EXAMPLE, 100, num_buffers=4) as server:
        status = files(server.name)[0].stat()
        assert status.st_size >= 400 * EXAMPLE.nbytes
        assert status.st_blocks * 512 >= status.st_size


def left_in_shm(name):
    """What is left of a segment."""
    return [path for path in files(name) if path.exists()]


def test_too_large_for_shared_memory():
    """A segment larger than what is free names what is needed and free, and the remedy; nothing is left behind."""
    with pytest.raises(
        SegmentError, match=r"needs [\d,]{15,} bytes .* and [\d,]+ bytes are free.*--shm-size=\d+g"
    ) as e:
        Server(np.zeros(1 << 20), 1 << 20, name=name("huge"))
    assert e.value.errno == errno.ENOSPC
    assert left_in_shm(name("huge")) == []


def test_space_that_nobody_uses(monkeypatch):
    """The error says what killed processes left, and how it is freed."""
    run_python(
        "import os, signal, sys, numpy as np; from echo_shm import Server\n"
        "server = Server(np.zeros(1000), 10, name=sys.argv[1]); os.kill(os.getpid(), signal.SIGKILL)\n",
        name("left"),
        status=-9,
    )
    monkeypatch.setattr(allocation, "names", lambda: [name("left"), name("not_there")])
    try:
        with pytest.raises(
            SegmentError, match=r"free in .* 1 segment that nobody uses holds [\d,]+ bytes more: `echo-shm gc`"
        ):
            Server(np.zeros(1 << 20), 1 << 20, name=name("huge"))
    finally:
        assert lockfile.collect(name("left"))


@pytest.mark.parametrize("fails_at", [0, 1])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM, errno.EFBIG])
def test_space_runs_out_half_way(monkeypatch, fails_at, code):
    """An allocation that fails, at once or half way, is the same error, and nothing is left behind."""
    monkeypatch.setattr(allocation, "_ALLOCATION_STEP", 4096)
    real, calls = os.posix_fallocate, []

    def fail(fd, offset, length):
        calls.append(offset)
        if len(calls) > fails_at:
            raise OSError(code, os.strerror(code))
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(SegmentError, match=r"needs .* are free.*--shm-size") as caught:
        Server(EXAMPLE, 8, name=name("short"))
    assert caught.value.errno == code
    assert len(calls) == fails_at + 1
    assert left_in_shm(name("short")) == []
    monkeypatch.undo()
    Server(EXAMPLE, 8, name=name("short")).close()


def test_an_interrupted_allocation_leaves_nothing(monkeypatch):
    """Ctrl-C during the allocation comes out, and nothing is left behind."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "posix_fallocate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Server(EXAMPLE, 8, name=name("interrupted"))
    assert left_in_shm(name("interrupted")) == []


def test_a_failure_after_the_making_leaves_nothing(monkeypatch):
    """When the creator cannot join its own new segment, the segment goes away again."""
    from echo_shm import server

    def fail(*_, **__):
        raise OSError("no")

    monkeypatch.setattr(server, "Attachment", fail)
    with pytest.raises(OSError, match="no"):
        Server(EXAMPLE, 8, name=name("unjoined"))
    assert left_in_shm(name("unjoined")) == []


@pytest.mark.parametrize("pattern", ["{}", "A-b_c.9{}", "{:x<200}", "_{}", "-{}", "0.{}."])
def test_good_names(pattern):
    """Letters, digits, dots, dashes and underscores make a name, up to 200 of them."""
    name = pattern.format(OWN)
    with Server(EXAMPLE, 1, name=name) as server:
        assert server.name == name
        ShmClient(name).close()


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "a/b", "/a", "../x", "a b", "a\n", "\0", "a\0b", "x" * 201, "é", "a%", 3, b"a"]
)
def test_bad_names(name):
    """Anything else is refused with what a name may be, before any file is touched."""
    with pytest.raises(ValueError, match=r"bad segment name.*use 1 to 200 letters"):
        Server(EXAMPLE, 1, name=name)
    if isinstance(name, str):
        for attach in (ShmClient, Server.attach):
            with pytest.raises(ValueError, match="bad segment name"):
                attach(name)


def test_a_name_that_is_taken():
    """The same name twice is an error that says what to do, and the first one goes on."""
    with Server(EXAMPLE, 1, name=name("taken")) as first:
        with pytest.raises(
            SegmentError,
            match=rf"exists already, created on [-0-9]+ [:0-9]+ by process {os.getpid()}, which is alive\. "
            r"It holds 0 committed samples, .* another name, or join it: Server\.attach\('test-taken-\d+'\)",
        ):
            Server(EXAMPLE, 1, name=name("taken"))
        first.submit(EXAMPLE)
        assert first.sample(1).batch.shape == (1, 1000)
        ShmClient(name("taken")).close()


def test_a_name_that_only_the_memory_takes():
    """A name is taken also by a segment without a lock file; it is not touched, and no lock file is made beside it."""
    memory, locks = files(name("squatted"))
    memory.write_bytes(b"somebody's")
    try:
        with pytest.raises(SegmentError, match="exists already, without a lock file"):
            Server(EXAMPLE, 1, name=name("squatted"))
        assert memory.read_bytes() == b"somebody's"
        assert not locks.exists()
    finally:
        memory.unlink()


def test_names_can_be_used_again():
    """After close() a name is free at once, while the old segment's users still hold it."""
    with Server(EXAMPLE, 1, name=name("reused")) as first:
        first.submit(EXAMPLE + 1)
        old = first.sample(1).batch
    with Server(EXAMPLE, 1, name=name("reused")) as second:
        second.submit(EXAMPLE + 2)
        assert second.sample(1).batch[0, 0] == 2
        assert old[0, 0] == 1


def test_unlinked_when_closed():
    """close() removes both files."""
    server = Server(EXAMPLE, 1)
    assert len(left_in_shm(server.name)) == 2
    server.close()
    assert left_in_shm(server.name) == []


def test_unlinked_when_collected():
    """A server that is collected without close() removes its segment."""
    server = Server(EXAMPLE, 1)
    name = server.name
    server.cycle = server
    del server
    gc.collect()
    assert left_in_shm(name) == []


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "raise SystemExit", "1 / 0", "sys.modules.clear()"])
def test_unlinked_at_exit(ending):
    """An interpreter that ends without close(), in whatever way of its own, leaves no file."""
    done = run_python(
        "import sys, numpy as np; from echo_shm import Server, ShmClient\n"
        "s = Server(np.zeros(3), 2); c = ShmClient(s.name); s.submit(np.zeros(3)); print(s.name)\n" + ending,
        status=None,
    )
    assert done.returncode == (1 if "/" in ending else 0), done.stderr
    assert left_in_shm(done.stdout.strip()) == []


def test_closing_does_not_remove_a_successor():
    """A creator whose files were removed by hand does not take away the next segment of that name."""
    first = Server(EXAMPLE, 1, name=name("successor"))
    for path in files(name("successor")):
        path.unlink()
    with Server(EXAMPLE, 1, name=name("successor")) as second:
        first.close()
        assert len(left_in_shm(name("successor"))) == 2
        ShmClient(second.handle).close()


def test_memory_and_lock_file_must_belong_together():
    """A process that has mapped one segment, and opens the lock file of its successor, is told that it was closed."""
    first = Server(EXAMPLE, 2, name=name("pair"))
    mapped = segment.Segment.attach(name("pair"))
    first.close()
    with Server(EXAMPLE, 2, name=name("pair")):
        mapped.lockfile = lockfile.open_lockfile(name("pair"), create=False)
        assert not mapped.is_linked()
        with pytest.raises(SegmentError, match="closed"):
            Attachment(mapped, lib.ES_ROLE_LEARNER)


def test_the_resource_tracker_is_not_involved():
    """No tracker process is started, and multiprocessing.shared_memory is not even imported."""
    run_python("""
import sys, os, numpy as np
from echo_shm import Server, ShmClient
with Server(np.zeros(3), 1) as s, ShmClient(s.name) as c, Server.attach(s.name):
    c.send(np.zeros(3)); s.sample()
from multiprocessing import resource_tracker
assert resource_tracker._resource_tracker._fd is None
assert resource_tracker._resource_tracker._pid is None
assert "multiprocessing.shared_memory" not in sys.modules
import psutil
assert psutil.Process().children() == []
""")


def test_another_users_segment(monkeypatch):
    """A segment of another uid is not trusted, and the message has both uids."""
    with Server(EXAMPLE, 1) as server:
        uid = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
        for attach in (ShmClient, Server.attach):
            with pytest.raises(SegmentError, match=rf"belongs to uid {uid}, not to {uid + 1}; it is not trusted"):
                attach(server.name)


def test_another_users_lock_file(monkeypatch):
    """A lock file of another uid is refused, too."""
    with Server(EXAMPLE, 1) as server:
        run_python(
            "import os, sys; from echo_shm import ShmClient, SegmentError\n"
            "real, uid = os.fstat, os.geteuid()\n"
            "class Other:\n"
            "    def __init__(self, s): self.s = s; self.st_uid = uid + 1\n"
            "    def __getattr__(self, n): return getattr(self.s, n)\n"
            "os.fstat = lambda fd: Other(real(fd)) if 'locks' in os.readlink(f'/proc/self/fd/{fd}') else real(fd)\n"
            "try: ShmClient(sys.argv[1])\n"
            "except SegmentError as e: assert 'not trusted' in str(e), e\n"
            "else: raise SystemExit('attached')\n",
            server.name,
        )


def _attach_and_list(conn, name):
    """Says whether it could attach."""
    outcome = "attached"
    try:
        ShmClient(name)
    except SegmentError:
        outcome = "refused"
    with contextlib.suppress(SegmentError):
        segment.listing(name)
    conn.send(outcome)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", ["symlink", "dangling", "directory", "fifo"])
def test_files_that_are_no_files(which, kind, tmp_path, act):
    """A link, directory or pipe in a file's place is a SegmentError: never followed, never a hang."""
    own = name(kind)
    server = Server(EXAMPLE, 1, name=own)
    real, path = tmp_path / "real", files(own)[which]
    try:
        path.rename(SHM / name("moved"))
        if kind == "symlink":
            path.symlink_to(SHM / name("moved"))
        elif kind == "dangling":
            path.symlink_to(real)
        elif kind == "directory":
            path.mkdir()
        else:
            os.mkfifo(path)
        assert act(_attach_and_list, own).hear() == "refused"
    finally:
        path.rmdir() if kind == "directory" else path.unlink()
        (SHM / name("moved")).rename(path)
        server.close()


def _look_from_outside(conn, name):
    """Says what a listing tells of a segment's life, and which owners' locks are held."""
    seen = segment.listing(name)
    with Server.attach(name) as learner:
        held = [lib.es_segment_locks_held(learner._segment.lockfile.locks, owner) for owner in (0, 1, 64, 65)]
    conn.send((seen.locked, seen.creator_alive, held))


def test_leaving_keeps_the_locks_of_the_others(act):
    """A client, learner or listing that comes and goes drops no lock of this process's other attachments."""
    with Server(EXAMPLE, 1) as server, ShmClient(server.handle):
        ShmClient(server.name).close()
        Server.attach(server.name).close()
        segment.listing(server.name)
        gc.collect()
        # of the owners: the creator, the onlooker itself, the client, nobody
        assert act(_look_from_outside, server.name).hear() == (True, True, [1, 1, 1, 0])


def test_ones_own_segment_is_no_garbage():
    """A process never collects what it holds itself."""
    with Server(EXAMPLE, 1) as server:
        seen = segment.listing(server.name)
        assert (seen.locked, seen.creator_alive) == (True, True)
        assert not lockfile.collect(server.name)
        ShmClient(server.name).close()


def test_no_room_in_the_address_space(monkeypatch):
    """A limit on the address space is named, not the size of /dev/shm, for who creates and for who attaches."""

    def fail(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with Server(np.zeros(4), 2) as server:
        monkeypatch.setattr("mmap.mmap", fail)
        with pytest.raises(SegmentError, match=r"of [\d,]+ bytes cannot be mapped .*ulimit -v"):
            ShmClient(server.handle)
        with pytest.raises(SegmentError, match=r"of [\d,]+ bytes cannot be mapped .*ulimit -v"):
            Server(np.zeros(4), 2)
        assert [one for one in lockfile.names() if one.startswith(f"{os.getpid()}-")] == [server.name]
