"""What the replay buffers of Stable-Baselines3 and CleanRL have in common: transitions over steps that are stored once.

These frameworks give the observations before each step and after it. Those after a step are those before the next one,
so an :class:`NStep` finds them there. They are stored only where an episode ends, and where the next step does not
begin with them, as after a reset in the middle of an episode: their bytes are compared.
"""

import tempfile
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from echo_shm import ConnectionClosedError, Replay, Table
from echo_shm.adapters.folders import read_files, write_files
from echo_shm.adapters.observations import Observation, Observations, exact_array
from echo_shm.replay import Batch, NStep, Prioritized

#: In the bytes of an array of bool: an episode ends. ``any()`` takes longer than to store a step.
_ENDS = b"\1"


class Transitions:
    """Transitions of n environments that are stepped together, in a replay of this process.

    Args:
        observation: What an observation looks like: an array, or a dict of arrays.
        action: What an action looks like: an array.
        capacity: Most transitions, less the observations that are stored where episodes end.
        n_envs: How many environments.
        n_steps, gamma: A transition is over so many steps, or fewer where the episode ends: see :class:`NStep`.
        stack: Of so many frames an observation consists, along its first dimension; only the last one is stored.
        pad: What stands for frames before an episode's first one: ``"zero"``s, or the ``"first"`` itself.
        sampler: Priorities; None: each transition is as likely as any other.

    Raises:
        ValueError, TypeError: A number is out of range, or an observation cannot be stacked so.
        MemoryError: There is too little memory.

    Draws follow from a seed that numpy's global generator gives. It pickles, with all that it stores.
    """

    def __init__(
        self,
        observation: Observation,
        action: npt.NDArray[Any],
        capacity: int,
        n_envs: int = 1,
        n_steps: int = 1,
        gamma: float = 1.0,
        stack: int = 1,
        pad: Literal["zero", "first"] = "zero",
        sampler: Prioritized | None = None,
    ) -> None:
        #: ``observations.drawn(data["obs"])`` is what was given.
        self.observations = Observations(observation, n_envs, stack)
        self._n, self._action, self._reward = n_envs, np.zeros_like(action), np.zeros((), np.float32)
        step = {"obs": self.observations.stored, "action": action, "reward": self._reward}
        item = NStep(n_steps, gamma, ["obs"], stack={"obs": stack} if stack > 1 else None, pad=pad)
        table = Table("transitions", sampler, max_size=capacity, item=item)
        rows = capacity + n_envs * (n_steps + stack + 2)
        #: The :class:`Replay`.
        self.replay = Replay(step, rows, [table], seed=int(np.random.randint(2**31 - 1)))
        self._going = np.zeros(self._n, bool)  # whose episodes have not ended
        self._all, self._some_going = np.ones(self._n, bool), False
        self._next: list[bytes] = []  # the observations after the last step

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, timeouts: Sequence[Any]) -> None:
        """Stores copies of one step of each environment.

        Args:
            obs, next_obs: The observations before and after it, with a leading n; of an episode's last step, those that
                it ends with.
            action, reward: Arrays with a leading n.
            done: Whether each step has ended its episode: an array of shape (n,).
            timeouts: Which of these episodes would have gone on.

        Raises:
            ValueError: A shape or a length differs. Nothing was stored.

        A step can be sampled once the next one of its environment is there, or its episode has ended.
        """
        before, after = self.observations.exact("obs", obs), self.observations.exact("next_obs", next_obs)
        actions = exact_array("action", action, (self._n, *self._action.shape), self._action.dtype)
        rewards = exact_array("reward", reward, (self._n,), np.float32)
        dead = exact_array("done", done, (self._n,), bool)
        if len(timeouts) != self._n:
            raise ValueError(f"infos: got {len(timeouts)}, expected one for each of {self._n} environments")
        if self._some_going and [leaf.tobytes() for leaf in before] != self._next:
            self._end(self._going & self.observations.differ(before, self._next))
        step = {"obs": self.observations.rows(before), "action": actions, "reward": rewards}
        if _ENDS in dead.tobytes() or any(timeouts):
            cut = np.array(timeouts, bool)
            final = {"obs": self.observations.rows(after)}
            self.replay.add_vector(step, dead & ~cut, cut, "disabled", final=final)
            self._going = ~(dead | cut)
            self._some_going = bool(self._going.any())
        else:
            self.replay.add_vector(step, dead, dead, "disabled")
            self._going, self._some_going = self._all, True
        self._next = [leaf.tobytes() for leaf in after]

    def _end(self, going: npt.NDArray[np.bool_]) -> None:
        """Ends episodes: what they have led to is stored as one more step, at which no transition begins."""
        which = np.flatnonzero(going)
        if not len(which):
            return
        step = {
            "obs": self.observations.rows([leaf[which] for leaf in self.observations.from_bytes(self._next)]),
            "action": np.repeat(self._action[None], len(which), 0),
            "reward": np.zeros(len(which), np.float32),
        }
        none = np.zeros(len(which), bool)
        self.replay.add_vector(step, none, ~none, "disabled", environments=which)
        self._going = self._going & ~going
        self._some_going = bool(self._going.any())

    def end_episodes(self) -> None:
        """The next step of each environment begins an episode. What was added is complete, and can be sampled."""
        self._end(self._going)

    def sample(self, n: int, beta: float | None = None) -> Batch:
        """Draws n transitions: ``data`` has ``obs``, ``action``, ``reward``, ``next``, ``discount``, ``n``.

        If none is complete yet, the episodes end here, as by :meth:`end_episodes`.

        Raises:
            ValueError: Nothing was added yet, or a number is out of range.

        """
        for otherwise in (self.end_episodes, None):
            try:
                batch = self.replay.sample(n, timeout=0, beta=beta)
                break
            except TimeoutError:
                if otherwise is None:
                    raise ValueError("the buffer is empty: add transitions before sample()") from None
                otherwise()
        if batch is None:
            raise ConnectionClosedError("the buffer is closed")
        return batch

    def reset(self) -> None:
        """Forgets everything."""
        self.end_episodes()
        self.replay.reset()

    def close(self) -> None:
        """Ends it, and gives its memory back. Idempotent."""
        self.replay.close()

    def __getstate__(self) -> dict[str, Any]:
        """All that is stored, as a checkpoint's files. Episodes that go on do so in the copy, too."""
        with tempfile.TemporaryDirectory() as folder:
            self.replay.checkpoint(folder)
            files = read_files(folder)
        return {name: value for name, value in vars(self).items() if name != "replay"} | {"files": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("files")
        vars(self).update(state)
        with tempfile.TemporaryDirectory() as folder:
            write_files(folder, files)
            self.replay = Replay.restore(folder, same_episode=True)
