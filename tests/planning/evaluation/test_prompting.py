"""Agents that prompt: what they read of answers, how they search, and what is measured of them."""

import asyncio
import dataclasses
import itertools
import re

import pytest
from harness.packages import need
from hypothesis import given, settings
from hypothesis import strategies as st

need("gymnasium")

from echo_shm.errors import EchoShmError  # noqa: E402
from echo_shm.planning.backbones.protocol import BackboneError, Completion  # noqa: E402
from echo_shm.planning.backbones.tokenizers import ByteTokenizer  # noqa: E402
from echo_shm.planning.evaluation import agents, models, prompting, tasks  # noqa: E402
from echo_shm.planning.evaluation.acting import Acting, action_of  # noqa: E402
from echo_shm.planning.evaluation.configs import EvaluationConfig  # noqa: E402
from echo_shm.planning.evaluation.evaluation import Evaluation  # noqa: E402
from echo_shm.planning.evaluation.models import Model  # noqa: E402
from echo_shm.planning.evaluation.tree import VALUES, Search, think, value_of  # noqa: E402
from echo_shm.planning.rollouts.config import RolloutError  # noqa: E402

pytestmark = pytest.mark.watchdog(120)


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("Thought: north is near. Action: go north", "go north"),
        ("Thought: x\nACTION : take lamp \nObservation: You take it.", "take lamp"),
        ("Action: look. No. Action: go east", "go east"),
        ("reaction: none", ""),
        ("I go north", ""),
        ("Action:", ""),
    ],
)
def test_the_action_of_an_answer(answer, action):
    """The last one counts, up to the end of its line. Without one it is empty."""
    assert action_of(answer) == action


def test_an_environment_shows_its_commands():
    """An answer without an action changes nothing, and counts as a step. ARC's rows are on lines of their own."""
    acting = Acting("TextWorld", {"rooms": 2, "max_objects": 3, "max_steps": 2})
    shown, info = acting.reset(seed=3)
    assert shown.startswith("Observation: Goal: ")
    assert shown.endswith(f" Commands: {', '.join(info['admissible_commands'])}.")
    again, *rest, info = acting.step("hm")
    assert (again, rest, info["feedback"]) == (shown, [0.0, False, False], "You cannot do that now.")
    assert acting.step("Action: look")[3] is True
    arc = Acting("Arc", {"answers": "text", "grid_size": 3})
    arc.reset(seed=0)
    right = "/".join("".join(map(str, row)) for row in arc.env.answer())
    assert arc.step(f"Thought: I see. Action: {right}")[1:3] == (1.0, True)


# --- the tree


def model_of(table, proposals):
    """A model whose answers are a function of what is asked; and all questions."""
    asked = []

    async def ask(text, temperature):
        asked.append((text, temperature))
        plan = tuple(re.findall(r"(\w+)\.", text.partition("Plan:")[2]))
        if "Value:" in text:
            return f"It is {table[plan]}."
        return proposals[len([one for one, _ in asked if one == text]) % len(proposals)]

    return ask, asked


WORDS = ["a", "b", "c"]
PLANS = [plan for depth in (1, 2) for plan in itertools.product(WORDS, repeat=depth)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([*VALUES, "unclear"]), min_size=len(PLANS), max_size=len(PLANS)), st.integers(1, 3))
def test_the_search_finds_what_a_slow_one_finds(words, beam):
    """It is the first of the best plans among the extensions of the best ones before; each is valued once a vote."""
    table = dict(zip(PLANS, words, strict=True))
    ask, asked = model_of(table, WORDS)
    found = asyncio.run(think(ask, "here", Search(depth=2, proposals=3, beam=beam, votes=2), told=False))

    def rank(plans):
        proposed = [WORDS[(i + 1) % 3] for i in range(3)]  # the order in which the model proposes
        one = [(*plan, word) for plan in plans for word in proposed]
        return sorted(one, key=lambda plan: -VALUES.get(table[plan], 0.0))

    assert tuple(found) == rank(rank([()])[:beam])[0]
    values = [text for text, _ in asked if "Value:" in text]
    assert len(values) == 2 * (3 + 3 * beam)
    assert {temperature for _, temperature in asked} == {0.7}


def test_values_and_empty_proposals():
    """The last word of an answer counts, and votes add up; where nothing is proposed the plan ends."""
    assert value_of(["sure", "It is not impossible. Likely!", "who knows"]) == 21.0
    ask, _ = model_of({}, ["  \n . "])
    assert asyncio.run(think(ask, "here", Search(), told=True)) == []


# --- measures


class Interpreter:
    """A server that knows what code does. Of what it reads, it says, half was in its cache."""

    def __init__(self, wrong, refused=()):
        self.wrong, self.asked, self.refused = wrong, 0, refused

    async def complete(self, messages, *, max_tokens, temperature=1.0, stop=None):
        """Runs the function that is shown last."""
        text = messages[-1].text
        self.asked += 1
        if any(code in text for code in self.refused):
            raise BackboneError("status 400: no")
        if text.endswith("Value:"):
            answer = "likely"
        elif text.endswith("Plan:") or (text.count("Plan:") and not text.endswith("Action:")):
            answer = "run it"
        else:
            code, call = re.search(r"(def f.*?)\nassert (f\(.*\)) == \?\?", text, re.DOTALL).groups()
            names = {}
            exec(code, names)
            answer = f"Thought: easy. Action: {eval(call, names)!r}"
            if self.wrong:
                answer = "Action: object"
        return Completion(answer, 100, 5, 50)

    async def close(self):
        """Nothing is open."""


@pytest.mark.parametrize(("agent", "wrong"), [("react", False), ("react_anew", False), ("tot", False), ("tot", True)])
def test_what_is_measured_of_a_model(agent, wrong, tmp_path, monkeypatch):
    """Success, η, and reuse as the server says; what only tokens could say is None."""
    server = Interpreter(wrong)
    monkeypatch.setattr(prompting, "open_model", lambda *_: Model(server, None, told=True, max_tokens=50))
    config = EvaluationConfig(str(tmp_path), "code", agent, episodes=3)
    found = asyncio.run(prompting.prompt(config, tasks.find("code"), agents.find(agent), "openai:x", 5, tmp_path))
    assert (found.success_rate, found.avg_reward, found.episodes, found.steps) == (
        float(not wrong),
        float(not wrong),
        3,
        3,
    )
    assert found.kv_reuse == 0.5
    # Of a tree only the server could say which of the tokens are new.
    assert found.etps == (None if agent == "tot" else pytest.approx(3 * (100 + 5) / found.seconds))
    assert found.failed == 0
    cost = server.asked * (100 * 101 / 2 - 50 * 51 / 2)
    assert found.eta == pytest.approx(0.0 if wrong else 3 / cost)
    assert found.bandwidth_per_success == (None if wrong else cost / 3)
    assert found.steps_to_threshold is None
    asked_a_game = 3 + 3 + 3 + 3 + 1 if agent == "tot" else 1
    assert server.asked == 3 * asked_a_game


@pytest.mark.parametrize("agent", ["react", "tot"])
def test_a_model_that_does_not_answer_has_failed_there(agent, tmp_path, monkeypatch):
    """The other episodes go on. The results say how many failed. If all do, the error is raised."""
    task, config = tasks.find("code"), EvaluationConfig(str(tmp_path), "code", agent, ("openai:x",), 1, 5, episodes=3)
    env = Acting(task.env_name, task.env_kwargs)
    codes = [env.reset(seed=5 * 1_000_003 % 2**29 + i)[0].partition("assert")[0] for i in range(3)]
    env.close()
    monkeypatch.setattr(models, "look", nothing)

    def answering(*refused):
        server = Interpreter(False, refused)
        monkeypatch.setattr(prompting, "open_model", lambda *_: Model(server, None, told=True, max_tokens=50))

    answering(*codes)
    with pytest.raises(RolloutError, match="tried 2 times: BackboneError: status 400: no"):
        asyncio.run(Evaluation(config).run())
    answering(codes[1])
    said = []
    (found,) = asyncio.run(Evaluation(config, said.append).run()).runs
    figures = found["success_rate"], found["episodes"], found["steps"], found["failed"]
    assert figures == (pytest.approx(2 / 3), 3, 2, 1)
    assert ", 1 of 3 episodes without an answer, " in said[-1]
    told = f"\n\nThe model did not answer in 1 of 3 episodes of {agent}, openai:x on code with seed 5; they "
    assert told in (tmp_path / "table.md").read_text()


async def nothing(spec):
    """Looks at nothing."""


def test_an_environment_that_fails_is_nobodys_failure(tmp_path, monkeypatch):
    """The error is raised, and does not count against the agent."""
    monkeypatch.setattr(prompting, "open_model", lambda *_: Model(Interpreter(False), None, told=True, max_tokens=50))
    task = dataclasses.replace(tasks.find("code"), env_kwargs={"bogus": 1})
    config = EvaluationConfig(str(tmp_path), "code", "react", episodes=2)
    with pytest.raises(EchoShmError, match="bogus"):
        asyncio.run(prompting.prompt(config, task, agents.find("react"), "openai:x", 5, tmp_path))


@pytest.mark.parametrize(("agent", "reuses"), [("react", True), ("react_anew", False)])
def test_what_reuse_is_compared_with(agent, reuses, tmp_path, monkeypatch):
    """ReAct shares its KV cache; what it is compared with reads each context anew."""
    need("torch")
    from echo_shm.planning.backbones.transformer import CausalTransformer, TransformerBackbone, TransformerConfig

    tokenizer = ByteTokenizer()
    backbone = TransformerBackbone(CausalTransformer(TransformerConfig(tokenizer.vocab_size, layers=1, width=16)))
    monkeypatch.setattr(prompting, "open_model", lambda *_: Model(backbone, tokenizer, told=False, max_tokens=2))
    task = tasks.find("textworld-2x1")
    task = dataclasses.replace(task, env_kwargs={**task.env_kwargs, "max_steps": 2})
    config = EvaluationConfig(str(tmp_path), task.name, agent, episodes=2)
    found = asyncio.run(prompting.prompt(config, task, agents.find(agent), "own", 0, tmp_path))
    assert found.etps > 0
    assert (found.kv_reuse > 0) is reuses
