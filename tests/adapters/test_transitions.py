"""Transitions that frameworks give whole, stored once: what is drawn is what was given."""

import copy
import pickle
import tempfile
from typing import Any

import numpy as np
import pytest

from echo_shm import ConnectionClosedError
from echo_shm.adapters.transitions import Transitions

pytestmark = pytest.mark.watchdog(300)

GAMMA = 0.9


class Play:
    """Random environments, and the transitions that a buffer has to draw from their steps.

    Args:
        n: How many environments.
        n_steps: Most steps of a transition.

    """

    def __init__(self, n: int, n_steps: int, seed: int) -> None:
        self.n, self.n_steps, self.random = n, n_steps, np.random.default_rng(seed)
        self.steps: list[list[tuple[Any, ...]]] = [[] for _ in range(n)]
        self.obs = self._observations()

    def _observations(self) -> np.ndarray[Any, Any]:
        return self.random.integers(0, 2**31, (self.n, 2)).astype(np.int64)

    def step(self, jumps: float = 0.1) -> tuple[Any, ...]:
        """What a framework passes to ``add``. Now and then an environment is reset in the middle of an episode."""
        after = self._observations()
        done, timeouts = self.random.random(self.n) < 0.2, self.random.random(self.n) < 0.5
        timeouts &= done
        action, reward = self.random.integers(0, 9, (self.n, 1)), self.random.integers(0, 9, self.n).astype(np.float32)
        for i, mine in enumerate(self.steps):
            mine.append((*self.obs[i], action[i, 0], reward[i], after[i], done[i], timeouts[i]))
        given = self.obs, after, action, reward, done, timeouts
        fresh = done | (self.random.random(self.n) < jumps)
        self.obs = np.where(fresh[:, None], self._observations(), after)
        return given

    def expected(self) -> set[tuple[float, ...]]:
        """Each transition: observation, action, sum of rewards, next observation, terminated, steps."""
        made = set()
        for mine in self.steps:
            for t, (*obs, action, _, _, _, _) in enumerate(mine):
                total, steps, last, dead = 0.0, 0, tuple(obs), False
                for *before, _, reward, after, done, timeout in mine[t : t + self.n_steps]:
                    if tuple(before) != last:
                        break
                    total, steps, last, dead = total + GAMMA**steps * reward, steps + 1, tuple(after), done
                    if done:
                        dead = not timeout
                        break
                made.add((*obs, action, round(float(total), 3), *last, bool(dead), steps))
        return made


def drawn(transitions: Transitions, count: int = 4000) -> set[tuple[float, ...]]:
    """All transitions that come up in so many draws."""
    data = transitions.sample(count).data
    obs, after = data["obs"], data["next"]["obs"]
    if isinstance(obs, dict):
        obs, after = obs["position"], after["position"]
    rows = zip(obs, data["action"], data["reward"], after, data["discount"], data["n"], strict=True)
    return {(*o, a[0], round(float(r), 3), *nx, bool(d == 0), int(k)) for o, a, r, nx, d, k in rows}


def made(n: int = 1, n_steps: int = 1, capacity: int = 500, **options: Any) -> Transitions:
    """Transitions of small steps."""
    return Transitions(
        np.zeros(2, np.int64), np.zeros(1, np.int64), capacity, n, n_steps, GAMMA if n_steps > 1 else 1.0, **options
    )


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("n", [1, 3])
def test_what_is_drawn_is_what_was_given(n, n_steps):
    """Each transition once, also across ends, time limits, and resets in the middle of an episode."""
    play, transitions = Play(n, n_steps, seed=n_steps), made(n, n_steps)
    for _ in range(60):
        transitions.add(*play.step())
    transitions.end_episodes()
    assert drawn(transitions) == play.expected()
    assert len(transitions.replay) == 60 * n
    transitions.close()


def test_an_observation_is_stored_once():
    """Steps that follow one another need a row each; an end needs one more."""
    transitions = made()
    for t in range(50):
        transitions.add([[t, t]], [[t + 1, t + 1]], [0], [0.0], [t == 24], [False])
    assert transitions.replay.num_steps == 51
    assert len(transitions.replay) == 49  # the last one waits for what follows
    transitions.close()


def test_nan_in_an_observation_ends_no_episode():
    """Observations are compared by their bytes."""
    transitions = Transitions(np.zeros(1), np.zeros(1), 50)
    for _ in range(10):
        transitions.add([[np.nan]], [[np.nan]], [0], [0.0], [False], [False])
    assert transitions.replay.num_steps == 10
    transitions.close()


def test_the_caller_may_use_its_arrays_again():
    """All that is kept is a copy, also what the next step is compared with."""
    transitions, obs = made(), np.zeros((1, 2), np.int64)
    after = obs.copy()
    for t in range(10):
        after[:] = t + 1
        transitions.add(obs, after, [0], [0.0], [False], [False])
        obs[:], after[:] = t + 1, -1
    transitions.end_episodes()
    assert {row[4] for row in drawn(transitions)} == set(range(1, 11))
    transitions.close()


def test_the_first_step_can_be_sampled():
    """If nothing is complete yet, the episodes end there."""
    play, transitions = Play(2, 3, seed=0), made(2, 3)
    transitions.add(*play.step(jumps=0))
    assert drawn(transitions) == play.expected()
    transitions.close()


def test_more_environments_than_the_ring_has_room_for():
    """This process empties the ring that its own writers fill."""
    large = np.zeros(1 << 19)  # 4 MiB: the ring holds 16 of them
    transitions = Transitions(large, np.zeros(1), 20, 20)
    rows = np.arange(20.0)[:, None] * np.ones(1 << 19)
    for ends in np.zeros(20), np.arange(20) > 0:  # an odd number: once a slot is left for an end that needs two
        transitions.add(rows, rows, np.zeros(20), np.zeros(20), ends, [False] * 20)
    transitions.end_episodes()
    data = transitions.sample(1).data
    assert np.array_equal(data["obs"], data["next"]["obs"])
    assert len(transitions.replay) == 20
    assert transitions.replay.num_steps == 60
    transitions.close()


def test_dicts_of_arrays():
    """An observation may be a dict, with names that are not in order."""
    example = {"position": np.zeros(2, np.int64), "camera": np.zeros((3, 3), np.uint8)}
    play, transitions = Play(2, 1, seed=0), Transitions(example, np.zeros(1, np.int64), 200, 2)
    camera = np.zeros((2, 3, 3), np.uint8)
    for _ in range(30):
        obs, after, *rest = play.step()
        transitions.add({"camera": camera, "position": obs}, {"camera": camera, "position": after}, *rest)
    transitions.end_episodes()
    assert drawn(transitions) == play.expected()
    with pytest.raises(ValueError, match="expected a dict with 'position', 'camera'"):
        transitions.add({"camera": camera}, {"camera": camera}, *rest)
    transitions.close()


@pytest.mark.parametrize("pad", ["zero", "first"])
def test_stacks_are_made_of_single_frames(pad):
    """With ``stack`` a frame is stored once, and an observation is what was given."""
    transitions = Transitions(np.zeros((6, 5), np.uint8), np.zeros(1), 200, stack=3, pad=pad)
    random, seen = np.random.default_rng(0), set()
    for _ in range(12):
        frame = random.integers(0, 256, (1, 2, 5), np.uint8)
        filling = np.zeros_like(frame) if pad == "zero" else frame
        stack = np.concatenate([filling, filling, frame], axis=1)
        for t in range(7):
            after = np.concatenate([stack[:, 2:], random.integers(0, 256, (1, 2, 5), np.uint8)], axis=1)
            seen.add((stack.tobytes(), after.tobytes()))
            transitions.add(stack, after, [0], [0.0], [t == 6], [False])
            stack = after
    data = transitions.sample(3000).data
    obs, after = transitions.observations.drawn(data["obs"]), transitions.observations.drawn(data["next"]["obs"])
    assert obs.shape == after.shape == (3000, 6, 5)
    assert {(a.tobytes(), b.tobytes()) for a, b in zip(obs, after, strict=True)} == seen
    assert next(iter(transitions.replay.episodes())).steps["obs"].shape[1:] == (2, 5)
    transitions.close()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("n", [1, 3])
def test_a_copy_goes_on_in_the_middle_of_its_episodes(n, duplicate, shm_path, monkeypatch):
    """It has all that is stored, and what comes next follows it, in the one and in the other."""
    monkeypatch.setattr(tempfile, "tempdir", str(shm_path))
    play, transitions = Play(n, 3, seed=0), made(n, 3)
    for _ in range(30):
        transitions.add(*play.step())
    other = duplicate(transitions)
    assert drawn(other) == drawn(transitions)
    for _ in range(10):
        step = play.step()
        for one in (transitions, other):
            one.add(*step)
    for one in (transitions, other):
        one.end_episodes()
        assert len(one.replay) == 40 * n
        assert drawn(one) == play.expected()
        one.close()


def test_a_copy_goes_on_in_the_middle_of_a_stack():
    """The frames before it are still those of the stack."""
    transitions = Transitions(np.zeros(2, np.int64), np.zeros(1, np.int64), 50, stack=2)
    for t in range(1, 4):
        transitions.add([[t - 1, t]], [[t, t + 1]], [0], [0.0], [False], [False])
    other = pickle.loads(pickle.dumps(transitions))
    other.add([[3, 4]], [[4, 5]], [0], [0.0], [True], [False])
    data = other.sample(500).data
    assert {tuple(row) for row in other.observations.drawn(data["obs"]).tolist()} == {(0, 1), (1, 2), (2, 3), (3, 4)}
    for one in (transitions, other):
        one.close()


def test_a_copy_of_little_is_small():
    """What was never written is not part of it."""
    transitions = made(capacity=100_000)
    transitions.add([[0, 0]], [[1, 1]], [0], [0.0], [True], [False])
    assert len(pickle.dumps(transitions)) < 200_000
    transitions.close()


def test_reset_forgets():
    """After it there is nothing to draw, and the next step begins an episode."""
    play, transitions = Play(3, 3, seed=0), made(3, 3)
    for _ in range(10):
        transitions.add(*play.step(jumps=0))
    transitions.reset()
    with pytest.raises(ValueError, match="the buffer is empty: add transitions"):
        transitions.sample(1)
    play.steps = [[] for _ in range(3)]
    transitions.add(*play.step())
    assert drawn(transitions) == play.expected()
    transitions.close()


def test_the_oldest_transitions_go():
    """No more than ``capacity`` of them are kept."""
    transitions = made(capacity=20)
    for t in range(100):
        transitions.add([[t, t]], [[t + 1, t + 1]], [0], [0.0], [False], [False])
    assert {row[0] for row in drawn(transitions)} == set(range(79, 99))
    transitions.close()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({0: np.zeros((3, 2))}, r"obs: got shape \(3, 2\), expected \(2, 2\), one row for each of 2 environments"),
        ({1: np.zeros((2, 3))}, r"next_obs: got shape \(2, 3\), expected \(2, 2\)"),
        ({0: np.zeros(4)}, r"obs: got shape \(4,\), expected \(2, 2\), one row for each of 2 environments"),
        ({2: np.zeros(3)}, r"action: got shape \(3,\), expected \(2, 1\)"),
        ({3: 1.0}, r"reward: got shape \(\), expected \(2,\)"),
        ({4: [True]}, r"done: got shape \(1,\), expected \(2,\)"),
        ({5: [False]}, "infos: got 1, expected one for each of 2 environments"),
    ],
)
def test_wrong_shapes_are_named(changed, message):
    """And nothing is stored of them."""
    transitions = made(2)
    given = dict(enumerate(Play(2, 1, seed=0).step())) | changed
    with pytest.raises(ValueError, match=message):
        transitions.add(*given.values())
    assert transitions.replay.num_steps == 0
    transitions.close()


def test_dimensions_in_another_order_are_refused():
    """They have as many elements, and another meaning."""
    transitions = Transitions(np.zeros((3, 2)), np.zeros(1), 10, n_envs=2)
    with pytest.raises(ValueError, match=r"obs: got shape \(2, 2, 3\), expected \(2, 3, 2\)"):
        transitions.add(np.zeros((2, 2, 3)), np.zeros((2, 3, 2)), [0, 0], [0.0, 0.0], [False] * 2, [False] * 2)
    transitions.close()


def test_what_is_closed_says_so():
    """A draw is refused."""
    transitions = made()
    transitions.close()
    with pytest.raises(ConnectionClosedError):
        transitions.sample(1)


def test_what_cannot_be_stacked_is_refused():
    """The message has the shape."""
    with pytest.raises(
        ValueError, match=r"stack=4: got observations of shape \(6, 5\), expected one array whose first"
    ):
        Transitions(np.zeros((6, 5), np.uint8), np.zeros(1), 100, stack=4)


def test_one_environment_needs_no_leading_dimension():
    """An action of several dimensions is stored flat, as Stable-Baselines3 gives it."""
    transitions = Transitions(np.zeros(2), np.zeros(6), 10)
    action = np.arange(6.0)
    transitions.add(np.zeros(2), np.ones(2), action.reshape(2, 3), 1.5, True, [False])
    data = transitions.sample(1).data
    assert (data["action"].tolist(), data["reward"].tolist()) == ([action.tolist()], [1.5])
    transitions.close()
