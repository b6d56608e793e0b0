"""reserve(): writing a sample in place."""

import contextlib
import gc
import itertools
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import optree
import pytest
from harness.interrupts import Interrupt, at_opcode, interrupt, run_traced
from harness.valid import problem_of

import echo_shm.sending as client_module
from echo_shm import ConnectionClosedError, Server, ShmClient
from echo_shm._core import ffi, lib

EXAMPLE = {"x": np.zeros((2, 3), np.float32), "i": np.zeros((), np.int64), "none": None}
ROW = np.zeros(3, np.float32)


class Abandoned(Exception):
    """Makes a reservation abort."""


@pytest.fixture
def server():
    """A ring of two batches of two."""
    with Server(EXAMPLE, 2, num_buffers=2) as server:
        yield server
        assert problem_of(server._ring) is None


def write(client, i):
    """Sends number i in place."""
    with client.reserve(timeout=5) as slot:
        slot["x"][:] = i
        slot["i"][...] = i


def test_the_slot_is_written_in_place(server, client):
    """reserve() gives a tree of writable views of the slot's memory, with the leaves' shapes and dtypes."""
    addresses = []
    for i in range(2):
        with client.reserve() as slot:
            assert slot["none"] is None
            assert (slot["x"].shape, slot["x"].dtype) == ((2, 3), np.float32)
            assert (slot["i"].shape, slot["i"].dtype) == ((), np.int64)
            assert slot["x"].flags.writeable
            assert not slot["x"].flags.owndata
            addresses.append(slot["x"].ctypes.data)
            slot["x"][:], slot["i"][...] = i + 0.5, i
    assert addresses[1] - addresses[0] == 24
    batch = server.sample(1).batch
    assert batch["i"].tolist() == [0, 1]
    assert batch["x"][:, 1, 2].tolist() == [0.5, 1.5]


def test_a_clean_exit_commits(server, client):
    """A reservation is delivered after its block has ended, and not before."""
    write(client, 0)
    with client.reserve() as slot:
        slot["x"][:], slot["i"][...] = 1, 1
        with pytest.raises(TimeoutError):
            server.sample(0)
    assert server.sample(0).batch["i"].tolist() == [0, 1]


@pytest.mark.parametrize("error", [Abandoned, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_aborts(server, client, error):
    """An exception in the block comes out, nothing is sent, and the next sample gets the slot."""
    with pytest.raises(error), client.reserve() as slot:  # noqa: PT012
        slot["i"][...] = 99
        raise error
    write(client, 0)
    write(client, 1)
    sample = server.sample(1)
    assert sample.batch["i"].tolist() == [0, 1]
    assert sample.info.reopened_slots == 1


def test_ctrl_c_anywhere_leaves_no_claim():
    """Wherever Ctrl-C comes while a reservation waits, builds its tree or ends, no slot stays claimed."""
    example, word = OrderedDict(a=ROW), ffi.new("uint64_t *")  # a tree that is built and checked in Python
    with Server(example, 1, num_buffers=2) as server, ShmClient(server.handle) as client:
        client._before_waiting = server.try_sample  # makes room when it has begun to wait
        client.reserve()  # what is made once

        def reserve():
            with client.reserve(timeout=5) as slot:
                slot["a"][...] = 1

        for n in itertools.count(1):
            with contextlib.suppress(TimeoutError):
                while True:  # fills the ring
                    server.submit(example, timeout=0)
            trace, left = at_opcode(n, interrupt, client_module)
            with contextlib.suppress(Interrupt):
                run_traced(reserve, trace)
            assert lib.es_monitor_next_claim(server._ring, 0, word) == lib.ES_EMPTY, f"interrupted at point {n}"
            if left[0] > 0:
                break
        assert n > 10


def test_another_producer_fills_the_hole(server, client):
    """The next claim by any producer gets an aborted slot, also on a full ring."""
    with ShmClient(server.handle) as other:
        for i in range(3):
            write(other, i)
        with pytest.raises(Abandoned), client.reserve():  # noqa: PT012
            with pytest.raises(TimeoutError):
                other.send({"x": np.zeros((2, 3), np.float32), "i": 3, "none": None}, timeout=0)
            raise Abandoned
        write(other, 3)
    assert server.sample(1).batch["i"].tolist() == [0, 1]
    assert server.sample(1).batch["i"].tolist() == [2, 3]


@pytest.mark.parametrize("error", [None, Abandoned()])
def test_the_arrays_are_read_only_after_the_block(server, client, error):
    """However the block ends, its arrays can no longer write to what may be another's slot by then."""
    with contextlib.suppress(Abandoned), client.reserve() as slot:
        slot["x"][...] = 1
        if error is not None:
            raise error
    for _ in range(2):
        write(client, 2)
    for array in (slot["x"], slot["i"], slot["x"][0:1]):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 9
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    assert (server.sample(1).batch["x"][-1] == 2).all()


HOLDERS = {
    "tree": lambda slot: slot,
    "array": lambda slot: slot["x"],
    "view": lambda slot: slot["x"][0, 1:],
    "memoryview": lambda slot: memoryview(slot["x"]),
    "scalar": lambda slot: slot["i"][...],
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS.keys())
def test_what_a_block_has_left_behind_stays_where_it_is(holder):
    """Arrays may serve later blocks, but not those to which something refers: they show the slot that they showed."""
    with Server(EXAMPLE, 6, num_buffers=1) as server, ShmClient(server.handle) as client:
        kept = []
        for i in range(6):
            with client.reserve() as slot:
                slot["x"][:], slot["i"][...] = i, i
                if i % 2 == 0:
                    kept.append(holder(slot))
            del slot
        values = [float(np.ravel(one["x"] if isinstance(one, dict) else one)[0]) for one in kept]
        assert values == [0, 2, 4]


def test_an_array_that_was_changed_is_not_used_again(server, client):
    """Each block gets arrays of the right shape and dtype, whatever the block before did to its own."""
    for i in range(4):
        with client.reserve() as slot:
            assert (slot["x"].shape, slot["x"].dtype, slot["x"].flags.writeable) == ((2, 3), np.float32, True)
            slot["x"][:], slot["i"][...] = i, i
            if i == 0:
                slot["x"].dtype = np.int32
            elif i == 1:
                slot["x"].shape = (3, 2)
            elif i == 2:
                slot["x"].flags.writeable = False
        del slot
    assert [server.sample(1).batch["x"][:, 1, 2].tolist() for _ in range(2)] == [[0, 1], [2, 3]]


def replace(slot):
    """What writes nothing into the slot's array."""
    slot["x"] = np.ones((2, 3), np.float32)


def replace_by_a_number(slot):
    """The same for a scalar."""
    slot["i"] = 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace, r"leaf \['x'\]: the slot's array was replaced \(ndarray\).*: slot\['x'\]\[\.\.\.\] = value"),
        (replace_by_a_number, r"leaf \['i'\]: the slot's array was replaced \(int\)"),
        (lambda slot: slot.update(none=1), "structure"),
        (lambda slot: slot.update(new=1), "structure"),
        (lambda slot: slot.pop("x"), "structure"),
        (lambda slot: slot.clear(), "structure"),
    ],
    ids=["array", "number", "None", "new key", "key gone", "all gone"],
)
def test_a_replaced_array_is_an_error(server, client, change, message):
    """A sample that would lack what the block meant to write is aborted, and the error says what to write."""
    with pytest.raises(ValueError, match=message), client.reserve() as slot:
        change(slot)
    with pytest.raises(Abandoned), client.reserve() as slot:  # noqa: PT012
        change(slot)
        raise Abandoned
    write(client, 0)
    write(client, 1)
    assert server.sample(1).batch["i"].tolist() == [0, 1]


def test_what_is_written_in_place_is_no_replacement(server, client):
    """Operators that work in place, entries that are the same memory, and another order of keys are right."""
    with client.reserve() as slot:
        slot["x"][...], slot["i"][...] = 1, 0
        slot["x"] += 1
        slot["i"] += 3
    with client.reserve() as slot:
        slot["x"] = slot.pop("x").reshape(3, 2)
        slot["x"][...], slot["i"][...] = 4, 5
    batch = server.sample(1).batch
    assert batch["i"].tolist() == [3, 5]
    assert batch["x"][:, 0, 0].tolist() == [2, 4]


class Pair(NamedTuple):
    """A node that is built anew for each slot."""

    a: Any
    b: Any


@pytest.mark.parametrize(
    ("example", "change"),
    [
        (Pair([ROW], ROW), lambda slot: slot.a.append(ROW)),
        (Pair([ROW], ROW), lambda slot: slot.a.__setitem__(0, ROW)),
        (([ROW, (ROW,)],), lambda slot: slot[0].reverse()),
        (([ROW, (ROW,)],), lambda slot: slot[0].__setitem__(1, [slot[0][1][0]])),
        (OrderedDict(a=ROW, b=ROW), lambda slot: slot.update(b=ROW)),
        ({(1, 2): ROW}, lambda slot: slot.update({(1, 2): ROW})),
        ({"a": Pair(ROW, ROW)}, lambda slot: slot.update(a=(ROW, ROW))),
        ({"a": Pair(ROW, ROW)}, lambda slot: slot.update(a=Pair(slot["a"].b, slot["a"].a))),
    ],
)
def test_a_replacement_in_any_tree(example, change):
    """It is seen in nodes of every kind. An untouched tree of that kind is sent."""
    with Server(example, 1) as server, ShmClient(server.handle) as client:
        with pytest.raises(ValueError, match=r"structure|replaced"), client.reserve() as slot:
            change(slot)
        with client.reserve() as slot:
            optree.tree_map_(lambda leaf: leaf.fill(8), slot)
        assert all((leaf == 8).all() for leaf in optree.tree_leaves(server.sample(1).batch))


def test_several_reservations_at_once(server, client):
    """One client may hold several slots, and commit them in any order."""
    first, second = client.reserve(), client.reserve()
    a, b = first.__enter__(), second.__enter__()
    a["i"][...], b["i"][...] = 0, 1
    second.__exit__(None, None, None)
    with pytest.raises(TimeoutError):
        server.sample(0)
    first.__exit__(None, None, None)
    assert server.sample(0).batch["i"].tolist() == [0, 1]


def test_a_reservation_is_entered_once_at_a_time(client):
    """Entering an open reservation again is refused."""
    reservation = client.reserve()
    with reservation, pytest.raises(RuntimeError, match="entered already"):
        reservation.__enter__()


def test_a_full_ring(server, client):
    """Entering a reservation waits for its timeout."""
    for i in range(4):
        write(client, i)
    reservation = client.reserve(timeout=0.01)
    with pytest.raises(TimeoutError, match="stayed full"):
        reservation.__enter__()


def test_closing_the_client_aborts_what_is_open(server, client):
    """Closing a client re-opens the slot of its open reservation; the block's end says why nothing was sent."""
    other = ShmClient(server.handle)
    reservation = other.reserve()
    reservation.__enter__()["i"][...] = 99
    other.close()
    with pytest.raises(ConnectionClosedError):
        reservation.__exit__(None, None, None)
    write(client, 0)
    write(client, 1)
    assert server.sample(1).batch["i"].tolist() == [0, 1]


def test_a_client_closed_inside_the_block(server):
    """An exception in a block whose client was closed comes out unchanged."""
    with pytest.raises(Abandoned), ShmClient(server.handle) as client, client.reserve():  # noqa: PT012
        client.close()
        raise Abandoned


def test_a_forgotten_client_aborts_what_is_open(server, client):
    """Collecting a client and its reservation re-opens the slot."""
    other = ShmClient(server.handle)
    reservation = other.reserve()
    slot = reservation.__enter__()
    del other, reservation
    gc.collect()
    write(client, 0)
    write(client, 1)
    assert server.sample(1).batch["i"].tolist() == [0, 1]
    slot["x"][0, 0] += 1


def test_a_client_and_its_reservation_in_a_cycle():
    """A client that refers to its own reservation is collected, and leaves the ring."""
    with Server(EXAMPLE, 1) as server:
        client = ShmClient(server.handle)
        client.mine = client.reserve()
        client.mine.__enter__()
        gone = weakref.ref(client)
        del client
        gc.collect()
        assert gone() is None
        server.submit({"x": np.ones((2, 3), np.float32), "i": 1, "none": None})
        assert server.sample(1).info.reopened_slots == 1


def test_code_that_runs_at_the_end_of_a_block():
    """An array's death may run anything, also a second end of the block. The first one has ended it by then."""
    ends = []
    with Server({"x": np.zeros(2)}, 1, num_buffers=8) as server, ShmClient(server.handle) as client:

        def end_again(_):
            ends.append(current)
            current.__exit__(None, None, None)
            other = client.reserve()
            other.__enter__()["x"][...] = 9
            ends.append(other)

        with client.reserve() as slot:
            slot["x"][...] = 0
            dies_later = weakref.ref(slot["x"], end_again)
        del slot
        kept = []
        for i in range(1, 4):
            current = client.reserve()
            kept.append(current.__enter__())  # so that only the other array can be used again
            kept[-1]["x"][...] = i
            current.__exit__(None, None, None)
        assert len(ends) == 2
        assert dies_later() is None
        assert [server.sample(5).batch["x"].tolist() for _ in range(3)] == [[[0.0, 0.0]], [[1.0, 1.0]], [[2.0, 2.0]]]
        with pytest.raises(TimeoutError):
            server.sample(0)  # the second block's sample is not there: it is still open
        ends[1].__exit__(None, None, None)
