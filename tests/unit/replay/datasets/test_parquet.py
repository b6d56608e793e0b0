"""Parquet files: what comes back, in which row groups, and what a damaged file says."""

import errno
import json

import numpy as np
import pytest
from harness.episodes import ENDS, EXAMPLE, filled, same_bytes, same_episodes

from echo_shm import Replay, SpecMismatchError, Table
from echo_shm.replay import NStep
from echo_shm.replay.datasets import common, parquet, parquet_example, read_parquet, write_parquet
from echo_shm.replay.episodes import pieces
from echo_shm.spec import Spec

pa = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="the extra 'parquet' is not installed")

SMALL = {"obs": np.zeros(2, np.float32), "reward": np.zeros((), np.float32)}
TABLES = [Table("t", item=NStep(2, 0.9, ["obs"], "reward"))]


@pytest.mark.parametrize(("group", "read"), [(None, None), (1, 1), (2, 3), (3, 2), (4, 1000)])
def test_there_and_back(group, read, tmp_path, monkeypatch):
    """Every step, end and final observation comes back, byte by byte, wherever groups and batches are cut."""
    file = tmp_path / "steps.parquet"
    with filled() as replay:
        n = sum(steps for steps, *_ in ENDS)
        assert write_parquet(replay, file, row_group_size=group) == n
        assert same_bytes(parquet_example(file), EXAMPLE)
        if read is not None:
            monkeypatch.setattr(parquet, "_group_size", lambda *_: read)
        with Replay(EXAMPLE, 100, TABLES) as other:
            assert read_parquet(other, file) == n
            assert same_episodes(other, replay) == len(ENDS)
            assert other.info().size == replay.info().size


def test_row_groups_are_bounded(tmp_path):
    """A row group has as many rows as asked, though episodes are longer and shorter. A final comes with its step."""
    file = tmp_path / "steps.parquet"
    ends = [(7, True, False, True), *[(1, False, True, False)] * 5, (2, True, False, False)]
    with filled(SMALL, ends) as replay:
        kept = sum(len(one) for one in replay.episodes())
        write_parquet(replay, file, row_group_size=3)
    metadata = pq.ParquetFile(file).metadata
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sum(sizes) == kept + 1
    assert set(sizes) == {3}


def test_what_a_lost_episode_ended_with_is_left_out(tmp_path):
    """Its steps have made room for others, and it is alone."""
    with Replay(SMALL, 4, TABLES) as replay:
        replay.add(SMALL, terminated=True, final=SMALL)
        for _ in range(3):
            replay.add(SMALL)
        assert len(list(pieces(replay, 10))) == 2
        assert write_parquet(replay, tmp_path / "steps.parquet") == 3
    with Replay(SMALL, 10, TABLES) as other:
        assert read_parquet(other, tmp_path / "steps.parquet") == 3


def test_what_others_read(tmp_path):
    """The columns have plain names, and types that anything reads. Field metadata has the shapes."""
    file = tmp_path / "steps.parquet"
    with filled() as replay:
        write_parquet(replay, file)
        episodes = list(replay.episodes())
    table = pq.read_table(file)
    assert table["episode"].to_pylist() == [0] * 4 + [1] * 2 + [2] * 4 + [3] * 2 + [4] * 5
    assert table["index"].to_pylist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4]
    assert np.flatnonzero(table["final"].to_numpy()).tolist() == [3, 5]
    assert np.flatnonzero(table["terminated"].to_numpy()).tolist() == [2, 9]
    assert np.flatnonzero(table["truncated"].to_numpy()).tolist() == [4, 11]
    assert set(table["stream"].to_pylist()) == {episodes[0].stream}
    images = table["obs/image"].to_pylist()
    assert images[0] == episodes[0].steps["obs"]["image"][0].reshape(-1).tolist()
    assert images[3] == episodes[0].final["obs"]["image"].reshape(-1).tolist()
    field = table.schema.field("obs/image")
    assert (json.loads(field.metadata[b"shape"]), field.metadata[b"dtype"]) == ([2, 3], b"uint8")
    assert str(table.schema.field("half").type) == "fixed_size_list<element: halffloat>[2]"
    assert str(table.schema.field("brain").type) == "fixed_size_binary[6]"


def altered(file, change):
    """Writes a file again, with another table."""
    table = change(pq.read_table(file))
    file.unlink()
    pq.write_table(table, file)


def replaced(name, make):
    """A change of one column."""

    def change(table):
        return table.set_column(table.schema.get_field_index(name), name, make(table[name]))

    return change


def flags(*rows):
    """Of 6 rows, those that are true."""
    return lambda _: pa.array([i in rows for i in range(6)])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.replace_schema_metadata(None), ValueError, "does not say what a step looks like"),
        (lambda t: t.drop_columns("obs"), SpecMismatchError, "has no column 'obs'"),
        (
            replaced("reward", lambda c: c.cast(pa.float64())),
            SpecMismatchError,
            "column 'reward': got double, expected float",
        ),
        (replaced("reward", lambda c: pa.array([None] * 6, pa.float32())), ValueError, "column 'reward' has nulls"),
        (replaced("terminated", flags(0, 4)), ValueError, "row 1: episode 0 goes on after its end"),
        (replaced("terminated", flags()), ValueError, "row 5 is what episode 1 ended with"),
        (replaced("final", flags()), ValueError, "row 5: episode 1 goes on after its end"),
        (replaced("final", flags(1, 5)), ValueError, "row 1 is what episode 0 ended with"),
        (replaced("episode", lambda _: pa.array([0] * 6)), ValueError, "row 3: episode 0 goes on after its end"),
    ],
)
@pytest.mark.parametrize("read", [1, 100])
def test_what_is_damaged_is_refused(read, change, error, message, tmp_path, monkeypatch):
    """The message names the file, and the column or the row."""
    file = tmp_path / "steps.parquet"
    with filled(SMALL, [(3, False, True, False), (2, True, False, True)]) as replay:
        write_parquet(replay, file)
    altered(file, change)
    monkeypatch.setattr(parquet, "_group_size", lambda *_: read)
    with Replay(SMALL, 10, TABLES) as other, pytest.raises(error, match=f"steps.parquet.*{message}"):
        read_parquet(other, file)


@pytest.mark.parametrize("read", [1, 3, 100])
def test_a_row_after_the_final_one_is_refused(read, tmp_path, monkeypatch):
    """Nothing of an episode can follow what it ended with."""
    file = tmp_path / "steps.parquet"
    with filled(SMALL, [(2, True, False, True), (3, True, False, False)]) as replay:
        write_parquet(replay, file)
    altered(file, replaced("episode", lambda _: pa.array([0] * 6)))
    monkeypatch.setattr(parquet, "_group_size", lambda *_: read)
    with Replay(SMALL, 10, TABLES) as other, pytest.raises(ValueError, match="row 3: episode 0 goes on after its end"):
        read_parquet(other, file)


def test_a_part_of_a_column():
    """Arrow may hand over a part of an array, which begins in the middle of its memory."""
    for leaf in Spec.from_example({**EXAMPLE, "long": np.zeros(2, np.longdouble)}).leaves:
        if leaf.nbytes:
            rows = np.frombuffer(np.random.default_rng(0).bytes(3 * leaf.nbytes), np.uint8) % 2
            rows = rows.view(leaf.dtype).reshape(3, *leaf.shape)
            part = parquet._from_arrow(leaf, parquet._to_arrow(leaf, rows)[1:])
            assert part.tobytes() == rows[1:].tobytes()


def test_another_file_is_refused(tmp_path):
    """A file that is no Parquet file, or is not there."""
    (tmp_path / "text").write_text("text that is longer than a footer")
    with Replay(SMALL, 10) as replay:
        with pytest.raises(ValueError, match="text is not a Parquet file"):
            read_parquet(replay, tmp_path / "text")
        with pytest.raises(FileNotFoundError):
            read_parquet(replay, tmp_path / "nothing")
        with pytest.raises(FileExistsError):
            write_parquet(replay, tmp_path / "text")
    assert (tmp_path / "text").read_text().startswith("text")


def test_other_steps_are_refused(tmp_path):
    """A replay of other steps takes nothing. The message names the first leaf that differs."""
    file = tmp_path / "steps.parquet"
    with filled(SMALL) as replay:
        write_parquet(replay, file)
    with Replay({**SMALL, "obs": np.zeros(3, np.float32)}, 10) as other:
        with pytest.raises(SpecMismatchError, match=r"steps.parquet does not fit the replay: got \['obs'\]: float32"):
            read_parquet(other, file)
        assert other.num_steps == 0


def test_damaged_pages_are_refused(tmp_path):
    """The footer is whole, and what it says of is not there."""
    file = tmp_path / "steps.parquet"
    with filled(SMALL) as replay:
        write_parquet(replay, file)
    content = bytearray(file.read_bytes())
    content[4:200] = bytes(196)
    file.write_bytes(content)
    with Replay(SMALL, 10) as other, pytest.raises(ValueError, match=r"steps.parquet cannot be read: "):
        read_parquet(other, file)


def test_a_disk_that_fails_is_no_damaged_file(monkeypatch):
    """What the disk says is raised as it is."""

    class File:
        num_row_groups = 1

        def iter_batches(self, batch_size, row_groups):
            raise OSError(errno.EIO, "the disk fails")

    with pytest.raises(OSError, match="the disk fails"):
        next(parquet._read_batches(File(), 1, "a file"))


def test_an_unfinished_file_is_removed(tmp_path, monkeypatch):
    """What was cut short leaves no file."""
    with filled(SMALL) as replay:
        monkeypatch.setattr(parquet, "_to_arrow", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_parquet(replay, tmp_path / "steps.parquet")
    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow(tmp_path, monkeypatch):
    """The error says what to install."""

    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(common.importlib, "import_module", missing)
    with Replay(SMALL, 10) as replay, pytest.raises(ImportError, match=r"pip install 'echo-shm\[parquet\]'"):
        write_parquet(replay, tmp_path / "steps.parquet")
