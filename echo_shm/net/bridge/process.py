"""The bridge's process: told by one line of JSON on its standard input what to serve; ends when that is closed."""

import json
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from typing import Any

from echo_shm.errors import SegmentError
from echo_shm.net.bridge.bridge import Bridge, Settings
from echo_shm.ring.segment import Segment, names
from echo_shm.workers.parent_death import die_with_parent

#: Descriptors that a bridge needs besides its clients': guests, listeners, the ring's files, logs.
_OTHER_DESCRIPTORS = 256


#: Exit status when the ring was closed: not 0, which is also said of a process that somebody else has reaped.
RING_CLOSED = 64


def serve(config: dict[str, Any], control: int, ready: int, tls: ssl.SSLContext | None = None) -> int:
    """Serves until ``control`` can be read or has ended, or the ring is closed; writes to ``ready`` when it can.

    Returns:
        The exit status: RING_CLOSED, or 0 when it was told to end.

    """
    die_with_parent(config["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner, who then closes us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # until here it was held back
    descriptors, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config["max_connections"] + _OTHER_DESCRIPTORS
    if descriptors < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if most < 0 else min(wanted, most), most))
    try:
        segment = Segment.attach(config["name"], bytes.fromhex(config["uuid"]))
    except SegmentError:
        if config["name"] in names() and Segment.attach(config["name"], read_only=True).uuid.hex() == config["uuid"]:
            raise
        return RING_CLOSED  # while the bridge before this one was dying; the name may be another ring's by now
    key = None if config["authkey"] is None else bytes.fromhex(config["authkey"])
    listeners = [socket.socket(fileno=fd) for fd in config["listeners"]]
    bridge = Bridge(segment, listeners, Settings(key, config["wire_version"], config["max_connections"]), tls)
    bridge.watch(control)
    os.write(ready, b"ready\n")
    os.close(ready)
    return RING_CLOSED if bridge.run() else 0


def main() -> None:
    """The process started by exec."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1)  # no more than the line: what comes after it is the end
        if not chunk:
            sys.exit(1)
        line += chunk
    config = json.loads(line)
    logging.basicConfig(level=config["log_level"], format="%(asctime)s %(name)s %(levelname)s %(message)s")
    ready = os.dup(1)
    os.dup2(2, 1)
    sys.exit(serve(config, 0, ready))
