"""A tree of thoughts (Yao et al., 2023, https://arxiv.org/abs/2305.10601), searched breadth-first with a beam."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from echo_shm.replay.validation import integer

#: How many thoughts follow each other.
DEPTH = 2

#: What an estimate counts; those of the paper's Game of 24, and 0 for an answer that is none of them.
VALUES = {"sure": 20.0, "likely": 1.0, "impossible": 0.001}

_VALUE = re.compile("|".join(VALUES), re.IGNORECASE)

#: Asks a language model: a text and a temperature, and what it answers.
Ask = Callable[[str, float], Awaitable[str]]


@dataclass(frozen=True)
class Search:
    """How the tree is searched."""

    depth: int = DEPTH
    #: Thoughts that are proposed after each, those that are kept at each depth, and estimates of each.
    proposals: int = 3
    beam: int = 2
    votes: int = 3
    #: Of proposals and estimates: the paper's.
    temperature: float = 0.7

    def __post_init__(self) -> None:
        for name in ("depth", "proposals", "beam", "votes"):
            integer(name, getattr(self, name), 1)


def _asked(context: str, thoughts: Sequence[str], instruction: str, mark: str, told: bool) -> str:
    said = f"{context}\n{instruction}" if told else context
    plan = "".join(f" {one}." for one in thoughts)
    return f"{said}\nPlan:{plan}{mark}"


def ask_thought(context: str, thoughts: Sequence[str], told: bool) -> str:
    """What asks for the next thought of a plan. ``told``: the model has to be told how to answer."""
    return _asked(context, thoughts, "Answer with the next step of the plan alone, in a few words.", "", told)


def ask_value(context: str, thoughts: Sequence[str], told: bool) -> str:
    """What asks how good a plan is."""
    words = "Does the plan lead to the goal? Answer with one word: sure, likely or impossible."
    return _asked(context, thoughts, words, "\nValue:", told)


def ask_action(context: str, thoughts: Sequence[str], told: bool) -> str:
    """What asks for the action with which a plan begins."""
    return _asked(context, thoughts, "Answer with the first action of the plan alone, in one line.", "\nAction:", told)


def value_of(answers: Sequence[str]) -> float:
    """What the estimates of a plan count together. The last word of an answer counts, since models explain first."""
    found = (_VALUE.findall(answer) for answer in answers)
    return sum(VALUES[words[-1].lower()] for words in found if words)


async def think(ask: Ask, context: str, search: Search, told: bool) -> list[str]:
    """Searches for a plan.

    Args:
        ask: The model. All questions of one depth are asked at once.
        context: What was observed and done.
        search: How.
        told: Whether the model has to be told how to answer.

    Returns:
        The thoughts of the best plan: ``depth`` of them, or fewer if the model proposed none. Of equal ones the first
        counts.

    """
    beam: list[tuple[str, ...]] = [()]
    for _ in range(search.depth):
        asked = [ask_thought(context, path, told) for path in beam for _ in range(search.proposals)]
        answers = await asyncio.gather(*[ask(text, search.temperature) for text in asked])
        parents = [path for path in beam for _ in range(search.proposals)]
        proposed = [(path, _line(answer)) for path, answer in zip(parents, answers, strict=True)]
        paths = list(dict.fromkeys((*path, thought) for path, thought in proposed if thought))
        if not paths:
            break
        votes = [ask(ask_value(context, path, told), search.temperature) for path in paths for _ in range(search.votes)]
        said = await asyncio.gather(*votes)
        n = search.votes
        values = {path: value_of(said[n * i : n * (i + 1)]) for i, path in enumerate(paths)}
        beam = sorted(paths, key=lambda path: -values[path])[: search.beam]  # stable: the first of equals
    return list(beam[0])


def _line(answer: str) -> str:
    """An answer's first line that has words, without marks around it."""
    lines = (line.strip().rstrip(".").strip() for line in answer.splitlines())
    return next((line for line in lines if line), "")
