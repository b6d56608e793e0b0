"""Agents that learn: what each variant is trained with, and when a run goes on."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from harness.packages import need

need("torch", "gymnasium")

from echo_shm.planning.agents.configs import PlanningConfig, ReplayConfig  # noqa: E402
from echo_shm.planning.evaluation import learning, tasks  # noqa: E402
from echo_shm.planning.evaluation.agents import AGENTS  # noqa: E402
from echo_shm.planning.evaluation.configs import EvaluationConfig  # noqa: E402
from echo_shm.planning.training import checkpoints  # noqa: E402
from echo_shm.planning.training.metrics import TrainingMetrics  # noqa: E402

CONFIG = EvaluationConfig("x", steps=10_000, episodes=7, threshold=0.8)


@pytest.mark.parametrize("name", ["cartpole", "textworld-2x2"])
def test_variants_differ_in_what_they_are_alone(name, tmp_path):
    """Plan, and where experience comes from; all else is the task's, or what the evaluation says."""
    task = tasks.find(name)
    made = {
        agent.name: learning.training(CONFIG, task, agent, 3, tmp_path)
        for agent in AGENTS.values()
        if agent.kind == "learning"
    }
    assert {name: (one.planning.conditioned, one.replay and one.replay.sampling) for name, one in made.items()} == {
        "ppo": (False, None),
        "ppo_uniform": (False, "uniform"),
        "plan": (True, None),
        "plan_uniform": (True, "uniform"),
        "echo_rl": (True, "surprise"),
    }
    alike = {repr(replace(one, replay=None, planning=replace(one.planning, conditioned=True))) for one in made.values()}
    assert len(alike) == 1
    assert {one.replay and replace(one.replay, sampling="uniform") for one in made.values()} == {
        None,
        replace(task.replay, sampling="uniform"),
    }
    one = made["echo_rl"]
    assert (one.seed, one.stop_at, one.total_timesteps, one.evaluation_episodes) == (3, 0.8, 10_000, 7)
    mine = replace(
        CONFIG, planning=PlanningConfig(embedding_dim=5), replay=ReplayConfig(beta=0.0), evaluation_frequency=9
    )
    one = learning.training(mine, task, AGENTS["echo_rl"], 3, tmp_path)
    assert (one.planning.embedding_dim, one.replay.beta, one.evaluation_frequency) == (5, 0.0, 9)


@pytest.mark.parametrize("there", [None, "good", "damaged"])
def test_a_run_goes_on_from_its_checkpoint(there, tmp_path, monkeypatch):
    """From one that is damaged it begins anew. Its figures are those of the training, and of an evaluation after it."""
    if there:
        checkpoints.save(tmp_path / "at", {"replay": None})
    if there == "damaged":
        (tmp_path / "at" / "run-000001.pt").write_bytes(b"half")
    resumed = []

    class Trainer:
        def __init__(self, config, *, resume):
            resumed.append((resume, (tmp_path / "at").exists()))
            self.planner = self.settings = None

        async def train(self):
            history = [{"timesteps": 512.0, "success_rate": 0.5}, {"timesteps": 1024.0, "success_rate": 0.85}]
            return TrainingMetrics(1024, 90, 30, 4, 4096, 1.5, 2.5, history=history, cut_steps=1)

    async def evaluated(planner, settings, episodes, seed):
        return SimpleNamespace(success_rate=0.75, avg_reward=0.5, episodes=episodes)

    monkeypatch.setattr(learning, "EchoRLTrainer", Trainer)
    monkeypatch.setattr(learning, "evaluate", evaluated)
    found = asyncio.run(learning.learn(CONFIG, tasks.find("cartpole"), AGENTS["ppo"], 0, tmp_path / "at"))
    assert resumed == [(there == "good", there == "good")]
    assert (found.success_rate, found.episodes, found.steps, found.seconds) == (0.75, 7, 1024, 2.5)
    assert (found.steps_to_threshold, found.reached, found.cut_steps) == (1024, True, 1)
    assert (found.learner_passes, found.passes_per_success, found.learner_cost) == (4096, 4096 / 30, 1.5)
    assert (found.etps, found.eta, found.kv_reuse) == (None, None, None)
