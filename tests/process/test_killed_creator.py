"""The learner that created a ring is killed: another can take over, and the segment can be removed."""

import os
import re

import pytest
from harness import stamped
from harness.processes import until_asleep
from harness.waiting import until

from echo_shm import ConnectionClosedError, SegmentError, Server, ShmClient
from echo_shm.ring import lockfile, segment


def _create(conn, name):
    server = Server(stamped.example(), 2, num_buffers=2, name=name)
    conn.send(server.handle)
    conn.recv()


def _fill(conn, handle, grace):
    """Fills the ring and sends one sample more; says what happened to that."""
    with ShmClient(handle, learner_grace=grace) as client:
        for sequence in range(4):
            client.send(stamped.stamp(stamped.example(), 1, sequence))
        conn.send("full")
        try:
            client.send(stamped.stamp(stamped.example(), 1, 4))
            conn.send("sent")
        except ConnectionClosedError as error:
            conn.send(str(error))
        conn.recv()


def _files(name):
    return [entry for entry in os.listdir("/dev/shm") if entry.endswith(name)]


def test_producers_give_up_after_learner_grace(name, act):
    """Producers that wait on a full ring get an error when there was no learner for learner_grace seconds."""
    creator = act(_create, name)
    handle = creator.hear()
    producers = [act(_fill, handle, 0.5)]
    assert producers[0].hear() == "full"
    creator.kill()
    assert "learner_grace" in producers[0].hear()


def test_a_living_learner_is_waited_for(name, act):
    """learner_grace counts from the last learner's death, not from the full ring."""
    creator = act(_create, name)
    producer = act(_fill, creator.hear(), 0.2)
    assert producer.hear() == "full"
    until_asleep(producer.pid)
    assert not producer.conn.poll(0.6)
    creator.kill()
    assert "learner_grace" in producer.hear()


def test_a_new_learner_takes_over(name, act):
    """A learner that attaches by name within learner_grace gets everything, and the blocked producer goes on."""
    creator = act(_create, name)
    producer = act(_fill, creator.hear(), 60.0)
    assert producer.hear() == "full"
    until_asleep(producer.pid)
    creator.kill()
    with Server.attach(name) as heir:
        for expected in [(1, 0), (1, 1)], [(1, 2), (1, 3)]:
            sample = heir.sample(timeout=20)
            assert stamped.stamps(sample.batch) == expected
        sample.release()
        assert producer.hear() == "sent"
        assert not lockfile.collect(name)
    # a process does not collect a segment that it has mapped
    del heir, sample
    assert not lockfile.collect(name)  # the producer is still attached
    producer.say()
    producer.end()
    assert lockfile.collect(name)
    assert not _files(name)


def test_collect_spares_what_is_used(name, act):
    """A segment is removed when no process is attached, and not before; then its name is free again."""
    creator = act(_create, name)
    producer = act(_fill, creator.hear(), None)
    assert producer.hear() == "full"
    assert not lockfile.collect(name)
    creator.kill()
    assert not lockfile.collect(name)
    assert len(_files(name)) == 2
    with pytest.raises(SegmentError, match=f"by process {creator.pid}, which is dead; other processes are attached"):
        Server(stamped.example(), 2, name=name)
    producer.kill()
    with pytest.raises(SegmentError) as caught:
        Server(stamped.example(), 2, name=name)
    assert re.search(
        rf"created on [-0-9]+ [:0-9]+ by process {creator.pid}, which is dead; nobody is attached\. "
        r"It holds 4 committed samples, 2 full batches of 2\. To drop them, run `echo-shm gc`.*"
        r"To take them first, join it: Server\.attach",
        str(caught.value),
    )
    assert lockfile.collect(name)
    assert not _files(name)
    assert not lockfile.collect(name)
    with Server(stamped.example(), 2, name=name) as server:
        assert server.name == name


def test_a_listing_says_who_lives(name, act):
    """A listing tells three states apart: creator alive; creator dead, but in use; not in use."""
    creator = act(_create, name)
    handle = creator.hear()
    with ShmClient(handle):
        seen = segment.listing(name)
        assert (seen.locked, seen.creator_alive, seen.fault) == (True, True, "")
        creator.kill()
        seen = segment.listing(name)
        assert (seen.locked, seen.creator_alive) == (True, False)
        assert name in lockfile.names()
    until(lambda: not segment.listing(name).locked, "nobody is attached")
    del seen


def _create_slowly(conn, name):
    """Creates and closes segments until it is killed."""
    conn.send("go")
    while True:
        Server(stamped.example(), 2, name=name).close()


def test_killed_while_creating_or_closing(name, act):
    """Whatever a killed creator leaves behind can be removed, and the name used again."""
    for _ in range(15):
        creator = act(_create_slowly, name)
        creator.hear()
        creator.conn.poll(0.003)
        creator.kill()
        lockfile.collect(name)
        with Server(stamped.example(), 2, name=name) as server, ShmClient(server.handle) as client:
            client.send(stamped.example())
