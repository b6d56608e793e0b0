"""Agents by name, and which tasks they fit."""

from dataclasses import dataclass
from typing import Literal

from echo_shm.planning.evaluation.tasks import Task


@dataclass(frozen=True)
class Agent:
    """One agent."""

    name: str
    kind: Literal["random", "prompting", "learning", "impala"]
    #: What it is.
    said: str
    #: Of one that learns: whether its policy sees a plan, and from what it learns.
    plans: bool = False
    learns_from: Literal["rollouts", "surprise", "uniform"] = "rollouts"
    #: Of one that prompts: whether rollouts share their KV caches and go by priority. If not, each context is read
    #: anew, first come, first served.
    shares: bool = True


AGENTS = {
    agent.name: agent
    for agent in (
        Agent("random", "random", "draws actions, or commands, uniformly"),
        Agent(
            "react", "prompting", "a language model that thinks, acts and observes in turns (ReAct, Yao et al. 2023)"
        ),
        Agent(
            "react_anew",
            "prompting",
            "the same, but each context is read anew, first come, first served",
            shares=False,
        ),
        Agent("tot", "prompting", "a language model that searches a tree of thoughts before it acts (Yao et al. 2023)"),
        Agent("ppo", "learning", "PPO without a plan, from rollouts"),
        Agent("ppo_uniform", "learning", "PPO without a plan, from a replay that is drawn uniformly", False, "uniform"),
        Agent("impala", "impala", "IMPALA as in echo_shm.examples"),
        Agent("plan", "learning", "PPO with a latent plan, from rollouts", True),
        Agent(
            "plan_uniform", "learning", "PPO with a latent plan, from a replay that is drawn uniformly", True, "uniform"
        ),
        Agent(
            "echo_rl", "learning", "PPO with a latent plan, from a replay that is drawn by surprise", True, "surprise"
        ),
    )
}


def find(name: str) -> Agent:
    """The agent of that name.

    Raises:
        ValueError: There is none.

    """
    if name not in AGENTS:
        raise ValueError(f"agent {name!r} is unknown: use one of {', '.join(AGENTS)}")
    return AGENTS[name]


def misfit(agent: Agent, task: Task) -> str | None:
    """Why this agent cannot play this task; None if it can."""
    if agent.kind == "prompting":
        return "the task shows numbers, and a language model reads text" if task.kind == "numbers" else None
    if agent.kind == "impala":
        return None if task.kind == "numbers" else "the task shows text, and the example's networks read numbers"
    if task.kind == "free text":
        return "actions are free text, and this agent chooses among actions that are counted"
    return None
