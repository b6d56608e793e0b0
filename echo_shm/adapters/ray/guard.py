"""A process that removes what another one of its node has left behind.

Ray ends the actors of a driver that was killed by killing them, too, and so they can remove nothing. The guard of a
replay, of a ring, or of weights outlives their process, and removes them once nobody has gone on with them for so long.
"""

import contextlib
import glob
import os
import shutil
import stat
import subprocess
import sys
import time

from echo_shm.errors import SegmentError
from echo_shm.replay import listing
from echo_shm.ring import lockfile, segment
from echo_shm.ring.lockfile import WEIGHTS

#: How long a killed process may take to be there again (seconds).
PATIENCE = 60.0

#: Between two looks (seconds).
_NAP = 1.0

#: It is no child of the process that it watches, because Ray kills those; and it runs this file, without the package,
#: which would import Ray.
_PROGRAM = (
    "import os, runpy, sys; os.fork() and os._exit(0); _, _, file, *words = sys.argv; "
    "sys.path[:], sys.argv[1:] = words[4:], words[:4]; runpy.run_path(file, run_name='__main__')"
)


def watch(name: str, patience: float = PATIENCE, prefix: str = "") -> None:
    """Starts the guard of that replay, or ring, and of its weights; and of folders that this process uses for a while.

    There need be nothing of it yet. The guard ends when all is gone that was there, or this process if nothing was.
    """
    words = [f"echo_shm guard of {name}", __file__, name, str(patience), prefix, str(os.getpid())]
    subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, *words, *sys.path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )


def main(name: str, patience: float, prefix: str, pid: int) -> None:
    """Waits until all of that name is gone, or its process has been dead for so many seconds, and removes it then.

    Args:
        name: Of the replay, or ring.
        patience: Seconds.
        prefix: Of folders that are used by that process, or by the next one of that name; empty: there are none.
        pid: The process's.

    """
    alone_since: float | None = None
    has_been = False
    while True:
        parts, there = [one for one in (name, name + WEIGHTS) if _exists(one)], folders(prefix)
        lives = os.path.exists(f"/proc/{pid}")
        if not parts and not there and (has_been or not lives):
            return
        has_been = has_been or bool(parts)
        now = time.monotonic()
        alive = any(map(_is_alive, parts)) or (lives and not (parts and not there))
        alone_since = None if alive else alone_since or now
        if alone_since is not None and now - alone_since > patience:
            for one in parts:
                _remove(one)  # unless somebody goes on with it after all
            for folder in there:
                shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_NAP)


def folders(prefix: str) -> list[str]:
    """This user's directories whose paths begin so. Anybody may have made others."""
    found = []
    for path in glob.glob(glob.escape(prefix) + "*") if prefix else []:
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                found.append(path)
    return found


def _exists(name: str) -> bool:
    return name in lockfile.names() or name in listing.names()


def _is_alive(name: str) -> bool:
    """Whether a process has it. One that is just being made, or removed, counts."""
    try:
        return listing.look(name).alive if name in listing.names() else segment.listing(name).creator_alive
    except SegmentError:
        return True


def _remove(name: str) -> None:
    with contextlib.suppress(SegmentError):
        if name in listing.names():
            listing.remove(name)
        else:
            lockfile.collect(name)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
