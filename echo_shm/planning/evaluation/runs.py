"""The runs of an evaluation."""

import re
import zlib
from dataclasses import dataclass
from typing import Any

from echo_shm.planning.evaluation import agents, models, tasks
from echo_shm.planning.evaluation.configs import EvaluationConfig


@dataclass(frozen=True)
class Run:
    """One agent on one task with one seed."""

    task: str
    agent: str
    #: Of an agent that prompts; None for others.
    backbone: str | None
    seed: int

    @property
    def name(self) -> str:
        """A name for files, which no other run of the evaluation has."""
        agent = self.agent
        if self.backbone is not None:
            plain = re.sub(r"[^\w.-]+", "_", self.backbone)
            # Two specifications may look alike when written plainly.
            agent += f"-{plain}" + ("" if plain == self.backbone else f"-{zlib.crc32(self.backbone.encode()):08x}")
        return f"{self.task}--{agent}--{self.seed}"

    def as_dict(self) -> dict[str, Any]:
        """Its fields by name."""
        return {"task": self.task, "agent": self.agent, "backbone": self.backbone, "seed": self.seed}


@dataclass(frozen=True)
class LeftOut:
    """A pair that does not fit together."""

    task: str
    agent: str
    why: str


def plan(config: EvaluationConfig) -> tuple[list[Run], list[LeftOut]]:
    """All runs, seed by seed, so that what is there after an interruption can be compared; and what is left out.

    Raises:
        ValueError: A name is unknown, or nothing is left.

    """
    chosen = [agents.find(name) for name in config.agents]
    for backbone in config.backbones:
        models.check(backbone)
    found: list[tuple[str, str, str | None]] = []
    left_out: list[LeftOut] = []
    for name in config.tasks:
        task = tasks.find(name, config.max_steps)
        for agent in chosen:
            if why := agents.misfit(agent, task):
                left_out.append(LeftOut(name, agent.name, why))
                continue
            if agent.kind != "prompting":
                found.append((name, agent.name, None))
                continue
            for backbone in config.backbones:
                if why := models.misfit(backbone, task):
                    left_out.append(LeftOut(name, f"{agent.name}, {backbone}", why))
                else:
                    found.append((name, agent.name, backbone))
    if not found:
        why = "; ".join(f"{one.agent} on {one.task}: {one.why}" for one in left_out)
        raise ValueError(f"no agent fits a task: {why}")
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    return [Run(*one, seed) for seed in seeds for one in found], left_out
