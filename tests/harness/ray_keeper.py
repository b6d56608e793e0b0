"""``python -m harness.ray_keeper [NUMBER]``: has the processes of a cluster of Ray, and ends them all with itself.

:mod:`harness.ray_cluster` starts it, and says what the processes are to each other. It reads lists of nodes' options
from its standard input, a line each, starts those nodes and prints what there is to know of them.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from echo_shm.errors import SegmentError
from echo_shm.replay import listing
from echo_shm.ring import lockfile
from echo_shm.ring.lockfile import WEIGHTS
from harness.containers import unshare
from harness.leftovers import SHM
from harness.processes import die_with_parent
from harness.programs import run
from harness.waiting import LONG, until

#: What a guard is called: see ``echo_shm.adapters.ray.guard.watch``.
_GUARD = re.compile("echo_shm guard of (.+)")

_CLONE_NEWNET = 0x40000000
_PR_SET_CHILD_SUBREAPER = 36

#: What a node's end of its link is called there.
WIRE = "wire"

#: Of each log of a node that did not start.
_LINES = 30

#: Of a node that starts, as ``nice`` counts; and of one with Ray's agent.
_PRIORITY = -10


def below(pid: int) -> list[psutil.Process]:
    """The processes that a process has started, and those that they have, without those that have ended."""
    found = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def end(pid: int) -> None:
    """Kills all processes below one, then that one, and removes what they had in shared memory.

    What a killed process has left, nobody has; but its guard, which is below it, too, knows of it.
    """
    files: set[Path] = set()
    guarded: set[str] = set()

    def is_over() -> bool:
        running = below(pid)
        for process in reversed(running):  # the raylet last: those that watch it would complain
            files.update(_shared(process.pid))
            with contextlib.suppress(psutil.Error):
                guarded.update(match[1] for word in process.cmdline() if (match := _GUARD.fullmatch(word)))
                process.kill()
        return not running

    until(is_over, f"all processes below {pid} have ended")
    with contextlib.suppress(ProcessLookupError):
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    for file in files:
        file.unlink(missing_ok=True)
    for name in (one + ending for one in guarded for ending in ("", WEIGHTS)):
        with contextlib.suppress(SegmentError):  # there is none; or a process of another node has it
            if name in listing.names():
                listing.remove(name)
            else:
                lockfile.collect(name)


def _shared(pid: int) -> Iterator[Path]:
    """Files of ours and of Ray's in shared memory that a process has mapped or open."""
    paths: set[str] = set()
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        paths |= {line.split(maxsplit=5)[-1] for line in lines if str(SHM) in line}
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                paths.add(os.readlink(link))
    return (path for path in map(Path, paths) if path.parent == SHM and path.name.startswith(("echo_shm", "ray")))


class _Keeper:
    """Starts nodes as it is told, and ends them all.

    Args:
        number: Of the isolated cluster among those of its parent; None: a plain one.

    """

    def __init__(self, number: int | None) -> None:
        # Short: paths of sockets have 107 bytes at most, and names of interfaces, which are those of the folder, 15.
        self._folder = os.path.join(tempfile.gettempdir(), f"er{os.getpid()}")
        os.mkdir(self._folder, 0o700)
        self._nodes: list[int] = []
        self._links: list[str] = []
        self._gcs: str | None = None
        self._bridge = ""
        if number is not None:
            # Other clusters of this machine have other networks: a parent's PID tells it from those that run.
            parent = os.getppid()
            self._net = f"10.{100 + (parent // 250 + number) % 100}.{parent % 250}"
            self._bridge = os.path.basename(self._folder)
            run("ip", "link", "add", self._bridge, "type", "bridge")
            run("ip", "addr", "add", f"{self._net}.1/24", "dev", self._bridge)
            run("ip", "link", "set", self._bridge, "up")

    def start(self, several: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Starts nodes side by side: what there is to know of each."""
        begun = [self._begin(options) for options in several]
        found = []
        for which, pid, link, said in begun:
            answer = said.readline()
            assert answer, f"node {which} has ended; what it said is on stderr"
            found.append(json.loads(answer) | {"pid": pid, "link": link, "folder": self._folder})
            said.close()
        self._gcs = found[0]["gcs"]
        return found

    def _begin(self, options: dict[str, Any]) -> tuple[int, int, str, IO[str]]:
        """A node that starts: its number, PID and link, and where it will say of itself."""
        which, link = len(self._nodes), ""
        apart = bool(self._bridge and which)
        host = f"{self._net}.{which + 1}" if self._bridge else None
        (hear, say), (wait, go) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(hear)
                os.close(go)
                # Nodes that start side by side would choose the same names for their sockets.
                sockets = {f"{one}_socket_name": f"{self._folder}/{one}{which}" for one in ("raylet", "plasma_store")}
                folder = {"temp_dir": self._folder}
                _node(host, apart, say, wait, {"gcs_address": self._gcs, **folder, **sockets, **options})
            except BaseException:
                traceback.print_exc()
                _print_logs(self._folder)
            finally:
                os._exit(1)
        self._nodes.append(pid)
        os.close(say)
        os.close(wait)
        said = os.fdopen(hear)
        if apart:
            said.readline()
            link = f"{self._bridge}n{which}"
            self._join(link, pid, f"{host}/24")
            os.write(go, b"go")
        os.close(go)
        return which, pid, link, said

    def _join(self, link: str, pid: int, address: str) -> None:
        """A link from the bridge device to the network of a process."""
        run("ip", "link", "add", link, "type", "veth", "peer", "name", WIRE, "netns", str(pid))
        self._links.append(link)
        run("ip", "link", "set", link, "master", self._bridge, "up")
        # Ray asks the kernel for the address that it would reach the internet from.
        route = f"route add default via {self._net}.1"
        for words in ("link set lo up", f"addr add {address} dev {WIRE}", f"link set {WIRE} up", route):
            run("nsenter", "-t", str(pid), "-n", "ip", *words.split())

    def close(self) -> None:
        """Ends everything."""
        end(os.getpid())
        for pid in self._nodes:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for link in (*self._links, *filter(None, [self._bridge])):  # a dead network's is removed some time later
            subprocess.run(["ip", "link", "del", link], capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def _node(host: str | None, apart: bool, say: int, wait: int, options: dict[str, Any]) -> None:
    """A node's process: starts Ray's processes, says so, and collects those that end."""
    die_with_parent()
    _become_subreaper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if apart:
        unshare(_CLONE_NEWNET)
        os.write(say, b"apart\n")
        os.read(wait, 10)
    import ray._private.utils
    from ray._private.node import Node as RayNode
    from ray._private.parameter import RayParams
    from ray._private.services import wait_for_node

    _weigh(os.getpid(), _PRIORITY)  # what a raylet starts takes seconds, and it ends if that is not there within 15
    has_agent = options.pop("agent", False)
    if not has_agent:  # as where ray[default] is not installed
        ray._private.utils.get_dashboard_dependency_error = lambda: ImportError("not asked for")

    given = {
        "num_gpus": 0,
        "include_dashboard": False,
        "include_log_monitor": False,
        "min_worker_port": 0,
        "max_worker_port": 0,
        "node_manager_port": 0,
        "no_monitor": True,
        "dashboard_agent_listen_port": 0,  # one for all clusters of the machine otherwise
    }
    params = RayParams(node_ip_address=host, **(given | options))
    node = RayNode(params, head=options["gcs_address"] is None, shutdown_at_exit=False, spawn_reaper=True)
    wait_for_node(node.gcs_address, node.plasma_store_socket_name, LONG)
    if not has_agent:
        for pid in (os.getpid(), *(process.pid for process in below(os.getpid()))):
            _weigh(pid, 0)
    raylet = node.all_processes["raylet"][0].process.pid
    said = {"id": node.node_id, "host": node.node_ip_address, "gcs": node.gcs_address, "raylet": raylet}
    os.write(say, json.dumps(said).encode() + b"\n")
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            os.wait()


def _weigh(pid: int, priority: int) -> None:
    """Gives all threads of a process that priority, and those that it starts, where it may."""
    with contextlib.suppress(OSError):  # not root, or it has ended, or a kernel that does not group sessions
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), priority)
        Path(f"/proc/{pid}/autogroup").write_text(str(priority))  # of the session: the kernel weighs sessions first


def _print_logs(folder: str) -> None:
    """Prints how the logs of a node end that did not start: Ray's error says only that the raylet is not there."""
    for log in sorted(Path(folder, "session_latest", "logs").glob("*")):
        if log.name.startswith(("gcs_server", "raylet", "dashboard_agent", "runtime_env_agent")):
            lines = log.read_text(errors="replace").splitlines()[-_LINES:]
            print(f"--- {log.name} ends with", *lines, sep="\n", file=sys.stderr, flush=True)


def _become_subreaper() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _main(number: str) -> None:
    _become_subreaper()
    import ray._private.node  # noqa: F401 - the nodes' processes, which are forked, have it then

    keeper = _Keeper(int(number) if number else None)
    try:
        for line in sys.stdin:
            print(json.dumps(keeper.start(json.loads(line))), flush=True)
    finally:
        keeper.close()


if __name__ == "__main__":
    _main(sys.argv[1])
