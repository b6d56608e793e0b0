"""Producers that are killed at any moment."""

import os
import random

import pytest
from harness.valid import problem_of
from stress import producer_storm

#: Longest time without a batch while producers send (seconds). A death holds a batch up for one reap
#: interval, 0.1 s; the rest is for a busy machine.
LONGEST_GAP = 10.0

#: Memory that the learner may gain in a storm (bytes).
MEMORY = 8 << 20


def _files(name):
    return [entry for entry in os.listdir("/dev/shm") if name in entry]


def _weather(server, actor, plan, owners):
    """Runs a storm to its end, and checks what must hold; returns the ledger."""
    weather, ledger = producer_storm.Storm(actor), producer_storm.Ledger()
    for batch, info in server.dataset_iter(until=weather, drop_last=False):
        ledger.record(batch, info)
    notes = producer_storm.open_notes(plan.notes, plan.kills + plan.producers)
    ledger.settle_notes(notes, weather.incarnations)
    print(
        f"{weather.incarnations} kills in {weather.seconds:.1f} s, {ledger.samples} samples, "
        f"{ledger.info.reopened_slots} slots re-opened, longest gap {ledger.longest_gap:.3f} s, "
        f"{ledger.descents} out of order, memory {[m >> 10 for m in ledger.memory[:: max(1, len(ledger.memory) // 5)]]}"
    )
    assert weather.incarnations >= plan.kills
    assert ledger.longest_gap < LONGEST_GAP
    # With order="fifo" a sample comes before an elder one for two reasons only: it is in a re-opened slot; or it is
    # in a full batch at the end, and the elder one is in a partial batch.
    ready = server._segment.geometry.order == "ready"
    assert ready or ledger.descents <= ledger.info.reopened_slots + server.capacity
    assert problem_of(server._ring) is None
    assert [owner.role for owner in owners(server.name)] == ["learner"]
    assert len(_files(server.name)) == 2
    if len(ledger.memory) > 4:
        assert ledger.memory[-1] - ledger.memory[1] < MEMORY
    return ledger


def _plan(tmp_path, **options):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return producer_storm.Plan(seed=seed, notes=tmp_path / "notes", **options)


@pytest.mark.watchdog(300)
def test_many_kills_lose_nothing(serve, act, owners, tmp_path):
    """Many producers are killed at any moment and replaced at once: nothing is lost, doubled or torn, no long wait."""
    server = serve(64, 4)
    plan = _plan(tmp_path, kills=int(os.environ.get("STORM_KILLS", 600)), producers=6)
    _weather(server, act(producer_storm.master, server.handle, plan), plan, owners)


@pytest.mark.parametrize(
    ("batch_size", "num_buffers", "options"),
    [
        (1, 1, {}),
        (2, 2, {}),
        (3, 1, {"order": "ready"}),
        (4, 3, {"order": "ready", "detailed_metrics": True}),
        (8, 2, {"reap_interval": 0.001}),
    ],
)
def test_other_shapes_lose_nothing(serve, act, owners, tmp_path, batch_size, num_buffers, options):
    """The same in small rings, with order="ready", and with a short reap interval."""
    server = serve(batch_size, num_buffers, **options)
    plan = _plan(tmp_path, kills=100)
    _weather(server, act(producer_storm.master, server.handle, plan), plan, owners)


def test_the_dead_take_no_places(serve, act, owners, tmp_path):
    """When all max_producers places are taken, a new producer gets the place of a dead one."""
    server = serve(8, 4, max_producers=5, reap_interval=0.005)
    plan = _plan(tmp_path, kills=200, producers=5)
    _weather(server, act(producer_storm.master, server.handle, plan), plan, owners)
