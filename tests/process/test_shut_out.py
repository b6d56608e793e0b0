"""A replay that shuts its writers out has all that they were told was sent."""

import itertools
import multiprocessing

import numpy as np

from echo_shm import Table
from echo_shm.errors import ConnectionClosedError
from echo_shm.replay import Replay, ReplayClient


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
