"""Segments: which rows teach, and which states a row's window has. Of rollouts, and of what a replay draws."""

import contextlib
from collections import Counter
from typing import Any

import numpy as np
from harness.packages import need
from hypothesis import given, settings
from hypothesis import strategies as st

need("torch", "gymnasium")

import gymnasium  # noqa: E402
import torch  # noqa: E402
from gymnasium.vector import SyncVectorEnv  # noqa: E402

from echo_shm import Replay, Table  # noqa: E402
from echo_shm.planning.agents.configs import PlanningConfig  # noqa: E402
from echo_shm.planning.agents.planner import LatentPlanner  # noqa: E402
from echo_shm.planning.agents.segments import Segments, row_example  # noqa: E402
from echo_shm.planning.training.actor import Actor, rollout_example  # noqa: E402
from echo_shm.replay import Fifo, Sequence  # noqa: E402


class Counting(gymnasium.Env[Any, Any]):
    """An environment whose observation is (number of itself, episode, step in it). Ends are drawn by its seed."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, number: int, longest: int) -> None:
        self._number, self._longest, self._episode = number, longest, -1

    def _obs(self) -> np.ndarray:
        return np.array([self._number, self._episode, self._step], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins an episode, of a length that is drawn."""
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        self._length = int(self.np_random.integers(1, self._longest + 1))
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Earns the step's number. Every other episode terminates; others are truncated."""
        self._step += 1
        ends, kind = self._step >= self._length, self._episode % 2 == 0
        return self._obs(), float(self._step), ends and kind, ends and not kind, {}


def check(segments: Segments, seen: Counter[tuple[float, ...]], window: int) -> None:
    """Each window has exactly the last states of its episode; notes which steps teach."""
    mask = segments.window_mask(window).numpy()
    obs, learned = segments.obs.numpy(), segments.learned.numpy()
    for i, r in zip(*np.nonzero(learned), strict=True):
        number, episode, step = obs[i, r]
        seen[(number, episode, step)] += 1
        inside = [tuple(obs[i, r - j]) for j in range(window) if mask[i, r, window - 1 - j]]
        assert inside == [(number, episode, step - j) for j in range(min(window, int(step) + 1))]
        assert not mask[i, r, : window - len(inside)].any()
        assert tuple(obs[i, r + 1]) == (number, episode, step + 1)  # what the step has led to
        assert segments.reward[i, r] == step + 1
    assert (segments.acted.numpy() | ~learned).all()


SIZES = {
    "envs": st.integers(1, 3),
    "window": st.integers(1, 4),
    "length": st.integers(1, 6),
    "longest": st.integers(1, 9),
}


@given(**SIZES, seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_rollouts_teach_each_step_once(envs: int, window: int, length: int, longest: int, seed: int):
    """Whatever is cut where, with the window that the actor had: so the ratio is 1 before the first update."""
    planner = LatentPlanner(3, 3, PlanningConfig(embedding_dim=2, state_window_size=window, hidden_dim=4, heads=2))
    seen: Counter[tuple[float, ...]] = Counter()
    steps = 0
    with contextlib.closing(SyncVectorEnv([lambda i=i: Counting(i, longest) for i in range(envs)])) as made:  # type: ignore[misc]
        actor = Actor(made, planner, seed)
        for _ in range(4):
            rollout = rollout_example(envs, window, length, 3)
            steps += actor.rollout(length, rollout)
            segments = Segments.of({name: rollout[name] for name in row_example(0)}, window)
            check(segments, seen, window)
            with torch.no_grad():
                log_probs = planner.evaluate(segments).logits.log_softmax(-1)
            mine = log_probs.gather(-1, segments.action[..., None])[..., 0][segments.learned]
            torch.testing.assert_close(mine, segments.log_prob[segments.learned], rtol=0, atol=1e-5)
    assert len(seen) == steps
    assert set(seen.values()) == {1}


@given(**SIZES, seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_a_replays_sequences_teach_each_step_once(envs: int, window: int, length: int, longest: int, seed: int):
    """Of all items of a table of sequences, as the trainer makes it; of episodes that are complete."""
    planner = LatentPlanner(3, 3, PlanningConfig(embedding_dim=2, state_window_size=window, hidden_dim=4, heads=2))
    item = Sequence(window + length + 1, period=length)
    table = Table("experience", sampler=Fifo(), max_times_sampled=1, item=item)
    seen: Counter[tuple[float, ...]] = Counter()
    complete: set[tuple[float, ...]] = set()
    running: dict[int, set[tuple[float, ...]]] = {i: set() for i in range(envs)}
    made = SyncVectorEnv([lambda i=i: Counting(i, longest) for i in range(envs)])  # type: ignore[misc]
    with contextlib.closing(made), Replay(row_example(3), 1_000, [table]) as replay:
        actor = Actor(made, planner, seed)
        for _ in range(20):
            row = actor.step().row
            replay.add_vector(row, ~row["acted"], np.zeros(envs, bool), "disabled")
            for i in range(envs):
                if row["acted"][i]:
                    running[i].add(tuple(row["obs"][i]))
                else:
                    complete |= running[i]
                    running[i] = set()
        size = replay.info().size  # type: ignore[union-attr]
        for batch in [replay.sample(size)] if size else []:
            check(Segments.of(batch.data, window), seen, window)  # type: ignore[union-attr]
    assert complete <= set(seen)
    assert set(seen.values()) <= {1}
