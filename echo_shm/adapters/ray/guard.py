"""A process that removes what another one of its node has left behind.

Ray ends the actors of a driver that was killed by killing them, too, and so they can remove nothing. The guard of a
replay, of a ring, or of weights outlives their process, and removes them once nobody has gone on with them for so long.
"""

import contextlib
import os
import shutil
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


def watch(name: str, patience: float = PATIENCE, folder: str = "") -> None:
    """Starts the guard of that replay, or ring, and of its weights; and of a folder that this process uses for a while.

    It ends when they are gone.
    """
    words = [f"echo_shm guard of {name}", __file__, name, str(patience), folder, str(os.getpid())]
    subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, *words, *sys.path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )


def main(name: str, patience: float, folder: str, pid: int) -> None:
    """Waits until all of that name is gone, or its process has been dead for so many seconds, and removes it then.

    Args:
        name: Of the replay, or ring.
        patience: Seconds.
        folder: Used by that process, or by the next one of that name; empty: there is none.
        pid: The process's.

    """
    alone_since: float | None = None
    while True:
        parts = [one for one in (name, name + WEIGHTS) if _exists(one)]
        has_folder = os.path.isdir(folder)
        if not parts and not has_folder:
            return
        now = time.monotonic()
        alive = any(map(_is_alive, parts)) or (has_folder and os.path.exists(f"/proc/{pid}"))
        alone_since = None if alive else alone_since or now
        if alone_since is not None and now - alone_since > patience:
            for one in parts:
                _remove(one)  # unless somebody goes on with it after all
            if has_folder:
                shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_NAP)


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
