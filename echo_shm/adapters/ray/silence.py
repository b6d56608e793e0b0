"""Notices that the shard of another node is gone, to which a writer is connected.

A process that is killed closes its connections. A node that loses its power, or its network, closes nothing: TCP tells
of it after a minute or more. Ray knows it sooner, and the directory then has the shard elsewhere, or no more. It has
one thread for all writers, so it is asked only about a shard that is silent: a living one says something every few
seconds.
"""

import threading
import time
import weakref

import ray

from echo_shm.adapters.ray import nodes
from echo_shm.adapters.ray.directory import ABSENT, Place
from echo_shm.adapters.ray.shards import Setup
from echo_shm.errors import ConnectionClosedError
from echo_shm.net import wire
from echo_shm.net.client.sender import Sender

#: After how long a silence the directory is asked, and between two looks (seconds).
SILENT, _EVERY = wire.HEARTBEAT + 1.0, 1.0


def watch(setup: Setup, node: str, place: Place, sender: Sender) -> None:
    """Ends the sender once its shard is gone: all its calls raise ConnectionClosedError then.

    It has a thread, which ends with the sender, and does not keep it.

    Args:
        setup: Of the replay.
        node: The id of this process's node.
        place: Where the shard is that it is connected to.
        sender: Sends to it.

    """
    nodes.thread(_watch, "silence", setup, node, place, weakref.ref(sender), sender.ended).start()


def _watch(setup: Setup, node: str, place: Place, found: "weakref.ref[Sender]", ended: threading.Event) -> None:
    while not ended.wait(_EVERY):
        sender = found()
        if sender is None:
            return
        if time.monotonic() - sender.heard_at > SILENT and _is_gone(setup, node, place):
            sender.give_up(ConnectionClosedError(f"shard {place.number} of {setup.name} is gone from {place.host}"))
            return
        del sender


def _is_gone(setup: Setup, node: str, place: Place) -> bool:
    """Whether the directory knows no such place any more, or is itself gone for good: the replay is closed."""
    if not nodes.is_connected(node):
        return False
    try:
        roster, _ = ray.get(setup.directory.look.remote(), timeout=ABSENT)
    except ray.exceptions.ActorDiedError:
        return True
    except (ray.exceptions.RayError, ConnectionClosedError, ValueError):
        return False  # it is being started again, or this node is cut off
    return bool(roster.epoch) and place not in roster.places
