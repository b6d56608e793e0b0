"""The frames of learners as bytes."""

import pytest

from echo_shm.net import learner_wire, wire
from echo_shm.net.learner_wire import Ask
from echo_shm.net.wire import Frame


@pytest.mark.parametrize("has", [(), (0,), tuple(range(learner_wire.MAX_HAS))])
def test_what_a_learner_asks_for(has):
    """It is read as it was written, with as many batches as fit."""
    ask = Ask(3, 256, 5, b"r" * 16, has, 1, 2)
    data = ask.to_bytes()
    header = learner_wire.read_learner_header(data)
    assert (header.kind, header.length) == (Frame.ASK, len(data) - wire.HEADER_BYTES)
    assert Ask.from_bytes(header.number, data[wire.HEADER_BYTES :]) == ask
