"""The mutant: a bug, and how it is put into the core's text."""

import re
from dataclasses import dataclass, field

Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Mutant:
    """One bug. Each edit replaces a text that occurs exactly once in the function."""

    name: str
    file: str  # below csrc/
    function: str
    bug: str
    where: str  # the SYNC label or the branch that the bug belongs to
    edits: Edits = field(repr=False)

    @property
    def room(self) -> str:
        """The file's name without its folder."""
        return self.file.rpartition("/")[2]


def body(text: str, function: str) -> tuple[int, int]:
    """The start and end of a function's definition. Raises ValueError unless there is exactly one."""
    definition = rf"^[a-z][^\n;{{}}]*\b{re.escape(function)}\([^;{{}}]*\)\n\{{\n.*?^\}}\n"
    found = list(re.finditer(definition, text, re.M | re.S))
    if len(found) != 1:
        raise ValueError(f"{function} is defined {len(found)} times")
    return found[0].span()


def apply(mutant: Mutant, text: str) -> str:
    """The file's text with the bug in it. Raises ValueError if the mutant does not fit the text."""
    start, end = body(text, mutant.function)
    inside = text[start:end]
    for old, new in mutant.edits:
        if inside.count(old) != 1:
            raise ValueError(f"{mutant.name}: {old!r} occurs {inside.count(old)} times in {mutant.function}")
        inside = inside.replace(old, new)
    if text[start:end] == inside:
        raise ValueError(f"{mutant.name} changes nothing")
    return text[:start] + inside + text[end:]
