"""Peers from a fuzzer: ``python fuzz_wire.py [libFuzzer options] [corpus]``; needs ``pip install atheris``.

The first byte of an input says what follows: the bytes of a client, or the choices for :mod:`wire_play`.
"""

import logging
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.choices import choices_of

with atheris.instrument_imports(include=["echo_shm"]):
    from fuzz import wire_play

_table = wire_play.Table()


def test_one_input(data: bytes) -> None:
    """Raises every exception that a bridge or a client must not raise."""
    kind, below = data[:1], choices_of(data[1:])
    if kind < b"\x20":
        wire_play.parse(data[1:], below)
    elif kind < b"\x28":
        wire_play.parse_1(data[1:], below)
    elif kind < b"\x80":
        wire_play.parse(wire_play.draw_client(below), below)
    elif kind < b"\xc0":
        wire_play.connect(wire_play.draw_server(below))
    else:
        _table.play(below)


if __name__ == "__main__":
    logging.disable()
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
