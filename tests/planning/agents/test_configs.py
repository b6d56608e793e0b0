"""Configurations: their defaults, from a file, from a command line, and what is said of wrong ones."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echo_shm.planning import (
    BandwidthConfig,
    PlanningConfig,
    PPOConfig,
    ReplayConfig,
    RolloutConfig,
    TrainingConfig,
)
from echo_shm.planning.core import ExecutionConfig, bandwidth
from echo_shm.planning.evaluation.benchmark import BenchmarkConfig


def test_defaults_are_the_documented_ones():
    """Code that was written for EchoRL's configurations gets the same numbers."""
    planning, ppo, replay, run = PlanningConfig(), PPOConfig(), ReplayConfig(), TrainingConfig("CartPole-v1")
    assert (planning.embedding_dim, planning.state_window_size, planning.kl_weight, planning.learning_rate) == (
        *(512, 8, 0.1, 3e-4),
    )
    assert (ppo.learning_rate, ppo.clip_epsilon, ppo.value_loss_coef, ppo.entropy_coef) == (3e-4, 0.2, 0.5, 0.01)
    assert (ppo.kl_coef, ppo.gae_lambda, ppo.gamma) == (0.1, 0.95, 0.99)
    assert (replay.hot_buffer_size, replay.cold_buffer_size) == (1_000_000, 10_000_000)
    assert (replay.age_threshold, replay.temperature) == (1000, 1.0)
    assert (run.total_timesteps, run.learning_starts, run.train_frequency) == (1_000_000, 10_000, 4)
    assert (run.evaluation_frequency, run.save_frequency) == (10_000, 50_000)
    assert (run.num_actors, run.num_learners, run.batch_size) == (128, 2, 256)


ALL = """
env_name = "CartPole-v1"
num_actors = 4
stop_at = 1            # an integer where a float is meant
env_kwargs.gravity = 9 # whatever the environment takes

[ppo]
gamma = 0.5
max_age = 3

[replay]
sampling = "uniform"
"""


def test_a_file_and_arguments_give_the_same(tmp_path: Path):
    """Each key is a field; arguments replace what a file has."""
    path = tmp_path / "run.toml"
    path.write_text(ALL)
    read = TrainingConfig.from_toml(path)
    expected = TrainingConfig(
        "CartPole-v1",
        env_kwargs={"gravity": 9},
        num_actors=4,
        stop_at=1,
        ppo=PPOConfig(gamma=0.5, max_age=3),
        replay=ReplayConfig(sampling="uniform"),
    )
    assert read == expected
    said = "--env-name CartPole-v1 --num-actors 4 --stop-at 1 --ppo.gamma 0.5 --ppo.max-age 3 --replay.sampling uniform"
    assert TrainingConfig.from_args([*said.split(), "--env-kwargs.gravity", "9"]) == expected
    more = ["--no-progress", "--ppo.max-age", "none", "--planning.heads", "2", "--no-replay", "--replay.beta", "1"]
    changed = TrainingConfig.from_args(["--config", str(path), *more[:-2]])
    assert changed == dataclasses.replace(
        read, progress=False, ppo=PPOConfig(gamma=0.5), planning=PlanningConfig(heads=2), replay=None
    )
    changed = TrainingConfig.from_args(["--config", str(path), *more[-2:]])
    assert changed.replay == ReplayConfig(sampling="uniform", beta=1.0)
    assert TrainingConfig.from_args(["--env-name", "x", "--replay"]).replay == ReplayConfig()
    entries = ["--env-kwargs.task-type=any", "--env-kwargs.full_observations", "false"]
    changed = TrainingConfig.from_args(["--config", str(path), *entries])
    assert changed.env_kwargs == {"gravity": 9, "task_type": "any", "full_observations": False}
    changed = TrainingConfig.from_args(["--config", str(path), "--env-kwargs.gravity", "1.5"])
    assert changed.env_kwargs == {"gravity": 1.5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('env_name = "x"\n[ppo]\n\ngama = 1', "line 4: unknown key 'ppo.gama': did you mean 'gamma'?"),
        ('env_name = "x"\n[ppo]\ngamma = 1.5', "line 3: ppo.gamma=1.5: use a number from 0 to 1"),
        ('env_name = "x"\nbatch_size = 0', "line 2: batch_size=0: use an integer, 1 or more"),
        ('env_name = "x"\nbatch_size = 2.0', "line 2: batch_size=2.0: use an integer, 1 or more"),
        ("seed = 3", ": the key 'env_name' is missing"),
        ('env_name = "x"\nppo = 3', "line 2: ppo=3: use a table of learning_rate, "),
        ('env_name = "x"\nplanning.heads = 3', "line 2: planning.heads=3: use a number that divides hidden_dim=64"),
        ("a = ", " is not TOML: "),
    ],
)
def test_an_error_of_a_file_names_the_line(tmp_path: Path, text: str, said: str):
    """What was got, what to use, and where."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"run\.toml") as caught:
        TrainingConfig.from_toml(path)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "env_name is missing: use --env-name"),
        ("--env-name x --batch-size many", "argument --batch-size: invalid int value: 'many'"),
        ("--env-name x --ppo.clip-epsilon 0", "clip_epsilon=0.0: use a finite number above 0"),
        ("--env-name x --batch 3", "unrecognized arguments: --batch 3"),
        ("--config nowhere.toml", "nowhere.toml"),
        ("--env-name x --env-kwargs.size.rooms 2", "--env-kwargs.size.rooms: use --env-kwargs.NAME VALUE"),
        ("--env-name x --env-kwargs. 2", "--env-kwargs.: use --env-kwargs.NAME VALUE"),
        ("--env-name x --text.word-numbers 16777213", "word_numbers=16777213: use at most 16777212"),
    ],
)
def test_an_error_of_a_command_line_is_printed(capsys: pytest.CaptureFixture[str], arguments: str, said: str):
    """The status is 2, as of any command."""
    with pytest.raises(SystemExit) as caught:
        TrainingConfig.from_args(arguments.split(), prog="train")
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_help_says_what_each_option_is(capsys: pytest.CaptureFixture[str]):
    """The words are those above the field, in the source, without the marks that only documentation knows."""
    with pytest.raises(SystemExit):
        TrainingConfig.from_args(["--help"], also={"--suite NAME": "settings"})
    shown = " ".join(capsys.readouterr().out.split())
    assert "Most that an importance ratio counts" in shown
    assert " --suite NAME settings " in shown
    assert "Without a replay, rollouts are " in shown
    assert "`" not in shown


def test_a_part_of_another_kind_is_refused():
    """A configuration's parts are configurations."""
    with pytest.raises(TypeError, match="ppo=3: use a PPOConfig"):
        TrainingConfig("x", ppo=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="env_kwargs=3: use a mapping of names to values"):
        TrainingConfig("x", env_kwargs=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: ReplayConfig(target_effective=0.0),
            "target_effective=0.0: use a number above 0 and at most 1",
        ),
        (lambda: RolloutConfig(scheduling=3), "scheduling=3: use a BandwidthConfig"),  # type: ignore[arg-type]
        (lambda: ExecutionConfig(scheduling=3), "scheduling=3: use a BandwidthConfig"),  # type: ignore[arg-type]
        (lambda: BenchmarkConfig(num_seeds=0), "num_seeds=0: use an integer, 1 or more"),
        (lambda: BenchmarkConfig(tasks=3), "tasks=3: use a list of names"),  # type: ignore[arg-type]
        (lambda: BenchmarkConfig(echo_rl_configs=3), "echo_rl_configs=3: use a mapping"),  # type: ignore[arg-type]
        (lambda: BenchmarkConfig(output_dir=""), "output_dir='': use the name of a directory"),
        (
            lambda: TrainingConfig("x", ppo=PPOConfig(max_age=999), replay=ReplayConfig()),
            "ppo.max_age=999 is below replay.age_threshold=1000: ",
        ),
    ],
)
def test_what_fits_nothing_is_refused_at_once(make: Callable[[], object], said: str):
    """When a configuration is made, and not when it is used."""
    with pytest.raises((ValueError, TypeError), match=re.escape(said)):
        make()


def test_ages_that_fit_are_taken():
    """Steps may go as soon as they are cold. A replay that is drawn uniformly has no cold part."""
    TrainingConfig("x", ppo=PPOConfig(max_age=1000), replay=ReplayConfig())
    TrainingConfig("x", ppo=PPOConfig(max_age=5), replay=ReplayConfig(sampling="uniform"))


READ: list[tuple[Any, str, str, Any, str]] = [
    (
        RolloutConfig,
        'reuse = "none"\n[scheduling]\nmax_wait = 3\n',
        "--reuse none --scheduling.max-wait 3",
        RolloutConfig(reuse="none", scheduling=BandwidthConfig(max_wait=3)),
        "--scheduling.queue-weight QUEUE_WEIGHT Of seconds of waiting.",
    ),
    (
        ExecutionConfig,
        "max_cache_size = 7\ntimeout = 2.0\n",
        "--max-cache-size 7 --timeout 2",
        ExecutionConfig(max_cache_size=7, timeout=2.0),
        "--timeout TIMEOUT How long a rollout may run",
    ),
    (BandwidthConfig, "max_wait = 3\n", "--max-wait 3", BandwidthConfig(max_wait=3), "Of seconds of waiting."),
    (
        bandwidth.BandwidthConfig,
        "max_wait = 3\nhistory_size = 5\n",
        "--max-wait 3 --history-size 5",
        bandwidth.BandwidthConfig(max_wait=3, history_size=5),
        "Of seconds of waiting.",
    ),
    (
        BenchmarkConfig,
        'tasks = ["arc", "code"]\n[echo_rl_configs]\ntotal_timesteps = 9\n',
        "--tasks arc,code --echo-rl-configs.total-timesteps 9",
        BenchmarkConfig(tasks=("arc", "code"), echo_rl_configs={"total_timesteps": 9}),
        "What is compared with echo_rl",
    ),
]


@pytest.mark.parametrize(("kind", "text", "arguments", "expected", "helps"), READ)
def test_every_configuration_is_read(
    kind: Any, text: str, arguments: str, expected: Any, helps: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """From a file and from arguments, alike. The help has the words of the fields that a class inherits, too."""
    path = tmp_path / "settings.toml"
    path.write_text(text)
    assert kind.from_toml(path) == kind.from_args(arguments.split()) == expected
    with pytest.raises(SystemExit):
        kind.from_args(["--help"])
    assert helps in " ".join(capsys.readouterr().out.split())


def test_a_mapping_that_was_given_may_change():
    """The configuration has a copy."""
    given = {"rooms": 2}
    config = TrainingConfig("TextWorld", env_kwargs=given)
    given["rooms"] = 3
    assert config.env_kwargs == {"rooms": 2}
