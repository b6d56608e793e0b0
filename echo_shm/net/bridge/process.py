"""The bridge process. It reads its config as a line of JSON from standard input, and ends when that is closed."""

import json
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from typing import TypedDict

from echo_shm.errors import SegmentError
from echo_shm.net import pem
from echo_shm.net.bridge.admission import Settings
from echo_shm.net.bridge.bridge import Bridge
from echo_shm.ring.lockfile import names
from echo_shm.ring.segment import Segment
from echo_shm.workers.parent_death import die_with_parent

#: Descriptors that a bridge needs in addition to its clients': pending connections, listeners, the ring's files, logs.
_OTHER_DESCRIPTORS = 256


#: The exit status if the ring was closed. It is not 0, which is also the status if other code has reaped the process.
RING_CLOSED = 64


class BridgeConfig(TypedDict):
    """What a bridge process serves. It travels as JSON, so bytes are in hexadecimal and sockets are descriptors."""

    name: str
    uuid: str
    authkey: str | None
    wire_version: int
    max_connections: int
    certificate: str | None
    listeners: list[int]
    log_level: int
    parent: int


def serve(config: BridgeConfig, control: int, ready: int, tls: ssl.SSLContext | None = None) -> int:
    """Serves until the ring is closed, or ``control`` becomes readable or is closed.

    Args:
        config: What to serve.
        control: A file descriptor.
        ready: A file descriptor, to which ``ready`` is written once the bridge serves.
        tls: A server-side context, or None. The config may have a certificate instead.

    Returns:
        The exit status: RING_CLOSED, or 0 if ``control`` ended it.

    """
    die_with_parent(config["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner, which then stops this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the supervisor has blocked it until here
    descriptors, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config["max_connections"] + _OTHER_DESCRIPTORS
    if descriptors < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if most < 0 else min(wanted, most), most))
    try:
        segment = Segment.attach(config["name"], bytes.fromhex(config["uuid"]))
    except SegmentError:
        if config["name"] in names() and Segment.attach(config["name"], read_only=True).uuid.hex() == config["uuid"]:
            raise
        return RING_CLOSED  # it was closed while the bridge before this one died; the name may be another ring's
    if config["certificate"] is not None:
        tls = pem.server_context(config["certificate"].encode())
    key = None if config["authkey"] is None else bytes.fromhex(config["authkey"])
    listeners = [socket.socket(fileno=fd) for fd in config["listeners"]]
    bridge = Bridge(segment, listeners, Settings(key, config["wire_version"], config["max_connections"]), tls)
    bridge.watch(control)
    os.write(ready, b"ready\n")
    os.close(ready)
    return RING_CLOSED if bridge.run() else 0


def main() -> None:
    """Runs the process that exec has started."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1)  # one byte at a time, because what follows the line means the end
        if not chunk:
            sys.exit(1)
        line += chunk
    config: BridgeConfig = json.loads(line)
    logging.basicConfig(level=config["log_level"], format="%(asctime)s %(name)s %(levelname)s %(message)s")
    ready = os.dup(1)
    os.dup2(2, 1)
    sys.exit(serve(config, 0, ready))
