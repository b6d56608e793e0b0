"""Do clusters do what tests of nodes that are cut off, slow and dead rely on? Do they leave nothing?"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from echo_shm.ring import lockfile
from harness import packages, ray_cluster
from harness.leftovers import SHM
from harness.processes import is_gone, stop
from harness.programs import TESTS, Program
from harness.ray_cluster import Node, cluster
from harness.waiting import until

packages.need("ray")

#: A cluster starts some ten processes that import much.
pytestmark = pytest.mark.watchdog(300)

import ray  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

_DRIVER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from harness.ray_cluster import cluster
with cluster(1, isolated=True, connect=False) as made:
    print(made.folder, *(process.pid for node in made.nodes for process in node.processes()), flush=True)
    time.sleep(1000)
"""


#: A process that leaves a ring, whose name is in argv, and a guard of it that waits long.
_LEAVER = """
import os, signal, sys
import numpy as np
from echo_shm import Server
from echo_shm.adapters.ray import guard
server = Server(np.zeros(2), 4, name=sys.argv[1])
guard.watch(sys.argv[1], 1000.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def can_isolate() -> None:
    """Skips where no network namespace can be made."""
    if why := ray_cluster.why_not():
        pytest.skip(why)


class _Inhabitant:
    """An actor that has a file in shared memory, and listens."""

    def __init__(self, name: str, host: str) -> None:
        self._file = open(SHM / name, "w")  # noqa: SIM115 - until it is killed
        self._listener = socket.create_server((host, 0))

    def where(self) -> tuple[str, int, int]:
        return ray.get_runtime_context().get_node_id(), os.getpid(), self._listener.getsockname()[1]

    def leave(self, name: str) -> int:
        return subprocess.run([sys.executable, "-c", _LEAVER, name]).returncode

    def accept(self) -> None:
        self._connection, _ = self._listener.accept()

    def receive(self, nbytes: int) -> float:
        """Seconds until so many bytes are there."""
        start = time.monotonic()
        while nbytes:
            nbytes -= len(self._connection.recv(nbytes))
        return time.monotonic() - start


def _connects(node: Node, port: int) -> bool:
    try:
        socket.create_connection((node.host, port), timeout=0.3).close()
    except OSError:
        return False
    return True


def _assert_nothing_is_left(pids: list[int], folder: str) -> None:
    until(lambda: all(map(is_gone, pids)), "all processes have ended")
    until(lambda: not Path(folder).exists(), f"{folder} is removed")
    assert not [link for link in os.listdir("/sys/class/net") if link.startswith(Path(folder).name)]


def test_a_node_is_cut_off_and_joined_again_and_slow_and_dies(name: str) -> None:
    """What is sent while its link is down arrives later. When it has died, its processes and shared memory are gone."""
    with cluster(1, isolated=True) as made:
        head, node = made.nodes
        file, there = SHM / f"echo_shm.{name}", NodeAffinitySchedulingStrategy(node.id, soft=False)
        actor = ray.remote(_Inhabitant).options(scheduling_strategy=there, num_cpus=0).remote(file.name, node.host)
        where, pid, port = ray.get(actor.where.remote())
        assert where == node.id
        assert pid in _pids(node)
        assert pid not in _pids(head)

        with socket.create_connection((node.host, port)) as connection:
            ray.get(actor.accept.remote())
            node.cut()
            assert not _connects(node, port)
            connection.sendall(b"abc")
            node.restore()
            ray.get(actor.receive.remote(3))
            assert _connects(node, port)

            node.delay(rate="1mbit")
            before, sent = node.traffic(), 200_000
            receiving = actor.receive.remote(sent)
            connection.sendall(bytes(sent))
            assert ray.get(receiving) > 0.8  # 64 KiB at once, then 125,000 bytes a second
            node.delay()
            assert node.traffic()[0] - before[0] > sent

        left = f"{name}-left"  # by a process that is gone: none that is killed with the node has it
        assert ray.get(actor.leave.remote(left)) == -signal.SIGKILL
        assert left in lockfile.names()

        assert file.exists()
        pids = _pids(node)
        stop(pid)  # a worker that hangs, and that its raylet leaves behind
        os.kill(node.raylet, signal.SIGKILL)
        until(lambda: is_gone(node.raylet), "the raylet has ended")
        made.kill(node)
        until(lambda: all(map(is_gone, pids)), "its processes have ended")
        assert not file.exists()
        assert left not in lockfile.names()
        assert not _connects(node, port)
        pids, folder = _pids(head), made.folder
    _assert_nothing_is_left(pids, folder)


def _pids(node: Node) -> list[int]:
    return [process.pid for process in node.processes()]


def test_nothing_is_left_of_a_cluster_whose_driver_is_killed(program: Callable[..., Program]) -> None:
    """Its processes, links and files go."""
    driver = program(sys.executable, "-c", _DRIVER, str(TESTS))
    folder, *pids = driver.wait_for(r"(/.*)\n").group(1).split()
    assert len(pids) > 5
    driver.kill()
    _assert_nothing_is_left(list(map(int, pids)), folder)
