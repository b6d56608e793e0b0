"""What the replay buffers of Stable-Baselines3 and CleanRL have in common: transitions over steps that are stored once.

These frameworks give the observations before each step and after it. Those after a step are those before the next one,
so an :class:`NStep` finds them there. They are stored only where an episode ends, and where the next step does not
begin with them, as after a reset in the middle of an episode: their bytes are compared.
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from echo_shm import Replay, ReplayClient, Table
from echo_shm.adapters.observations import Observation, Observations, exact_array
from echo_shm.replay import Batch, NStep, Prioritized


class Transitions:
    """Transitions of n environments that are stepped together, in a replay of this process.

    One environment's steps are stored directly. Each of several has a writer of its own, since their episodes run side
    by side; what they have sent is stored before a draw.

    Args:
        observation: What an observation looks like: an array, or a dict of arrays.
        action: What an action looks like: an array.
        capacity: Most transitions, less the observations that are stored where episodes end.
        n_envs: How many environments, 1 to 1024.
        n_steps, gamma: A transition is over so many steps, or fewer where the episode ends: see :class:`NStep`.
        stack: Of so many frames an observation consists, along its first dimension; only the last one is stored.
        pad: What stands for frames before an episode's first one: ``"zero"``s, or the ``"first"`` itself.
        sampler: Priorities; None: each transition is as likely as any other.

    Raises:
        ValueError, TypeError: A number is out of range, or an observation cannot be stacked so.
        SegmentError, MemoryError: There is too little shared memory for the writers, or memory.

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
        self._open(Replay(step, rows, [table], seed=int(np.random.randint(2**31 - 1)), max_producers=n_envs))

    def _open(self, replay: Any) -> None:
        #: The :class:`Replay`.
        self.replay = replay
        client = ReplayClient(replay.handle) if self._n > 1 else None
        self._writers = [client.writer() for _ in range(self._n)] if client else []
        self._going = [False] * self._n  # whose episodes have not ended
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
        dead, cut = exact_array("done", done, (self._n,), bool).tolist(), list(map(bool, timeouts))
        if len(cut) != self._n:
            raise ValueError(f"infos: got {len(cut)}, expected one for each of {self._n} environments")
        if any(self._going) and [leaf.tobytes() for leaf in before] != self._next:
            both = list(zip(before, self.observations.from_bytes(self._next), strict=True))
            self._end(i for i in range(self._n) if any(a[i].tobytes() != b[i].tobytes() for a, b in both))
        for i in range(self._n):
            step = {"obs": self.observations.row(before, i), "action": actions[i], "reward": rewards[i, ...]}
            ends = dead[i] or cut[i]
            final = {"obs": self.observations.row(after, i)} if ends else None
            self._add(i, step, dead[i] and not cut[i], cut[i], final)
            self._going[i] = not ends
        self._next = [leaf.tobytes() for leaf in after]

    def _add(self, i: int, step: Any, terminated: bool, truncated: bool, final: Any = None) -> None:
        if not self._writers:
            self.replay.add(step, terminated=terminated, truncated=truncated, final=final)
            return
        if final is not None:  # so that there is room for both, the step and what its episode ends with
            self._settle()
        while True:
            try:
                self._writers[i].add(step, terminated=terminated, truncated=truncated, final=final, timeout=0)
                return
            except TimeoutError:  # the ring is full: this process itself has to empty it
                self._settle()

    def _settle(self) -> None:
        """Has the replay store all that the writers have sent."""
        for writer in self._writers:
            while True:
                try:
                    writer.flush(timeout=0)
                    break
                except TimeoutError:
                    self.replay.num_steps  # noqa: B018  # it stores some of what has come

    def _end(self, which: Iterable[int]) -> None:
        """Ends episodes that go on: what they have led to is stored as one more step, at which no transition begins."""
        last = self.observations.from_bytes(self._next) if any(self._going) else []
        for i in which:
            if self._going[i]:
                step = {"obs": self.observations.row(last, i), "action": self._action, "reward": self._reward}
                self._add(i, step, False, True)
                self._going[i] = False

    def end_episodes(self) -> None:
        """The next step of each environment begins an episode. What was added is complete, and can be sampled."""
        self._end(range(self._n))
        self._settle()

    def sample(self, n: int, beta: float | None = None) -> Batch:
        """Draws n transitions: ``data`` has ``obs``, ``action``, ``reward``, ``next``, ``discount``, ``n``.

        If none is complete yet, the episodes end here, as by :meth:`end_episodes`.

        Raises:
            ValueError: Nothing was added yet, or a number is out of range.

        """
        for otherwise in (self._settle, self.end_episodes, None):
            try:
                batch = self.replay.sample(n, timeout=0, beta=beta)
                break
            except TimeoutError:
                if otherwise is None:
                    raise ValueError("the buffer is empty: add transitions before sample()") from None
                otherwise()
        assert isinstance(batch, Batch)
        return batch

    def reset(self) -> None:
        """Forgets everything."""
        self.end_episodes()
        self.replay.reset()

    def close(self) -> None:
        """Ends it, and gives its memory back. Idempotent."""
        for writer in self._writers:
            writer.close()
        self.replay.close()

    def __getstate__(self) -> dict[str, Any]:
        """All that is stored, as a checkpoint's files. The episodes end here, as by :meth:`end_episodes`."""
        self.end_episodes()
        with tempfile.TemporaryDirectory() as folder:
            self.replay.checkpoint(folder)
            # The arrays are views of files that go with the last reference: no memory is needed for a copy.
            paths = [path for path in Path(folder).rglob("*") if path.is_file()]
            files = {str(path.relative_to(folder)): _mapped(path) for path in paths}
        kept = ("observations", "_n", "_action", "_reward")
        return {**{name: getattr(self, name) for name in kept}, "files": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("files")
        vars(self).update(state)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                content.tofile(path)
            self._open(Replay.restore(folder, max_producers=self._n))


def _mapped(path: Path) -> npt.NDArray[np.uint8]:
    """What a file has."""
    return np.asarray(np.memmap(path, np.uint8, "r")) if path.stat().st_size else np.empty(0, np.uint8)
