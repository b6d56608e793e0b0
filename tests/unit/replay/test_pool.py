"""A batch stays as it is for as long as anything refers to it. Then its memory is used again."""

import copy
import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest

from echo_shm import Replay, Table
from echo_shm.replay import Batch, Fifo

EXAMPLE = {"obs": np.zeros(4, np.float32), "act": np.zeros((), np.int64)}


@pytest.fixture
def replay():
    """A replay whose batches count up: each item is sampled once, in order."""
    with Replay(EXAMPLE, 10_000, [Table("default", sampler=Fifo(), max_times_sampled=1)]) as replay:
        numbers = np.arange(5000)
        replay.extend({"obs": np.repeat(numbers[:, None], 4, 1).astype(np.float32), "act": numbers})
        yield replay


def address(array):
    """Where an array begins."""
    return array.__array_interface__["data"][0]


HOLDERS = {
    "batch": lambda batch: batch,
    "tree": lambda batch: batch.data,
    "leaf": lambda batch: batch.data["obs"],
    "column": lambda batch: batch.age,
    "slice": lambda batch: batch.data["obs"][1:, ::2],
    "transposed": lambda batch: batch.data["obs"].T,
    "other dtype": lambda batch: batch.data["obs"].view(np.uint8)[0],
    "memoryview": lambda batch: memoryview(batch.data["obs"])[0:1],
    "pickle buffer": lambda batch: pickle.PickleBuffer(batch.data["obs"]),
    "dlpack": lambda batch: np.from_dlpack(batch.data["obs"]),
    "buffer": lambda batch: np.frombuffer(batch.data["act"], np.int32),
    "broadcast": lambda batch: np.broadcast_to(batch.data["act"], (3, 8)),
    "iterator": lambda batch: iter(batch.data["obs"]),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS.keys())
def test_whatever_refers_to_a_batch_keeps_it(replay, holder):
    """No later batch has the same memory before the last holder dies, and one has it after."""
    first = replay.sample(8)
    mine, kept = address(first.data["obs"]), holder(first)
    del first
    gc.collect()
    assert replay._core.free_blocks == 0
    others = [replay.sample(8) for _ in range(5)]
    assert mine not in [address(batch.data["obs"]) for batch in others]
    del kept
    gc.collect()
    assert replay._core.free_blocks == 1
    assert address(replay.sample(8).data["obs"]) == mine


CHANGES = {
    "shape": lambda array: setattr(array, "shape", (2, -1)),
    "dtype": lambda array: setattr(array, "dtype", np.complex64),
    "read-only": lambda array: array.setflags(write=False),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("pick", [lambda batch: batch.data["act"], lambda batch: batch.key], ids=["leaf", "column"])
def test_what_was_done_to_an_array_does_not_show_later(replay, pick, change):
    """The caller may do anything to the arrays of a batch: later batches are as the first one was."""
    for i in range(8):
        batch = replay.sample(8)
        assert batch.data["act"].tolist() == list(range(8 * i, 8 * i + 8))
        for array, dtype in ((batch.data["act"], "i8"), (batch.key, "u8")):
            assert (array.shape, array.dtype, array.flags.writeable) == ((8,), np.dtype(dtype), True)
        change(pick(batch))
        del batch


def test_a_weak_reference_dies_with_its_array(replay):
    """It never refers to an array of a later batch."""
    for _ in range(4):
        batch = replay.sample(8)
        leaf, column = weakref.ref(batch.data["obs"]), weakref.ref(batch.age)
        del batch
        gone = replay.sample(8), replay.sample(8), replay.sample(8)
        assert all(leaf() is not batch.data["obs"] and column() is not batch.age for batch in gone)


def test_batches_drawn_ahead_are_not_overwritten(replay):
    """They are tuples of arrays that nothing else refers to yet."""
    ahead = [replay._core.sample(0, 8, None, None) for _ in range(6)]
    assert np.concatenate([act for act, *_ in ahead]).tolist() == list(range(48))


def test_no_batch_is_overwritten(replay):
    """However many are held, each has its own items, and nothing overlaps."""
    batches = [replay.sample(n) for n in (1, 7, 8, 64, 8, 1) * 10]
    acts = np.concatenate([batch.data["act"] for batch in batches])
    assert acts.tolist() == list(range(len(acts)))
    arrays = [array for batch in batches for array in (*batch.data.values(), *batch[1:])]
    spans = sorted((address(array), array.nbytes) for array in arrays)
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(spans))


def test_arrays_are_writable_aligned_and_contiguous(replay):
    """Each begins at a multiple of 64 bytes, as vector code and copies to devices like it."""
    for n in (1, 3, 100, 3000):
        batch = replay.sample(n)
        for array in (*batch.data.values(), *batch[1:]):
            assert address(array) % 64 == 0
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert array.flags.aligned
            array[...] = 0
    assert replay.sample(1).data["act"].tolist() == [3104]


def test_a_loop_takes_no_new_memory(replay):
    """A batch that is dropped as the next one comes needs two blocks, for batches of any size."""
    for n in (4, 300):
        seen = set()
        for _ in range(10):
            batch = replay.sample(n)
            seen.add(address(batch.key))
        assert len(seen) == 2
        del batch


def test_free_memory_is_bounded(replay):
    """Of many batches that die together only some memory is kept; of a huge one, its own."""
    batches = [replay.sample(1 + i % 3) for i in range(100)]
    batches.clear()
    assert replay._core.free_blocks == 16
    sizes = replay._core.free_bytes
    assert sizes <= 16 * 12 * 64


def test_a_huge_batch_is_kept_alone():
    """The next one of that size needs no new memory. It goes when another batch dies after it."""
    with Replay(np.zeros(1 << 20), 2) as replay:
        replay.add(np.ones(1 << 20))
        batch = replay.sample(9)
        assert batch.data[8, -1] == 1
        del batch
        assert (replay._core.free_blocks, replay._core.free_bytes > 9 << 23) == (1, True)
        replay.sample(1)
        assert (replay._core.free_blocks, replay._core.free_bytes < 9 << 23) == (1, True)


def test_batches_outlive_their_replay(replay):
    """close() frees what nobody refers to; a batch stays until it dies."""
    batch, other = replay.sample(8), replay.sample(8)
    del other
    core = replay._core
    replay.close()
    assert core.free_blocks == 0
    assert batch.data["act"].tolist() == list(range(8))
    del batch
    assert core.free_blocks == 0


def test_copies_and_pickles_are_batches(replay):
    """They have arrays of their own."""
    batch = replay.sample(8)
    for again in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
        assert type(again) is Batch
        assert not np.shares_memory(again.data["obs"], batch.data["obs"])
        assert again.key.tolist() == batch.key.tolist()
        assert again.data["act"].tolist() == list(range(8))


def test_a_short_batch_gives_its_memory_back(replay):
    """What was made for a batch that does not come is used for the next."""
    with pytest.raises(TimeoutError):
        replay.sample(5001)
    assert replay._core.free_blocks == 1
    assert replay.sample(5000).data["act"][-1] == 4999


def test_a_batch_that_cannot_be(replay):
    """A size out of range is a MemoryError, and nothing is lost."""
    for n in (2**62, 2**45):
        with pytest.raises(MemoryError, match="a batch of"):
            replay._core.sample(0, n, None, None)
    assert replay.sample(1).data["act"].tolist() == [0]


@pytest.mark.parametrize("dtype", ["M8[s]", "S3", ">i2", [("a", "u1"), ("b", "f8")], "?", "c16"], ids=str)
def test_every_dtype_comes_back(dtype):
    """Whatever its size and alignment, also with no items at all."""
    value = np.frombuffer(bytes(range(1, 97)), np.uint8).view("S1")[: 3 * np.dtype(dtype).itemsize].view(dtype)
    value = value != 0 if dtype == "?" else value
    example = [value, np.zeros((2, 0), dtype)]
    with Replay(example, 4) as replay:
        replay.add(example)
        got = replay.sample(5).data
        assert got[0].dtype == np.dtype(dtype)
        assert got[0].tobytes() == value.tobytes() * 5
        assert got[1].shape == (5, 2, 0)


def test_frozen_named_and_a_pytree(replay):
    """A batch cannot be assigned to, and its fields have names."""
    batch = replay.sample(2)
    with pytest.raises(AttributeError):
        batch.key = None
    assert batch._fields[:2] == ("data", "key")
