"""Datasets of LeRobot, in version 3 of its format: a row of a Parquet file for each step, a column for each feature.

They are read and written without the package ``lerobot``.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import optree

from echo_shm.errors import SpecMismatchError
from echo_shm.replay.datasets.common import Importer, Name, exact, need, part_of
from echo_shm.replay.datasets.lerobot_features import (
    Feature,
    Info,
    feature_of,
    read_info,
)
from echo_shm.replay.datasets.lerobot_files import Frames, new_folder
from echo_shm.replay.datasets.lerobot_rows import Rows, read_rows
from echo_shm.replay.datasets.lerobot_sources import Made, Source, check_leaves, check_names, sources_of, tree_of
from echo_shm.replay.episodes import pieces
from echo_shm.replay.replay import Replay
from echo_shm.replay.validation import integer
from echo_shm.spec import Array, Spec, Tree

#: The features that say how an episode ends.
_ENDS = ("next.done", "next.truncated")

#: About how many bytes of steps are in memory at a time.
_CHUNK = 8 << 20


def write_lerobot(
    replay: Replay,
    path: "str | PathLike[str]",
    *,
    fps: int,
    observation: Name | None = "obs",
    action: Name | None = "action",
    reward: Name | None = "reward",
    others: Mapping[Any, str] | None = None,
    task: str = "",
    robot_type: str | None = None,
) -> int:
    """Makes a LeRobot dataset of the episodes that a replay has.

    An observation of one array is the feature ``observation.state``, or ``observation.image``. One that is a dict has a
    feature for each leaf: ``observation.images.top``. Actions are ``action``, rewards ``next.reward``. ``next.done``
    says that an episode terminated, ``next.truncated`` that it was truncated. Leaves of uint8 and of shape (height,
    width, 3) or (3, height, width) are stored as PNG images, without loss. There are no videos.

    LeRobot has no place for what an episode ended with, so ``final`` is left out.

    Args:
        replay: The replay. It may be used meanwhile: see :meth:`Replay.episodes`.
        path: A folder. It is made if it is not there, and must be empty.
        fps: How many steps are a second: the timestamps follow from it.
        observation, action: Keys of the step, or tuples of keys. None: nothing is.
        reward: Likewise, a leaf of shape ().
        others: By key: the feature that a further part of the step becomes. What has none is left out.
        task: What LeRobot calls the task of each episode, in words.
        robot_type: As LeRobot has it.

    Returns:
        How many steps were written.

    Raises:
        ImportError: pyarrow or Pillow is not installed: ``pip install 'echo-shm[lerobot]'``.
        FileExistsError: The folder has files.
        OSError: It cannot be written.
        ValueError: A key is unknown, two leaves have the same feature, a feature's name is not valid, or there is no
            episode.
        TypeError: A part of the steps is nothing that LeRobot stores.
        ConnectionClosedError, MemoryError, ForkedError: As :meth:`Replay.episodes`.

    """
    _need()
    spec = replay._spec
    fps = integer("fps", fps, 1)
    sources = sources_of(spec, observation, action, reward, others or {})
    features = {one.name: feature_of(one.name, spec.leaves[one.leaf], one.argument) for one in sources}
    check_names([*(one.name for one in sources), *_ENDS])
    if "next.reward" in features and features["next.reward"].shape != (1,):
        raise TypeError(f"reward={reward!r}: LeRobot has one number a step: choose a leaf of shape ()")
    ends = [Feature(name, "bool", (1,)) for name in _ENDS]
    folder = Path(path)
    with new_folder(folder), Frames(folder, [*features.values(), *ends], fps, task) as frames:
        for piece in pieces(replay, _most(spec)):
            n = len(piece.listed) - piece.final
            if n == 0:
                continue  # the steps before what it ended with are gone
            over = np.zeros((2, n), bool)
            over[:, -1] = piece.terminated, piece.truncated
            arrays = {one.name: piece.leaves[one.leaf][:n] for one in sources}
            frames.add({**arrays, **dict(zip(_ENDS, over, strict=True))}, piece.goes_on)
        if not frames.frames:
            raise ValueError(f"there is no dataset {folder} to make: the replay has no episode")
        frames.finish(robot_type)
        return frames.frames


def read_lerobot(
    replay: Replay,
    path: "str | PathLike[str]",
    *,
    observation: Name | None = "obs",
    action: Name | None = "action",
    reward: Name | None = "reward",
    others: "Mapping[Any, str | Callable[[Mapping[str, Array]], Tree]] | None" = None,
    terminated: str | None = _ENDS[0],
    truncated: str | None = _ENDS[1],
    timeout: float | None = 0.0,
) -> int:
    """Adds the episodes of a LeRobot dataset to a replay. Their items get each table's highest priority.

    Which leaf takes which feature is as for :func:`write_lerobot`. A feature of shape (1,) fits a leaf of shape (),
    too. Floats are rounded to the leaf's precision. Integers are converted if their values fit. Nothing else is cast.
    An episode that neither terminated nor was truncated is over with its last step, as after
    :meth:`Replay.end_episode`. About 8 MiB of steps are in memory at a time, beside the row group that is decompressed.

    Args:
        replay: The replay.
        path: The dataset's folder. Nothing is downloaded. Videos are decoded.
        observation, action, reward: Keys of the step, or tuples of keys, that take these. None: none does.
        others: By key: where the rest of a step comes from. A str: from that feature. Otherwise a function that gets
            the features of n steps of an episode by name, ``frame_index`` and the like too, as arrays with a leading n,
            and returns such arrays.
        terminated, truncated: The features that say how an episode ends. None: none does, and so if the dataset does
            not have the default one.
        timeout: As for :meth:`Replay.extend`.

    Returns:
        How many steps were added.

    Raises:
        ImportError: pyarrow or Pillow is not installed: ``pip install 'echo-shm[lerobot]'``. Or a feature is a
            video, and PyAV is not: ``pip install 'echo-shm[lerobot-video]'``.
        ValueError: It is no such dataset, or of another version, or not finished, or damaged. Or a key or a feature is
            unknown, a part of the steps has no source, a feature is no array, image or video, or an episode goes on
            after its end.
        SpecMismatchError: A feature has another dtype or shape than the leaf, or a tree another structure.
        TimeoutError, ConnectionClosedError, EchoShmError, ForkedError: As :meth:`Replay.extend`. The message and the
            attribute ``sent`` say how many steps are stored.

    """
    _need()
    folder, spec = Path(path), replay._spec
    info = read_info(folder)
    functions = {key: get for key, get in (others or {}).items() if callable(get)}
    named = {key: str(name) for key, name in (others or {}).items() if key not in functions}
    sources = sources_of(spec, observation, action, reward, named, info)
    made = [Made(f"others[{key!r}]", part_of(spec, "others", key), get) for key, get in functions.items()]
    check_leaves(spec, [*(one.leaf for one in sources), *(i for one in made for i in optree.tree_leaves(one.part))])
    ends = [_end(info, name, default, folder) for name, default in zip((terminated, truncated), _ENDS, strict=True)]
    needed = {"episode_index", "timestamp", *(one.name for one in sources), *filter(None, ends)}
    if any(info.feature(name, str(folder)).is_video for name in needed):
        need("av", "lerobot-video")
    if made:
        needed |= {feature.name for feature in info.features.values() if feature.is_readable}
    with Importer(replay, timeout, str(folder)) as importer:
        episode, over = -1, (False, False)
        for rows in read_rows(folder, info, needed, _most(spec)):
            if rows.episode != episode:
                importer.end(*over)  # before the first one, this is nothing
                episode, over = rows.episode, (False, False)
            steps = _steps(spec, rows, sources, made)
            over = _ends_of(rows, ends, over)
            importer.steps(steps)
        importer.end(*over)
        return importer.added


def lerobot_example(
    path: "str | PathLike[str]",
    *,
    observation: str | None = "obs",
    action: str | None = "action",
    reward: str | None = "reward",
) -> dict[str, Tree]:
    """One step of a LeRobot dataset, with zeros in its leaves: ``Replay(lerobot_example(path), capacity)``.

    The observation is an array if there is but ``observation.state`` or ``observation.image``. Otherwise it is a dict:
    ``observation.images.top`` is ``example["obs"]["images"]["top"]``. Actions likewise.

    Raises:
        ValueError: It is no such dataset, or of another version, or has no such feature, which None leaves out; or one
            is no array, image or video.

    """
    info = read_info(Path(path))
    wanted = {observation: "observation", action: "action", reward: "next.reward"}
    return {key: tree_of(info, prefix, str(path)) for key, prefix in wanted.items() if key is not None}


def _need() -> None:
    for module in ("pyarrow.parquet", "PIL.Image"):
        need(module, "lerobot")


def _most(spec: Spec) -> int:
    """How many steps are in memory at a time."""
    return max(1, _CHUNK // max(1, spec.sample_bytes))


# --- reading -------------------------------------------------------------------


def _end(info: Info, name: str | None, default: str, folder: Path) -> str | None:
    """The feature that says how episodes end, if there is one."""
    if name is None or (name == default and name not in info.features):
        return None
    feature = info.feature(name, str(folder))
    if feature.dtype != "bool" or feature.shape != (1,):
        raise SpecMismatchError(
            f"{folder}, feature {name!r}: got {feature.dtype}{list(feature.shape)}, expected bool[1]"
        )
    return name


def _ends_of(rows: Rows, ends: list[str | None], before: tuple[bool, bool]) -> tuple[bool, bool]:
    """Whether the last step so far terminates and truncates its episode."""
    none = np.zeros(rows.n, bool)
    flags = [none if name is None else rows[name] for name in ends]
    if any(before) or any(one[:-1].any() for one in flags):
        names = " and ".join(repr(name) for name in ends if name)
        raise ValueError(
            f"{rows.where} goes on after {names} said that it ended: choose other features, terminated=, truncated="
        )
    return bool(flags[0][-1]), bool(flags[1][-1])


def _steps(spec: Spec, rows: Rows, sources: list[Source], made: list[Made]) -> list[Array]:
    """An array for each leaf."""
    steps: list[Array] = [np.empty(0)] * len(spec.leaves)
    for one in sources:
        steps[one.leaf] = _exact(spec, one.leaf, rows[one.name], rows, f"feature {one.name!r}")
    for function in made:
        got = function.get(rows)
        try:
            arrays = optree.tree_structure(function.part).flatten_up_to(got)
        except (ValueError, TypeError) as error:
            raise SpecMismatchError(
                f"{rows.where}, {function.argument}: the structure is not that of the steps: {error}"
            ) from None
        for i, array in zip(optree.tree_leaves(function.part), arrays, strict=True):
            steps[i] = _exact(spec, i, array, rows, function.argument)
    return steps


def _exact(spec: Spec, leaf: int, value: Any, rows: Rows, what: str) -> Array:
    array = np.asarray(value)
    if array.shape == (rows.n,) and spec.leaves[leaf].shape == (1,):
        array = array[:, None]
    return exact(spec.leaves[leaf], array, rows.n, f"{rows.where}, {what}")
