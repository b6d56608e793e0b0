"""``echo-shm demo``: Gymnasium environments in worker processes feed a learner through the ring.

:func:`play` is the whole worker and :func:`run` the whole learner. The display is in :mod:`echo_shm.cli.demo.view`.
"""

import contextlib
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from echo_shm.cli import console
from echo_shm.cli.demo.check import SequenceCheck
from echo_shm.cli.demo.policy import choose, learning_for
from echo_shm.cli.demo.view import DemoView, Tally
from echo_shm.client import ShmClient
from echo_shm.ring import lockfile
from echo_shm.server import Server
from echo_shm.spec import Array
from echo_shm.weights import Subscriber

#: A worker plays for at least this long, even if its environment takes long to start (seconds).
_SHORTEST_PLAY = 1.0


# --- in the workers -----------------------------------------------------------


def play(client: ShmClient, env_id: str, seed: int, deadline: float, learns: bool = False) -> None:
    """The worker: plays what the newest policy says, or random actions, and sends every transition.

    Args:
        client: A client of the learner's ring.
        env_id: A Gymnasium environment.
        seed: The seed for the environment and the actions.
        deadline: When to stop, on the clock of ``time.monotonic()``, which all processes share.
        learns: Whether the learner publishes a policy.

    """
    env = make_env(env_id)
    act = Actor(client.subscriber(), seed) if learns else None
    transition = blank_transition(env)
    bound = client.bind(transition)  # from here on, bound.send() copies what the arrays hold then
    for _ in transitions(env, transition, seed, deadline, act):
        bound.send()  # waits while the ring is full


class Actor:
    """Chooses actions by the newest policy.

    Args:
        subscriber: Of the policy. A version is there.
        seed: The seed for the actions.

    """

    def __init__(self, subscriber: Subscriber, seed: int) -> None:
        self._subscriber = subscriber
        self._params = subscriber.latest()  # a private copy
        self._random = random.Random(seed)

    def __call__(self, obs: Array) -> int:
        """An action for an observation of shape ``(observations,)``."""
        self._subscriber.poll(into=self._params)  # without news as cheap as an attribute
        return choose(self._params, obs, self._random.random())


def transitions(
    env: Any,
    transition: dict[str, Array],
    seed: int,
    deadline: float,
    act: Callable[[Array], int] | None = None,
) -> Iterator[None]:
    """Plays until the deadline. Each time that it yields, ``transition`` holds another transition.

    Args:
        env: A Gymnasium environment. It is closed at the end.
        transition: The arrays of :func:`blank_transition`.
        seed: The seed for the environment and the actions.
        deadline: As for :func:`play`.
        act: Chooses an action for an observation. None: random actions.

    """
    env.action_space.seed(seed)
    transition["worker"][...] = os.getpid()
    deadline = max(deadline, time.monotonic() + _SHORTEST_PLAY)
    episode = step = 0
    obs, _ = env.reset(seed=seed)
    while time.monotonic() < deadline:
        action = env.action_space.sample() if act is None else act(obs)
        transition["obs"][...] = obs  # before the step, because an environment may reuse its array
        next_obs, reward, terminated, truncated, _ = env.step(action)
        transition["action"][...] = action
        transition["reward"][...] = reward
        transition["next_obs"][...] = next_obs
        transition["terminated"][...] = terminated
        transition["truncated"][...] = truncated
        transition["episode"][...] = episode
        transition["step"][...] = step
        yield

        obs, step = next_obs, step + 1
        if terminated or truncated:
            obs, _ = env.reset()
            episode, step = episode + 1, 0
    env.close()


def make_env(env_id: str) -> Any:
    """Makes a Gymnasium environment. Registers the Atari games if it is one."""
    atari = env_id.startswith("ALE/")
    gymnasium = console.need("gymnasium", "atari" if atari else "demo")
    if atari:
        ale_py = console.need("ale_py", "atari")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # otherwise every process prints a banner
        gymnasium.register_envs(ale_py)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gymnasium.make(env_id, disable_env_checker=True)


def blank_transition(env: Any) -> dict[str, Array]:
    """The arrays of one transition, all zero. The ring is laid out for them, and a worker fills them.

    ``worker`` is the worker's process id. A worker that is started again has another one, and a sequence of its own.
    """
    return {
        "obs": _zeros(env.observation_space, "observation"),
        "action": _zeros(env.action_space, "action"),
        "reward": np.zeros((), np.float32),
        "next_obs": _zeros(env.observation_space, "observation"),
        "terminated": np.zeros((), np.bool_),
        "truncated": np.zeros((), np.bool_),
        "worker": np.zeros((), np.int64),
        "episode": np.zeros((), np.int64),
        "step": np.zeros((), np.int64),
    }


def _zeros(space: Any, what: str) -> Array:
    spaces = console.need("gymnasium", "demo").spaces
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise console.UsageError(
            f"the {what} space is {space}, which the demo does not put into arrays; "
            "choose an environment with Box, Discrete, MultiDiscrete or MultiBinary spaces"
        )
    return np.zeros(space.shape, space.dtype)


# --- in the learner -----------------------------------------------------------


def run(env_id: str, workers: int, batch_size: int, seconds: float) -> int:
    """Runs the demo. Returns the exit status: 1 if a sequence was broken, or something was left in shared memory.

    Raises:
        UsageError: There is no such environment, its spaces are not supported, or a package is missing.
        SegmentError: Shared memory is too small.

    """
    console.need("rich", "demo")
    example, num_actions = describe(env_id)
    learning = learning_for(example, num_actions)
    with terminated_cleanly(), _serve(example, batch_size) as server, contextlib.ExitStack() as stack:
        publisher = None if learning is None else server.publisher(learning.params)
        if publisher is not None and learning is not None:
            publisher.publish(learning.params)
        check, tally = SequenceCheck(server.capacity), Tally(sum(leaf.nbytes for leaf in example.values()), learning)
        view = DemoView(server.name, f"{env_id}, {console.plural(workers, 'worker')}", seconds, tally)
        deadline = time.monotonic() + seconds
        group = stack.enter_context(
            server.spawn(
                play,
                workers,
                [env_id] * workers,
                range(workers),
                [deadline] * workers,
                [learning is not None] * workers,
                restart=True,
                max_restarts=1000,
            )
        )
        with view:
            for batch, info in server.dataset_iter(until=group, drop_last=False):
                check.add(batch["worker"], batch["episode"], batch["step"], batch["terminated"] | batch["truncated"])
                tally.add(len(batch["step"]), info)
                if publisher is not None and learning is not None and learning.add(batch):
                    publisher.publish(learning.params)  # waits for nobody
        check.finish(view.ring.snapshot().reopened_slots)
        view.summarise(check, group.restarts)
    left = [name for name in lockfile.names() if name.startswith(server.name)]
    view.say_what_is_left(left)
    return 1 if left or check.fault_count or tally.samples == 0 else 0


def example_of(env_id: str) -> dict[str, Array]:
    """The arrays of one transition of an environment, all zero.

    Raises:
        UsageError: As for :func:`describe`.

    """
    return describe(env_id)[0]


def describe(env_id: str) -> tuple[dict[str, Array], int | None]:
    """The arrays of one transition of an environment, all zero; how many actions it has, if they are numbered from 0.

    Raises:
        UsageError: There is no such environment, its spaces are not supported, or a package is missing.

    """
    try:
        env = make_env(env_id)
    except console.UsageError:
        raise
    except Exception as error:  # environments may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise console.UsageError(f"cannot make the environment {env_id!r}: {reason}") from error
    try:
        space = env.action_space
        counts = isinstance(space, console.need("gymnasium", "demo").spaces.Discrete) and space.start == 0
        return blank_transition(env), int(space.n) if counts else None
    finally:
        env.close()


def _serve(example: dict[str, Array], batch_size: int) -> Server:
    try:
        return Server(example, batch_size)
    except ValueError as error:
        raise console.UsageError(str(error)) from None


@contextlib.contextmanager
def terminated_cleanly() -> Generator[None, None, None]:
    """In this block, SIGTERM and the end of the terminal raise an exception, so that everything is cleaned up."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
