"""The model that imitates walkthroughs: what it is shown, and that it is made once."""

import itertools
import random
import re

import pytest
from harness.packages import need

need("torch", "gymnasium")

import torch  # noqa: E402

from echo_shm.planning.environments import Vocabulary  # noqa: E402
from echo_shm.planning.evaluation import own, tasks  # noqa: E402
from echo_shm.planning.evaluation.acting import Acting  # noqa: E402

TASK = tasks.find("textworld-3x4")


def parts(text):
    """What the model is to read, and what it is to answer, in turns."""
    tokens, mine = text
    assert len(tokens) == len(mine)
    cuts = [
        0,
        *(i for i in range(1, len(mine)) if mine[i] != mine[i - 1] or tokens[i - 1] == Vocabulary.end),
        len(mine),
    ]
    return [(mine[a], own.VOCABULARY.decode(tokens[a:b]), tokens[b - 1]) for a, b in itertools.pairwise(cuts)]


@pytest.mark.parametrize("number", range(5))
def test_demonstrations_solve_their_game(number):
    """Their answers, given one after the other, lead to what they have read, and to the goal. No word is unknown."""
    game = own._Demonstration(TASK, number)
    text = game.turns()
    acting = Acting(TASK.env_name, TASK.env_kwargs)
    shown, _ = acting.reset(seed=own._FIRST_SEED + number)
    over = False
    for (mine, read, _), (_, answer, last) in zip(parts(text)[::2], parts(text)[1::2], strict=True):
        assert not mine
        assert read == shown
        assert last == Vocabulary.end
        assert re.fullmatch(r"Thought: [a-z ]+\. Action: [a-z ]+", answer)
        left = game.commands[game.shown.index(read) :]
        wanted = [one for one in left if not one.startswith("go ")]
        assert answer.startswith(f"Thought: {wanted[0] if wanted else left[0]}. ")
        shown, reward, over, _, _ = acting.step(answer)
    assert (reward, over) == (1.0, True)
    assert Vocabulary.unknown not in text[0]


def test_questions_of_the_tree_are_as_it_asks_them():
    """Each ends with an answer; plans that it calls sure are the walkthrough's, and others are not."""
    rng, kinds = random.Random(0), set()
    for number in range(40):
        game = own._Demonstration(TASK, number)
        (_, read, _), (_, answer, _) = parts(game.asked(rng))
        now = read.count("Action:") - read.endswith("Action:")
        plan = [one.strip() for one in re.findall(r"([a-z ]+)\.", read.rpartition("Plan:")[2])]
        right = game.commands[now : now + len(plan)]
        if answer in ("sure", "impossible"):
            assert read.endswith("Value:")
            assert (plan == right) == (answer == "sure")
        else:
            assert plan == right
            assert answer == (plan[0] if read.endswith("Action:") else game.commands[now + len(plan)])
        kinds.add(answer if answer in ("sure", "impossible") else read.endswith("Action:"))
    assert kinds == {"sure", "impossible", True, False}


def test_it_learns_and_is_made_once(tmp_path, monkeypatch):
    """Some updates make answers likelier. The same number of them gives the same weights, which are kept."""
    small = tasks.find("textworld-2x1")
    tokens, mine = own._Demonstration(small, 99).turns()

    def loss(model):
        with torch.no_grad():
            chances = model(torch.tensor([tokens]))[0, :-1].log_softmax(-1)
        return -float(chances[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])][torch.tensor(mine[1:])].mean())

    backbone, _ = own.open_own(small, 4, tmp_path)
    assert loss(backbone.model) < 0.9 * loss(own.imitate(small, 1))
    monkeypatch.setattr(own, "imitate", None)
    again, tokenizer = own.open_own(small, 4, tmp_path)
    file = tmp_path / "textworld-2x1.pt"
    for name, weight in backbone.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weight), name
    assert (
        tokenizer.decode(tokenizer.encode("Thought: take lamp.\nAction: go north"))
        == "Thought: take lamp. Action: go north"
    )
    for damaged in (b"", b"half", file.read_bytes()[:9000]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"textworld-2x1\.pt cannot be read .*: remove it"):
            own.open_own(small, 4, tmp_path)
