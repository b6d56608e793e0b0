"""Text environments as arrays."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from harness.packages import need
from hypothesis import given, settings
from hypothesis import strategies as st

need("gymnasium")

from gymnasium.spaces import Text  # noqa: E402

from echo_shm.planning.agents.configs import TextConfig  # noqa: E402
from echo_shm.planning.environments.vocabulary import HashedWords, Vocabulary  # noqa: E402
from echo_shm.planning.training.text_view import CommandView, left_out  # noqa: E402

WORDS = ("go", "take", "apple", "north")


class Said(gymnasium.Env[str, str]):
    """Says what it is told to say, one after the other, and remembers the commands that it got."""

    observation_space, action_space = Text(1000), Text(1000)
    vocabulary = Vocabulary(WORDS)

    def __init__(self, *says: tuple[str, tuple[str, ...] | None]):
        self.says, self.got = list(says), []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """What is said next."""
        words, commands = self.says.pop(0)
        return words, {} if commands is None else {"admissible_commands": commands}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """What is said next, whatever was done."""
        self.got.append(action)
        words, info = self.reset()
        return words, 0.0, False, False, info


PHRASES = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
SAYS = st.tuples(PHRASES, st.lists(PHRASES, min_size=1, max_size=5).map(tuple))


@given(SAYS, st.integers(2, 30), st.integers(2, 6))
@settings(max_examples=150, deadline=None)
def test_what_fits_is_shown_and_what_does_not_is_counted(says: tuple[str, tuple[str, ...]], tokens: int, most: int):
    """The text and the commands can be read back: of each the first part, and no more of either would fit."""
    text, commands = says
    encode = Said.vocabulary.encode
    env = Said(says, says)
    view = CommandView(env, TextConfig(max_tokens=tokens, max_commands=most))
    seen, info = view.reset()
    assert view.observation_space.contains(seen)
    numbers = seen.astype(int).tolist()
    middle = numbers.index(Vocabulary.end)
    shown: list[list[int]] = [[]]
    for number in numbers[middle + 1 :]:
        if number == Vocabulary.act:
            shown.append([])
        elif number != Vocabulary.pad:
            shown[-1].append(number)

    length = [len(encode(command)) + 1 for command in commands]
    fit = max(n for n in range(min(most, len(commands)) + 1) if sum(length[:n]) + 1 <= tokens)
    assert view.commands == commands[:fit]
    assert shown == [*(encode(command) for command in commands[:fit]), []]
    room = tokens - 1 - sum(length[:fit])
    assert numbers[:middle] == encode(text)[:room]
    assert info["left_out"] == len(commands) - fit + max(0, len(encode(text)) - room)

    number = len(text) % most
    view.step(number)
    assert env.got == [commands[number] if number < fit else ""]


def test_an_environment_without_commands_is_refused_and_one_that_runs_out_of_them_has_the_empty_one():
    """It says what is missing when an episode begins. Later there may be none: when it is over."""
    for none, has in ((None, "has no"), ((), "lists no command in")):
        with pytest.raises(ValueError, match=rf"Said {has} info\['admissible_commands'\] when an episode begins"):
            CommandView(Said(("go", none)), TextConfig()).reset()
    env = Said(("go", ("go",)), ("north", ()), ("north", None), ("north", ("go",)), ("north", ()))
    view = CommandView(env, TextConfig(max_tokens=4))
    view.reset()
    seen = view.step(0)[0]
    assert seen.tolist() == [*Said.vocabulary.encode("north"), Vocabulary.end, Vocabulary.act, 0]
    for action in (0, 0, -1):  # a number of no command is the empty one, too
        view.step(action)
    assert env.got == ["go", "", "", ""]


def test_no_word_of_a_text_is_taken_for_a_mark():
    """It would be the end of a command that is not there."""
    view = CommandView(Said(("go <act> <end> <pad> apple", ("take <act>",))), TextConfig(max_tokens=12))
    go, take, apple = (Said.vocabulary.encode(word)[0] for word in ("go", "take", "apple"))
    assert view.reset()[0].tolist() == [go, 2, 2, 2, apple, Vocabulary.end, take, 2, Vocabulary.act, 0, 0, 0]


def test_words_that_nobody_knows_are_numbered_alike_everywhere():
    """By CRC-32, whose value for "123456789" is 0xCBF43926 in its definition."""
    words = HashedWords(1000)
    assert words.encode("123456789, x.") == [
        4 + 0xCBF43926 % 1000,
        *words.encode(","),
        *words.encode("x"),
        *words.encode("."),
    ]
    assert len(words) == 1004
    assert 4 <= words.encode("\ud800")[0] < 1004  # half of a pair, which UTF-8 has not
    assert max(HashedWords(3).encode(" ".join(map(str, range(50))))) == 6


def test_an_environment_without_a_vocabulary_has_as_many_numbers_as_were_asked_for():
    """Its observations are within them."""
    env = Said(("123456789", ("go",)))
    env.vocabulary = None
    view = CommandView(env, TextConfig(max_tokens=5, word_numbers=50))
    number, go = HashedWords(50).encode("123456789 go")
    assert view.reset()[0].tolist() == [number, Vocabulary.end, go, Vocabulary.act, 0]
    assert view.observation_space.high.max() == 53


def test_environments_that_leave_nothing_out_need_not_say_so():
    """Those of numbers."""
    assert left_out({}, 2).tolist() == [False, False]
    assert left_out({"left_out": np.array([0, 3])}, 2).tolist() == [False, True]
