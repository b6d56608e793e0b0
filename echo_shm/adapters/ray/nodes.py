"""The nodes of a cluster, as those see them that place shards there."""

import functools
import math
import os
import platform
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import auto_init_hook
from ray._private.state import state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import echo_shm
from echo_shm.errors import ConnectionClosedError, EchoShmError

#: How long a node may take to start a process that answers (seconds).
_ANSWER = 60.0

#: Where shared memory is.
_SHM = "/dev/shm"

#: Of each thread: whether it may not start Ray.
_thread, _changing = threading.local(), threading.Lock()


@dataclass(frozen=True)
class Node:
    """What a node says of itself.

    Attributes:
        id: Ray's.
        host: The address that other nodes reach it at.
        port: One that was free just now.
        room: Free bytes of shared memory.
        version: Of echo_shm.
        python: Its version.

    """

    id: str
    host: str
    port: int
    room: int
    version: str
    python: str


def here() -> str:
    """The id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def is_connected(node: str) -> bool:
    """Whether this process is still what it was on that node, and has not left Ray, nor gone to another cluster.

    A call of Ray's would connect it to any cluster that it finds, or start one.
    """
    return ray.is_initialized() and here() == node


def thread(target: Callable[..., None], name: str, *args: Any) -> threading.Thread:
    """A daemon thread that may call Ray, not started yet. Where Ray has ended, its calls raise ConnectionClosedError.

    Otherwise they would start Ray, or connect to any cluster that they find. Such a thread may be about to call Ray
    when the user calls ``ray.shutdown()``. It cannot look whether Ray is there and make the call in one step, and Ray
    has no setting of one thread. So what Ray calls first asks here.

    Args:
        target: What it runs, with ``args``.
        name: Of the thread, after ``echo_shm-``.
        args: Of the target.

    """
    return threading.Thread(target=_run_thread, args=(target, *args), name=f"echo_shm-{name}", daemon=True)


def _run_thread(target: Callable[..., None], *args: Any) -> None:
    _thread.never_starts = True
    with _changing:
        if not hasattr(auto_init_hook.auto_init_ray, "echo_shm"):
            auto_init_hook.auto_init_ray = _asked_first(auto_init_hook.auto_init_ray)
    target(*args)


def _asked_first(start: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(start)
    def auto_init_ray() -> None:
        if not getattr(_thread, "never_starts", False):
            start()
        elif not ray.is_initialized():
            raise ConnectionClosedError("Ray has ended in this process")

    auto_init_ray.echo_shm = True  # type: ignore[attr-defined]
    return auto_init_ray


def check_started() -> None:
    """Raises EchoShmError if this process has not called ``ray.init()``."""
    if not ray.is_initialized():
        raise EchoShmError("Ray has not been started in this process: call ray.init() first")


def alive() -> dict[str, str]:
    """The nodes that live: their addresses, by their ids."""
    return {one["NodeID"]: one["NodeManagerAddress"] for one in ray.nodes() if one["Alive"]}


def draining() -> dict[str, float]:
    """The nodes that are being drained, by their ids, and when they end at the latest (as ``time.time()`` counts)."""
    return {node: ms / 1000 if ms else math.inf for node, ms in state.get_draining_nodes().items()}


def on(node: str) -> dict[str, Any]:
    """Options of an actor or a task that runs on that node, and on no other."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False), "num_cpus": 0}


def ask(nodes: Sequence[tuple[str, str]]) -> list[Node]:
    """What nodes say, in their order.

    Args:
        nodes: Their ids, and their addresses.

    Raises:
        EchoShmError: One has another version of echo_shm or of Python, or has none; or it does not answer.

    """
    question = ray.remote(_look)
    asked = [question.options(**on(node)).remote(host) for node, host in nodes]
    return [_answer(*one) for one in zip(nodes, asked, strict=True)]


def _answer(node: tuple[str, str], asked: Any) -> Node:
    where = f"node {node[0]} ({node[1]})"
    try:
        said: Node = ray.get(asked, timeout=_ANSWER)
    except ray.exceptions.RayTaskError as error:
        first = str(error.cause).strip().splitlines()[-1]
        raise EchoShmError(
            f"{where} cannot run echo_shm: {first}; use pip install 'echo-shm[ray]' there, {echo_shm.__version__}"
        ) from error
    except ray.exceptions.RayError as error:  # it died; or its link is cut, and Ray has not noticed yet
        raise EchoShmError(f"{where} does not answer: {str(error).splitlines()[0]}") from error
    for what, found, expected in (
        ("echo_shm", said.version, echo_shm.__version__),
        ("Python", said.python, _python()),
    ):
        if found != expected:
            raise EchoShmError(
                f"{where} has {what} {found}, and this one {expected}: install the same version on all nodes"
            )
    return said


def _look(host: str) -> Node:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        port = sock.getsockname()[1]
    return Node(here(), host, port, shutil.disk_usage(_SHM).free, echo_shm.__version__, _python())


def _python() -> str:
    """Pickles of one minor version are read by another patch of it."""
    return ".".join(platform.python_version_tuple()[:2])


def process() -> str:
    """This process and its node, for messages."""
    return f"process {os.getpid()} of node {here()}"
