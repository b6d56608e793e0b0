"""Clusters of Ray for tests and benches: a head and more nodes, all on this machine.

In a plain cluster all nodes have this machine's address. In an *isolated* one each node but the head has a network
namespace of its own. A pair of virtual interfaces joins it to a bridge device, and that to the root namespace::

    root namespace: driver, head    10.x.y.1 on the bridge device
    node 1                          10.x.y.2 -- its link -- bridge device
    node 2                          10.x.y.3 -- its link -- bridge device

The driver and the head stay in the root namespace. A driver says its node's address to all others, so it has to be in
the head's namespace; and a process whose threads are in two of them would be cut off with one. So the head cannot be
cut: cut all the others. Nodes share /dev/shm and the disk, as nothing but the network is apart.

Processes: this one, a *keeper* (``python -m harness.ray_keeper``, in ``tests/``) and, for each node, a child of the
keeper that Ray's processes hang on. The keeper cleans up when its standard input ends, and so also when this process is
killed. Orphans stay below their node, which is their subreaper: whoever ends a node finds all that it started.
"""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from harness.programs import TESTS, run
from harness.ray_keeper import WIRE, below, end

#: What Ray starts ahead takes a second of CPU time each, and nobody here waits for it.
_CONFIG = {"enable_worker_prestart": False, "prestart_worker_first_driver": False}

#: Ray's workers have a niceness of 15 by themselves: beside other work on this machine they hardly run.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}

#: Nodes that start side by side. More of them, on few cores, run into Ray's time limits.
_SIDE_BY_SIDE = 2

#: For ``cluster(config=)``: Ray takes a silent node for dead after some seconds. It takes it 15 by itself; 65 if the
#: node's connections are cut.
SOON_DEAD = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}

_numbers = itertools.count()


def why_not() -> str:
    """Why no isolated cluster can be made here; empty if one can."""
    missing = [tool for tool in ("ip", "tc", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)}: not installed (iproute2, util-linux)"
    bridge, wire = f"er{os.getpid()}p", f"er{os.getpid()}q"
    steps = [
        f"ip link add {bridge} type bridge",
        f"unshare --net ip link add {wire} type veth peer name {wire}2",
        f"ip link add {wire} type veth peer name {wire}2",
        f"tc qdisc add dev {wire} root tbf rate 1mbit burst 16kb latency 1ms",
    ]
    try:
        for step in steps:
            done = subprocess.run(step.split(), capture_output=True, text=True)
            if done.returncode != 0:
                return f"{step}: {done.stderr.strip()}"
        return ""
    finally:
        for name in (wire, bridge):
            subprocess.run(["ip", "link", "del", name], capture_output=True)


def why_no_delay() -> str:
    """Why links here cannot be delayed; empty if they can."""
    command = "unshare --net tc qdisc add dev lo root netem delay 1ms"
    done = subprocess.run(command.split(), capture_output=True, text=True)
    return f"this kernel has no netem: {done.stderr.strip()}" if done.returncode != 0 else ""


class Node:
    """A node of the cluster.

    Attributes:
        id: Ray's.
        host: Its address.
        pid: Of the process that Ray's processes of this node hang on.
        raylet: The PID of its raylet.
        link: The root namespace's end of its link. Empty where it has none.

    """

    def __init__(self, said: dict[str, Any]) -> None:
        self.id: str = said["id"]
        self.host: str = said["host"]
        self.pid: int = said["pid"]
        self.raylet: int = said["raylet"]
        self.link: str = said["link"]

    def processes(self) -> list[psutil.Process]:
        """All of the node that run: Ray's, its workers, and what they have started."""
        return below(self.pid)

    def cut(self) -> None:
        """Takes its link down: what is sent either way is lost, and nobody is told."""
        run("ip", "link", "set", self._has_link(), "down")

    def restore(self) -> None:
        """Brings its link up again."""
        run("ip", "link", "set", self._has_link(), "up")

    def delay(self, ms: float = 0.0, rate: str = "") -> None:
        """Makes its link slow, both ways, until the next call. Without arguments it is fast again.

        Args:
            ms: How long what is sent takes (milliseconds). Not where :func:`why_no_delay` says why.
            rate: Of ``tc``, as ``"100mbit"``. Empty: no limit.

        """
        inside = ["nsenter", "-t", str(self.pid), "-n"]
        for way, device in (([], self._has_link()), (inside, WIRE)):
            subprocess.run([*way, "tc", "qdisc", "del", "dev", device, "root"], capture_output=True)
            if ms:
                limit = ["rate", rate] if rate else []
                run(*way, "tc", "qdisc", "add", "dev", device, "root", "netem", "delay", f"{ms}ms", *limit)
            elif rate:
                run(*way, *f"tc qdisc add dev {device} root tbf rate {rate} burst 64kb latency 50ms".split())

    def traffic(self) -> tuple[int, int]:
        """Bytes that went over its link so far: to the node, and from it."""
        counts = Path("/sys/class/net", self._has_link(), "statistics")
        return int((counts / "tx_bytes").read_text()), int((counts / "rx_bytes").read_text())

    def run(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """Starts a program in the node's network."""
        way = ["nsenter", "-t", str(self.pid), "-n"] if self.link else []
        return subprocess.Popen([*way, *words], text=True, **options)

    def kill(self) -> None:
        """Power off: SIGKILL for all of it, and what its processes had in shared memory is gone."""
        if self.link:
            self.cut()
        end(self.pid)

    def _has_link(self) -> str:
        assert self.link, f"node {self.id[:8]} has no link: it is the head, or its cluster is plain"
        return self.link


def on(node: Node) -> dict[str, Any]:
    """Options of a task, or of workers, that run on that node and on no other."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False)}


class Cluster:
    """A running cluster.

    Attributes:
        nodes: The head, and the others.
        address: For ``ray.init(address=)``.
        folder: Where Ray's sessions, logs and sockets are.

    """

    def __init__(self, keeper: "subprocess.Popen[str]") -> None:
        self._keeper = keeper
        self.nodes: list[Node] = []
        self.address = self.folder = ""

    def add(self, count: int = 1, **options: Any) -> list[Node]:
        """Starts nodes, some side by side, and returns when the cluster knows them.

        Args:
            count: How many.
            options: Of :class:`ray._private.parameter.RayParams`: ``num_cpus=2``, ``resources={"x": 1}``,
                ``object_store_memory=80_000_000``; and ``agent=True`` for Ray's agent, which exports metrics.

        """
        if count > _SIDE_BY_SIDE:
            return [*self.add(_SIDE_BY_SIDE, **options), *self.add(count - _SIDE_BY_SIDE, **options)]
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        print(json.dumps([options] * count), file=self._keeper.stdin, flush=True)
        line = self._keeper.stdout.readline()
        assert line, "the keeper of the cluster has ended; what it said is on stderr"
        said = json.loads(line)
        self.address, self.folder = said[0]["gcs"], said[0]["folder"]
        new = list(map(Node, said))
        self.nodes += new
        return new

    def kill(self, node: Node) -> None:
        """Kills a node; see :meth:`Node.kill`."""
        self.nodes.remove(node)
        node.kill()

    def close(self) -> None:
        """Ends everything."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()


@contextlib.contextmanager
def cluster(
    more: int = 0,
    *,
    isolated: bool = False,
    connect: bool = True,
    num_cpus: int = 2,
    object_store: int = 80_000_000,
    agents: bool = False,
    config: dict[str, Any] | None = None,
) -> Iterator[Cluster]:
    """A cluster of a head and so many more nodes, and this process as its driver. It ends with the block.

    Args:
        more: How many nodes besides the head.
        isolated: Whether each of them has a network of its own. It needs root; see :func:`why_not`.
        connect: Whether this process is the driver. Otherwise nobody is connected yet.
        num_cpus: Of each node, as Ray counts them.
        object_store: Of each node (bytes). Ray allows no less; the data of echo_shm never is there.
        agents: Whether each node has Ray's agent, which exports metrics. It needs ``ray[default]``.
        config: Ray's own (``_system_config``), as ``{"health_check_period_ms": 200}``.

    """
    import ray

    environment = os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(_path())}
    command = [sys.executable, "-m", "harness.ray_keeper", str(next(_numbers)) if isolated else ""]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # In a session of its own: Ctrl-C in a terminal goes to all processes of the foreground's.
    keeper = subprocess.Popen(command, text=True, cwd=TESTS, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload]
    made = Cluster(keeper)
    try:
        options = {"num_cpus": num_cpus, "object_store_memory": object_store, "agent": agents}
        made.add(**options, _system_config=_CONFIG | (config or {}))
        if more:
            made.add(more, **options)
        if connect:
            ray.init(made.address, _node_ip_address=made.nodes[0].host, log_to_driver=False, logging_level="warning")
        yield made
    finally:
        if connect:
            ray.shutdown()
        made.close()


def _path() -> list[str]:
    """Where the driver finds modules its workers do, too."""
    return [os.path.abspath(folder) for folder in sys.path]
