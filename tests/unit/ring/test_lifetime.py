"""Arrays outlive the server and client they came from: no use of one may crash the process."""

import gc
import json
import weakref

import numpy as np
import pytest
from harness.programs import run_python

from echo_shm import Server, ShmClient

SETUP = """
import gc, os, sys
import numpy as np, optree
from echo_shm import Server, ShmClient
example = {"x": np.zeros((64, 64)), "i": np.zeros((), np.int64), "none": np.zeros((0, 3))}
def fill(writer, n=1, value=1.0):
    for i in range(n):
        writer.send({"x": np.full((64, 64), value), "i": np.int64(i), "none": np.zeros((0, 3))})
def touch(tree, write=False):
    for leaf in optree.tree_leaves(tree):
        leaf.sum(); leaf.copy(); repr(leaf)
        if write: leaf[...] = 7
def read_only(tree):
    for leaf in optree.tree_leaves(tree):
        try: leaf[...] = 7
        except ValueError: continue
        raise AssertionError("written")
def unmapped():
    return "/dev/shm/echo_shm" not in open("/proc/self/maps").read()
"""

SCRIPTS = {
    "batch after close": """
with Server(example, 2, writable=True) as s:
    fill(s._writer, 2); b = s.sample().batch
touch(b, write=True)
""",
    "batch after the server is gone": """
s = Server(example, 2, writable=True)
fill(s._writer, 2); b = s.sample().batch
s.close(); del s; gc.collect()
touch(b, write=True)
x = b["x"][0, ::2].T; del b; gc.collect(); touch(x, write=True)
del x; gc.collect(); assert unmapped()
""",
    "batch after a forgotten server": """
s = Server(example, 2)
fill(s._writer, 2); b = s.sample().batch
del s; gc.collect(); touch(b)
assert not [f for f in os.listdir("/dev/shm") if str(os.getpid()) in f]
""",
    "batch after release": """
s = Server(example, 1, num_buffers=1, writable=True)
fill(s._writer); sample = s.sample(); sample.release(); fill(s._writer, value=2.0)
touch(sample.batch, write=True); s.close(); del s; gc.collect(); sample.release(); touch(sample.batch, write=True)
""",
    "release after everything is gone": """
s = Server(example, 1); fill(s._writer, 2)
sample = s.sample(); lease = s.lease(); held = lease.__enter__()
del s; gc.collect(); sample.release(); held.release()
del lease; held.release(); touch(held.batch)
""",
    "lease left after the server is gone": """
s = Server(example, 1); fill(s._writer)
lease = s.lease(); b = lease.__enter__().batch
s.close(); del s; gc.collect(); lease.__exit__(None, None, None); touch(b)
""",
    "reserve views after everything": """
s = Server(example, 1)
c = ShmClient(s.handle)
with c.reserve() as slot:
    touch(slot, write=True); own = slot["x"][1:, ::2].T, slot["i"][...]
touch(slot); read_only(slot); touch(own, write=True)
c.close(); touch(slot); touch(own, write=True)
del c; s.close(); del s; gc.collect(); touch(slot); read_only(slot); touch(own, write=True)
del slot; gc.collect(); touch(own, write=True); assert not unmapped()
del own; gc.collect(); assert unmapped()
""",
    "reservation left after everything": """
s = Server(example, 1); c = ShmClient(s.handle)
r = c.reserve(); slot = r.__enter__(); c.close(); s.close(); del s, c; gc.collect()
touch(slot, write=True)
try: r.__exit__(None, None, None)
except ConnectionError: pass
del r; gc.collect(); touch(slot); read_only(slot)
""",
    "bound sample after everything": """
s = Server(example, 1); c = ShmClient(s.handle)
b = c.bind({"x": np.zeros((64, 64)), "i": np.zeros((), np.int64), "none": np.zeros((0, 3))})
c.close(); s.close(); del s, c; gc.collect()
try: b.send()
except ConnectionError: print("closed")
""",
    "iterator left in the middle": """
s = Server(example, 1); fill(s._writer, 3)
it = s.dataset_iter(); a = next(it); b = next(it)
del s; gc.collect(); touch((a.batch, b.batch)); it.close(); del it; gc.collect(); touch((a.batch, b.batch))
""",
    "short batch after everything": """
s = Server(example, 4); fill(s._writer, 2); s.close()
(a,) = s.dataset_iter(drop_last=False)
del s; gc.collect(); touch(a.batch); a.release()
""",
    "attached learner's batch": """
s = Server(example, 1); o = Server.attach(s.name); fill(s._writer)
b = o.sample().batch; s.close(); del s; gc.collect(); touch(b); o.close(); del o; gc.collect(); touch(b)
""",
    "info after everything": """
s = Server(example, 1, detailed_metrics=True); fill(s._writer); info = s.sample().info
s.close(); del s; gc.collect(); print(info, info.as_dict())
""",
    "arrays alive at exit": """
s = Server(example, 1); fill(s._writer); b = s.sample().batch; c = ShmClient(s.name)
r = c.reserve(); slot = r.__enter__(); sys.keep = b, slot, r
""",
    "use in a finalizer at exit": """
import atexit
s = Server(example, 1); fill(s._writer); sample = s.sample(); c = ShmClient(s.name)
class Late:
    def __del__(self):
        touch(sample.batch); sample.release(); s.close(); c.close()
sys.late = Late()
atexit.register(lambda: (touch(sample.batch), sample.release()))
""",
    "poisoned while read": """
os.environ["ECHO_SHM_POISON"] = "1"
s = Server(example, 1); fill(s._writer); a = s.sample(); a.release(); assert np.isnan(a.batch["x"]).all()
s.close(); del s; gc.collect(); assert np.isnan(a.batch["x"]).all(); touch(a.batch)
""",
}


#: Forks a process for each script, which runs it and ends as an interpreter does: finalizers, exit handlers and all.
EACH = """
import json
failed = []
for what, script in json.loads(sys.argv[1]).items():
    pid = os.fork()
    if pid == 0:
        break
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        failed.append(f"{what}: status {status}")
else:
    sys.exit("; ".join(failed) or 0)
exec(script)
"""


def test_no_use_crashes():
    """Reading and writing what was handed out is safe at any time, and the last reference unmaps."""
    run_python(SETUP + EACH, json.dumps(SCRIPTS))


def test_a_crash_is_seen():
    """A script that crashes, and one that raises, fail the test above; the others run all the same."""
    scripts = {"good": "pass", "crash": "import ctypes; ctypes.string_at(0)", "bad": "1 / 0", "last": "print('ran')"}
    done = run_python(SETUP + EACH, json.dumps(scripts), status=1)
    assert "crash: status -11; bad: status 1\n" in done.stderr
    assert "good" not in done.stderr
    assert done.stdout == "ran\n"


def test_batches_are_read_only():
    """A batch cannot be written to, and cannot be made writable by its flags."""
    with Server({"x": np.zeros(3), "i": np.zeros((), "M8[s]")}, 1) as server:
        server.submit({"x": np.ones(3), "i": np.datetime64(5, "s")})
        for leaf in server.sample(1).batch.values():
            assert not leaf.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                leaf[...] = 0
            for view in (leaf, leaf[0:], leaf.reshape(-1), leaf.view(np.uint8), leaf.base):
                with pytest.raises((ValueError, TypeError, AttributeError)):
                    view.flags.writeable = True
                with pytest.raises((ValueError, AttributeError)):
                    view.setflags(write=True)
            assert memoryview(leaf.view(np.uint8)).readonly


def test_writable_batches():
    """With writable=True a batch can be changed in place, and the change stays in the ring's memory."""
    with Server(np.zeros(3), 1, num_buffers=1, writable=True) as server:
        server.submit(np.ones(3))
        with server.lease(1) as sample:
            sample.batch[...] *= 2
        with ShmClient(server.name) as client, client.reserve() as slot:
            assert slot.tolist() == [2, 2, 2]


def test_nothing_keeps_a_server():
    """A server without references is collected at once, though its batches, samples and clients live on."""
    server = Server(np.zeros(3), 1)
    client = ShmClient(server.handle)
    client.send(np.zeros(3))
    sample = server.sample(1)
    gone = weakref.ref(server)
    del server
    gc.collect()
    assert gone() is None
    with pytest.raises(ConnectionError):
        client.send(np.zeros(3))
    client.close()
    assert sample.batch.shape == (1, 3)
