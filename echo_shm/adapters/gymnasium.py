"""Gymnasium: what a step of an environment looks like, and loops that send steps to a ring or a replay.

It needs ``pip install 'echo-shm[gymnasium]'``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import optree

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
except ModuleNotFoundError as _error:
    if _error.name != "gymnasium":
        raise
    raise ModuleNotFoundError(
        "echo_shm.adapters.gymnasium needs Gymnasium: pip install 'echo-shm[gymnasium]'", name="gymnasium"
    ) from None

from echo_shm import Replay, ShmClient, TcpClient
from echo_shm.adapters.gymnasium_spaces import as_in, copy_in, example_of
from echo_shm.replay import RemoteWriter, Writer
from echo_shm.spec import Tree

__all__ = ["RecordToRing", "example_of", "run_vector"]

#: What samples are sent with. The first two send to a ring, the others to a replay; the last one is the replay itself.
Client = ShmClient | TcpClient | Writer | RemoteWriter | Replay


def run_vector(
    client: Client,
    envs: "Sequence[Callable[[], gymnasium.Env[Any, Any]]] | VectorEnv[Any, Any, Any]",
    policy: Callable[[Tree], Any],
    *,
    steps: int | None = None,
    autoreset: Literal["next_step", "same_step", "disabled"] = "next_step",
    seed: int | None = None,
    extras: bool = False,
) -> int:
    """Plays n environments together, and sends what they do: the loop of a worker.

    A replay's writer gets steps, as :func:`example_of` says, with their episodes' ends and last observations. A ring's
    client gets transitions, of ``example_of(env, transition=True)``, whose ``next_obs`` is what the action has led to:
    of an episode's last step, its last observation and not the first one of the next. Rows of a vector environment that
    are no steps, because they reset, are left out. That is so in each of Gymnasium's autoreset modes.

    Args:
        client: What :meth:`Replay.spawn` or :meth:`Server.spawn` gives to a worker, a client of another host, or a
            :class:`Replay` of this process.
        envs: Functions that make one environment each; they run in this process. Or a ``VectorEnv``, in whose mode it
            is played, and which is the caller's to close.
        policy: Called with observations, whose leaves have a leading n, and returns as many actions.
        steps: How many calls of ``envs.step``. None: until the ring or the replay is closed, or the worker is stopped.
        autoreset: The mode of environments that this makes.
        seed: Of the first reset.
        extras: The policy returns ``(actions, dict)``, and each step has the dict's entries, too: arrays with a
            leading n of exactly the dtypes of the example, such as log-probabilities.

    Returns:
        How many steps were sent, of all environments together.

    Raises:
        TypeError: As for :func:`example_of`, or the client is something else.
        ValueError: ``autoreset`` is no mode.
        SpecMismatchError: The ring's or replay's example is another one.
        ConnectionClosedError, TimeoutError, ForkedError: As the client's calls.

    """
    _check(client)
    if isinstance(envs, VectorEnv):
        return _play(client, envs, policy, steps, seed, extras)
    mine = SyncVectorEnv(list(envs), autoreset_mode=AutoresetMode(_mode(autoreset)))
    try:
        return _play(client, mine, policy, steps, seed, extras)
    finally:
        mine.close()


def _mode(given: object) -> str:
    modes = {mode.name.lower(): mode.value for mode in AutoresetMode}
    if given not in modes:
        raise ValueError(f"autoreset={given!r}: use {', '.join(map(repr, modes))}")
    return str(modes[str(given)])


def _play(client: Any, envs: Any, policy: Any, steps: int | None, seed: int | None, extras: bool) -> int:
    mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)).name.lower()
    like, sent = example_of(envs), 0
    obs, _ = envs.reset(seed=seed)
    if hasattr(client, "end_episode"):  # whatever it sent before
        client.end_episode()
    reset = np.zeros(envs.num_envs, bool)  # whose next row is no step
    while steps is None or steps > 0:
        steps = None if steps is None else steps - 1
        actions, more = policy(obs) if extras else (policy(obs), {})
        seen = copy_in(like["obs"], obs)  # the environments may write into it
        after, reward, terminated, truncated, infos = envs.step(actions)
        over = terminated | truncated
        led_to = as_in(like["obs"], after)
        if mode == "same_step" and over.any():
            led_to = copy_in(like["obs"], after)
            for i in np.flatnonzero(over):
                final = as_in(like["obs"], infos["final_obs"][i])
                optree.tree_map(lambda rows, row, i=i: rows.__setitem__(i, row), led_to, final)
        step = {"obs": seen, "action": as_in(like["action"], actions), "reward": reward.astype(np.float32), **more}
        if hasattr(client, "add_vector"):
            client.add_vector(step, terminated, truncated, mode, final={"obs": led_to})
        else:
            step |= {"next_obs": led_to, "terminated": terminated, "truncated": truncated}
            client.send_many(_rows(step, ~reset) if reset.any() else step)
        sent += int(np.count_nonzero(~reset))
        reset = over if mode == "next_step" else reset
        obs = envs.reset(options={"reset_mask": over})[0] if mode == "disabled" and over.any() else after
    return sent


def _rows(tree: Tree, chosen: Any) -> Tree:
    return optree.tree_map(lambda leaf: leaf[chosen], tree)


def _check(client: object) -> None:
    if not isinstance(client, Client):
        raise TypeError(
            f"expected a ShmClient, a TcpClient, a Replay or a replay's writer, got {type(client).__name__}; "
            "ShmClient(server.handle) and ReplayClient(replay.handle).writer() make one in any process"
        )


class RecordToRing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sends each step of an environment, as :func:`run_vector` does, whatever else plays it.

    A step of an episode that a ``reset`` cuts off ends no episode; a replay's next step begins another one.

    Args:
        env: The environment.
        client: As for :func:`run_vector`. It is the caller's to close.

    Raises:
        TypeError: As for :func:`run_vector`. ``step`` raises what the client's calls raise.

    """

    def __init__(self, env: "gymnasium.Env[Any, Any]", client: Client) -> None:
        super().__init__(env)
        _check(client)
        self._client: Any = client
        self._like = example_of(env)
        self._obs: Tree = None
        self._playing = False  # in the middle of an episode

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        obs, info = self.env.reset(**options)
        if self._playing and hasattr(self._client, "end_episode"):
            self._client.end_episode()
        self._obs, self._playing = copy_in(self._like["obs"], obs), False
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's. It sends the step, too."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        seen, self._obs, ends = self._obs, copy_in(self._like["obs"], obs), bool(terminated or truncated)
        step = {"obs": seen, "action": as_in(self._like["action"], action), "reward": np.float32(reward)}
        flags = {"terminated": bool(terminated), "truncated": bool(truncated)}
        if hasattr(self._client, "add"):
            self._client.add(step, **flags, final={"obs": self._obs} if ends else None)
        else:
            self._client.send({**step, "next_obs": self._obs, **flags})
        self._playing = not ends
        return obs, reward, terminated, truncated, info
