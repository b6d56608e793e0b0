"""Agents that prompt a language model: ReAct, and a tree of thoughts. Both ask through a :class:`RolloutEngine`."""

import asyncio
import dataclasses
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from echo_shm.planning.backbones.protocol import BackboneError
from echo_shm.planning.costs import bandwidth_efficiency
from echo_shm.planning.evaluation.acting import Acting
from echo_shm.planning.evaluation.agents import Agent
from echo_shm.planning.evaluation.configs import EvaluationConfig
from echo_shm.planning.evaluation.measures import Measures
from echo_shm.planning.evaluation.models import Model, open_model
from echo_shm.planning.evaluation.tasks import Task
from echo_shm.planning.evaluation.tree import Search, ask_action, think
from echo_shm.planning.rollouts.config import RolloutConfig, RolloutError, RolloutResult
from echo_shm.planning.rollouts.engine import RolloutEngine
from echo_shm.planning.rollouts.scheduler import BandwidthConfig
from echo_shm.planning.rollouts.tracker import Efficiency

#: Episodes that are played at the same time.
_MOST = 16

#: How long an episode may take (seconds): servers are slow.
_TIMEOUT = 3600.0

_REACT = "Answer each observation with one line: 'Thought: what you think. Action: the action'."


@dataclass
class Episode:
    """What came of one."""

    reward: float
    success: bool
    steps: int
    #: Tokens of observations and actions; None if nobody knows.
    tokens: int | None
    #: Why the model did not answer, if it did not.
    error: RolloutError | None = None


async def prompt(
    config: EvaluationConfig, task: Task, agent: Agent, backbone: str, seed: int, folder: Path
) -> Measures:
    """Plays episodes with a language model. The time in which it is trained, or loaded, does not count.

    Args:
        config: The evaluation's.
        task: One of texts.
        agent: ``react``, ``react_anew`` or ``tot``.
        backbone: The specification of a language model.
        seed: Of environments, and of what is drawn.
        folder: Where models are kept that are trained here.

    Raises:
        RolloutError: The model did not answer in any episode.

    """
    model = await asyncio.to_thread(open_model, backbone, task, config.imitation_updates, folder)
    first = seed * 1_000_003 % 2**29
    seeds = range(first, first + config.episodes)
    play = _tree if agent.name == "tot" else functools.partial(_react, shares=agent.shares)
    began = time.monotonic()
    episodes, figures = await play(model, task, seeds, seed)
    errors = [one.error for one in episodes if one.error is not None]
    if len(errors) == len(episodes):
        raise errors[0]
    return _measures(episodes, figures, time.monotonic() - began)


async def _react(
    model: Model, task: Task, seeds: Sequence[int], seed: int, *, shares: bool
) -> tuple[list[Episode], Efficiency]:
    """ReAct (Yao et al., 2023, https://arxiv.org/abs/2210.03629): a thought and an action in each answer, greedily."""
    make = functools.partial(Acting, task.env_name, dict(task.env_kwargs))
    config = _config(model, seed, max_steps=int(task.env_kwargs.get("max_steps", 1000)))
    if not shares:
        config = dataclasses.replace(config, reuse="none", scheduling=BandwidthConfig(dispatch="first_come"))
    state = f"{task.prompt} {_REACT}\n" if model.told else ""
    slots = min(len(seeds), _MOST)
    async with RolloutEngine(
        model.backbone, make, workers=1, envs_per_worker=slots, config=config, tokenizer=model.tokenizer
    ) as engine:

        async def play(one: int) -> Episode:
            try:
                result = await engine.submit(state, seed=one)
            except RolloutError as error:
                _refuse_others(error)
                return Episode(0.0, False, 0, None, error)
            return Episode(result.reward, result.success, len(result.turns), _tokens(model, result))

        return list(await asyncio.gather(*[play(one) for one in seeds])), engine.tracker.snapshot()


def _refuse_others(error: RolloutError) -> None:
    """Raises it, unless it is about the model: an environment that fails says nothing of an agent."""
    if not isinstance(error.__cause__, BackboneError):
        raise error


def _tokens(model: Model, result: RolloutResult) -> int | None:
    """The tokens of a conversation: of a server's, those of its last context and its last answer."""
    if model.tokenizer is not None:
        return sum(len(turn.observation_tokens) + turn.answer_length for turn in result.turns)
    last = result.turns[-1]
    return last.context_length + last.answer_length if last.context_length else None


async def _tree(model: Model, task: Task, seeds: Sequence[int], seed: int) -> tuple[list[Episode], Efficiency]:
    """A search before each action. Each question is a rollout of its own; those of all episodes go together."""
    config = _config(model, seed, max_steps=1)
    room = asyncio.Semaphore(_MOST)
    async with RolloutEngine(model.backbone, config=config, tokenizer=model.tokenizer) as engine:

        async def play(one: int) -> Episode:
            async with room:
                return await _searched(engine, model, task, one)

        return list(await asyncio.gather(*[play(one) for one in seeds])), engine.tracker.snapshot()


async def _searched(engine: RolloutEngine, model: Model, task: Task, seed: int) -> Episode:
    """One episode. It ends, too, when the context is full, and when the model does not answer."""

    async def ask(text: str, temperature: float) -> str:
        return (await engine.submit(text, temperature=temperature)).text

    env = Acting(task.env_name, task.env_kwargs)
    search, reward, steps, success, over = Search(), 0.0, 0, False, False
    shown, _ = await asyncio.to_thread(env.reset, seed=seed)
    context = f"{task.prompt}\n{shown}" if model.told else shown
    tokens, failure = model.count(shown), None
    while not over and _fits(model, context):
        try:
            thoughts = await think(ask, context, search, model.told)
            answer = await ask(ask_action(context, thoughts, model.told), 0.0)
        except RolloutError as error:
            _refuse_others(error)
            success, failure = False, error
            break
        action = next((line.strip() for line in answer.splitlines() if line.strip()), "")
        action = action if action.lower().startswith("action:") else f"Action: {action}"
        shown, earned, terminated, truncated, info = await asyncio.to_thread(env.step, action)
        reward, steps, over = reward + earned, steps + 1, terminated or truncated
        success = bool(info["success"])
        context = f"{context}\n{action}\n{shown}"
        if tokens is not None:
            tokens += (model.count(action) or 0) + (model.count(shown) or 0)
    env.close()
    return Episode(reward, success, steps, None if failure else tokens, failure)


def _fits(model: Model, context: str) -> bool:
    """Whether the context leaves room for questions and answers. Of a server nobody knows."""
    count = model.count(context)
    most = getattr(model.backbone, "max_length", None)
    return count is None or most is None or count + 2 * model.max_tokens + 100 < most


def _config(model: Model, seed: int, max_steps: int) -> RolloutConfig:
    return RolloutConfig(
        max_concurrent_rollouts=256,
        timeout=_TIMEOUT,
        backbone_timeout=_TIMEOUT,
        max_steps=max_steps,
        max_action_tokens=model.max_tokens,
        temperature=0.0,
        seed=seed,
    )


def _measures(episodes: Sequence[Episode], figures: Efficiency, seconds: float) -> Measures:
    reward, successes = sum(one.reward for one in episodes), sum(one.success for one in episodes)
    tokens = [one.tokens for one in episodes if one.tokens is not None]
    spent, read = figures.bandwidth_spent, figures.context_tokens
    return Measures(
        success_rate=successes / len(episodes),
        avg_reward=float(np.mean([one.reward for one in episodes])),
        episodes=len(episodes),
        steps=sum(one.steps for one in episodes),
        seconds=seconds,
        failed=sum(one.error is not None for one in episodes),
        etps=sum(tokens) / seconds if tokens else None,
        eta=bandwidth_efficiency(reward, spent) if read else None,
        kv_reuse=figures.reuse_rate if read else None,
        bandwidth_per_success=spent / successes if read and successes else None,
    )
