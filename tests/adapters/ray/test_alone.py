"""On one machine, without a cluster of its own: ``ray.init()``, and what follows its end."""

import subprocess
import sys

import pytest
from harness import leftovers
from harness.packages import need
from harness.waiting import until

need("ray")
need("cryptography")

SCRIPT = """
import numpy as np, ray
from echo_shm import EchoShmError, Table
from echo_shm.adapters.ray import RayReplay, RayStream
from echo_shm.errors import ConnectionClosedError
from echo_shm.replay import Prioritized

RayReplay._patience = 0.5  # of the guards
EXAMPLE = {"x": np.zeros(3)}
OPTIONS = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False, "logging_level": "error"}

def work(writer, i):
    for k in range(50):
        writer.add({"x": np.full(3, float(i))}, 1.0 + k)
    writer.flush()

for make in (lambda: RayReplay(EXAMPLE, 100), lambda: RayStream(EXAMPLE, 4)):
    try:
        make()
    except EchoShmError as error:
        print(error)
for _ in range(2):
    ray.init(**OPTIONS)
    replay = RayReplay(EXAMPLE, 1000, [Table("train", Prioritized())])
    replay.spawn(work, 2).join(60)
    batches = replay.dataset_iter(32)
    batch = next(batches)
    replay.update(batch.key, np.ones(32))
    assert set(batch.key["shard"].tolist()) == {0}
    ray.shutdown()
    assert len(list(batches)) < 1000
    for call in (lambda: replay.update(batch.key, np.ones(32)), lambda: replay.spawn(work, 1), replay.writer):
        try:
            call()
        except ConnectionClosedError:
            print("closed")
    replay.close()
    assert not ray.is_initialized()
print("done")
"""


ENDS_IN_A_LOOK = """
import threading, time
import numpy as np, ray
from echo_shm.adapters.ray import RayReplay, nodes

RayReplay._patience = 0.5  # of the guards
looks, go_on, draining = threading.Event(), threading.Event(), nodes.draining

def held():
    found = draining()
    looks.set()
    go_on.wait()
    return found

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
nodes.draining = held
replay = RayReplay({"x": np.zeros(3)}, 100)
looks.wait()
ray.shutdown()
go_on.set()
for thread in threading.enumerate():
    if thread.name == "echo_shm-keeper":
        thread.join(60)
        assert not thread.is_alive()
assert not ray.is_initialized(), "the keeper has started Ray"
replay.close()
print("done")
"""


@pytest.mark.watchdog(240)
def test_ray_ends_while_its_keeper_looks():
    """A call of Ray's that follows would start it again, or connect to a cluster that is none of its own."""
    files = leftovers.files()
    done = subprocess.run([sys.executable, "-c", ENDS_IN_A_LOOK], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "cannot be looked at" not in done.stderr
    until(lambda: not leftovers.files() - files, "the guards remove what Ray's end has left")


@pytest.mark.watchdog(240)
def test_ray_ends_before_its_replay():
    """Nothing hangs, starts Ray again, or disturbs the next cluster of this process."""
    files = leftovers.files()
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    asked = "Ray has not been started in this process: call ray.init() first"
    assert done.stdout.split("\n") == [asked, asked, *["closed"] * 6, "done", ""]
    until(lambda: not leftovers.files() - files, "the guards remove what Ray's end has left")
