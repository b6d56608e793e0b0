"""Random peers, most of them nearly right, are understood or refused; nothing worse happens."""

import logging
import os
import random

import pytest
from fuzz import wire_play
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture
def rng():
    """A random generator. The report of a failure has its seed, and WIRE_SEED repeats the run."""
    seed = int(os.environ.get("WIRE_SEED", random.SystemRandom().getrandbits(32)))
    yield random.Random(seed)
    print(f"WIRE_SEED={seed}")


def test_random_clients_are_understood_or_refused(rng):
    """In whatever pieces a client's bytes come, they mean what WIRE.md says."""
    counts = [wire_play.parse(wire_play.draw_client(rng.randrange), rng.randrange) for _ in range(20_000)]
    assert 0 in counts  # refused or cut before a hello
    assert max(counts) > 4


def test_random_learners_are_understood_or_refused(rng):
    """The same for what a replay's learner sends after its hello."""
    streams = [wire_play.draw_learner(rng.randrange)[144:] for _ in range(20_000)]
    counts = [wire_play.parse_learner(stream, rng.randrange) for stream in streams]
    assert 0 in counts
    assert max(counts) > 4


def test_random_version_1_clients(rng):
    """In version 1 every byte belongs to a sample."""
    for _ in range(3000):
        wire_play.parse_1(rng.randbytes(rng.randrange(200)), rng.randrange)


def test_random_servers_are_accepted_or_refused(rng):
    """A client raises an error of ours or of the system, or accepts a server whose frames can hold a sample."""
    accepted = [wire_play.connect(wire_play.draw_server(rng.randrange)) for _ in range(5000)]
    assert 200 < sum(accepted) < 4800


def test_random_servers_of_weights(rng):
    """A client refuses what a server must not say of weights, and shows whole versions, in their order."""
    counts = [wire_play.hear_weights(rng.randrange) for _ in range(5000)]
    assert 0 in counts
    assert max(counts) > 2


def test_random_clients_leave_a_bridge_as_it_was(rng):
    """After random clients, several at once, a bridge has no connection left, and serves a good client."""
    logging.disable()
    table = wire_play.Table()
    try:
        for _ in range(1500):
            table.play(rng.randrange)
    finally:
        table.close()
        logging.disable(logging.NOTSET)


def test_random_learners_leave_a_replay_as_it_was(rng):
    """After random learners, a good one gets each item once that none of them has acknowledged."""
    logging.disable()
    table = wire_play.ReplayTable()
    try:
        for _ in range(150):
            table.play(rng.randrange)
    finally:
        table.close()
        logging.disable(logging.NOTSET)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_clients_shrunk_when_they_fail(data):
    """The same with fewer streams, which Hypothesis draws: it reduces a failure to a small stream."""

    def below(n):
        return data.draw(st.integers(0, n - 1))

    wire_play.parse(wire_play.draw_client(below), below)
