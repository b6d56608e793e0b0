"""Leaves: every fixed-size dtype, shape and memory layout; nothing is cast."""

import ml_dtypes
import numpy as np
import optree
import pytest
from gymnasium import spaces

from echo_shm import Server, ShmClient, SpecMismatchError

NESTED = np.dtype([("a", "<i2"), ("b", [("c", ">f8"), ("d", "S3")]), ("e", "u1", (2, 3))])
ALIGNED = np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2")], align=True)
SPARSE = np.dtype({"names": ["p", "q"], "formats": ["i4", "u1"], "offsets": [6, 1], "itemsize": 13})
TITLED = np.dtype([(("the title", "a"), "f4"), (("other", "b"), "i8")])

DTYPES = [
    *map(np.dtype, "?bBhHiIlLqQefdgFDG"),
    *map(np.dtype, [">i2", ">u4", ">f4", ">f8", ">c16", ">f2"]),
    *map(np.dtype, ["M8[ns]", "M8[D]", "m8[us]", "m8", ">M8[s]", "S1", "S7", "U1", "U5", ">U3", "V6"]),
    NESTED,
    ALIGNED,
    SPARSE,
    TITLED,
    *(np.dtype(getattr(ml_dtypes, n)) for n in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")),
    np.dtype([("x", ml_dtypes.bfloat16), ("y", "M8[us]")]),
]


def random_array(dtype, shape, seed=0):
    """An array of random bytes; of random numbers where not every byte is possible."""
    n = int(np.prod(shape)) * dtype.itemsize
    data = np.random.default_rng(seed).integers(0, 100, n, np.uint8)
    if dtype.kind in "U?" or dtype.char in "gG":
        return (data[: int(np.prod(shape))] % 7).reshape(shape).astype(dtype)
    return np.frombuffer(bytearray(data.tobytes()), dtype).reshape(shape) if n else np.zeros(shape, dtype)


def stack(arrays):
    """Like np.stack, but keeps every dtype."""
    stacked = np.empty((len(arrays), *arrays[0].shape), arrays[0].dtype)
    for i, array in enumerate(arrays):
        stacked[i, ...] = array
    return stacked


def assert_same(got, expected):
    """Asserts equal dtype, shape and content, field by field: padding may differ."""
    assert got.dtype == expected.dtype
    assert got.dtype.str == expected.dtype.str
    assert got.shape == expected.shape
    if got.dtype.names:
        for name in got.dtype.names:
            assert_same(got[name], expected[name])
    elif got.dtype.char in "gG":
        np.testing.assert_array_equal(got, expected)
    else:
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 2), (2, 1, 3)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype, shape):
    """An array of any dtype and shape comes out bit by bit, however it was sent and attached."""
    example = np.zeros(shape, dtype)
    arrays = [random_array(dtype, shape, i) for i in range(6)]
    with Server(example, 6) as server, ShmClient(server.name) as by_name, ShmClient(server.handle) as by_handle:
        by_name.send(arrays[0])
        by_handle.send(arrays[1])
        by_name.send_many(stack(arrays[2:4]))
        by_handle.bind(arrays[4]).send()
        with by_name.reserve() as slot:
            assert (slot.dtype, slot.shape) == (dtype, shape)
            slot[...] = arrays[5]
        batch = server.sample(5).batch
        assert batch.shape == (6, *shape)
        for i, expected in enumerate(arrays):
            assert_same(batch[i, ...], expected)


LAYOUTS = {
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "negative strides": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "inner slice": lambda a: np.pad(a, 1)[1:-1, 1:-1],
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "swapped axes": lambda a: np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1),
}


@pytest.mark.parametrize("dtype", ["f4", ">i2", "M8[s]", "U2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_memory_layout(layout, dtype):
    """A view that is not contiguous is copied in element by element."""
    plain = np.arange(15).reshape(3, 5).astype(dtype)
    array = LAYOUTS[layout](plain)
    assert layout == "unaligned" or not array.flags.c_contiguous
    with Server(plain, 2) as server:
        server.submit(array)
        server._writer.send_many(array[None])
        batch = server.sample(1).batch
        np.testing.assert_array_equal(batch, np.stack([plain, plain]))


def test_broadcast_arrays():
    """An array of stride 0 is written out in full."""
    with Server(np.zeros((4, 3)), 1) as server:
        server.submit(np.broadcast_to(np.arange(3.0), (4, 3)))
        np.testing.assert_array_equal(server.sample(1).batch[0], [[0, 1, 2]] * 4)


class Own(np.ndarray):
    """A subclass that changes nothing."""


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a.view(Own),
        lambda a: np.ma.MaskedArray(a, mask=a > 2),
        np.asmatrix,
        lambda a: np.asmatrix(a.T.copy()).T,
        lambda a: np.repeat(a, 2, axis=1)[:, ::2].view(Own),
    ],
)
def test_array_subclasses(make):
    """A subclass of ndarray is its plain data; a mask hides nothing."""
    plain = np.arange(6.0).reshape(2, 3)
    with Server(plain, 2) as server:
        server.submit(make(plain))
        server._writer.bind(np.ascontiguousarray(plain).view(Own)).send()
        batch = server.sample(1).batch
        np.testing.assert_array_equal(batch[0], plain)
        np.testing.assert_array_equal(batch[1], plain)
        assert type(batch) is np.ndarray


def test_record_arrays():
    """A recarray is sent when its fields are the leaf's."""
    plain = np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")])
    with Server(plain, 1) as server:
        server.submit(plain.view(np.recarray))
        assert_same(server.sample(1).batch[0], plain)


def test_memory_maps_and_read_only_arrays(tmp_path):
    """Read-only arrays and memmaps are sent, by each way of sending."""
    plain = np.arange(6.0)
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=(6,))
    mapped[:] = plain
    fixed = plain.copy()
    fixed.flags.writeable = False
    with Server(plain, 4) as server:
        server.submit(mapped)
        server.submit(fixed)
        server._writer.bind(fixed).send()
        server._writer.send_many(np.broadcast_to(fixed, (1, 6)))
        np.testing.assert_array_equal(server.sample(1).batch, [plain] * 4)


WRONG = [
    (np.zeros(3, "f4"), np.zeros(3, "f8")),
    (np.zeros(3, "f4"), np.zeros(3, "i4")),
    (np.zeros(3, "f4"), np.zeros(3, ">f4")),
    (np.zeros(3, "f4"), np.zeros(2, "f4")),
    (np.zeros(3, "f4"), np.zeros((1, 3), "f4")),
    (np.zeros(3, "f4"), np.zeros((), "f4")),
    (np.zeros(3, "f4"), np.zeros(3, ml_dtypes.bfloat16)),
    (np.zeros((), "f4"), np.zeros(1, "f4")),
    (np.zeros((0, 3), "f4"), np.zeros((3, 0), "f4")),
    (np.zeros(2, "M8[s]"), np.zeros(2, "M8[ms]")),
    (np.zeros(2, "M8[s]"), np.zeros(2, "m8[s]")),
    (np.zeros(2, "M8[s]"), np.zeros(2, "i8")),
    (np.zeros(2, "S4"), np.zeros(2, "S3")),
    (np.zeros(2, "U4"), np.zeros(2, "S4")),
    (np.zeros(2, "?"), np.zeros(2, "u1")),
    (np.zeros(2, "i8"), np.zeros(2, "u8")),
    (np.zeros(2, ALIGNED), np.zeros(2, [("a", "i1"), ("b", "f8"), ("c", "i2")])),
    (np.zeros(2, [("a", "f4")]), np.zeros(2, [("b", "f4")])),
    (np.zeros(2, [("a", "f4")]), np.zeros(2, "f4")),
    (np.zeros(2, ml_dtypes.float8_e4m3fn), np.zeros(2, ml_dtypes.float8_e5m2)),
    (np.zeros(2, "f4"), np.zeros(2, "O")),
    (np.zeros(2, "f4"), memoryview(np.zeros(2, "f4"))),
    (np.zeros(2, "f4"), 1.0),
    (np.zeros(2, "f4"), b"12345678"),
    (np.zeros(2, "f4"), np.float32(1)),
    (np.zeros(2, "f4"), np.zeros(2, "f8").view(Own)),
]


@pytest.mark.parametrize(
    ("example", "wrong"), WRONG, ids=lambda a: f"{getattr(a, 'dtype', type(a).__name__)}{np.shape(a)}"
)
def test_nothing_is_cast(example, wrong):
    """An array (or other object) of another dtype or shape is refused, by every way of sending."""
    with Server({"a": np.zeros(1), "b": example}, 1) as server:
        for send in (server._writer.send, server._writer.bind):
            with pytest.raises((SpecMismatchError, TypeError), match=r"leaf \['b'\]: got .*") as caught:
                send({"a": np.zeros(1), "b": wrong})
            assert isinstance(caught.value, SpecMismatchError) or send == server._writer.bind
        if isinstance(wrong, np.ndarray):
            with pytest.raises(SpecMismatchError, match=r"leaf \['b'\]: got .*expected"):
                server._writer.send_many({"a": np.zeros((1, 1)), "b": wrong[None]})
        with pytest.raises(TimeoutError, match="sent or being written: 0"):
            server.sample(0)


@pytest.mark.parametrize("example", [3, 2.0, [1, 2], "x", object(), {"a": np.zeros(1), "b": b"s"}, memoryview(b"12")])
def test_examples_need_arrays(example):
    """A leaf that is no array is a TypeError that says where it is and what it is."""
    with pytest.raises(TypeError, match=r"All leaves must be numpy arrays: example.* is \w+"):
        Server(example, 1)


@pytest.mark.parametrize(
    ("space", "remedy"),
    [
        (spaces.Box(-1, 1, (3, 2), np.float32), "np.zeros((3, 2), 'float32')"),
        (spaces.Discrete(3), "np.zeros((), 'int64')"),
        (spaces.MultiBinary(4), "np.zeros((4,), 'int8')"),
        (spaces.Dict(a=spaces.Discrete(2)), "{k: np.zeros(s.shape, s.dtype) for k, s in space.items()}"),
        (spaces.Tuple([spaces.Discrete(2)]), "tuple(np.zeros(s.shape, s.dtype) for s in space)"),
        (spaces.Text(3), None),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_space_is_no_leaf(space, remedy):
    """For a space of Gymnasium the error has the code of what to write in its place, which works."""
    with pytest.raises(TypeError, match=rf"example\['obs'\] is {type(space).__name__}; ") as caught:
        Server({"obs": space}, 1)
    if remedy is None:
        assert "no fixed shape" in str(caught.value)
        return
    assert str(caught.value).endswith(remedy)
    with Server({"obs": eval(remedy, {"np": np, "space": space})}, 1) as server:
        server.submit({"obs": _arrays_of(space)})


def _arrays_of(space):
    """A value of the space, as arrays."""
    value = space.sample()
    return optree.tree_map(np.asarray, {**value} if isinstance(space, spaces.Dict) else value)


@pytest.mark.parametrize("dtype", ["O", [("a", "i4"), ("b", "O")], [("a", [("b", "O", (2,))])]])
def test_examples_need_fixed_sizes(dtype):
    """A dtype that holds references is refused, however deep the reference is."""
    with pytest.raises(TypeError, match=r"example\['x'\] has dtype .*no fixed size"):
        Server({"x": np.zeros(2, dtype)}, 1)


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy without StringDType")
def test_variable_strings_are_refused():
    """numpy's variable-width strings have no fixed size."""
    with pytest.raises(TypeError, match="no fixed size"):
        Server(np.array(["a"], np.dtypes.StringDType()), 1)


@pytest.mark.parametrize("example", [{}, [], None, {"a": None, "b": ()}])
def test_examples_need_leaves(example):
    """A tree without arrays is refused."""
    with pytest.raises(ValueError, match="no array leaves"):
        Server(example, 1)


def test_a_sample_of_no_bytes():
    """Samples without bytes are counted like others."""
    with Server({"a": np.zeros((0, 5)), "b": np.zeros(3, "V0")}, 2, num_buffers=2) as server:
        for _ in range(3):
            for _ in range(2):
                server.submit({"a": np.zeros((0, 5)), "b": np.zeros(3, "V0")}, timeout=5)
            batch = server.sample(5).batch
            assert batch["a"].shape == (2, 0, 5)
            assert batch["b"].shape == (2, 3)


def test_large_leaves():
    """Leaves beyond the thresholds for streaming copies and for releasing the GIL arrive whole."""
    big = np.random.default_rng(0).integers(0, 255, (1 << 20) + 13, np.uint8)
    with Server({"big": big, "odd": big[:4099]}, 2, num_buffers=40) as server:
        for k in range(3):
            for shift in (0, 1):
                server.submit({"big": np.roll(big, k + shift), "odd": big[:4099]})
            batch = server.sample(5).batch
            for shift in (0, 1):
                assert (batch["big"][shift] == np.roll(big, k + shift)).all()
            assert (batch["odd"] == big[:4099]).all()
