"""The adapter for Gymnasium: what a step looks like, and what is sent in each autoreset mode."""

import itertools
from typing import Any

import numpy as np
import pytest
from harness.packages import need
from harness.programs import run_python

need("gymnasium")

import gymnasium  # noqa: E402
from gymnasium import spaces  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from echo_shm import Replay, ReplayClient, Server, ShmClient, Table  # noqa: E402
from echo_shm.adapters.gymnasium import RecordToRing, example_of, run_vector  # noqa: E402
from echo_shm.replay import NStep  # noqa: E402

MODES = ("next_step", "same_step", "disabled")


class Counting(gymnasium.Env[Any, Any]):
    """Observations are ``{"at": number * 1000 + episode * 100 + t}``. Episode e has 2 + e % 2 steps.

    Even episodes are terminated, odd ones truncated. With ``reuses`` it writes into the same array again and again. (A
    vector environment must not have such environments in mode "same_step": it keeps no copy of the last observation.)
    """

    observation_space = spaces.Dict({"at": spaces.Box(-np.inf, np.inf, (2,), np.float32)})
    action_space = spaces.Discrete(3)

    def __init__(self, number: int = 0, reuses: bool = False) -> None:
        self.number, self.episode, self.t, self.reuses = number, -1, 0, reuses
        self.array = np.zeros(2, np.float32)

    def _obs(self) -> dict[str, Any]:
        self.array[:] = self.number * 1000 + self.episode * 100 + self.t
        return {"at": self.array if self.reuses else self.array.copy()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """As Gymnasium's."""
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        """As Gymnasium's."""
        self.t += 1
        over = self.t == 2 + self.episode % 2
        return self._obs(), float(action), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}


def right(number: int, count: int) -> list[tuple[int, int, bool, bool]]:
    """The first transitions of such an environment: obs, next_obs, terminated, truncated."""
    made = []
    for episode in itertools.count():
        length, first = 2 + episode % 2, number * 1000 + episode * 100
        for t in range(length):
            ends = t == length - 1
            made.append((first + t, first + t + 1, ends and episode % 2 == 0, ends and episode % 2 == 1))
            if len(made) == count:
                return made
    raise AssertionError


def policy(obs: Any) -> Any:
    """The same action for each."""
    return np.full(len(obs["at"]), 2)


def table() -> Table:
    """One whose items refer to the last observations of episodes."""
    return Table("train", item=NStep(1, gamma=0.9, observation=["obs"]))


@pytest.mark.parametrize("mode", MODES)
def test_a_ring_gets_transitions_without_resets(mode):
    """Every transition leads to what its action has led to, and no reset is sent, in each mode."""
    with (
        Server(example_of(Counting(), transition=True), 4, num_buffers=64) as server,
        ShmClient(server.handle) as client,
    ):
        made = [lambda: Counting(0), lambda: Counting(1)]
        sent = run_vector(client, made, policy, steps=20, autoreset=mode)
        server.close()
        rows: dict[int, list[Any]] = {0: [], 1: []}
        for batch, _ in server.dataset_iter(copy=True, drop_last=False):
            assert (batch["action"] == 2).all()
            assert (batch["reward"] == 2).all()
            for at, to, *ends in zip(
                batch["obs"]["at"], batch["next_obs"]["at"], batch["terminated"], batch["truncated"], strict=True
            ):
                assert at[0] == at[1]
                rows[int(at[0]) // 1000].append((int(at[0]), int(to[0]), *map(bool, ends)))
    assert sum(map(len, rows.values())) == sent == (40 if mode != "next_step" else sent)
    assert sent > 25
    for number, got in rows.items():
        assert got == right(number, len(got))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_replay_gets_episodes_with_their_ends(mode, own):
    """Each environment's episodes are whole in the replay, with the observations that they end with."""
    with (
        Replay(example_of(Counting()), 1000, [table()]) as replay,
        ReplayClient(replay.handle) as client,
        client.writer() as writer,
    ):
        envs = SyncVectorEnv([lambda: Counting(0), lambda: Counting(1)], autoreset_mode=AutoresetMode[mode.upper()])
        run_vector(replay if own else writer, envs, policy, steps=12)
        assert envs.reset()[0]["at"].shape == (2, 2)  # a caller's environments stay open
        replay.info()
        whole = [one for one in replay.episodes() if one.terminated or one.truncated]
    assert len(whole) >= 6
    for one in whole:
        at = one.steps["obs"]["at"][:, 0]
        episode = int(at[0]) // 100 % 10
        assert at.tolist() == [at[0] + t for t in range(2 + episode % 2)]
        assert one.final["obs"]["at"].tolist() == [at[-1] + 1] * 2
    assert {one.environment for one in whole} == {0, 1}


def test_a_wrapper_records_what_others_play():
    """A ring gets each transition, although the environment uses one array for all observations."""
    with Server(example_of(Counting(), transition=True), 5) as server, ShmClient(server.handle) as client:
        env, over = RecordToRing(Counting(reuses=True), client), True
        for _ in range(5):
            if over:
                env.reset()
            _, _, terminated, truncated, _ = env.step(np.int64(1))
            over = terminated or truncated
        batch = server.sample(timeout=10).batch
    got = zip(
        batch["obs"]["at"][:, 0], batch["next_obs"]["at"][:, 0], batch["terminated"], batch["truncated"], strict=True
    )
    assert [tuple(row) for row in got] == right(0, 5)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("steps", [1, 2])  # in the middle of an episode; where one has just ended
def test_each_call_begins_episodes(own, steps):
    """Nothing goes over from the episodes of the call before, and no step is taken for a reset."""
    with (
        Replay(example_of(Counting()), 1000, [table()]) as replay,
        ReplayClient(replay.handle) as client,
        client.writer() as writer,
    ):
        sent = sum(run_vector(replay if own else writer, [Counting, Counting], policy, steps=steps) for _ in range(3))
        replay.info()
        found = list(replay.episodes())
    assert sum(map(len, found)) == sent
    for one in found:
        at = one.steps["obs"]["at"][:, 0]
        assert at.tolist() == [at[0] + t for t in range(len(at))]
        assert at[0] % 100 == 0


@pytest.mark.parametrize("own", [False, True])
def test_a_wrapper_tells_a_replay_of_an_early_reset(own):
    """A reset in the middle of an episode begins another one, and ends none."""
    with (
        Replay(example_of(Counting()), 100) as replay,
        ReplayClient(replay.handle) as client,
        client.writer() as writer,
    ):
        env = RecordToRing(Counting(), replay if own else writer)
        env.reset()
        env.step(0)
        env.reset()  # episode 1 has three steps
        for _ in range(3):
            env.step(0)
        replay.info()
        first, second = replay.episodes()
    assert (len(first.steps["reward"]), first.terminated, first.truncated) == (1, False, False)
    assert (len(second.steps["reward"]), second.terminated, second.truncated) == (3, False, True)
    assert second.final["obs"]["at"].tolist() == [103, 103]


def test_extras_of_the_policy_are_sent():
    """What the policy says beside its actions is in each step."""
    example = {**example_of(Counting(), transition=True), "log_prob": np.zeros((), np.float32)}
    with Server(example, 4) as server, ShmClient(server.handle) as client:
        run_vector(
            client,
            [Counting] * 2,
            lambda obs: (np.zeros(2, int), {"log_prob": obs["at"][:, 0] / 2}),
            steps=2,
            extras=True,
        )
        batch = server.sample(timeout=10).batch
    assert (batch["log_prob"] * 2 == batch["obs"]["at"][:, 0]).all()


def test_examples_have_what_the_spaces_have():
    """Each space of a fixed shape gives an array that a value of it fits into; a vector gives the step of one."""
    box, binary = spaces.Box(0, 255, (2, 3), np.uint8), spaces.MultiBinary(4)
    env = gymnasium.Env()
    env.observation_space = spaces.Dict({"image": box, "more": spaces.Tuple([binary, spaces.Discrete(3)])})
    env.action_space = spaces.MultiDiscrete([2, 5])
    example = example_of(env)
    assert set(example) == {"obs", "action", "reward"}
    assert (example["obs"]["image"].dtype, example["obs"]["image"].shape) == (np.uint8, (2, 3))
    assert [one.dtype for one in example["obs"]["more"]] == [np.int8, np.int64]
    assert (example["action"].dtype, example["action"].shape) == (np.int64, (2,))
    assert example["reward"].dtype == np.float32
    vector = SyncVectorEnv([Counting] * 3)
    assert example_of(vector)["obs"]["at"].shape == (2,)
    assert set(example_of(vector, transition=True)) == {*example, "next_obs", "terminated", "truncated"}


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)]
)
def test_spaces_without_a_fixed_shape_are_refused(space):
    """The message names the space and says what to do."""
    env = gymnasium.Env()
    env.observation_space, env.action_space = spaces.Dict({"it": space}), spaces.Discrete(2)
    with pytest.raises(TypeError, match=r"observation_space\['it'\] is .*no fixed shape; expected Box.*wrap the env"):
        example_of(env)


def test_bad_arguments_are_refused():
    """Each message says what was expected."""
    with Server(example_of(Counting(), transition=True), 10) as server:
        with pytest.raises(TypeError, match="got Server; ShmClient"):
            run_vector(server, [Counting], policy)
        with pytest.raises(TypeError, match="got Server; ShmClient"):
            RecordToRing(Counting(), server)
    with pytest.raises(TypeError, match=r"expected a gymnasium\.Env or a VectorEnv, got str"):
        example_of("CartPole-v1")
    with (
        Server(example_of(Counting()), 4) as server,
        ShmClient(server.handle) as client,
        pytest.raises(ValueError, match="autoreset='never': use 'next_step', 'same_step', 'disabled'"),
    ):
        run_vector(client, [Counting], policy, autoreset="never")


def test_a_missing_package_is_named():
    """One line says which extra to install."""
    script = "import sys\nsys.modules['gymnasium'] = None\nimport echo_shm.adapters.gymnasium"
    done = run_python(script, status=1)
    assert done.stderr.splitlines()[-1].endswith(
        "echo_shm.adapters.gymnasium needs Gymnasium: pip install 'echo-shm[gymnasium]'"
    )


def play(writer: Any) -> None:
    """Plays the lake at random."""
    rng = np.random.default_rng(0)
    run_vector(
        writer,
        [lambda: gymnasium.make("FrozenLake-v1", is_slippery=False)] * 8,
        lambda obs: rng.integers(0, 4, len(obs)),
        steps=2500,
        autoreset="same_step",
        seed=0,
    )
    writer.flush()


def test_a_lake_is_crossed():
    """Q-learning over a replay of random play finds the way over the frozen lake."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    with Replay(example_of(env), 40_000, [table()], seed=0) as replay, replay.spawn(play, 1) as workers:
        workers.join()
        values = np.zeros((16, 4))
        for _ in range(300):
            batch = replay.sample(256).data
            target = batch["reward"] + batch["discount"] * values[batch["next"]["obs"]].max(1)
            values[batch["obs"], batch["action"]] = target  # nothing is random in this lake
    at, over, reward = env.reset()[0], False, 0.0
    while not over:
        at, reward, terminated, truncated, _ = env.step(int(values[at].argmax()))
        over = terminated or truncated
    assert reward == 1.0
