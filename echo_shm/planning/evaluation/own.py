"""The backbone ``own``: a small transformer that imitates walkthroughs of text worlds, in the formats of the agents.

Demonstrations are of games that no run plays. Of each, some texts are made: all turns as ReAct has them, with the next
command that is not a way as the thought; and for the tree of thoughts the next command of a plan, the value of a plan
(``sure`` for a walkthrough's, ``impossible`` for one whose last command is another that was possible there), and the
action that a plan begins with.
"""

import fcntl
import os
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.backbones.transformer import CausalTransformer, TransformerBackbone, TransformerConfig
from echo_shm.planning.environments import TextWorld, Vocabulary
from echo_shm.planning.evaluation.acting import Acting
from echo_shm.planning.evaluation.tasks import Task
from echo_shm.planning.evaluation.tree import DEPTH, ask_action, ask_thought, ask_value

with needs("planning.evaluation", "PyTorch", "torch", extra="planning"):
    import torch
    from torch.nn.functional import cross_entropy

VOCABULARY = Vocabulary(
    [
        *TextWorld.vocabulary.words[4:],
        *("Observation", "Commands", "Thought", "Action", "Plan", "Value", "sure", "impossible"),
    ]
)

#: Games of demonstrations are seeded from here on. Runs have smaller seeds.
_FIRST_SEED = 2**30

_BATCH, _LEARNING_RATE, _MAX_LENGTH = 16, 3e-3, 2048

#: Tokens of a text, and which of them are the model's.
Text = tuple[list[int], list[bool]]


class WordTokenizer:
    """Words of a :class:`Vocabulary` as tokens."""

    end = Vocabulary.end

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Lines and further spaces are not kept."""
        return VOCABULARY.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, with one space between words."""
        return VOCABULARY.decode(tokens)


def thought_of(commands: Sequence[str]) -> str:
    """What is thought before the first of these commands: the next one that is not a way."""
    return next((one for one in commands if not one.startswith("go ")), commands[0])


class _Demonstration:
    """A game that a walkthrough has solved."""

    def __init__(self, task: Task, number: int) -> None:
        acting = Acting(task.env_name, {**task.env_kwargs, "max_steps": 10_000})
        shown, info = acting.reset(seed=_FIRST_SEED + number)
        self.commands = acting.env.walkthrough()
        self.shown, self.possible = [shown], [info["admissible_commands"]]
        for command in self.commands:
            shown, *_, info = acting.step(f"Action: {command}")
            self.shown.append(shown)
            self.possible.append(info["admissible_commands"])

    def turns(self) -> Text:
        """All turns, as ReAct has them."""
        tokens: list[int] = []
        mine: list[bool] = []
        for i, command in enumerate(self.commands):
            _add(tokens, mine, self.shown[i], False)
            _add(tokens, mine, f"Thought: {thought_of(self.commands[i:])}. Action: {command}", True)
        return tokens, mine

    def asked(self, rng: random.Random) -> Text:
        """A question of the tree of thoughts, and its answer."""
        now = rng.randrange(len(self.commands))
        context = ""
        for shown, command in zip(self.shown[:now], self.commands[:now], strict=True):
            context += f"{shown}\nAction: {command}\n"
        context += self.shown[now]
        plan = self.commands[now : now + rng.randint(1, DEPTH)]
        kind = rng.choice(("thought", "value", "action"))
        tokens: list[int] = []
        mine: list[bool] = []
        if kind == "thought":
            _add(tokens, mine, ask_thought(context, plan[:-1], False), False)
            _add(tokens, mine, plan[-1], True)
        elif kind == "action":
            _add(tokens, mine, ask_action(context, plan, False), False)
            _add(tokens, mine, plan[0], True)
        else:
            others = [one for one in self.possible[now + len(plan) - 1] if one != plan[-1]]
            wrong = bool(others) and rng.random() < 0.5
            _add(tokens, mine, ask_value(context, [*plan[:-1], rng.choice(others)] if wrong else plan, False), False)
            _add(tokens, mine, "impossible" if wrong else "sure", True)
        return tokens, mine


def _add(tokens: list[int], mine: list[bool], text: str, is_mine: bool) -> None:
    new = VOCABULARY.encode(text) + [Vocabulary.end] * is_mine
    tokens += new
    mine += [is_mine] * len(new)


def imitate(task: Task, updates: int) -> CausalTransformer:
    """Trains a transformer on demonstrations. The same task and number of updates give the same weights."""
    rng = random.Random(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CausalTransformer(TransformerConfig(len(VOCABULARY), layers=2, width=96, max_length=_MAX_LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=updates)
    number = 0
    for _ in range(updates):
        texts: list[Text] = []
        while len(texts) < _BATCH:
            if (game := _Demonstration(task, number)).commands:
                texts += [game.turns(), game.asked(rng)]
            number += 1
        longest = min(_MAX_LENGTH, max(len(tokens) for tokens, _ in texts))
        tokens = np.full((len(texts), longest), Vocabulary.pad)
        mine = np.zeros((len(texts), longest), bool)
        for row, (given, own) in enumerate(texts):
            tokens[row, : len(given)], mine[row, : len(own)] = given[:longest], own[:longest]
        read, chosen = torch.from_numpy(tokens), torch.from_numpy(mine[:, 1:])
        logits = model.logits(model.hidden(read[:, :-1])[chosen])
        loss = cross_entropy(logits, read[:, 1:][chosen])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model


def open_own(task: Task, updates: int, folder: Path) -> tuple[TransformerBackbone, WordTokenizer]:
    """The model of a task, which is trained if it is not in the folder yet.

    A process that trains it meanwhile is waited for.

    Args:
        task: A text world.
        updates: How long it is trained, if it is.
        folder: Where it is kept.

    Raises:
        ValueError: Its file is damaged.

    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.name}.pt"
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = folder / f".{task.name}.{os.getpid()}"
            torch.save(imitate(task, updates).state_dict(), unfinished)
            unfinished.replace(path)
    try:
        model = _read(path)
    except Exception as error:  # whatever PyTorch raises of bytes that it does not know
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(f"{path} cannot be read ({why}): remove it, and the model is trained again") from error
    return TransformerBackbone(model, num_blocks=4 * 4096, block_size=4), WordTokenizer()  # texts are short


def _read(path: Path) -> CausalTransformer:
    state = torch.load(path, weights_only=True)
    layers = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    width = state["embedding.weight"].shape[1]
    model = CausalTransformer(TransformerConfig(len(VOCABULARY), layers, width, max_length=_MAX_LENGTH))
    model.load_state_dict(state)
    return model
