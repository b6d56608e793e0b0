"""PyTorch and JAX keep a batch for as long as they need it, and not longer.

Each script below runs with ECHO_SHM_POISON=1: the bits of a batch that is released become ones at once. So what a
framework reads too late is NaN or -1. The scripts of one framework share a process, which imports it once.
"""

import json
import sys

from harness.programs import run

SETUP = """
import gc, json, os, sys, threading, traceback, warnings
import numpy as np
from echo_shm import Server
warnings.simplefilter("ignore")  # of read-only arrays
SIZE, LEAF = 16, (32,)  # a multiple of 64 bytes, so that JAX needs no copy
EXAMPLE = {"obs": np.zeros(LEAF, np.float32), "act": np.zeros((), np.int32)}

def serve(num_buffers, **options):
    return Server(EXAMPLE, SIZE, num_buffers=num_buffers, **options)
def fill(server, number):
    '''Batch number n: n + 1 everywhere.'''
    rows = np.full((SIZE, *LEAF), number + 1, np.float32)
    server.submit_many({"obs": rows, "act": np.full(SIZE, number + 1, np.int32)}, timeout=5)
def batches(server, count):
    '''Batches 0, 1, and so on. A ring of a few holds them all in turn if nothing keeps them.'''
    for number in range(count):
        fill(server, number)
        yield server.sample(1).batch
def held(server):
    gc.collect()
    return server._reader._reader.held
def address(array):
    return array.__array_interface__["data"][0]
"""

#: Runs each script, and says which failed.
EACH = """
if __name__ == "__main__":
    failed = []
    for what, script in json.loads(sys.argv[1]).items():
        try:
            exec(script, dict(globals()))
        except BaseException:
            failed.append(what)
            print(f"--- {what}", file=sys.stderr)
            traceback.print_exc()
    sys.exit("; ".join(failed) or 0)
"""

TORCH_SETUP = """
import torch
from optree import tree_map
from torch.utils.data import DataLoader, IterableDataset

class Inherited(IterableDataset):
    '''Iterates a server that was made before the data loader's workers.'''
    def __init__(self, server):
        self.server, self.seen = server, []
    def __iter__(self):
        for batch, info in self.server.dataset_iter():
            self.seen.append(address(batch["obs"]))
            yield batch

class Attached(IterableDataset):
    '''Attaches in each of the data loader's workers, as README says.'''
    def __init__(self, handle):
        self.handle = handle
    def __iter__(self):
        with Server.attach(self.handle) as learner:
            for batch, info in learner.dataset_iter():
                yield batch
"""

TORCH = {
    "tensors over a batch": """
for make in (torch.from_numpy, torch.as_tensor, lambda a: torch.as_tensor(a).T[1:, ::3], torch.from_dlpack):
    with serve(2, writable=True) as s:
        fill(s, 0)
        kept = make(s.sample(1).batch["obs"])
        for batch in batches(s, 1): assert batch["act"].tolist() == [1] * SIZE
        del batch
        assert held(s) == 1 and (kept == 1).all(), kept
        del kept
        assert held(s) == 0
""",
    "what autograd saves": """
# The product's gradient needs each batch, long after the loop has gone on to the next.
with serve(8) as s:
    weight, total = torch.ones(LEAF, requires_grad=True), 0
    for batch in batches(s, 6):
        total = total + (torch.as_tensor(batch["obs"]) * weight).sum()
    del batch
    assert held(s) == 6
    total.backward()
    assert weight.grad.tolist() == [SIZE * (1 + 2 + 3 + 4 + 5 + 6)] * LEAF[0], weight.grad
    del total
    assert held(s) == 0
""",
    "a data loader without workers": """
with serve(4) as s:
    for number in range(3): fill(s, number)
    dataset = Inherited(s)
    loader = iter(DataLoader(dataset, batch_size=None))
    first, second, third = next(loader), next(loader), next(loader)
    assert [first["obs"].data_ptr(), second["obs"].data_ptr(), third["obs"].data_ptr()] == dataset.seen
    del second, loader
    assert held(s) == 2
    assert (first["obs"] == 1).all() and (third["obs"] == 3).all() and first["act"].tolist() == [1] * SIZE
    del first, third
    assert held(s) == 0
""",
    "a data loader whose workers attach": """
with serve(3) as s:
    def send():
        for number in range(40): fill(s, number)
        s.close()
    sending = threading.Thread(target=send)
    loader = iter(DataLoader(Attached(s.handle), batch_size=None, num_workers=2, multiprocessing_context="fork"))
    sending.start()
    got = list(loader)
    sending.join()
    assert all((one["obs"] == one["act"][0]).all() for one in got)
    assert sorted(int(one["act"][0]) for one in got) == list(range(1, 41)), got
""",
    "a data loader whose workers inherit": """
with serve(2) as s:
    fill(s, 0)
    for context, error, words in (
        ("fork", RuntimeError, "attach again in the child: .* Server.attach"),
        ("spawn", TypeError, "pickle server.handle, and attach there.* Server.attach"),
    ):
        import re
        try:
            loader = DataLoader(Inherited(s), batch_size=None, num_workers=1, multiprocessing_context=context)
            raise AssertionError(next(iter(loader)))
        except error as got:
            assert re.search(words, str(got)), got
    assert s.sample(1).batch["act"].tolist() == [1] * SIZE
""",
    "weights of a module": """
from echo_shm import Publisher, Subscriber
def module(value, dtype=torch.float32):
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(dtype)  # it counts batches: an int64
    for leaf in made.state_dict().values():
        leaf.fill_(value)
    return made
for dtype in (torch.float32, torch.bfloat16):
    ours, mine = module(2, dtype), module(0, dtype)
    parameters = list(mine.parameters())
    with Publisher(ours.state_dict()) as publisher, Subscriber(publisher.name) as subscriber:
        publisher.publish(ours.state_dict())
        assert subscriber.poll(into=mine.state_dict())  # into the module's own memory
        assert all((p == 2).all() and p.dtype == dtype for p in parameters)
        assert not subscriber.poll(into=mine.state_dict())
        latest = subscriber.latest()
        assert list(latest) == list(ours.state_dict())
        assert all((np.asarray(leaf, np.float32) == 2).all() for leaf in latest.values())
        try:
            publisher.publish(module(2, torch.float64).state_dict())
        except ValueError as error:
            assert "leaf ['0.weight']: got float64[4, 3], expected" in str(error), error
        else:
            raise AssertionError
""",
}

JAX_SETUP = """
import jax
import jax.numpy as jnp

@jax.jit
def slowly(x):
    '''A matrix of ones, if x has only ones. It reads x from its beginning to its end.'''
    again = lambda i, y: x.T @ (x @ y / LEAF[0]) / SIZE
    return jax.lax.fori_loop(0, 5000, again, jnp.ones(LEAF * 2))
"""

JAX = {
    "arrays over a batch": """
aliased = 0
for make in (jnp.asarray, jax.device_put, lambda a: jnp.asarray(a)[1:, ::3], jax.dlpack.from_dlpack):
    with serve(2, writable=True) as s:
        fill(s, 0)
        view = s.sample(1).batch["obs"]
        kept, place = make(view), address(view)
        del view
        for batch in batches(s, 1): assert batch["act"].tolist() == [1] * SIZE
        del batch
        assert (np.asarray(kept) == 1).all(), kept
        if kept.unsafe_buffer_pointer() == place:
            aliased += 1
            assert held(s) == 1
        del kept
        assert held(s) == 0
assert aliased >= 2, aliased  # otherwise nothing was tried
""",
    "a computation that still runs": """
slowly(jnp.ones((SIZE, *LEAF))).block_until_ready()  # compiles
for to_jax in (jnp.asarray, lambda array: array):
    with serve(2) as s:
        for attempt in range(20):  # a busy machine may come back to this thread too late
            fill(s, 0)
            result = slowly(to_jax(s.sample(1).batch["obs"]))
            for batch in batches(s, 1): pass
            del batch
            running = not result.is_ready()
            assert (np.asarray(result) == 1).all(), result
            assert held(s) == 0
            if running: break
        assert running, "it never still ran"
""",
    "a loop that keeps what it computes": """
with serve(4) as s:
    means = [(jnp.asarray(batch["obs"]).mean(), jnp.asarray(batch["act"]).sum()) for batch in batches(s, 50)]
    assert [float(mean) for mean, _ in means] == list(range(1, 51))
    assert [int(total) for _, total in means] == [SIZE * n for n in range(1, 51)]
""",
    "weights of a pytree": """
from echo_shm import Publisher, Subscriber
def made(value):
    return {"dense": ({"w": jnp.full((3, 4), value)}, None), "half": jnp.full(5, value, jnp.bfloat16)}
with Publisher(made(0.0)) as publisher, Subscriber(publisher.name) as subscriber:
    publisher.publish(jax.jit(lambda p: jax.tree.map(lambda x: x + 2, p))(made(0.0)))
    latest = subscriber.latest()
    assert jax.tree.structure(latest) == jax.tree.structure(made(0.0))
    back = jax.tree.map(jnp.asarray, latest)
    assert back["half"].dtype == jnp.bfloat16 and (back["half"] == 2).all() and (back["dense"][0]["w"] == 2).all()
    publisher.publish(made(3.0))
    try:
        subscriber.poll(into=made(0.0))
    except ValueError as error:
        assert "the array is read-only" in str(error)
    else:
        raise AssertionError
""",
}


def _run_each(folder, setup, scripts, **env):
    """Runs the scripts from a file, which the workers of a data loader import."""
    path = folder / "scripts.py"
    path.write_text(SETUP + setup + EACH, encoding="utf-8")
    return run(
        sys.executable, "-X", "faulthandler", str(path), json.dumps(scripts), env={"ECHO_SHM_POISON": "1", **env}
    )


def test_torch(torch, tmp_path):
    """Tensors, what autograd saves, and data loaders refer to the batches that they read."""
    _run_each(tmp_path, TORCH_SETUP, TORCH)


def test_jax(tmp_path):
    """Arrays and computations that are still to come refer to the batches that they read."""
    _run_each(tmp_path, JAX_SETUP, JAX, JAX_PLATFORMS="cpu")
