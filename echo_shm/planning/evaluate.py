"""``python -m echo_shm.planning.evaluate --output results/ --tasks cartpole``: agents x tasks x seeds.

``--suite quick`` is a small one, to see that all works; ``--suite readme`` and ``--suite rollouts`` are those of the
README. Other arguments replace what is in the suite. ``--list`` shows tasks, agents and suites; ``--table`` prints the
table of what has ended, and makes no run. ``--help`` lists the rest.
"""

import asyncio
import contextlib
import importlib
import sys
from pathlib import Path

from echo_shm.errors import EchoShmError, WorkerError
from echo_shm.planning.evaluation.agents import AGENTS
from echo_shm.planning.evaluation.configs import EvaluationConfig
from echo_shm.planning.evaluation.evaluation import Evaluation
from echo_shm.planning.evaluation.making import line_of
from echo_shm.planning.evaluation.tasks import KNOWN

#: Arguments of the ready suites. What is needed beside them is ``--output``.
SUITES = {
    "quick": [
        *("--tasks", "cartpole,textworld-2x2", "--agents", "random,react,tot,ppo,impala,echo_rl"),
        *("--seeds", "1", "--steps", "500", "--evaluation-frequency", "500", "--episodes", "4"),
        *("--max-steps", "5", "--imitation-updates", "20", "--jobs", "2"),
    ],
    "readme": [
        *("--tasks", "minigrid-doorkey-5x5,textworld-2x2"),
        *("--agents", "random,react,impala,ppo,ppo_uniform,plan,plan_uniform,echo_rl"),
        *("--seeds", "10", "--steps", "30000", "--jobs", "2"),
    ],
    "rollouts": ["--tasks", "textworld-2x2", "--agents", "react,react_anew", "--seeds", "10"],
}

_PROGRAM = "echo_shm.planning.evaluate"

#: What is no field of the configuration.
_OPTIONS = {
    "--list": "print tasks, agents and suites, and make no run",
    "--suite SUITE": "arguments that are ready: quick, readme or rollouts; others replace them",
    "--table": "print the table of what has ended, and make no run",
    "--no-plots": "draw nothing",
}


def main(argv: list[str] | None = None) -> int:
    """Runs an evaluation. Returns the exit status: 2 if it cannot begin, 1 if a run failed, 130 after Ctrl-C."""
    given = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & {*given}:
        with contextlib.suppress(SystemExit):
            EvaluationConfig.from_args(["--help"], prog=_PROGRAM, also=_OPTIONS)
        return 0
    if given == ["--list"]:
        print(_list())
        return 0
    with_plots = "--no-plots" not in given
    only_table = "--table" in given
    given = [one for one in given if one not in ("--no-plots", "--table")]
    try:
        if "--list" in given:
            raise ValueError("--list takes no other arguments: leave them out")
        config = EvaluationConfig.from_args(_with_suite(given), prog=_PROGRAM, also=_OPTIONS)
        evaluation = Evaluation(config, lambda line: print(line, file=sys.stderr, flush=True))
        if only_table:
            print(evaluation.table(), end="")
            return 0
        if with_plots:
            _look_for_matplotlib()
    except (ValueError, ModuleNotFoundError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        results = asyncio.run(evaluation.run())
        if with_plots:
            evaluation.draw(results)
    except (ValueError, ModuleNotFoundError) as error:
        print(line_of(error), file=sys.stderr)
        return 2
    except WorkerError as error:
        print(f"{error}\nstart it again with the same arguments to go on", file=sys.stderr)
        return 1
    except (EchoShmError, OSError) as error:
        print(line_of(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: start it again with the same arguments to go on", file=sys.stderr)
        return 130
    print(Path(config.output, "table.md").read_text(encoding="utf-8"), end="")
    return 0


def _look_for_matplotlib() -> None:
    """Plots come last. Whether they can be drawn is known before the runs."""
    try:
        importlib.import_module("echo_shm.planning.evaluation.plots")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}, or use --no-plots", name=error.name) from None


def _with_suite(given: list[str]) -> list[str]:
    """The arguments, behind those of the suite that they name."""
    for i, one in enumerate(given):
        name = one.removeprefix("--suite=") if one.startswith("--suite=") else None
        rest = given[:i] + given[i + 1 :]
        if one == "--suite":
            name = given[i + 1] if i + 1 < len(given) else ""
            rest = given[:i] + given[i + 2 :]
        if name is not None:
            if name not in SUITES:
                raise ValueError(f"suite {name!r} is unknown: use one of {', '.join(SUITES)}")
            return [*SUITES[name], *rest]
    return given


def _list() -> str:
    said = ["tasks"] + [f"  {name:18}{what}" for name, what in KNOWN.items()]
    said += ["agents"] + [f"  {agent.name:18}{agent.said}" for agent in AGENTS.values()]
    said += ["suites"] + [f"  {name:18}{' '.join(words)}" for name, words in SUITES.items()]
    return "\n".join(said)


if __name__ == "__main__":
    sys.exit(main())
