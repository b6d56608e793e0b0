"""A checkpoint that a Reverb server has written: ``reverb/make.py`` says what is in it."""

import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

from echo_shm import Replay, SpecMismatchError, Table
from echo_shm.replay import Sequence
from echo_shm.replay.datasets import read_reverb, reverb, reverb_records
from echo_shm.replay.datasets.reverb_records import Chunk, Slice

pyarrow = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")

CHECKPOINT = Path(__file__).with_name("reverb") / "checkpoint"

#: As the columns of most tables are: dicts by sorted keys.
EXAMPLE = {"act": np.zeros((), np.int32), "obs": np.zeros(3, np.float32)}


def numbers(replay):
    """Of each episode: which steps. The leaves agree."""
    for episode in replay.episodes():
        obs, act = episode.steps["obs"], episode.steps["act"]
        np.testing.assert_array_equal(obs[:, 0] * 100 + obs[:, 1], act)
        np.testing.assert_array_equal(obs[:, 2], 0.5)
    return [episode.steps["act"].tolist() for episode in replay.episodes()]


@pytest.mark.parametrize(
    ("table", "columns", "expected"),
    [
        (
            "sequences",
            None,
            [range(8), range(100, 108), range(200, 210)],
        ),  # overlapping; the last of the second has none
        ("stacks", None, [range(2, 8), range(102, 109), range(202, 210)]),  # three observations, one action
        ("stacks", (0, 1), [range(2, 8), range(102, 109), range(202, 210)]),
        ("transitions", (0, 1), [range(7), range(100, 108), range(200, 209)]),  # and not the observation after it
    ],
)
def test_each_step_comes_once(table, columns, expected):
    """Items share steps. Each step is added once, in its place in its episode, if all of its columns are there."""
    with Replay(EXAMPLE, 100) as replay:
        assert read_reverb(replay, CHECKPOINT, table, columns=columns) == sum(map(len, expected))
        assert numbers(replay) == [list(steps) for steps in expected]


def test_leaves_in_another_order():
    """The columns can be named in any order. It does not matter which one has more steps."""
    with Replay([EXAMPLE["obs"], EXAMPLE["act"]], 100) as replay:
        assert read_reverb(replay, CHECKPOINT, "stacks", columns=[1, 0]) == 6 + 7 + 8
        for episode in replay.episodes():
            np.testing.assert_array_equal(episode.steps[0][:, 0] * 100 + episode.steps[0][:, 1], episode.steps[1])
    with Replay(EXAMPLE["act"], 100) as replay:  # or one alone
        assert read_reverb(replay, CHECKPOINT, "stacks", columns=[0]) == 6 + 7 + 8


@pytest.mark.parametrize("table", ["steps", "delta"])
def test_chunks_of_several_steps_and_columns(table):
    """The old writer's chunks have all columns of some steps, whose integers may be differences."""
    example = [np.zeros(2, np.int64), np.zeros(()), np.zeros((), bool)]
    with Replay(example, 100) as replay:
        ends = {
            "terminated": lambda steps: steps[2] & (steps[1] < 2),
            "truncated": lambda steps: steps[2] & (steps[1] == 2),
        }
        assert read_reverb(replay, CHECKPOINT, table, **ends) == 8  # the first one is in no item
        first, second = replay.episodes()
    np.testing.assert_array_equal(first.steps[0], np.repeat(1000 - 7 * np.arange(1, 5)[:, None], 2, 1))
    np.testing.assert_array_equal(second.steps[0], np.repeat(1000 - 7 * np.arange(5, 9)[:, None], 2, 1))
    np.testing.assert_array_equal(second.steps[1], np.arange(5, 9) / 4)
    assert (first.terminated, first.truncated, second.terminated, second.truncated) == (True, False, False, True)


@pytest.mark.parametrize("table", ["sequences", "stacks"])
def test_items_in_any_order(table, monkeypatch):
    """A checkpoint has its items in any order. The steps of an episode are in their own."""
    items = list(reverb_records.items(CHECKPOINT, table))
    monkeypatch.setattr(reverb_records, "items", lambda *_: reversed(items))
    with Replay(EXAMPLE, 100) as replay:
        read_reverb(replay, CHECKPOINT, table)
        got = numbers(replay)
    assert [steps[0] // 100 for steps in got] == [2, 1, 0]
    assert all(steps == sorted(steps) for steps in got)


def test_steps_that_no_item_has(monkeypatch):
    """An episode is cut where some are missing: steps before and after are not neighbours."""
    items = list(reverb_records.items(CHECKPOINT, "transitions"))
    monkeypatch.setattr(reverb_records, "items", lambda *_: [items[0], items[1], items[4], items[6]])
    with Replay(EXAMPLE, 100) as replay:
        assert read_reverb(replay, CHECKPOINT, "transitions", columns=(0, 1)) == 4
        assert numbers(replay) == [[0, 1], [4], [6]]


def varint(number):
    """As protocol buffers have it; below 2**14."""
    return bytes([number & 127 | 128, number >> 7])


def tensor(kind, array):
    """A column as Reverb writes it, of a TensorFlow dtype."""
    dims = b"".join(b"\x12\x03\x08" + varint(n) for n in array.shape)
    data = pyarrow.compress(array.tobytes(), codec="snappy", asbytes=True) if array.size else b""
    return b"\x08" + varint(kind) + b"\x12" + varint(len(dims)) + dims + b"\x22" + varint(len(data)) + data


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (1, "float32"), (2, "float64"), (3, "int32"), (4, "uint8"), (5, "int16"), (6, "int8"), (8, "complex64"),
        (9, "int64"), (10, "bool"), (17, "uint16"), (18, "complex128"), (19, "float16"), (22, "uint32"), (23, "uint64"),
    ],
)  # fmt: skip
def test_every_dtype(kind, dtype):
    """Each has its number. Arrays of shape (n,) are never stored as differences; empty ones have no data."""
    for shape in ((3,), (2, 5), (4, 0)):
        array = np.ones(shape, dtype)
        chunk = Chunk(1, 0, shape[0] - 1, is_sparse=False, is_delta=len(shape) == 1, tensors=[tensor(kind, array)])
        got = chunk.column(0)
        assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, shape, array.tobytes())


def test_items_of_the_replay_are_its_own():
    """What a table here makes of the steps does not depend on the items there."""
    with Replay(EXAMPLE, 100, [Table("t", item=Sequence(5, period=5, pad=None))]) as replay:
        read_reverb(replay, CHECKPOINT, "sequences")
        assert replay.info().size == 1 + 1 + 2


def test_the_newest_checkpoint_of_several(tmp_path):
    """A folder of checkpoints stands for the newest one that was finished."""
    for name in ("2026-01-01T00:00:00+00:00", "2026-01-03T00:00:00+00:00"):
        shutil.copytree(CHECKPOINT, tmp_path / name)
    shutil.copytree(CHECKPOINT, tmp_path / "2026-01-02T00:00:00+00:00")
    (tmp_path / "2026-01-01T00:00:00+00:00" / "chunks.tfrecord").unlink()  # the oldest is not read
    (tmp_path / "2026-01-03T00:00:00+00:00" / "DONE").unlink()  # the newest was not finished
    with Replay(EXAMPLE, 100) as replay:
        assert read_reverb(replay, tmp_path, "sequences") == 26


@pytest.mark.parametrize(
    ("table", "example", "options", "error", "message"),
    [
        ("nothing", EXAMPLE, {}, ValueError, "has no table 'nothing': it has 'delta', 'sequences', 'sparse', "),
        ("transitions", EXAMPLE, {}, SpecMismatchError, "item 0 has 3 columns, and a step has 2 leaves: columns=None"),
        ("transitions", EXAMPLE, {"columns": [0, 3]}, SpecMismatchError, r"columns=\[0, 3\] must have the number"),
        ("transitions", EXAMPLE, {"columns": [0, 2]}, ValueError, "the columns of item 0 end with different steps"),
        ("sequences", EXAMPLE, {"columns": [1, 0]}, SpecMismatchError, r"leaf \['act'\]: got a column of float32\[3\]"),
        ("sequences", {**EXAMPLE, "obs": np.zeros(3)}, {}, SpecMismatchError, r"\['obs'\]: got a column of float32"),
        ("texts", [np.zeros(3, "S3")], {}, ValueError, "TensorFlow's dtype 7"),
        ("sparse", [np.zeros((), np.int64)], {}, ValueError, "a column does not have all steps of its episode"),
        ("strides", [np.zeros((), np.int64)], {}, ValueError, "column 0 of item 0 is not of consecutive steps"),
        (
            "sequences", EXAMPLE, {"terminated": lambda steps: steps["act"]},
            ValueError, r"terminated: it returned int32\[8\], expected bool\[8\]",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(table, example, options, error, message):
    """The message names the table, and the item or the leaf. Nothing is stored."""
    with Replay(example, 100) as replay:
        with pytest.raises(error, match=message):
            read_reverb(replay, CHECKPOINT, table, **options)
        assert replay.num_steps == 0


def cut(file):
    """Removes the end of a file."""
    file.write_bytes(file.read_bytes()[:-40])


def shortened(file):
    """Leaves a file whose compression is whole, and whose last record is not."""
    file.write_bytes(zlib.compress(zlib.decompress(file.read_bytes())[:-5]))


def emptied(file):
    """Leaves a file without records."""
    file.write_bytes(zlib.compress(b""))


def scribbled(file):
    """Changes what is inside the records of a file, all of it."""
    data = zlib.decompress(file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    file.write_bytes(zlib.compress(data[:12] + b"\xff" * length + data[12 + length :]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "DONE").unlink(), "is no finished checkpoint of Reverb"),
        (lambda f: (f / "items.tfrecord").unlink(), "items.tfrecord cannot be read"),
        (lambda f: cut(f / "items.tfrecord"), "items.tfrecord cannot be read: it ends within a record"),
        (lambda f: shortened(f / "items.tfrecord"), "items.tfrecord cannot be read: it ends within a record"),
        (lambda f: (f / "chunks.tfrecord").write_bytes(b"text"), "chunks.tfrecord cannot be read"),
        (lambda f: emptied(f / "chunks.tfrecord"), "refers to data that the checkpoint does not have"),
        (lambda f: scribbled(f / "tables.tfrecord"), "a record of the checkpoint is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_refused(damage, message, tmp_path):
    """The message names the file."""
    shutil.copytree(CHECKPOINT, tmp_path / "copy")
    damage(tmp_path / "copy")
    with Replay(EXAMPLE, 100) as replay, pytest.raises(ValueError, match=message):
        read_reverb(replay, tmp_path / "copy", "sequences")


def test_fields_of_every_kind():
    """Numbers, eight bytes, any number of bytes, and four; one may come again."""
    data = b"\x08\x96\x01" + b"\x11ABCDEFGH" + b"\x1a\x02xy" + b"\x25abcd" + b"\x08\x05"
    assert reverb_records.fields(data) == {1: [150, 5], 2: [b"ABCDEFGH"], 3: [b"xy"], 4: [b"abcd"]}


@pytest.mark.parametrize(
    ("part", "is_there"),
    [((7, 3, 2, 1), True), ((7, 3, 3, 1), False), ((7, 0, 6, 0), False), ((7, 0, 1, 2), False), ((8, 0, 1, 0), False)],
)
def test_what_an_item_refers_to_is_there(part, is_there):
    """A chunk of steps 10 to 14 with two columns."""
    chunk, offset, length, tensor = part
    chunks = {7: Chunk(1, 10, 14, is_sparse=False, is_delta=False, tensors=[b"", b""])}
    piece = Slice(chunk=chunk, offset=offset, length=length, tensor=tensor)
    if is_there:
        assert reverb._chunk(chunks, piece, "it") is chunks[7]
    else:
        with pytest.raises(ValueError, match="it: an item refers to data that the checkpoint does not have"):
            reverb._chunk(chunks, piece, "it")
