"""What is refused of a LeRobot dataset, or for one, and what is left then."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from harness.episodes import ENDS, filled

from echo_shm import Replay, SpecMismatchError, Table
from echo_shm.replay import RateLimiter
from echo_shm.replay.datasets import lerobot_example, lerobot_files, read_lerobot, write_lerobot

pa = pytest.importorskip("pyarrow", reason="the extra 'lerobot' is not installed")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("PIL.Image")

DATASET = Path(__file__).parent / "lerobot" / "dataset"

SMALL = {"obs": np.zeros(2, np.float32), "action": np.zeros((), np.int64), "reward": np.zeros((), np.float32)}
MADE = {
    "obs": {
        "state": np.zeros(2, np.float32),
        "images": {"top": np.zeros((4, 5, 3), np.uint8)},
        "grid": np.zeros((2, 3), np.uint8),
    },
    "action": np.zeros((), np.int64),
    "reward": np.zeros(()),
}


def changed(tmp_path, change):
    """The dataset that is kept, with another info.json."""
    folder = tmp_path / "changed"
    shutil.copytree(DATASET, folder)
    info = json.loads((folder / "meta/info.json").read_text())
    change(info)
    (folder / "meta/info.json").write_text(json.dumps(info))
    return folder


def recast(folder, name, change):
    """Replaces a column of a dataset."""
    file = folder / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    index = table.column_names.index(name)
    pq.write_table(table.set_column(index, name, pa.array(change(table[name].to_pylist()))), file)


def feature(name, **changes):
    """A change of a feature's entry."""
    return lambda info: info["features"][name].update(changes)


@pytest.mark.parametrize(
    ("change", "example", "options", "error", "message"),
    [
        (
            feature("next.done"),
            {**MADE, "x": np.zeros(())},
            {},
            ValueError,
            r"\['x'\] of the replay's steps: each leaf needs one",
        ),
        (feature("next.done"), MADE, {"others": {"action": "action"}}, ValueError, "a leaf that two arguments name"),
        (feature("next.done"), MADE, {"observation": "o"}, ValueError, "observation='o': steps have no such key"),
        (
            feature("next.done"),
            {**MADE, "x": np.zeros(())},
            {"others": {"x": "y"}},
            ValueError,
            "has no feature 'y': it has 'observation.state', ",
        ),
        (feature("next.done"), MADE, {"terminated": "x"}, ValueError, "has no feature 'x'"),
        (
            feature("next.done"),
            MADE,
            {"truncated": "action"},
            SpecMismatchError,
            r"feature 'action': got int64\[1\], expected bool\[1\]",
        ),
        (
            feature("next.done"),
            {**MADE, "action": np.zeros(3, np.int64)},
            {},
            SpecMismatchError,
            r"episode 0, feature 'action': leaf \['action'\]: got int64\[3\], expected int64\[3, 3\]",
        ),
        (
            feature("next.done"),
            {**MADE, "action": np.zeros((), bool)},
            {},
            SpecMismatchError,
            "got int64.*expected bool",
        ),
        (
            feature("next.done"),
            {**MADE, "action": np.zeros((), np.uint8)},
            {"others": {"action": lambda f: -f["action"]}, "action": None},
            SpecMismatchError,
            r"others\['action'\]: leaf",
        ),
        (
            feature("next.done"),
            {**MADE, "action": [np.zeros(())]},
            {"others": {"action": lambda f: {}}, "action": None},
            SpecMismatchError,
            r"others\['action'\]: the structure is not that",
        ),
        (
            feature("action", dtype="video"),
            MADE,
            {},
            ValueError,
            "file-000.parquet cannot be read: it has no column 'videos/action/chunk_index'",
        ),
        (
            feature("action", dtype="video", info={"is_depth_map": True}),
            MADE,
            {},
            ValueError,
            "feature 'action' is video of depth maps",
        ),
        (
            feature("action", dtype="string"),
            MADE,
            {},
            ValueError,
            "feature 'action' is 'string': steps have numbers",
        ),
        (
            feature("action", dtype="int32"),
            MADE,
            {},
            SpecMismatchError,
            r"feature 'action': got int64, but meta/info.json says int32\[1\]",
        ),
        (
            feature("observation.grid", shape=[3, 2]),
            MADE,
            {},
            SpecMismatchError,
            r"a list that is not as long as meta/info.json says: \[3, 2\]",
        ),
        (feature("observation.grid", shape=[2]), MADE, {}, SpecMismatchError, "feature 'observation.grid': got"),
        (feature("observation.grid", dtype="image", shape=[2, 3, 3]), MADE, {}, SpecMismatchError, "expected images"),
        (
            lambda info: info.update(codebase_version="v2.1"),
            MADE,
            {},
            ValueError,
            "got format 'v2.1', expected 'v3.0': LeRobot's scripts convert",
        ),
        (lambda info: info.pop("codebase_version"), MADE, {}, ValueError, "got format None"),
        (lambda info: info.pop("features"), MADE, {}, ValueError, "info.json is damaged: KeyError"),
        (
            lambda info: info.update(total_frames=12),
            MADE,
            {},
            ValueError,
            "is not complete: its 1 Parquet files have 9 frames, but info.json says 12",
        ),
        (
            lambda info: info["features"].update(more=info["features"]["action"]),
            {**MADE, "x": np.zeros((), np.int64)},
            {"others": {"x": "more"}},
            SpecMismatchError,
            "has no column 'more', or several",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, example, options, error, message, tmp_path):
    """The message names the place and the part of it, or the argument. Nothing is stored."""
    folder = changed(tmp_path, change)
    with Replay(example, 100) as replay:
        with pytest.raises(error, match=message):
            read_lerobot(replay, folder, **options)
        assert replay.num_steps == 0


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("next.done", lambda old: [True] * 9, ValueError, "episode 0 goes on after 'next.done' said that it ended"),
        ("action", lambda old: [None, *old[1:]], ValueError, "episode 0, feature 'action': there are nulls"),
        (
            "observation.grid",
            lambda old: [[[1, 2, 3], None], *old[1:]],
            SpecMismatchError,
            "a list that is not as long",
        ),
        (
            "observation.images.top",
            lambda old: [{"bytes": b"x", "path": ""}] * 9,
            ValueError,
            "row 0: the image cannot be decoded",
        ),
        (
            "observation.images.top",
            lambda old: [{"bytes": None, "path": ""}] * 8 + old[:1],
            ValueError,
            "the image is not in the Parquet file",
        ),
    ],
)
def test_damaged_columns_are_refused(name, change, error, message, tmp_path):
    """The message names the file, the episode and the feature."""
    folder = changed(tmp_path, lambda info: None)
    recast(folder, name, change)
    with Replay(MADE, 100) as replay, pytest.raises(error, match=message):
        read_lerobot(replay, folder)


def test_damaged_files_are_refused(tmp_path):
    """A file that is no Parquet file, one that is missing, and a folder that is none."""
    folder = changed(tmp_path, lambda info: None)
    file = folder / "data/chunk-000/file-000.parquet"
    with Replay(MADE, 100) as replay:
        file.write_bytes(file.read_bytes()[:-9])
        with pytest.raises(ValueError, match=r"file-000.parquet cannot be read"):
            read_lerobot(replay, folder)
        file.unlink()
        with pytest.raises(ValueError, match="its 0 Parquet files have 0 frames"):
            read_lerobot(replay, folder)
        for missing in (tmp_path / "nowhere", tmp_path):
            with pytest.raises(
                ValueError, match=r"is no LeRobot dataset, or none that was written to its end: meta/info.json cannot"
            ):
                read_lerobot(replay, missing)
        assert replay.num_steps == 0
    with pytest.raises(ValueError, match=r"has no feature 'next.reward'"):
        lerobot_example(changed(tmp_path / "x", lambda info: info["features"].pop("next.reward")))
    with pytest.raises(ValueError, match="feature 'action' is 'string'"):
        lerobot_example(changed(tmp_path / "y", feature("action", dtype="string")))


@pytest.mark.parametrize(
    ("example", "options", "error", "message"),
    [
        ({**SMALL, "reward": np.zeros(2)}, {}, TypeError, "reward='reward': LeRobot has one number a step"),
        ({**SMALL, "action": np.zeros(2, "S3")}, {}, TypeError, r"action: leaf \['action'\] is \|S3"),
        ({**SMALL, "action": np.zeros(2, ">i4")}, {}, TypeError, r"action: leaf \['action'\] is >i4"),
        (
            {**SMALL, "action": np.zeros((1,) * 6)},
            {},
            TypeError,
            r"has shape \[1, 1, 1, 1, 1, 1\]: LeRobot has arrays of 1 to 5",
        ),
        ({**SMALL, "action": np.zeros((2, 0))}, {}, TypeError, r"has shape \[2, 0\]"),
        (SMALL, {"others": {"x": "y"}}, ValueError, "others='x': steps have no such key"),
        (SMALL, {"others": {"action": "index"}}, ValueError, "no feature can be called 'index'"),
        (SMALL, {"others": {"action": "a/b"}}, ValueError, "no feature can be called 'a/b'"),
        (SMALL, {"others": {"obs": "action"}}, ValueError, "two leaves are the feature 'action'"),
        (SMALL, {"others": {"obs": "next.done"}}, ValueError, "two leaves are the feature 'next.done'"),
        (SMALL, {"fps": 0}, ValueError, "fps"),
        (SMALL, {}, ValueError, "the replay has no episode"),
    ],
)
def test_what_lerobot_cannot_have_is_refused(example, options, error, message, tmp_path):
    """The message names the part of the steps. No dataset is made."""
    with Replay(example, 10) as replay, pytest.raises(error, match=message):
        write_lerobot(replay, tmp_path / "no", **{"fps": 1, **options})
    assert not (tmp_path / "no").exists()


def test_nothing_half_written_remains(tmp_path, monkeypatch):
    """A folder that was there is empty again. One with files stays as it is."""
    monkeypatch.setattr(lerobot_files, "stats_of", lambda *_: 1 / 0)
    (tmp_path / "there").mkdir()
    with filled(SMALL, ENDS) as replay:
        for folder in ("there", "new"):
            with pytest.raises(ZeroDivisionError):
                write_lerobot(replay, tmp_path / folder, fps=1)
        assert [file.name for file in tmp_path.iterdir()] == ["there"]
        assert not list((tmp_path / "there").iterdir())
        (tmp_path / "there" / "mine").touch()
        with pytest.raises(FileExistsError, match="has files: give a folder that is empty"):
            write_lerobot(replay, tmp_path / "there", fps=1)
    assert [file.name for file in (tmp_path / "there").iterdir()] == ["mine"]


def test_an_error_says_how_much_is_stored(tmp_path):
    """A replay that takes no more."""
    table = Table("t", rate_limiter=RateLimiter(1, 1.0, -1e9, 4.0))
    with (
        Replay(MADE, 100, [table]) as replay,
        pytest.raises(TimeoutError, match=r"of .*dataset, 4 steps are stored") as caught,
    ):
        read_lerobot(replay, DATASET, timeout=0.01)
    assert caught.value.sent == 4
