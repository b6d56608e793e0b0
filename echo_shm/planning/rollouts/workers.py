"""What a worker process of an engine does: it steps environments, and writes episodes into a replay."""

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from echo_shm.errors import ConnectionClosedError
from echo_shm.planning.rollouts.config import Turn
from echo_shm.planning.rollouts.messages import Json, packed, receive
from echo_shm.spec import Tree


class TextEnvironment(Protocol):
    """A Gymnasium-like environment whose observations and actions are strings."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins an episode. Returns what it shows, and an info."""
        ...

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Returns the next observation, the reward, whether the episode has terminated or is truncated, an info."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


#: Makes the steps of an episode for the replay: a tree whose leaves have a leading ``len(turns)``.
Record = Callable[[Sequence[Turn]], Tree]


class NoReplay:
    """What workers without a replay have in the place of a writer."""

    ring_closed = False

    def __enter__(self) -> "NoReplay":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Environments:
    """The environments of a worker, by slot. One is made when its slot is first used, and after it has raised."""

    def __init__(self, writer: Any, make: Callable[[], TextEnvironment], record: Record | None) -> None:
        self._writer, self._make, self._record = writer, make, record
        self._made: dict[int, TextEnvironment] = {}

    def answer(self, message: Json) -> Json:
        """The answer to a message."""
        try:
            if message["op"] == "record":
                self._write(message)
                return {"id": message["id"]}
            return {"id": message["id"], **self._stepped(message)}
        except ConnectionClosedError:  # the replay was closed, or this worker is to stop
            raise
        except (Exception, SystemExit) as error:  # an environment that calls sys.exit() does not end its neighbours
            if message["op"] != "record":
                self._discard(message["slot"])
            return {"id": message["id"], "error": f"{type(error).__name__}: {error}"}

    def _stepped(self, message: Json) -> Json:
        slot = message["slot"]
        if message["op"] == "reset":
            if slot not in self._made:
                self._made[slot] = self._make()
            observation, _ = self._made[slot].reset(seed=message["seed"], options=message["options"])
            return {"observation": _text(observation)}
        observation, reward, terminated, truncated, info = self._made[slot].step(message["action"])
        reward = float(reward)
        if not np.isfinite(reward):
            raise ValueError(f"the environment's reward is {reward}: a finite number was expected")
        success = info.get("success")
        return {
            "observation": _text(observation),
            "reward": reward,
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "success": None if success is None else bool(success),
        }

    def _write(self, message: Json) -> None:
        """Writes a whole episode: of one that did not end, nothing is in the replay."""
        assert self._record is not None
        turns = [Turn(**turn) for turn in message["turns"]]
        last = np.arange(len(turns)) == len(turns) - 1
        steps = self._record(turns)
        self._writer.extend(steps, terminated=last & message["terminated"], truncated=last & message["truncated"])

    def _discard(self, slot: int) -> None:
        if (environment := self._made.pop(slot, None)) is not None:
            with contextlib.suppress(Exception):
                environment.close()

    def close(self) -> None:
        """Closes all of them."""
        for slot in list(self._made):
            self._discard(slot)


def _text(observation: object) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"the environment's observation is {type(observation).__name__}: a string was expected")
    observation.encode()  # a lone surrogate is no text: UnicodeEncodeError says where
    return observation


def run_environments(
    writer: Any, path: str, number: int, make: Callable[[], TextEnvironment], record: Record | None
) -> None:
    """Runs a worker until the engine closes the connection."""
    environments = _Environments(writer, make, record)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(packed({"worker": number, "pid": os.getpid()}))
            while (message := receive(connection)) is not None:
                connection.sendall(packed(environments.answer(message)))
    except (ConnectionError, FileNotFoundError):  # the engine has closed
        pass
    finally:
        environments.close()
