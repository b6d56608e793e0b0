"""A producer that writes garbage over the ring's words can spoil data, and nothing else.

Garbage in any words: no call hangs, and a closed ring ends. Garbage in the slots' words: the ring goes on, too.
"""

import json
import mmap
import os
import random
import signal
import struct
import time

import pytest
from harness import stamped
from harness.waiting import LONG, until

from echo_shm import ConnectionClosedError, Server, ShmClient
from echo_shm.cli import main as cli
from echo_shm.ring import lockfile

#: How long the garbage is written (seconds), over any words and over the slots' words.
SPELL, SLOTS_SPELL = 0.7, 0.3

BATCH, BATCHES = 4, 4
SLOTS = BATCH * BATCHES

#: The producer that attaches afterwards, and how many samples it sends: more than three laps.
AFTERWARDS, SENT = 99, 60

_LAPS = (0, 1, 2, 3, 1 << 20, (1 << 44) - 2, (1 << 44) - 1)
_OWNERS = (0, 1, 2, 63, 64, 65, 66, 0xFFFF)
_SLOT_OWNERS = (1, 2, 64, 65, 66, 0xFFFF, *[63] * 6)  # 63, in half of the cases, is nobody
_WORDS = (0, 1, 2, 255, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, (1 << 64) - 1)

# offsets in the header, from es_layout.h: the fixed part ends before the first hint
_OFFSETS_AT, _HINTS_AT = 72, 256


def _value(rng):
    """Any 64 bits; in half of the cases a value that a slot's or a batch's word could have."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(_WORDS)
    if kind == 1:
        return rng.getrandbits(64)
    return rng.choice(_LAPS) << 20 | rng.choice(_OWNERS) << 4 | rng.randrange(16 if kind == 2 else 6)


def write_anywhere(rng, memory):
    """Writes to the hints, to some owners (its own among them), and to slot words, batch words and counts."""
    leaves, _, owners, slots, *_, data, total = struct.unpack_from("13Q", memory, _OFFSETS_AT)
    assert total == len(memory)
    regions = [(_HINTS_AT, leaves)] * 2 + [(owners, owners + 4 * 128), (owners + 64 * 128, owners + 70 * 128)]
    regions += [(slots, data)] * 4
    for _ in range(200):
        start, end = rng.choice(regions)
        struct.pack_into("<Q", memory, rng.randrange(start, end, 8), _value(rng))
    return 200


def write_slots(rng, memory):
    """Writes to one slot's word: its lap, or the one before or after. It never names the first owner, which stays."""
    slots = struct.unpack_from("13Q", memory, _OFFSETS_AT)[3]
    at = slots + 8 * rng.randrange(SLOTS)
    lap = max(0, (struct.unpack_from("<Q", memory, at)[0] >> 20) + rng.randrange(-1, 2)) % (1 << 44)
    struct.pack_into("<Q", memory, at, lap << 20 | rng.choice(_SLOT_OWNERS) << 4 | rng.randrange(7))
    return 1


def scribble(conn, handle, write, seed):
    """Attaches as a producer, then writes over the ring's words until it is told to stop."""
    rng = random.Random(seed)
    with ShmClient(handle), open(f"/dev/shm/echo_shm.{handle.name}", "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
        conn.send("scribbles")
        writes = write(rng, memory)
        while not conn.poll(0):
            writes += write(rng, memory)
            time.sleep(0.0002)  # the others get on in between
        conn.recv()
        conn.send(writes)
        conn.recv()  # here it is killed


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
                time.sleep(0.001)  # the garbage may say that it is
        conn.send("stopped")


def send_all(conn, handle):
    """Sends SENT samples, in each way."""
    with ShmClient(handle) as client:
        for n in range(0, SENT, 5):
            client.send(stamped.stamp(stamped.example(), AFTERWARDS, n))
            client.send_many(stamped.stamp_many(stamped.examples(3), AFTERWARDS, n + 1))
            with client.reserve() as slot:
                stamped.stamp(slot, AFTERWARDS, n + 4)
        conn.send("sent")
        conn.recv()


def sample_on(conn, handle):
    """Asks for batches with short timeouts until it is told to stop."""
    with Server.attach(handle) as server:
        conn.send("samples")
        while not conn.poll(0):
            try:
                sample = server.sample(timeout=0.02)
                if sample is not None:
                    sample.info.as_dict()
            except TimeoutError:
                pass
        conn.send("stopped")


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
    """Runs ls, top and gc, and checks what they say of the segment."""
    capsys.readouterr()
    assert cli.main(["ls", "--json"]) == 0
    described = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert described[name]["state"] == "in use"
    assert cli.main(["top", name, "--once", "--interval", "0.02"]) == 0
    assert name in capsys.readouterr().out
    assert cli.main(["gc"]) == 0
    assert f"in use   {name} " in capsys.readouterr().out


def _copy(batch, which=slice(None)):
    return {key: leaf[which].copy() for key, leaf in batch.items()}


def _take(server, got):
    """Takes a batch if there is one. Returns whether the closed ring says that nothing is left in it."""
    try:
        sample = server.sample(timeout=0.1)
    except TimeoutError:
        return False
    if sample is not None:
        got.append(_copy(sample.batch))
    return sample is None


@pytest.fixture
def seed():
    """The scribbler's seed. The report of a failure has it, and SCRIBBLE_SEED repeats the run."""
    chosen = int(os.environ.get("SCRIBBLE_SEED", random.SystemRandom().getrandbits(32)))
    yield chosen
    print(f"SCRIBBLE_SEED={chosen}")


def _start(act, server, write, seed):
    """Two producers, two learners, and the scribbler."""
    senders = [act(send_on, server.handle, number) for number in range(2)]
    sampler, other = act(sample_on, server.handle), act(learn_on, server.handle)
    assert [actor.hear() for actor in (*senders, sampler, other)] == ["sends", "sends", "samples", "learns"]
    scribbler = act(scribble, server.handle, write, seed)
    assert scribbler.hear() == "scribbles"
    return senders, sampler, other, scribbler


def _stops(actor):
    """Asserts that an actor returns from its calls, and ends."""
    actor.say("stop")
    assert actor.hear() == "stopped"
    assert actor.end() == 0


def _is_interrupted(actor):
    actor.kill(signal.SIGINT)
    assert actor.hear() == "interrupted"
    assert actor.end() == 0


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_garbage_over_the_words(serve, act, capsys, monkeypatch, seed, order):
    """With garbage in any words calls return, Ctrl-C and the command line work, and close() ends the stream."""
    server = serve(BATCH, BATCHES, order=order, detailed_metrics=order == "ready", reap_interval=0.02)
    ours = {lockfile.SEGMENT: [server.name]}  # gc must leave other tests' segments alone
    monkeypatch.setattr(lockfile, "names", lambda files=lockfile.SEGMENT: ours.get(files, []))
    senders, sampler, other, scribbler = _start(act, server, write_anywhere, seed)
    time.sleep(SPELL)
    _stops(sampler)
    _is_interrupted(other)
    _look_at(server.name, capsys)

    scribbler.say("stop")
    assert scribbler.hear() > 0
    _look_at(server.name, capsys)
    scribbler.kill()
    server.close()
    until(lambda: _take(server, []), "the closed ring ends", LONG)
    for sender in senders:
        _stops(sender)


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_ring_goes_on_after_garbage_over_the_slots(serve, act, owners, seed, order):
    """When the scribbler, and every owner that its garbage may name, is gone, new samples come once and whole."""
    server = serve(BATCH, BATCHES, order=order, reap_interval=0.02)
    assert [owner.index for owner in owners(server.name)] == [0]  # the garbage does not name this owner
    senders, sampler, other, scribbler = _start(act, server, write_slots, seed)
    time.sleep(SLOTS_SPELL)
    scribbler.say("stop")
    assert scribbler.hear() > 0
    scribbler.kill()
    senders[0].kill()
    _stops(senders[1])
    _stops(sampler)
    _is_interrupted(other)

    got = []
    sender = act(send_all, server.handle)
    until(lambda: _take(server, got) or not sender.is_silent(), "everything is sent", LONG)
    assert sender.hear() == "sent"
    server.close()
    until(lambda: _take(server, got), "the closed ring ends", LONG)
    got += [_copy(sample.batch) for sample in server.dataset_iter(drop_last=False)]  # samples that fill no batch
    old = sum(int((batch["incarnation"] != AFTERWARDS).sum()) for batch in got)
    new = [stamp for batch in got for stamp in stamped.stamps(_copy(batch, batch["incarnation"] == AFTERWARDS))]
    assert old <= SLOTS, "more than was in the ring"
    assert sorted(new) == [(AFTERWARDS, n) for n in range(SENT)]
