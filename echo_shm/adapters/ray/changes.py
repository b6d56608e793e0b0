"""Updates and deletions of items, each of which goes to the item's shard."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from echo_shm.adapters.ray.directory import Watch
from echo_shm.adapters.ray.filling import KEY
from echo_shm.adapters.ray.sources import Clients
from echo_shm.errors import ConnectionClosedError
from echo_shm.replay import ReplayClient
from echo_shm.spec import Array

#: How long to wait for a shard that is handed over (seconds).
_MOVING = 30.0

#: Sends something of a shard's items: their keys there, and which of all keys those are.
Send = Callable[[ReplayClient, Array, npt.NDArray[np.bool_]], None]


def checked(keys: object) -> npt.NDArray[np.void]:
    """A batch's keys. Raises ValueError if they are none."""
    if not isinstance(keys, np.ndarray) or keys.dtype != KEY or keys.ndim != 1:
        raise ValueError(f"keys: got {keys!r:.80}, expected a batch's key, or part of it")
    return keys


def send(watch: Watch, clients: Clients, replay: str, keys: npt.NDArray[np.void], call: Send) -> None:
    """Sends something to each shard that keys are of."""
    for number in np.unique(keys["shard"]).tolist():
        chosen = keys["shard"] == number
        _send(watch, clients, replay, number, lambda client: call(client, keys["key"][chosen], chosen))  # noqa: B023


def _send(watch: Watch, clients: Clients, replay: str, number: int, call: Callable[[ReplayClient], None]) -> None:
    """Sends something to a shard. If that is gone or absent, nothing; if it is handed over, once it is there."""
    failed = None
    while True:
        look = watch.look
        place = next((one for one in look.roster.places if one.number == number), None)
        if place is None or look.is_absent(number):
            return
        error: Exception = ConnectionClosedError(f"{replay} does not say where shard {number} goes on")
        try:
            if number not in look.roster.leaving:
                call(clients.get(place))
                return
        except (ConnectionClosedError, TimeoutError, OSError) as caught:
            clients.drop(place)
            if place == failed:
                raise
            failed, error = place, caught
        if watch.wait(look, _MOVING) is look:  # the directory is gone
            raise error
