"""Python and numpy scalars for leaves of shape (): sent when they fit exactly, and never changed."""

import enum

import ml_dtypes
import numpy as np
import pytest

from echo_shm import Server, SpecMismatchError


def arrives(dtype, value):
    """What comes out when ``value`` is sent for a leaf of shape ()."""
    with Server({"v": np.zeros((), dtype), "w": np.zeros(1)}, 1) as server:
        server.submit({"v": value, "w": np.zeros(1)})
        batch = server.sample(1).batch["v"]
        assert batch.dtype == np.dtype(dtype)
        return batch[0].copy()


class Colour(enum.IntEnum):
    """An int by inheritance."""

    RED = 3


FITS = [
    ("f4", 1.5),
    ("f4", 3),
    ("f8", 0.1),
    ("f2", -2),
    ("f4", float("inf")),
    ("f4", float("-inf")),
    (">f8", 2.5),
    ("c8", 1 + 2j),
    ("c16", 4),
    ("i1", -128),
    ("u1", 255),
    ("i8", -(2**63)),
    ("u8", 2**64 - 1),
    (">i4", 7),
    ("i4", Colour.RED),
    ("?", True),
    ("i4", True),
    ("u1", False),
    ("f4", True),
    ("c8", True),
    (ml_dtypes.bfloat16, True),
    ("S4", b"abcd"),
    ("S4", b"a"),
    ("U4", "abcd"),
    ("U4", "\N{SNOWMAN}"),
    (ml_dtypes.bfloat16, 1.5),
    (ml_dtypes.float8_e5m2, 2),
    ("f4", np.float32(1.5)),
    ("i8", np.int64(5)),
    ("?", np.bool_(True)),
    ("M8[D]", np.datetime64("2020-02-29")),
    ("m8[us]", np.timedelta64(5, "us")),
    (ml_dtypes.bfloat16, ml_dtypes.bfloat16(3)),
    ("S4", np.bytes_(b"abcd")),
    ("U4", np.str_("abcd")),
    ("f4", np.asarray(2.5, "f4")),
    (">f8", np.asarray(2.5, ">f8")),
    (">f8", np.float64(2.5)),
    (">i4", np.int32(7)),
    ("S4", np.bytes_(b"a")),
    ("U4", np.str_("a")),
]


@pytest.mark.parametrize(("dtype", "value"), FITS, ids=repr)
def test_a_scalar_that_fits(dtype, value):
    """A scalar of the leaf's kind arrives unchanged."""
    assert arrives(dtype, value) == value


def test_nan():
    """Not-a-number is a float like any other."""
    assert np.isnan(arrives("f4", float("nan")))


@pytest.mark.parametrize("dtype", [[("a", "i4"), ("b", "f8")], "V3"])
def test_void_scalars(dtype):
    """A structured or void scalar of exactly the leaf's dtype is taken."""
    value = np.ones((), "u1").repeat(12).tobytes()
    scalar = np.frombuffer(value, dtype, 1)[0]
    assert arrives(dtype, scalar).tobytes() == scalar.tobytes()


REFUSED = [
    ("i4", 1.0),
    ("?", 1),
    ("f4", "1"),
    ("f4", 1j),
    ("f4", None),
    ("u1", 256),
    ("u1", -1),
    ("i8", 2**63),
    ("f8", 10**400),
    ("S2", b"abc"),
    ("S2", "ab"),
    ("U2", "abc"),
    ("U2", b"ab"),
    ("M8[D]", 5),
    ("M8[D]", np.datetime64("2020-02-29T12")),
    ("m8[us]", 5),
    ("f4", np.float64(1)),
    ("f8", np.float32(1)),
    ("i8", np.int32(1)),
    ("f4", np.int64(1)),
    ("f4", np.bool_(True)),
    ("i4", np.bool_(True)),
    ([("a", "i4")], (1,)),
    ("f4", object()),
]


@pytest.mark.parametrize(("dtype", "value"), REFUSED, ids=lambda one: "object" if type(one) is object else repr(one))
def test_a_scalar_that_does_not_fit(dtype, value):
    """A scalar of another kind or width, or out of range, is refused with what it was and what is expected."""
    with Server({"v": np.zeros((), dtype)}, 1) as server:
        with pytest.raises(SpecMismatchError):
            server.submit({"v": value})
        with pytest.raises(TimeoutError, match="sent or being written: 0"):
            server.sample(0)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f4", 1e300),
        ("f2", 70000),
        ("f2", 70000.0),
        ("c8", 1e300j),
        (ml_dtypes.int4, 1000),
        (ml_dtypes.int4, 2.7),
        (ml_dtypes.uint4, -1),
        (ml_dtypes.float8_e4m3fn, 1e6),
    ],
    ids=repr,
)
def test_a_number_beyond_the_dtype(dtype, value):
    """A number beyond the dtype is refused: it does not become infinite, wrap, or lose its fraction."""
    with Server({"v": np.zeros((), dtype)}, 1) as server, pytest.raises(SpecMismatchError):
        server.submit({"v": value})


def test_messages():
    """The message has the leaf's path, what was got, what was expected, and what to do."""
    with Server({"a": [np.zeros((), "f4")]}, 1) as server:
        with pytest.raises(SpecMismatchError, match=r"leaf \['a'\]\[0\]: got str 'x', expected .*float32.*np.asarray"):
            server.submit({"a": ["x"]})
        with pytest.raises(SpecMismatchError, match=r"leaf \['a'\]\[0\]: got a numpy float64, expected .*float32"):
            server.submit({"a": [np.float64(1)]})
