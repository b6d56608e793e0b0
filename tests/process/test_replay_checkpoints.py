"""Checkpoints of a replay whose workers go on, restored in another process."""

import itertools
import subprocess
import sys

import numpy as np

from echo_shm import Replay, Table
from echo_shm.replay import Sequence

EXAMPLE = {"worker": np.zeros((), np.int64), "n": np.zeros(500, np.int64)}
CAPACITY = 2_000


def send(writer, worker):
    """Steps with their numbers, until the replay is closed."""
    for n in itertools.count():
        writer.add({"worker": np.int64(worker), "n": np.full(500, n)})


RESTORE = """
import sys
from echo_shm import Replay
with Replay.restore(sys.argv[1]) as replay:
    size = replay.info("all").size
    data = replay.sample(4 * size, "all").data
    assert (data["n"] == data["n"][:, :1]).all(), "torn"
    for worker in range(3):
        mine = set(data["n"][data["worker"] == worker, 0].tolist())
        assert max(mine, default=0) < replay.info("all").inserted
    pairs = replay.sample(2000, "pairs").data
    assert (pairs["n"][:, 1, 0] == pairs["n"][:, 0, 0] + 1).all(), "an item of steps that do not follow each other"
    assert (pairs["worker"][:, 0] == pairs["worker"][:, 1]).all()
    print(replay.num_steps, replay.info("all").inserted)
"""


def test_workers_go_on(tmp_path):
    """Whatever workers send meanwhile, each checkpoint is one moment, and another process restores it."""
    tables = [Table("all"), Table("pairs", item=Sequence(2, 1))]
    inserted = []
    with Replay(EXAMPLE, CAPACITY, tables) as replay, replay.spawn(send, 3, [0, 1, 2]):
        while replay.num_steps < CAPACITY:
            replay.sample(1, "all", timeout=30)
        for _ in range(3):
            before = replay.info("all").inserted
            path = replay.checkpoint(tmp_path)
            after = replay.info("all").inserted
            got = subprocess.run([sys.executable, "-c", RESTORE, path], check=True, stdout=subprocess.PIPE, text=True)
            steps, then = map(int, got.stdout.split())
            assert steps == CAPACITY
            assert before <= then <= after
            inserted.append((then, after))
    assert any(after > then for then, after in inserted), "nothing came while a checkpoint was written"
