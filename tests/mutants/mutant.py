"""What a mutant is, and how its text is found in the core."""

import re
from dataclasses import dataclass, field

Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Mutant:
    """One bug. Each edit replaces a text that stands once in the function by another."""

    name: str
    file: str  # below csrc/
    function: str
    bug: str
    where: str  # the SYNC label that it belongs to, or the branch
    edits: Edits = field(repr=False)

    @property
    def room(self) -> str:
        """The file's name alone."""
        return self.file.rpartition("/")[2]


def body(text: str, function: str) -> tuple[int, int]:
    """Where the definition of a function begins and ends. Raises ValueError unless there is one."""
    definition = rf"^[a-z][^\n;{{}}]*\b{re.escape(function)}\([^;{{}}]*\)\n\{{\n.*?^\}}\n"
    found = list(re.finditer(definition, text, re.M | re.S))
    if len(found) != 1:
        raise ValueError(f"{function} is defined {len(found)} times")
    return found[0].span()


def apply(mutant: Mutant, text: str) -> str:
    """The file's text with the bug in it. Raises ValueError when it does not fit."""
    start, end = body(text, mutant.function)
    inside = text[start:end]
    for old, new in mutant.edits:
        if inside.count(old) != 1:
            raise ValueError(f"{mutant.name}: {old!r} stands {inside.count(old)} times in {mutant.function}")
        inside = inside.replace(old, new)
    if text[start:end] == inside:
        raise ValueError(f"{mutant.name} changes nothing")
    return text[:start] + inside + text[end:]
