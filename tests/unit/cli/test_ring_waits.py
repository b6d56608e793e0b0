"""What the words of a ring say of its slots, and who waits for whom."""

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.actors import Actor
from harness.waiting import until

from echo_shm import Server, ShmClient
from echo_shm.cli import top
from echo_shm.cli.ring_waits import RingWait, RingWaits, named
from echo_shm.cli.words import NOBODY, SLOT_STATES, Words
from echo_shm.ring.metrics import Owner, RingView
from echo_shm.ring.segment import Segment

EXAMPLE = np.zeros(2, np.float32)
HERE = os.getpid()


def _states(words: Words) -> list[str]:
    """The slots of each batch in a word: the first letters of their states."""
    return ["".join(SLOT_STATES[slot][0] for slot in batch) for batch in words.picture().slots]


def test_the_picture_of_a_ring_in_a_known_state(name: str) -> None:
    """Slots are free, claimed, committed, leased or given back, with the owner who has each of them."""
    with Server(EXAMPLE, 3, num_buffers=3, name=name) as server, ShmClient(name) as client:
        words = Words(Segment.attach(name, read_only=True))
        assert _states(words) == ["fff", "fff", "fff"]
        for _ in range(4):
            client.send(EXAMPLE)
        picture = words.picture()
        assert (picture.tail, picture.rounds.tolist(), picture.committed.tolist()) == (4, [0, 0, 0], [3, 1, 0])
        owners = RingView(words_segment := Segment.attach(name, read_only=True)).owners()
        (producer,) = [one.index for one in owners if one.role == "producer"]
        (learner,) = [one.index for one in owners if one.role == "learner"]
        assert words_segment.uuid == server.handle.uuid
        with server.lease(timeout=10), client.reserve() as slot:
            slot[...] = EXAMPLE
            picture = words.picture()
            assert _states(words) == ["lll", "ccf", "fff"]
            assert [SLOT_STATES[one] for one in picture.slots[1]] == ["committed", "claimed", "free"]
            assert picture.slot_owners.tolist()[:2] == [[learner] * 3, [producer, producer, NOBODY]]
            assert picture.batch_owners.tolist() == [learner, NOBODY, NOBODY]
            assert picture.leased_ns[0] > 0
        assert _states(words) == ["fff", "ccf", "fff"]  # released
        assert words.picture().rounds.tolist() == [1, 0, 0]
        with pytest.raises(RuntimeError), client.reserve():
            raise RuntimeError
        assert _states(words) == ["fff", "ccr", "fff"]
        mine = words.owners()[producer]
        assert (mine["state"], mine["pid"], mine["samples"], mine["waiting"]) == (1, HERE, 5, 0)


class _Look:
    """Looks at a ring's waits again and again."""

    def __init__(self, name: str) -> None:
        self._segment = Segment.attach(name, read_only=True)
        self._view = RingView(self._segment)
        self._waits = RingWaits(self._segment)

    def __call__(self, least: float = 0.0) -> list[RingWait]:
        snap = self._view.snapshot()
        return self._waits.look(top.states(self._view), snap.batches_taken, closed=bool(snap.closed), least=least)

    def said(self, of_producers: bool) -> str:
        """The waits of producers, or of learners, without their seconds: the machine may be slow."""
        waits = [str(wait) for wait in self() if wait.of_producers is of_producers]
        return re.sub(r"for \d+ s", "for N s", "; ".join(waits))


def test_producers_wait_for_the_learner_that_holds_the_oldest_batch(name: str, background: Callable[..., Any]) -> None:
    """The wait names the learner, how many batches it has and since when; and ends with the wait."""
    with Server(EXAMPLE, 1, num_buffers=3, name=name) as server, ShmClient(name) as client:
        look = _Look(name)
        client.send(EXAMPLE)
        client.send(EXAMPLE)
        first, second = server.lease(timeout=10), server.lease(timeout=10)
        with first, second:
            client.send(EXAMPLE)
            assert look.said(of_producers=True) == "", "nobody waits yet"
            blocked = background(client.send, EXAMPLE)
            what = f"learner {HERE} holds 2 of 3 batches, the oldest for N s"
            until(lambda: look.said(of_producers=True).startswith(f"producer {HERE} waits for N s: {what}"))
            (wait,) = [one for one in look() if one.of_producers]
            owners = {one.index: one for one in RingView(Segment.attach(name, read_only=True)).owners()}
            assert [owners[one].role for one in wait.waiting] == ["producer"]
            assert [owners[one].role for one in wait.on] == ["learner"]
            (wait,) = until(lambda: [one for one in look(least=1.0) if one.of_producers], "it has lasted for a second")
            assert wait.seconds >= 1
        blocked.result()
        assert look.said(of_producers=True) == ""


def test_producers_wait_for_learners_that_take_nothing(name: str, background: Callable[..., Any]) -> None:
    """The wait says how many batches are full, and who takes none."""
    with Server(EXAMPLE, 1, num_buffers=2, name=name) as server, ShmClient(name) as client:
        look = _Look(name)
        client.send(EXAMPLE)
        client.send(EXAMPLE)
        blocked = background(client.send, EXAMPLE)
        until(lambda: look.said(of_producers=True).endswith(f"2 batches are full, and learner {HERE} takes none"))
        with Server.attach(name):
            until(lambda: look.said(of_producers=True).endswith("and none of 2 learners takes one"))
        server.sample(timeout=10)
        blocked.result()


def _claim_and_stop(conn: Any, name: str) -> None:
    with ShmClient(name) as client, client.reserve():
        conn.send("ready")
        conn.recv()


def test_producers_wait_for_one_that_holds_a_slot(
    name: str, act: Callable[..., Actor], background: Callable[..., Any]
) -> None:
    """A stopped process is named as such; the learner that waits for the same batch says the same."""
    with Server(EXAMPLE, 2, num_buffers=2, name=name) as server, ShmClient(name) as client:
        look = _Look(name)
        process = act(_claim_and_stop, name)
        assert process.hear() == "ready"
        os.kill(process.pid, signal.SIGSTOP)
        for _ in range(3):
            client.send(EXAMPLE)
        waiting = background(lambda: server.sample(timeout=30))
        blocked = background(client.send, EXAMPLE)
        holds = f"producer {process.pid} (stopped) holds 1 slot of the oldest batch"
        until(lambda: look.said(of_producers=True) == f"producer {HERE} waits for N s: {holds}")
        process.kill()
        assert waiting.result() is not None
        blocked.result()


def test_a_learner_waits_for_producers(name: str, background: Callable[..., Any]) -> None:
    """It says how many samples the next batch has, and from how many producers; then what a full batch ends."""
    with Server(EXAMPLE, 3, name=name) as server:
        look = _Look(name)
        assert look() == []
        waiting = background(lambda: server.sample(timeout=30))
        who = f"learner {HERE} waits for N s: the next batch has"
        until(lambda: look.said(of_producers=False) == f"{who} 0 of 3 samples, and no producer is attached")
        with ShmClient(name) as client:
            client.send(EXAMPLE)
            until(lambda: look.said(of_producers=False) == f"{who} 1 of 3 samples, from 1 producer")
            with client.reserve() as slot, client.reserve() as other:
                slot[...] = other[...] = EXAMPLE
                held = f"producer {HERE} holds 2 slots of the oldest batch"
                until(lambda: look.said(of_producers=False) == f"{who} 1 of 3 samples; {held}")
            assert waiting.result() is not None
            assert look() == []


def test_a_producer_that_sends_again_waits_anew(name: str) -> None:
    """A wait lasts as long as the producer has sent nothing, over the short waits that a long one consists of."""
    with Server(EXAMPLE, 1, num_buffers=2, name=name), ShmClient(name) as client:
        look = RingWaits(Segment.attach(name, read_only=True))
        client.send(EXAMPLE)
        client.send(EXAMPLE)

        def producer(samples: int, blocked: int, waiting: bool) -> list[tuple[Owner, str]]:
            return [(Owner(1, "producer", 7, 0, 1.0, samples, blocked, 0.0, waiting, 0, 0.0, False), "running")]

        def seconds(*figures: Any) -> float:
            return max((wait.seconds for wait in look.look(producer(*figures), 0, closed=False)), default=-1.0)

        assert seconds(5, 1, True) == 0
        assert seconds(5, 1, True) > 0
        assert seconds(5, 2, False) > 0, "between two waits of a long one"
        assert seconds(6, 3, True) == 0, "it has sent one meanwhile"
        assert seconds(6, 3, False) > 0, "it may be between two"
        until(lambda: seconds(6, 3, False) == -1, "it is over")
        assert look.look(producer(6, 4, True), 0, closed=True) == []


def test_many_are_named_by_a_few() -> None:
    """Three are named, the others counted; of several kinds each has its kind."""

    def owners(*roles: str) -> list[Owner]:
        return [Owner(i, role, 10 + i, 0, 1.0, 0, 0, 0.0, True, 0, 0.0, False) for i, role in enumerate(roles)]

    def kind(owner: Owner) -> str:
        return owner.role

    assert named(owners("producer"), kind) == "producer 10"
    assert named(owners(*["producer"] * 5), kind) == "producers 10, 11, 12 and 2 more"
    assert named(owners("worker", "bridge"), kind) == "worker 10, bridge 11"


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_a_full_batch_behind_one_that_is_not(name: str, order: Any, background: Callable[..., Any]) -> None:
    """Where batches are taken in order, a learner waits for the oldest one, whatever comes after it."""
    with Server(EXAMPLE, 2, num_buffers=3, order=order, name=name) as server, ShmClient(name) as client:
        look = _Look(name)
        with client.reserve() as slot:
            waiting = background(lambda: server.sample(timeout=30))
            for _ in range(3):
                client.send(EXAMPLE)
            if order == "ready":
                assert waiting.result() is not None
            else:
                holds = f"producer {HERE} holds 1 slot of the oldest batch"
                said = f"learner {HERE} waits for N s: the next batch has 1 of 2 samples; {holds}"
                until(lambda: look.said(of_producers=False) == said)
            slot[...] = EXAMPLE
        assert waiting.result() is not None
