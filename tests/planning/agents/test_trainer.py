"""Training with actors in processes of their own: kills, Ctrl-C, checkpoints, and what cannot be trained."""

import asyncio
import contextlib
import io
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.packages import need
from harness.threads import Background
from harness.waiting import until

need("torch", "gymnasium")

import torch  # noqa: E402

from echo_shm.planning.agents.configs import (  # noqa: E402
    PlanningConfig,
    PPOConfig,
    ReplayConfig,
    TextConfig,
    TrainingConfig,
)
from echo_shm.planning.training import checkpoints  # noqa: E402
from echo_shm.planning.training.__main__ import main  # noqa: E402
from echo_shm.planning.training.experience import Replayed, Weights, open_experience  # noqa: E402
from echo_shm.planning.training.metrics import TrainingMetrics  # noqa: E402
from echo_shm.planning.training.progress import Progress  # noqa: E402
from echo_shm.planning.training.settings import Settings  # noqa: E402
from echo_shm.planning.training.trainer import EchoRLTrainer  # noqa: E402

# An interpreter that imports PyTorch takes seconds, and several do so here.
pytestmark = pytest.mark.watchdog(180)

TINY = TrainingConfig(
    env_name="CartPole-v1",
    total_timesteps=400,
    num_actors=2,
    num_workers=1,
    num_learners=1,
    rollout_length=8,
    batch_size=32,
    evaluation_episodes=2,
    progress=False,
    planning=PlanningConfig(embedding_dim=4, state_window_size=3, hidden_dim=8, heads=2),
    ppo=PPOConfig(epochs=1),
)


async def see(condition: Callable[[], Any], training: "asyncio.Task[Any]") -> None:
    """Waits until the condition holds, while the training goes on."""
    while not condition():
        assert not training.done(), training.result()
        await asyncio.sleep(0)


async def kill_a_worker(trainer: EchoRLTrainer) -> TrainingMetrics:
    """Trains to the end, and kills a worker meanwhile."""
    training = asyncio.create_task(trainer.train())
    await see(lambda: trainer.metrics.updates >= 2, training)
    assert trainer.workers is not None
    (pid,) = trainer.workers.pids
    os.kill(pid, signal.SIGKILL)
    return await training


def test_a_killed_actor_starts_again():
    """Training goes on to its end with the new one, as if nothing had happened."""
    # Far more than the ring holds: the killed worker alone could not have played that.
    trainer = EchoRLTrainer(replace(TINY, total_timesteps=600))
    metrics = asyncio.run(kill_a_worker(trainer))
    assert metrics.worker_restarts == 1
    assert metrics.timesteps >= 600
    assert metrics.updates > 600 / (8 * 2)  # one for each rollout
    assert metrics.evaluation_results["episodes"] == 2.0
    assert 0.0 <= metrics.evaluation_results["success_rate"] <= 1.0
    assert metrics.evaluation_results["avg_reward"] >= 8.0  # no episode of CartPole is shorter
    assert metrics.history == [{"timesteps": float(metrics.timesteps), **metrics.evaluation_results}]
    assert trainer.workers is not None
    assert trainer.workers.finished


async def cancel(trainer: EchoRLTrainer, updates: int) -> None:
    """Cancels a training after some updates."""
    training = asyncio.create_task(trainer.train())
    await see(lambda: trainer.metrics.updates >= updates, training)
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training


def test_a_cancelled_run_goes_on_from_its_checkpoint(tmp_path: Path):
    """With what was learned and what was stored. From a replay it learns as often as it was told to, all in all."""
    replay = ReplayConfig(hot_buffer_size=200, cold_buffer_size=400, age_threshold=4)
    # A text world, so that a policy of texts goes to processes, files and back, too.
    text = replace(TINY, env_name="TextWorld", env_kwargs={"max_steps": 10}, text=TextConfig(max_tokens=48))
    config = replace(text, learning_starts=100, train_frequency=20, replay=replay, checkpoint=str(tmp_path))
    trainer = EchoRLTrainer(replace(config, total_timesteps=10**9))
    asyncio.run(cancel(trainer, 5))
    before = trainer.metrics

    with pytest.raises(ValueError, match="has checkpoints of a run: use resume=True to go on with it, or another"):
        EchoRLTrainer(config)
    with pytest.raises(ValueError, match=r"run-000001\.pt is of an agent of other sizes"):
        EchoRLTrainer(replace(config, planning=PlanningConfig(embedding_dim=5)), resume=True)
    with pytest.raises(ValueError, match=r"run-000001\.pt is of a run with a replay"):
        EchoRLTrainer(replace(config, replay=None), resume=True)

    again = EchoRLTrainer(replace(config, total_timesteps=before.timesteps + 100), resume=True)
    assert again.metrics == before
    for name, tensor in trainer.planner.state_dict().items():
        assert torch.equal(again.planner.state_dict()[name], tensor), name
    metrics = asyncio.run(again.train())
    assert metrics.updates == (metrics.timesteps - 100) // 20 > before.updates
    assert set(metrics.losses) >= {"policy_loss", "temporal_kl", "kl"}
    assert before.cut_steps < metrics.cut_steps < metrics.timesteps  # some texts have more than 48 tokens


def test_ctrl_c_ends_the_command_with_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """One line and status 130, as of every command. Its workers are gone, and nothing is left in shared memory."""

    def press() -> None:
        until(lambda: checkpoints.newest(tmp_path), "there is a checkpoint", 150)
        os.kill(os.getpid(), signal.SIGINT)

    words = "--env-name CartPole-v1 --num-actors 1 --num-learners 1 --rollout-length 8 --save-frequency 8"
    pressing = Background(press)
    status = main([*words.split(), "--planning.embedding-dim", "4", "--checkpoint", str(tmp_path)])
    pressing.result()
    assert status == 130
    assert capsys.readouterr().err == "interrupted\n"


class Terminal(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_the_bar_shows_return_and_success(monkeypatch: pytest.MonkeyPatch):
    """On a terminal. Who wants no bar gets nothing."""
    need("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    metrics = TrainingMetrics(timesteps=100, avg_return=21.25)
    shown = []
    for config in (replace(TINY, progress=True), TINY):
        for metrics.evaluation_results in ({}, {"success_rate": 0.375}):
            terminal = Terminal()
            monkeypatch.setattr(sys, "stderr", terminal)
            with Progress(config) as progress:
                progress.show(metrics)
            shown.append(re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", terminal.getvalue()))
    assert all("CartPole-v1" in one and "100/400" in one for one in shown[:2])
    assert "return 21.2" in shown[0]
    assert "success" not in shown[0]
    assert "return 21.2, success 38 %" in shown[1]
    assert shown[2:] == ["", ""]


def test_what_is_learned_from_is_counted():
    """A replay has a few rows at most that the learner has not counted: otherwise it would seem to need fewer steps."""
    config = replace(TINY, rollout_length=64, replay=ReplayConfig(hot_buffer_size=5_000, cold_buffer_size=1_000))
    settings = Settings.of(config)
    experience = open_experience(settings, None)
    assert isinstance(experience, Replayed)
    planner = settings.planner()
    with contextlib.closing(experience), experience.spawn(Weights.of(planner, 0, experience.replay.ema), 0):
        news = experience.take(60.0)
        assert news is not None
        time.sleep(0.3)  # time enough to play hundreds of rows
        # In each environment: two reports in the ring, one that waits for room, one row without a report yet.
        assert news.steps <= experience.replay.num_steps <= news.steps + 2 * 4


def test_what_cannot_be_trained_is_refused_at_once():
    """Before a process is started. The message says what to use."""
    with pytest.raises(ValueError, match=r"Pendulum-v1 has the actions Box.*: use an environment with Discrete\(n\)"):
        Settings.of(replace(TINY, env_name="Pendulum-v1"))
    with pytest.raises(ValueError, match="num_workers=2: use a number that divides num_actors=3"):
        Settings.of(replace(TINY, num_actors=3, num_workers=2))
    with pytest.raises(ValueError, match="checkpoint=None has no checkpoint to resume from"):
        EchoRLTrainer(TINY, resume=True)
    with pytest.raises(ValueError, match=r"CodeReasoning has no info\['admissible_commands'\] when an episode begins"):
        Settings.of(replace(TINY, env_name="CodeReasoning"))
    with pytest.raises(
        ValueError, match=r"Shop lists no command in info\['admissible_commands'\] when an episode begins"
    ):
        Settings.of(replace(TINY, env_name="Shop"))
    with pytest.raises(TypeError, match="TextWorldConfig has no field 'room': it has max_steps, seed, task_type"):
        Settings.of(replace(TINY, env_name="TextWorld", env_kwargs={"room": 2}))
    assert Settings.of(TINY).success_return == 475.0  # what Gymnasium says of this environment


@pytest.mark.parametrize("device", ["cuda", "bogus", "meta"])
def test_a_device_that_is_not_there_is_refused(device: str, monkeypatch: pytest.MonkeyPatch):
    """Before anything is made."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device='{device}'.*: use .*'cpu'"):
        EchoRLTrainer(replace(TINY, device=device))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("CartPole-v1 --device bogus", "device='bogus' is none of PyTorch's: use 'cpu', or 'cuda' where there is one"),
        ("NoSuch-v0", "Environment `NoSuch` doesn't exist."),
        ("nowhere:NoSuch-v0", "No module named 'nowhere'"),
        ("Alfworld", "ALFWORLD_DATA is not set"),
        ("CartPole-v1 --env-kwargs.bogus 1", "unexpected keyword argument 'bogus'"),
        ("CartPole-v1 --replay --ppo.max-age 5", "ppo.max_age=5 is below replay.age_threshold=1000: "),
    ],
)
def test_the_command_says_in_a_line_what_cannot_be_trained(
    words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The status is 2, as of any command."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    try:
        status = main(["--env-name", *words.split()])
    except SystemExit as error:  # what argparse itself has refused
        status = error.code
    assert status == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("echo_shm.planning.training: error: ")
    assert said in line
