"""The loss against one that is written out, what an update does, and checkpoints of a learner."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.packages import need
from hypothesis import given, settings
from hypothesis import strategies as st

need("torch", "gymnasium")

import torch  # noqa: E402

from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, ReplayConfig, TrainingConfig  # noqa: E402
from echo_shm.planning.agents.planner import LatentPlanner  # noqa: E402
from echo_shm.planning.agents.ppo import PPO  # noqa: E402
from echo_shm.planning.agents.segments import Segments  # noqa: E402
from echo_shm.planning.training import checkpoints  # noqa: E402
from echo_shm.planning.training.experience import Replayed  # noqa: E402
from echo_shm.planning.training.settings import Settings  # noqa: E402

N, ROWS, DIM, ACTIONS, K = 3, 6, 2, 3, 2
PLANNING = PlanningConfig(embedding_dim=4, state_window_size=K, hidden_dim=8, heads=2, sigma=0.5)


def learner(config: PPOConfig | None = None, planning: PlanningConfig = PLANNING, seed: int = 0) -> PPO:
    """A small agent whose policy is not uniform."""
    torch.manual_seed(seed)
    planner = LatentPlanner(DIM, ACTIONS, planning)
    planner.policy.policy[-1].weight.data *= 50.0
    return PPO(planner, config or PPOConfig(), seed=seed)


def random_segments(seed: int) -> Segments:
    """Rows with episodes that end anywhere, of a policy that is another one."""
    rng = np.random.default_rng(seed)
    first = rng.random((N, ROWS)) < 0.3
    ends = np.roll(first, -1, axis=1)  # the row before an episode's first is what the one before has ended with
    ends[:, -1] = False
    acted = ~ends
    rows = {
        "obs": rng.standard_normal((N, ROWS, DIM), np.float32),
        "action": np.where(acted, rng.integers(0, ACTIONS, (N, ROWS)), 0),
        "log_prob": np.where(acted, -rng.random((N, ROWS)) * 2 - 0.2, 0).astype(np.float32),
        "reward": rng.standard_normal((N, ROWS), np.float32),
        "terminated": np.roll(ends, -1, axis=1) & acted & (rng.random((N, ROWS)) < 0.5),
        "update": rng.integers(0, 5, (N, ROWS)),
        "acted": acted,
        "first": first,
    }
    rows["terminated"][:, -1] = False
    return Segments.of(rows, K)


def slow_loss(ppo: PPO, segments: Segments, weights: np.ndarray) -> dict[str, float]:
    """The loss of :class:`PPO`, step by step, of what the networks say."""
    c, planner = ppo.config, ppo.planner
    with torch.no_grad():
        logits, values, plans = (one.double().numpy() for one in planner.evaluate(segments))
    estimates = ppo.estimate(segments)
    learned = [(i, t) for i in range(N) for t in range(ROWS) if segments.learned[i, t]]
    advantage = estimates.advantage.double().numpy()
    mine = np.array([advantage[at] for at in learned])
    said = dict.fromkeys(("policy_loss", "value_loss", "entropy", "kl"), 0.0)
    jumps = []
    for i, t in learned:
        log_probs = logits[i, t] - np.log(np.exp(logits[i, t]).sum())
        log_ratio = log_probs[int(segments.action[i, t])] - float(segments.log_prob[i, t])
        ratio, gain = np.exp(log_ratio), (advantage[i, t] - mine.mean()) / (mine.std() + 1e-8)
        w = weights[i] / len(learned)
        clipped = min(max(ratio, 1 - c.clip_epsilon), 1 + c.clip_epsilon)
        said["policy_loss"] -= w * min(ratio * gain, clipped * gain)
        said["value_loss"] += w * 0.5 * (values[i, t] - float(estimates.target[i, t])) ** 2
        said["entropy"] -= w * (np.exp(log_probs) * log_probs).sum()
        said["kl"] += w * (ratio - 1 - log_ratio)
        if t and segments.episode[i, t] == segments.episode[i, t - 1]:
            jumps.append(((plans[i, t] - plans[i, t - 1]) ** 2).sum() / (2 * planner.config.sigma**2))
    said["temporal_kl"] = float(np.mean(jumps)) if jumps else 0.0
    said["loss"] = said["policy_loss"] + c.value_loss_coef * said["value_loss"] - c.entropy_coef * said["entropy"]
    said["loss"] += c.kl_coef * said["kl"] + planner.config.kl_weight * said["temporal_kl"]
    return said


@given(st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_the_loss_is_that_of_the_definition(seed: int):
    """All terms, of steps of another policy, with importance weights."""
    segments, ppo = random_segments(seed), learner(PPOConfig(kl_coef=0.3, entropy_coef=0.2), seed=seed % 7)
    weights = np.random.default_rng(seed).random(N)
    if not segments.learned.any():
        assert ppo.update(segments, weights)[0] == {}
        return
    expected = slow_loss(ppo, segments, weights)
    said, _ = ppo.update(segments, weights, batch_size=1_000, epochs=1)
    for name, value in expected.items():
        assert said[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_an_update_makes_good_actions_likelier():
    """And of a step whose probability has changed enough, the clip leaves no gain."""
    ppo = learner(PPOConfig(learning_rate=0.01, kl_coef=0.0, entropy_coef=0.0, epochs=30))
    segments = random_segments(1)
    with torch.no_grad():
        before = ppo.planner.evaluate(segments).logits.log_softmax(-1)
    log_prob = before.gather(-1, segments.action[..., None])[..., 0]
    segments = dataclasses.replace(segments, log_prob=log_prob)
    _, estimates = ppo.update(segments)
    after = ppo.planner.evaluate(segments).logits.log_softmax(-1).gather(-1, segments.action[..., None])[..., 0]
    change = (after - log_prob).exp()[segments.learned].detach()
    gain = estimates.advantage[segments.learned]
    gain = gain - gain.mean()
    strong = gain.abs() > gain.std() / 2
    assert ((change > 1) == (gain > 0))[strong].all()
    assert change[strong & (gain > 0)].max() < 2.5


def test_what_is_too_old_is_left_out():
    """Steps of a policy that is more than ``max_age`` updates old teach nothing."""
    segments = random_segments(2)
    ppo = learner(PPOConfig(max_age=3))
    ppo.updates = 6
    left_out = dataclasses.replace(segments, learned=segments.learned & (segments.update >= 3))
    assert left_out.learned.sum() < segments.learned.sum()
    other = learner()
    other.updates = 6
    assert ppo.update(segments)[0] == other.update(left_out)[0]


def test_the_same_seed_gives_the_same_losses():
    """Of several epochs of minibatches."""
    runs = [[one.update(random_segments(i), batch_size=4)[0] for i in range(3)] for one in (learner(), learner())]
    assert runs[0] == runs[1]
    assert runs[0] != [learner(seed=1).update(random_segments(i), batch_size=4)[0] for i in range(3)]


def test_a_loss_that_is_not_finite_is_an_error():
    """The networks stay as they are."""
    ppo, segments = learner(), random_segments(3)
    segments.reward[segments.learned] = float("nan")
    before = {name: tensor.clone() for name, tensor in ppo.planner.state_dict().items()}
    with pytest.raises(FloatingPointError, match="update 1: the loss is nan"):
        ppo.update(segments)
    assert all(torch.equal(before[name], tensor) for name, tensor in ppo.planner.state_dict().items())


# --- checkpoints ------------------------------------------------------------------


def replayed(sampling: Any, restored: Path | None = None) -> Replayed:
    """A learner's experience without actors; with some steps in it, unless it is restored."""
    config = TrainingConfig(
        env_name="CartPole-v1",
        num_actors=2,
        batch_size=8,
        rollout_length=4,
        planning=PLANNING,
        replay=ReplayConfig(hot_buffer_size=40, cold_buffer_size=80, age_threshold=3, sampling=sampling),
    )
    made = Replayed(Settings(config, DIM, ACTIONS, None, 1, 2), config.replay, restored)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for t in range(0 if restored else 60):
        row = {
            "obs": rng.standard_normal((2, DIM), np.float32),
            "action": rng.integers(0, ACTIONS, 2),
            "log_prob": np.full(2, -1.1, np.float32),
            "reward": rng.standard_normal(2, np.float32),
            "terminated": np.zeros(2, bool),
            "update": np.zeros(2, np.int64),
            "acted": np.full(2, t % 10 != 9),
            "first": np.full(2, t % 10 == 0),
        }
        if sampling == "surprise":
            row["plan"] = rng.standard_normal((2, 4), np.float32)
        made.replay.add_vector(row, ~row["acted"], np.zeros(2, bool), "disabled")
    return made


@pytest.mark.parametrize("sampling", ["surprise", "uniform"])
def test_a_learner_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path, sampling: str):
    """Networks, optimizer, shared plan, order of learning and draws of the replay: the same losses, to the last bit."""
    experience, ppo = replayed(sampling), learner()
    for _ in range(5):
        experience.learn(ppo)
    name = experience.checkpoint(tmp_path)
    assert name is not None
    checkpoints.save(tmp_path, {"ppo": ppo.state()})
    expected = [experience.learn(ppo) for _ in range(5)]
    assert all(expected)
    shared = experience.shared(ppo).plan
    experience.close()

    path = checkpoints.newest(tmp_path)
    assert path is not None
    again, other = replayed(sampling, tmp_path / "replay" / name), learner(seed=5)
    other.load_state(checkpoints.load(path)["ppo"])
    assert [again.learn(other) for _ in range(5)] == expected
    assert other.updates == ppo.updates == 10
    assert shared is not None
    np.testing.assert_array_equal(again.shared(other).plan, shared)
    again.close()


def names_of(directory: Path) -> list[str]:
    """The replay's checkpoints there."""
    return sorted(path.name for path in (directory / "replay").iterdir())


def test_a_replay_that_a_file_names_stays(tmp_path: Path):
    """Also if run after run ends between its two writes. What no file names is removed by the next one that writes."""
    with contextlib.closing(replayed("uniform")) as experience:

        def save() -> None:
            checkpoints.save(tmp_path, {"replay": experience.checkpoint(tmp_path)})

        save()
        (first,) = names_of(tmp_path)
        for _ in range(3):
            experience.checkpoint(tmp_path)  # and then it is killed
            assert names_of(tmp_path)[0] == first
            assert len(names_of(tmp_path)) == 2
        for _ in range(3):
            save()
        files = sorted(tmp_path.glob("run-*.pt"))
        named = [checkpoints.load(path)["replay"] for path in files]
        assert len(named) == 2
        assert names_of(tmp_path) == named
        new = experience.checkpoint(tmp_path)
        assert names_of(tmp_path) == [*named, new], "what both files name is there until the next one is"

        files[0].write_bytes(b"damaged")
        experience.checkpoint(tmp_path)
        assert set(names_of(tmp_path)) > set(named), "nobody knows what the damaged file has named"
        checkpoints.save(tmp_path, {"replay": None})
        assert set(names_of(tmp_path)) > set(named), "a run without a replay leaves a directory of that name alone"


def test_the_newest_two_checkpoints_stay(tmp_path: Path):
    """A file without its name is none; a damaged one says so."""
    for number in range(4):
        checkpoints.save(tmp_path, {"number": number})
    (tmp_path / "run-000009.unfinished").write_bytes(b"half")
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["run-000003.pt", "run-000004.pt"]
    path = checkpoints.newest(tmp_path)
    assert path is not None
    assert checkpoints.load(path) == {"number": 3}
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"run-000004\.pt is no checkpoint of a run, or it is damaged"):
        checkpoints.load(path)
