"""What is evaluated: tasks, agents, backbones, seeds, and for how long."""

from collections.abc import Iterable
from dataclasses import dataclass

from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, ReplayConfig
from echo_shm.planning.reading import Readable
from echo_shm.replay.validation import above_zero, integer


def names(label: str, value: object) -> tuple[str, ...]:
    """A list of names, or a text with commas between them.

    Raises:
        TypeError: It is something else.
        ValueError: There is no name, or one is there twice.

    """
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, Iterable) or not all(isinstance(one, str) for one in given):
        raise TypeError(f"{label}={value!r:.80}: use a list of names")
    found = tuple(one.strip() for one in given if one.strip())
    if not found:
        raise ValueError(f"{label}={value!r:.80}: use one name or more")
    twice = sorted({one for one in found if found.count(one) > 1})
    if twice:
        raise ValueError(f"{label}={value!r:.80}: {twice[0]!r} is there twice")
    return found


@dataclass(frozen=True)
class EvaluationConfig(Readable):
    """Agents x tasks x seeds. Lists may be given as one text with commas. Each run is a file in ``output``."""

    #: The directory of all results. An evaluation that is there already goes on, if it has the same settings.
    output: str = "evaluation"
    #: Names as of python -m echo_shm.planning.evaluate --list; likewise the agents.
    tasks: tuple[str, ...] = ("minigrid-doorkey-5x5",)
    agents: tuple[str, ...] = ("random", "ppo", "ppo_uniform", "plan", "plan_uniform", "echo_rl")
    #: Of react and tot: own, hf:NAME_OR_PATH, openai:MODEL@URL, anthropic:MODEL, gemini:MODEL.
    backbones: tuple[str, ...] = ("own",)
    #: How many seeds, and the first one.
    seeds: int = 10
    first_seed: int = 0
    #: Of a learning agent: most steps of its environments.
    steps: int = 100_000
    #: Of a learning agent: steps between two evaluations. None: the task's.
    evaluation_frequency: int | None = None
    #: Of a learning agent: the success rate at which it stops.
    threshold: float = 0.9
    #: Episodes of each evaluation, of the last one, and of agents that do not learn.
    episodes: int = 32
    #: Of text tasks: steps after which an episode is truncated. None: the task's own.
    max_steps: int | None = None
    #: Updates on demonstrations with which the backbone own is made.
    imitation_updates: int = 400
    #: Runs at the same time, each in a process of its own. With 1 they are made in this process.
    jobs: int = 1
    #: Of learning agents, shared by all of them. None: the task's.
    planning: PlanningConfig | None = None
    ppo: PPOConfig | None = None
    replay: ReplayConfig | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.output, str) or not self.output:
            raise ValueError(f"output={self.output!r}: use the name of a directory")
        for name in ("tasks", "agents", "backbones"):
            object.__setattr__(self, name, names(name, getattr(self, name)))
        for name in ("seeds", "steps", "episodes", "imitation_updates", "jobs"):
            integer(name, getattr(self, name), 1)
        integer("first_seed", self.first_seed, 0)
        for name in ("max_steps", "evaluation_frequency"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), 1)
        if above_zero("threshold", self.threshold) > 1:
            raise ValueError(f"threshold={self.threshold!r}: use a success rate, above 0 and at most 1")
        for name, kind in (("planning", PlanningConfig), ("ppo", PPOConfig), ("replay", ReplayConfig)):
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                raise TypeError(f"{name}={given!r:.80}: use a {kind.__name__}")
