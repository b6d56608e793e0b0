"""Functions with one call each, in CRUXEval's format: generated, or from a file."""

import ast
import dataclasses
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Sample:
    """A function and one call of it.

    Attributes:
        name: Its name in its source.
        code: The definition of ``f``.
        arguments: Python source: what stands between the parentheses of the call.
        output: Python source: the value of the call.

    """

    name: str
    code: str
    arguments: str
    output: str


def load_samples(path: str | os.PathLike[str], longest: int) -> list[Sample]:
    """The samples of a file of JSON lines that have ``code``, ``input`` and ``output``.

    Args:
        path: Such as ``data/cruxeval.jsonl`` of https://github.com/facebookresearch/cruxeval.
        longest: Samples with longer code are left out.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is no sample, or none is short enough.

    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is not there: https://github.com/facebookresearch/cruxeval has CRUXEval as data/cruxeval.jsonl"
        )
    samples = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            code, given, output = (fields[name] for name in ("code", "input", "output"))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file}:{number + 1}: expected a JSON object with 'code', 'input' and 'output': "
                f"{type(error).__name__} {error}"
            ) from None
        if not all(isinstance(one, str) for one in (code, given, output)):
            raise ValueError(f"{file}:{number + 1}: 'code', 'input' and 'output' must be strings")
        if len(code) <= longest:
            samples.append(Sample(str(fields.get("id", f"line {number + 1}")), code, given, output))
    if not samples:
        raise ValueError(f"{file} has no function of at most {longest} characters: use a larger max_code_length")
    return samples


#: For each type of ``x``, statements: the type that ``x`` has after them, and their source. ``{n}`` is a small number,
#: ``{c}`` a letter, ``{w}`` a short word.
_STATEMENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "str": (
        ("str", "x = x.upper()"),
        ("str", "x = x[::-1]"),
        ("str", "x = x.replace({c}, {w})"),
        ("str", "x = x + {w}"),
        ("str", "x = x[{n}:] + x[:{n}]"),
        ("str", "x = x.strip({c})"),
        ("str", "x = ''.join(a for a in x if a != {c})"),
        ("str", "x = ''.join(a + {c} for a in x)"),
        ("str", "if x.startswith({c}):\n        x = x.swapcase()"),
        ("str", "x = x.zfill({n} + len(x))"),
        ("int", "x = x.count({c}) + {n}"),
        ("int", "x = len(x) * {n}"),
        ("int", "x = x.find({c})"),
        ("list", "x = list(x)"),
        ("list", "x = x.split({c})"),
        ("list", "x = [ord(a) % {n} for a in x]"),
    ),
    "list": (
        ("list", "x = x[::-1]"),
        ("list", "x = sorted(x)"),
        ("list", "x = x[{n}:] + x[:1]"),
        ("list", "x.append(x[0] if x else {n})"),
        ("list", "x = [a for i, a in enumerate(x) if i % {n} == 0]"),
        ("list", "x = x * 2"),
        ("list", "if len(x) > {n}:\n        x.pop({n})"),
        ("list", "seen = []\n    for a in x:\n        if a not in seen:\n            seen.append(a)\n    x = seen"),
        ("int", "x = len(x) + {n}"),
        ("int", "x = x.count(x[0]) if x else {n}"),
        ("str", "x = '-'.join(str(a) for a in x)"),
    ),
    "int": (
        ("int", "x = x * {n} + 1"),
        ("int", "x = x - {n} if x % 2 else x // 2"),
        ("int", "for i in range({n}):\n        x += i"),
        ("int", "while x > {n}0:\n        x -= {n}"),
        ("str", "x = str(x) + {w}"),
        ("str", "x = {w} * (abs(x) % 3)"),
        ("list", "x = list(range(abs(x) % 6))"),
        ("list", "x = [x % i for i in range(1, {n} + 1)]"),
    ),
}
_LETTERS = "abcdeno"


def make_sample(game: int, longest: int) -> Sample:
    """The generated sample of a number: a function of two to four statements.

    Its output is what the call returns here: the statements are those of the list above, end soon, and touch nothing
    but their argument.

    Raises:
        ValueError: ``longest`` is less than any function has.

    """
    rng = random.Random(game)
    for _ in range(100):
        kind = rng.choice(("str", "list", "int"))
        arguments = repr(_VALUES[kind](rng))
        lines, holds = ["def f(x):"], kind
        for _ in range(rng.randint(2, 4)):
            holds, statement = rng.choice(_STATEMENTS[holds])
            lines.append("    " + _filled(rng, statement))
        code = "\n".join([*lines, "    return x"])
        if len(code) <= longest:
            names: dict[str, Any] = {}
            exec(code, names)
            try:
                output = names["f"](ast.literal_eval(arguments))
            except TypeError:  # a list of strings and numbers cannot be sorted
                continue
            return Sample(f"generated {game}", code, arguments, repr(output))
    raise ValueError(f"max_code_length={longest}: too short for generated functions: use 100 or more")


def _filled(rng: random.Random, statement: str) -> str:
    holes = {"n": str(rng.randint(2, 4)), "c": repr(rng.choice(_LETTERS)), "w": repr(_word(rng, 1, 3))}
    return statement.format(**holes)


def _word(rng: random.Random, least: int, most: int) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randint(least, most)))


_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "str": lambda rng: _word(rng, 3, 8),
    "list": lambda rng: [rng.randint(0, 9) for _ in range(rng.randint(2, 6))],
    "int": lambda rng: rng.randint(0, 60),
}
