"""Peers drawn at random, most of them nearly right: understood or refused, and nothing worse."""

import logging
import os
import random

import pytest
from fuzz import wire_play
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture
def rng():
    """A failure's report says the seed, and WIRE_SEED repeats it."""
    seed = int(os.environ.get("WIRE_SEED", random.SystemRandom().getrandbits(32)))
    yield random.Random(seed)
    print(f"WIRE_SEED={seed}")


def test_random_clients_are_understood_or_refused(rng):
    """Whatever pieces a client's bytes come in, they mean what the wire's page says of them, whole."""
    counts = [wire_play.parse(wire_play.draw_client(rng.randrange), rng.randrange) for _ in range(20_000)]
    assert 0 in counts  # refused, or cut, before a hello
    assert max(counts) > 4


def test_random_version_1_clients(rng):
    """Of version 1 every byte is a sample's."""
    for _ in range(3000):
        wire_play.parse_1(rng.randbytes(rng.randrange(200)), rng.randrange)


def test_random_servers_are_accepted_or_refused(rng):
    """A client raises an error of its own or the system's, or takes a server whose frames have room for a sample."""
    accepted = [wire_play.connect(wire_play.draw_server(rng.randrange)) for _ in range(5000)]
    assert 200 < sum(accepted) < 4800


def test_random_clients_leave_a_bridge_as_it_was(rng):
    """After any of them, and several at once, a bridge has no connection left, and serves a client that does well."""
    logging.disable()
    table = wire_play.Table()
    try:
        for _ in range(1500):
            table.play(rng.randrange)
    finally:
        table.close()
        logging.disable(logging.NOTSET)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_clients_shrunk_when_they_fail(data):
    """Fewer, drawn so that a failure is reduced to the least stream that shows it."""

    def below(n):
        return data.draw(st.integers(0, n - 1))

    wire_play.parse(wire_play.draw_client(below), below)
