"""Schemas from a fuzzer: ``python fuzz_schema.py [libFuzzer options] [corpus]``; needs ``pip install atheris``.

The first byte of an input says what follows: the bytes of a schema, or the
choices for :func:`schema_play.draw_schema`.
"""

import sys
import warnings
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.choices import choices_of

with atheris.instrument_imports(include=["echo_shm"]):
    from fuzz import schema_play


def test_one_input(data: bytes) -> None:
    """Raises what a process raises that attaches."""
    if data[:1] < b"\x80":
        schema_play.parse(data[1:])
        return
    below = choices_of(data[1:])
    schema = schema_play.draw_schema(below)
    if data[0] < 0xE0:
        schema_play.parse(schema)
    else:
        schema_play.attach(schema, below)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
