"""The adapter for JAX: what is copied and what is not, how long a batch is held, and donation."""

import gc
import itertools
from typing import Any

import numpy as np
import pytest
from harness.packages import need
from harness.programs import run_python

need("jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from echo_shm import Replay, Server, ShmClient, Table  # noqa: E402
from echo_shm.adapters.jax import as_arrays, batches  # noqa: E402
from echo_shm.replay import Prioritized  # noqa: E402

SIZE = 16
EXAMPLE = {"obs": np.zeros(32, np.float32), "act": np.zeros((), np.int32)}


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """What is read after its release is not a number, or -1."""
    monkeypatch.setenv("ECHO_SHM_POISON", "1")
    jax.config.update("jax_platforms", "cpu")


def fill(server: Any, *numbers: int) -> None:
    """Batches whose leaves are those numbers."""
    for number in numbers:
        rows = np.full((SIZE, 32), number, np.float32)
        server.submit_many({"obs": rows, "act": np.full(SIZE, number, np.int32)}, timeout=10)


def held(server: Server) -> int:
    """How many batches the server has."""
    gc.collect()
    return server._reader._reader.held


def test_arrays_share_the_memory_and_hold_the_batch():
    """An array reads the ring itself, and its batch stays until the array goes."""
    with Server(EXAMPLE, SIZE, num_buffers=2) as server:
        fill(server, 1)
        sample = server.sample(1)
        place = sample.batch["obs"].__array_interface__["data"][0]
        made = as_arrays(sample)
        assert made.versions.tolist() == [0] * SIZE
        kept = made.batch["obs"]
        del sample, made
        fill(server, 2)
        assert server.sample(1).batch["act"][0] == 2
        assert (kept.unsafe_buffer_pointer(), held(server)) == (place, 1)
        assert (kept == 1).all()
        del kept
        assert held(server) == 0


def test_a_replays_keys_stay_as_they_are():
    """A key has 64 bits, and JAX would leave 32 of them. So priorities can be updated."""
    with Replay({"obs": np.zeros(4, np.float32)}, 10, [Table("t", Prioritized(1.0, 1.0))]) as replay:
        replay.extend({"obs": np.zeros((10, 4), np.float32)})
        replay.extend({"obs": np.ones((5, 4), np.float32)})  # of these a key has more than 32 bits
        for batch in itertools.islice(batches(iter(lambda: replay.sample(100), None)), 1):
            assert isinstance(batch.data["obs"], jax.Array)
            assert batch.key.dtype == np.uint64
            assert batch.key.max() > 2**32
            assert replay.update(batch.key, np.ones(100)) == len(set(batch.key.tolist()))


def test_copies_hold_nothing():
    """With copy=True the batch is free at once, and what was copied stays."""
    with Server(EXAMPLE, SIZE) as server:
        fill(server, 1)
        made = as_arrays(server.sample(1), copy=True)
        assert held(server) == 0
        assert (made.batch["obs"] == 1).all()


def test_leaves_that_jax_cannot_use_are_copied():
    """64-bit leaves become 32-bit ones, and what begins elsewhere than at 64 bytes is copied; both are right."""
    whole = np.arange(64, dtype=np.float32)
    begin = -whole.__array_interface__["data"][0] % 64 // 4 + 1
    odd, wide = whole[begin : begin + 8], np.arange(3)
    arrays = as_arrays({"odd": odd, "wide": wide, "text": "as it is"})
    assert arrays["odd"].unsafe_buffer_pointer() != odd.__array_interface__["data"][0]
    assert arrays["wide"].dtype == jnp.int32
    jax.block_until_ready([arrays["odd"], arrays["wide"]])
    odd += 1
    assert arrays["odd"].tolist() == (odd - 1).tolist()
    assert arrays["wide"].tolist() == [0, 1, 2]
    assert arrays["text"] == "as it is"
    with pytest.raises(TypeError, match=r"leaf \['a'\]\[1\] has dtype datetime64\[s\], of which JAX makes no array"):
        as_arrays({"a": (np.zeros(2), np.zeros(2, "M8[s]"))})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: x.at[0].set(5),
        lambda x: jax.lax.fori_loop(0, 9, lambda i, y: y.at[i].add(2), x),
        lambda x: x,
    ],
)
def test_a_donated_array_never_changes_the_batch(function):
    """XLA may write to what is donated. It writes to a copy of the ring's memory, and to its own memory in place."""
    donating = jax.jit(function, donate_argnums=0)
    with Server(EXAMPLE, SIZE) as server:
        fill(server, 1)
        view = server.sample(1).batch["obs"]
        array = as_arrays(view)
        assert array.unsafe_buffer_pointer() == view.__array_interface__["data"][0]
        result = jax.block_until_ready(donating(array))
        assert array.is_deleted()
        assert result.unsafe_buffer_pointer() != view.__array_interface__["data"][0]
        assert (view == 1).all()
        expected = np.asarray(function(jnp.ones((SIZE, 32))))
        del array, view
        assert held(server) == 0  # the result is not of the ring
        fill(server, 2, 3, 4, 5)
        assert (np.asarray(result) == expected).all()


def test_a_loop_waits_for_no_garbage_of_jax():
    """A computation may still hold a batch when the loop waits for the next, which needs its space."""
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda i, y: x.T @ (x @ y / 32) / SIZE, jnp.ones((32, 32))))
    with Server(EXAMPLE, SIZE, num_buffers=2) as server, server.spawn(send, 1, [25], context="spawn") as workers:
        results = [slow(batch["obs"] / batch["obs"]) for batch, _ in batches(server, until=workers)]
    assert len(results) == 25
    assert all((np.asarray(one) == 1).all() for one in results)


def send(client: ShmClient, count: int) -> None:
    """Sends so many batches."""
    for number in range(1, count + 1):
        fill(Submitting(client), number)


class Submitting:
    """A client with the name that :func:`fill` calls."""

    def __init__(self, client: ShmClient) -> None:
        self.submit_many = client.send_many


def test_bad_sources_are_refused():
    """The message says what it takes."""
    with pytest.raises(TypeError, match=r"a Server, which may have until=, or an iterable.*got int"):
        batches(3)
    with Replay(EXAMPLE, 10) as replay:
        replay.add(EXAMPLE)
        assert next(batches(replay.dataset_iter(3))).data["obs"].shape == (3, 32)


def test_a_policy_learns_from_batches():
    """The values of a bandit's arms are learned by a jitted update that takes its own weights as a donation."""

    def loss(weights: Any, batch: Any) -> Any:
        values = jnp.take_along_axis(batch["obs"] @ weights, batch["act"][:, None], 1)[:, 0]
        reward = (batch["obs"][:, 3] > 0) == (batch["act"] == 1)
        return jnp.square(values + 0.5 - reward).mean()

    update = jax.jit(lambda weights, batch: weights - 0.1 * jax.grad(loss)(weights, batch), donate_argnums=0)
    rng, weights = np.random.default_rng(0), jnp.zeros((32, 2))
    with Server(EXAMPLE, SIZE) as server:
        loop = batches(server, copy=True)  # this thread also sends
        for _ in range(200):
            obs, act = rng.standard_normal((SIZE, 32), np.float32), rng.integers(2, size=SIZE, dtype=np.int32)
            server.submit_many({"obs": obs, "act": act})
            weights = update(weights, next(loop).batch)
    obs = rng.standard_normal((500, 32), np.float32)
    assert ((obs[:, 3] > 0) == (obs @ np.asarray(weights)).argmax(1)).mean() > 0.85


def test_a_missing_package_is_named():
    """One line says which extra to install."""
    done = run_python("import sys\nsys.modules['jax'] = None\nimport echo_shm.adapters.jax", status=1)
    assert done.stderr.splitlines()[-1].endswith("echo_shm.adapters.jax needs JAX: pip install 'echo-shm[jax]'")
