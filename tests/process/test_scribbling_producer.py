"""A producer that writes garbage over the ring's words: it may spoil data, and nothing else."""

import json
import mmap
import os
import random
import signal
import struct
import time

import pytest
import stamped
from actors import LONG, until

from echo_shm import ConnectionClosedError, Server, ShmClient, cli, segment

#: How long it goes on (seconds).
SPELL = 1.0

_LAPS = (0, 1, 2, 3, 1 << 20, (1 << 44) - 2, (1 << 44) - 1)
_OWNERS = (0, 1, 2, 63, 64, 65, 66, 0xFFFF)
_WORDS = (0, 1, 2, 255, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, (1 << 64) - 1)

# The header, as es_layout.h has it: what is fixed ends before the first hint.
_OFFSETS_AT, _HINTS_AT = 64, 192


def _value(rng):
    """Any 64 bits, half of the time such as a slot's or a batch's word could be."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(_WORDS)
    if kind == 1:
        return rng.getrandbits(64)
    return rng.choice(_LAPS) << 20 | rng.choice(_OWNERS) << 4 | rng.randrange(16 if kind == 2 else 6)


def scribble(conn, handle, seed):
    """Joins as a producer, and then writes where only the protocol may, until it is told to stop."""
    rng = random.Random(seed)
    with ShmClient(handle), open(f"/dev/shm/echo_shm.{handle.name}", "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
        leaves, _, owners, slots, _, _, data, total = struct.unpack_from("8Q", memory, _OFFSETS_AT)
        assert total == len(memory)
        # hints; owners: a few, the scribbler's own among them; slot words, batch words, counts
        regions = [(_HINTS_AT, leaves)] * 2 + [(owners, owners + 4 * 128), (owners + 64 * 128, owners + 70 * 128)]
        regions += [(slots, data)] * 4
        conn.send("scribbles")
        writes = 0
        while not conn.poll(0):
            for _ in range(200):
                start, end = rng.choice(regions)
                struct.pack_into("<Q", memory, rng.randrange(start, end, 8), _value(rng))
            writes += 200
            time.sleep(0.0002)  # let the others come to something in between
        conn.recv()
        conn.send(writes)
        conn.recv()  # to be killed


def send_on(conn, handle, incarnation):
    """Sends what it can until the ring is closed."""
    with ShmClient(handle, learner_grace=None) as client:
        sample, sent = stamped.example(), 0
        conn.send("sends")
        while not conn.poll(0):
            try:
                client.send(stamped.stamp(sample, incarnation, sent), timeout=0.02)
                client.send_many(stamped.stamp_many(stamped.examples(3), incarnation, sent), timeout=0.02)
                with client.reserve(timeout=0.02) as slot:
                    stamped.stamp(slot, incarnation, sent)
                sent += 1
            except TimeoutError:
                pass
            except ConnectionClosedError:
                time.sleep(0.001)  # or so the ring says
        conn.send(sent)


def learn_on(conn, handle):
    """Iterates until Ctrl-C, whatever comes."""
    with Server.attach(handle) as server:
        try:
            conn.send("learns")
            while True:
                if server.sample(timeout=None) is None:
                    time.sleep(0.001)
        except KeyboardInterrupt:
            conn.send("interrupted")


def _look_at(name, capsys):
    """What the command line says of the segment, by ls, top and gc."""
    capsys.readouterr()
    assert cli.main(["ls", "--json"]) == 0
    described = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert described[name]["state"] == "in use"
    assert cli.main(["top", name, "--once", "--interval", "0.02"]) == 0
    assert name in capsys.readouterr().out
    assert cli.main(["gc"]) == 0
    assert f"in use   {name} " in capsys.readouterr().out


@pytest.fixture
def seed():
    """Of the scribbler; a failure's report says it, and SCRIBBLE_SEED repeats it."""
    chosen = int(os.environ.get("SCRIBBLE_SEED", random.SystemRandom().getrandbits(32)))
    yield chosen
    print(f"SCRIBBLE_SEED={chosen}")


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_garbage_over_the_words(serve, act, capsys, monkeypatch, seed, order):
    """Learners and honest producers get through it: calls return, Ctrl-C and the tools work, close() ends it all."""
    server = serve(4, 4, order=order, detailed_metrics=order == "ready", reap_interval=0.02)
    monkeypatch.setattr(segment, "names", lambda: [server.name])  # gc must not meddle with other tests
    senders = [act(send_on, server.handle, number) for number in range(2)]
    other = act(learn_on, server.handle)
    assert [actor.hear() for actor in (*senders, other)] == ["sends", "sends", "learns"]
    scribbler = act(scribble, server.handle, seed)
    assert scribbler.hear() == "scribbles"

    end, calls = time.monotonic() + SPELL, 0
    while time.monotonic() < end:
        try:
            sample = server.sample(timeout=0.02)
            if sample is not None:
                sample.info.as_dict()
        except TimeoutError:
            pass
        calls += 1
    other.kill(signal.SIGINT)
    assert other.hear() == "interrupted"
    assert other.end() == 0
    _look_at(server.name, capsys)

    scribbler.say("stop")
    assert scribbler.hear() > 0
    _look_at(server.name, capsys)
    scribbler.kill()
    server.close()
    until(lambda: _ended(server), "the closed ring ends", LONG)
    for sender in senders:
        sender.say("stop")
        assert sender.hear() >= 0
        assert sender.end() == 0
    assert calls > 0


def _ended(server):
    """Whether the closed ring says that nothing is left in it, once what is left was taken."""
    try:
        while server.sample(timeout=1) is not None:
            pass
    except TimeoutError:
        return False
    return True
