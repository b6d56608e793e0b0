"""A replay that shuts its writers out has all that they were told was sent."""

import contextlib
import itertools
import multiprocessing

import numpy as np

from echo_shm import Table
from echo_shm._core import ffi, lib
from echo_shm.errors import ConnectionClosedError
from echo_shm.replay import Fifo, Replay, ReplayClient, SampleToInsertRatio
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.segment import Segment


def write(name, say):
    """Writes until it cannot, and says how many steps were sent."""
    with ReplayClient(name).writer() as writer:
        say.put(None)
        for k in itertools.count():
            try:
                writer.add({"k": np.int64(k)})
            except ConnectionClosedError:
                say.put(k)
                return


def test_all_that_was_sent_is_stored():
    """While three processes write, and what they have sent lies in the inbox: this process alone stores it."""
    context = multiprocessing.get_context("spawn")
    say = context.Queue()
    with Replay({"k": np.int64(0)}, 1_000_000, [Table("t")], store="shm") as replay:
        writers = [context.Process(target=write, args=(replay.name, say)) for _ in range(3)]
        for writer in writers:
            writer.start()
        for _ in writers:
            say.get()
        assert not replay._rings.are_shut
        replay._rings.shut_out()
        stored = replay._core.num_steps()
        sent = sum(say.get() for _ in writers)
        for writer in writers:
            writer.join()
        assert (stored, replay.num_steps) == (sent, sent)
        assert replay._rings.are_shut


def keep_taken(conn, name):
    """A replay that has taken more steps than its limiter lets in."""
    limiter = SampleToInsertRatio(1.0, 1, error_buffer=(0, 2))
    table = Table("t", Fifo(), rate_limiter=limiter, max_times_sampled=1)
    with Replay({"k": np.int64(0)}, 20, [table], store="shm", name=name) as replay:
        conn.send(replay.handle)
        while True:
            replay._rings.look()
            conn.send(replay.num_steps)
            conn.recv()


@contextlib.contextmanager
def half_reaped(name, act):
    """A replay that was killed with steps in hand, among 18 that were sent. What ends the reaping of it."""
    killed = act(keep_taken, name)
    with ReplayClient(killed.hear()).writer() as writer:
        for k in range(18):
            writer.add({"k": np.int64(k)})
        while killed.hear() == 0:
            killed.say()
        killed.say()
        stored = killed.hear()
        assert stored < 18
        killed.kill()
        reaper = Attachment(Segment.attach(f"{name}.inbox"), lib.ES_ROLE_PRODUCER)
        dead = ffi.new("es_identity *")
        assert lib.es_sweep_next_dead(reaper.ring, 0, dead) >= 0
        yield lambda: lib.es_sweep_settle(reaper.ring, dead, 1)
        reaper.detach()


def test_what_a_killed_replay_had_taken_is_waited_for(name, act, background, monkeypatch):
    """Another process has begun to reap it, and is stopped: until it goes on, nobody else gets those steps."""
    monkeypatch.setattr("echo_shm.replay.sources._REAPING", 0.1)
    with half_reaped(name, act) as go_on, Replay.attach(name) as replay:
        replay._rings.open()
        replay.set_limits("t", -1e9, 1e9)
        closing = background(replay._rings.shut_out)
        closing.thread.join(2.0)  # writers have a second to end what they have begun
        assert closing.runs
        assert replay.num_steps < 18
        go_on()
        closing.result()
        assert replay.num_steps == 18


def test_what_a_killed_replay_had_taken_comes_first(name, act, background):
    """A replay that goes on with its rings waits for that, and takes nothing that was sent later before it."""
    with half_reaped(name, act) as go_on:
        attaching = background(Replay.attach, name)
        attaching.thread.join(0.5)
        assert attaching.runs
        go_on()
        with attaching.result() as replay:
            replay.set_limits("t", -1e9, 1e9)
            while replay.num_steps < 18:
                replay._rings.look()
            assert replay.sample(18, "t").data["k"].tolist() == list(range(18))
