"""The page of ``echo-shm dash`` in a browser, which runs its script: headless Chromium."""

import os
import re
import time

import numpy as np
import pytest
from harness.boards import rollouts_board
from harness.pages import chromium, text_of
from harness.programs import ECHO_SHM

from echo_shm import Replay, Server, ShmClient, Table
from echo_shm.replay import Prioritized

EXAMPLE = np.zeros(2, np.float32)


@pytest.fixture
def text(program, tmp_path):
    """What a page shows."""
    chromium()

    def look(name):
        url = program(*ECHO_SHM, "dash", name).wait_for(r"http://127\.0\.0\.1:\d+/\?token=\S+")[0]
        return text_of(url, tmp_path)

    return look


def test_a_ring(name, text, background):
    """Its slots by state, its processes, and who waits for whom."""
    with Server(EXAMPLE, 2, num_buffers=2, name=name) as server, ShmClient(name) as client:
        for _ in range(2):
            client.send(EXAMPLE)
        with server.lease(timeout=10):
            for _ in range(2):
                client.send(EXAMPLE)
            blocked = background(client.send, EXAMPLE)
            time.sleep(1.2)  # shorter waits are not shown
            said = text(name)
        blocked.result()
    me = os.getpid()
    for words in (
        f"ring of 2 batches of 2, .* old, creator {me} ",
        f"producer {me} waits for [0-9]+ s: creator {me} holds 1 of 2 batches",
        "claimed 0 committed 2 reopened 0 sealed 0 held 0 leased 2 ",
        f"creator {me} .* 1 batch .*, others wait for it",
    ):
        assert re.search(words, said), said


def test_a_replay(name, text):
    """Its tables, and what their priorities are."""
    tables = [Table("first", Prioritized(0.6, 0.4)), Table("second", max_size=10)]
    with Replay({"obs": np.zeros(4, np.float32)}, 100, tables, store="shm", name=name, thread=True) as replay:
        replay.extend({"obs": np.zeros((40, 4), np.float32)}, {"first": np.repeat([0.0, 3.0], 20), "second": None})
        said = text(name)
    assert re.search(r"\bfirst 40 100 40 0\b", said), said
    assert re.search(r"\bsecond 10 10 40 0\b", said), said
    assert "first 40 of 40 items, median" in said, said
    assert "20 are 0" in said, said


def test_rollouts(name, text):
    """What they do, earn and cost; and what of a dead engine is to be done."""
    counts = {"running": 2, "waiting": 3, "submitted": 12, "finished": 4, "failed": 1, "workers": 1, "workers_max": 2}
    figures = {"episodes": 4, "successes": 3, "reward": 2.5, "eta": 1.25e-6, "blocks": 300, "blocks_free": 75}
    figures |= {"reuse_rate": 0.5, "cost_per_success": None, "time": time.time() - 60}  # a page says no age up to 2 s
    with rollouts_board(f"{name}.rollouts", **counts, **figures):
        said = text(f"{name}.rollouts")
    for words in (
        f"rollouts of process {os.getpid()}, figures of 1 min ago ",
        "running 2 waiting 3 reused 50 % KV cache in use 75 % ",
        "preempted 1 of 2 12 4 1 0 0 ",
        "a success 4 75 % 2.5 0 0 0.00000125 0 0 0 - ",
        "tokens blocks passed over requests repeated tokens sent money 0 225 of 300 at most 0 times of 0 0 0 0 0 ",
    ):
        assert re.search(words, said), said
