"""EchoRL's benchmark is an evaluation of ours by other names."""

import pytest
from harness.packages import need

need("torch", "gymnasium")

from echo_shm.planning import PPOConfig  # noqa: E402
from echo_shm.planning.evaluation import making  # noqa: E402
from echo_shm.planning.evaluation.benchmark import BenchmarkConfig  # noqa: E402
from echo_shm.planning.evaluation.configs import EvaluationConfig  # noqa: E402
from echo_shm.planning.evaluation.measures import Measures  # noqa: E402
from echo_shm.planning.examples import benchmark_echo_rl  # noqa: E402

from ..echo_rl_snippets import ran  # noqa: E402


def test_names_are_translated():
    """EchoRL's into ours; ours stay."""
    config = BenchmarkConfig(
        tasks=["alfworld", "webshop", "cruxeval", "arc", "minigrid", "cartpole"],
        backbones=["gpt-4o", "claude-3.5-sonnet", "gemini-1.5-pro", "hf:a/b", "own"],
        baselines=["react", "tot", "ppo-rlhf", "ppo", "impala"],
        num_seeds=3,
        num_episodes=7,
        echo_rl_configs={"total_timesteps": 900, "num_actors": 64, "ppo_config": PPOConfig(gamma=0.9)},
        output_dir="somewhere",
    )
    assert config.evaluation() == EvaluationConfig(
        output="somewhere",
        tasks=("textworld", "shop", "code", "arc", "minigrid-doorkey-8x8", "cartpole"),
        agents=("echo_rl", "react", "tot", "ppo", "impala"),
        backbones=("openai:gpt-4o", "anthropic:claude-3.5-sonnet", "gemini:gemini-1.5-pro", "hf:a/b", "own"),
        seeds=3,
        episodes=7,
        steps=900,
        ppo=PPOConfig(gamma=0.9),
    )
    read = BenchmarkConfig(tasks="cartpole, arc", echo_rl_configs={"ppo_config": {"gamma": 0.9}}).evaluation()
    assert (read.tasks, read.ppo) == (("cartpole", "arc"), PPOConfig(gamma=0.9))
    with pytest.raises(ValueError, match="echo_rl_configs has 'timesteps': use some of total_timesteps"):
        BenchmarkConfig(echo_rl_configs={"timesteps": 3}).evaluation()
    with pytest.raises(
        ValueError, match="baseline 'rlaif' is unknown: use react, tot, ppo-rlhf, impala, or one of ours: r"
    ):
        BenchmarkConfig(baselines=["rlaif"]).evaluation()
    with pytest.raises(ValueError, match=r"'llama-3' is unknown: use own, hf:.*; or EchoRL's gpt-\.\.\., claude"):
        BenchmarkConfig(backbones=["llama-3"]).evaluation()


async def measured(config, directory, run):
    """Figures that say which run they are of, in the place of a run."""
    figures = {"success_rate": 0.25 + run.seed / 2, "avg_reward": 3.0, "episodes": 2, "steps": 9, "seconds": 1.5}
    if run.agent == "react":
        figures |= {"etps": 40.0 + run.seed, "kv_reuse": 0.5, "bandwidth_per_success": 800.0 * (1 + run.seed)}
        figures["success_rate"] = 0.75 if run.backbone == "own" else 0.5
    if run.agent == "echo_rl":
        figures["passes_per_success"] = 70.0 if run.seed else None
    return Measures(**figures)


def test_a_benchmark_is_an_evaluation(tmp_path, capsys, monkeypatch):
    """Its figures are those of the runs. The demo prints them, without making the runs again."""
    monkeypatch.setattr(making, "_measures", measured)
    found = ran(f"""
from echo_rl.evaluation.benchmark import BenchmarkConfig, EchoRLBenchmark

config = BenchmarkConfig(
    tasks=["alfworld"], backbones=["own", "hf:tiny"], baselines=["react", "random"], num_seeds=2,
    num_episodes=2, echo_rl_configs={{"total_timesteps": 100, "num_actors": 2}}, output_dir={str(tmp_path / "runs")!r},
)

async def main():
    return await EchoRLBenchmark(config).run_benchmark()
""")
    result = found["result"]
    assert result.success_rates == {
        "textworld": {"echo_rl": 0.5, "react, own": 0.75, "react, hf:tiny": 0.5, "random": 0.5}
    }
    assert result.tokens_per_second["textworld"] == {"react, own": 40.5, "react, hf:tiny": 40.5}
    assert result.cost_efficiency["textworld"] == {"echo_rl": 70.0, "react, own": 1200.0, "react, hf:tiny": 1200.0}
    assert len(result.task_results) == len(result.results.runs) == 8
    react = next(one for one in result.task_results if one.method == "react" and one.seed == 1)
    assert (react.task_name, react.backbone, react.kv_cache_hit_rate) == ("textworld", "own", 0.5)
    assert (react.tokens_per_second, react.wall_clock_time, react.avg_reward) == (41.0, 1.5, 3.0)

    path = tmp_path / "drawn.png"
    words = ["--tasks", "alfworld", "--baselines", "react", "--num-seeds", "2", "--num-episodes", "2"]
    output = str(tmp_path / "more")
    assert benchmark_echo_rl.main([*words, "--jobs", "1", "--output-dir", output, "--plot", str(path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert path.read_bytes().startswith(b"\x89PNG")
    lines = [line.split() for line in printed if line.startswith("textworld ")]
    assert [line[1:] for line in lines] == [
        ["echo_rl", "0.500", "3.000", "-", "70"],
        ["react", "0.750", "3.000", "40.5", "1,200"],
    ]
    assert benchmark_echo_rl.main(["--tasks", "nothing", "--output-dir", output]) == 2
    assert "task 'nothing' is unknown" in capsys.readouterr().err
