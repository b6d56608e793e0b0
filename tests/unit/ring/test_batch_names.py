"""The names of rings of batches: what they say, and which names are none."""

import pytest

from echo_shm.ring.batch_names import BatchRing, batch_ring


@pytest.mark.parametrize("one", [BatchRing(0, 8), BatchRing(63, 2**40), BatchRing(3, 8, 0, 1), BatchRing(3, 8, 31, 32)])
def test_there_and_back(one: BatchRing) -> None:
    """A name says all of it."""
    assert batch_ring("a.b", one.name("a.b")) == one
    assert batch_ring("a", one.name("a.b")) is None
    assert one in one.group()
    assert len(one.group()) == max(1, one.world_size)


@pytest.mark.parametrize(
    "ending", ["inbox", "x8.batches", "0x.batches", "00x8.batches", "0x8r2of2.batches", "0x8r0of0.batches",
               "0x8r0.batches", "0x8r00of2.batches", "0x-8.batches", "0x8r1of2", "0x\N{SUPERSCRIPT TWO}.batches"]
)  # fmt: skip
def test_other_names(ending: str) -> None:
    """A ring of the user may have any of them."""
    assert batch_ring("run", f"run.{ending}") is None
