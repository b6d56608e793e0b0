"""Scalars for leaves of shape (): the fast path stores what the slow one does, and leaves to it what it refuses."""

import ctypes
import enum

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from echo_shm import Replay, SpecMismatchError
from echo_shm.replay import Fifo, Table, Writer
from echo_shm.replay.inserting import Inserting
from echo_shm.spec import Spec

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", np.longlong, np.ulonglong]
DTYPES = [*INTEGERS, "f4", "f8", "?", "f2", ">f4", ">i8", "c8", "g", "S3", "M8[D]", ml_dtypes.bfloat16, [("a", "f4")]]


class Colour(enum.IntEnum):
    """An int by inheritance."""

    RED = 3


class Number(float):
    """A float by inheritance."""


EDGES = [
    sign * 2**bits + more
    for bits in (7, 8, 15, 16, 24, 31, 32, 53, 63, 64, 127, 128, 1024)
    for sign in (1, -1)
    for more in (-1, 0, 1)
]
LIMIT = float(np.finfo(np.float32).max)
VALUES = st.one_of(
    st.integers(),
    st.sampled_from(EDGES),
    st.floats(),
    st.floats(width=32),
    st.sampled_from([LIMIT, np.nextafter(LIMIT, np.inf).item(), LIMIT + 2.0**102, LIMIT + 2.0**103, -LIMIT - 2.0**103]),
    st.booleans(),
    st.sampled_from([Colour.RED, Number(1.5), None, 1j, "1", b"1", object(), [1], np.datetime64("2020-01-01")]),
    st.sampled_from([ctypes.c_int(3), np.float64(1e300)]),
    st.builds(
        lambda dtype, value: np.dtype(dtype).type(value),
        st.sampled_from([*INTEGERS, "f4", "f8", "?", "f2", "g", "c8"]),
        st.integers(0, 100),
    ),
    st.builds(lambda value: np.array(value), st.one_of(st.integers(-9, 9), st.floats(), st.booleans())),
)


def expected(spec, value):
    """The bytes of what the slow path makes of it, or None if it is refused."""
    try:
        return spec.exact(0, value).tobytes()
    except (SpecMismatchError, TypeError):  # ml_dtypes refuses large integers so
        return None


def stored(replay, add, value):
    """The same of what is in the replay after a call."""
    try:
        add({"v": value})
    except (SpecMismatchError, TypeError):
        assert replay.num_steps == 0
        return None
    data = replay.sample(1).data["v"]
    replay.reset()
    return data.tobytes()


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(st.sampled_from(DTYPES), VALUES)
@example("f4", 2**53 + 1)
@example("f8", float("nan"))
@example("u8", -1)
@example("i8", -(2**63))
def test_a_replay_takes_what_fits(dtype, value):
    """Each value for each dtype is stored as the same bytes, or refused, as Spec.exact() says."""
    with Replay({"v": np.zeros((), dtype)}, 4, [Table("t", Fifo())]) as replay:
        want = expected(Spec.from_example({"v": np.zeros((), dtype)}), value)
        assert stored(replay, replay.add, value) == want


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(DTYPES), VALUES)
def test_a_writer_takes_what_fits(dtype, value):
    """So does what is sent."""
    with Replay({"v": np.zeros((), dtype)}, 4, [Table("t", Fifo())]) as replay, Writer(replay.handle) as writer:
        want = expected(Spec.from_example({"v": np.zeros((), dtype)}), value)
        assert stored(replay, writer.add, value) == want


FAST = [
    *((dtype, value) for dtype in INTEGERS for value in (0, 100, True)),
    *((dtype, np.dtype(dtype).type(5)) for dtype in INTEGERS[:8]),
    *((dtype, value) for dtype in ("f4", "f8") for value in (0, -3, 1.5, False, float("nan"), float("inf"))),
    ("f4", np.float32(2)),
    ("f8", np.float64(2)),
    ("?", True),
    ("?", np.True_),
]


@pytest.mark.parametrize(("dtype", "value"), FAST)
def test_usual_scalars_are_not_looked_at_in_python(dtype, value, monkeypatch):
    """They cost as much as arrays."""
    monkeypatch.delattr(Inserting, "_add_slowly")
    with Replay({"v": np.zeros((), dtype)}, 4) as replay, Writer(replay.handle) as writer:
        replay.add({"v": value})
        assert writer._sends._send_at_once((np.zeros_like(writer._heads.appended()), {"v": value}))


def test_many_scalars():
    """More than fit into the memory that is at hand."""
    numbers = {f"{i}": i for i in range(50)}
    with Replay({name: np.zeros((), np.float64) for name in numbers}, 4) as replay, Writer(replay.handle) as writer:
        for add in (replay.add, writer.add):
            add(numbers)
            assert {name: float(leaf[0]) for name, leaf in replay.sample(1).data.items()} == numbers
            replay.reset()
