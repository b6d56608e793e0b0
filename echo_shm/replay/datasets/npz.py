"""Episodes as ``.npz`` files: a folder with one file an episode, and one that says what a step looks like."""

import zipfile
from collections.abc import Collection
from os import PathLike
from pathlib import Path

import numpy as np

from echo_shm.errors import SpecMismatchError
from echo_shm.replay.datasets.common import Header, Importer, flat, header_from, header_of
from echo_shm.replay.episodes import StoredEpisode
from echo_shm.replay.replay import Replay
from echo_shm.spec import Array, Leaf, Tree

_DATASET = "dataset.json"
_FINAL = "final/"
_OWN = ("terminated", "truncated", "first", "environment", "stream")


def write_npz(replay: Replay, folder: "str | PathLike[str]", *, compress: bool = False) -> int:
    """Writes the episodes that a replay has, each to a ``.npz`` file of its own.

    ``np.load(file)["obs"]`` is an array of shape ``(n, *leaf.shape)``; the name of a nested leaf is ``obs/image``.
    ``terminated`` and ``truncated`` are bool of shape (n,). If it is known what the episode ended with, ``final/obs``
    has it. ``first``, ``environment`` and ``stream`` are those of a :class:`StoredEpisode`. ``dataset.json`` in the
    folder says what a step looks like. It is written last.

    Args:
        replay: The replay. It may be used meanwhile: see :meth:`Replay.episodes`.
        folder: It is made if it is not there, and must be empty.
        compress: Whether the arrays are compressed.

    Returns:
        How many steps were written.

    Raises:
        FileExistsError: The folder has files.
        OSError: It cannot be written.
        ConnectionClosedError, MemoryError, ForkedError: As :meth:`Replay.episodes`.

    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} has files: give a folder that is empty or does not exist")
    header = header_of(replay, lambda name: name in _OWN or name.startswith(_FINAL))
    steps = count = 0
    for count, episode in enumerate(replay.episodes(), 1):
        _save(folder / f"episode-{count - 1:08d}.npz", _arrays(header, episode), compress)
        steps += len(episode)
    (folder / _DATASET).write_bytes(header.to_json(episodes=count, steps=steps))
    return steps


def read_npz(replay: Replay, folder: "str | PathLike[str]", *, timeout: float | None = 0.0) -> int:
    """Adds the episodes of such a folder to a replay, in their order. Their items get each table's highest priority.

    An episode that had not ended is over with its last step, as after :meth:`Replay.end_episode`.

    Args:
        replay: The replay. Its steps must look as those of the folder.
        folder: What :func:`write_npz` has written.
        timeout: As for :meth:`Replay.extend`.

    Returns:
        How many steps were added.

    Raises:
        SpecMismatchError: The steps have another structure, or an array has another dtype or shape.
        ValueError: A file is missing or damaged.
        TimeoutError, ConnectionClosedError, EchoShmError, ForkedError: As :meth:`Replay.extend`. The message and the
            attribute ``sent`` say how many steps are stored.

    An episode that cannot be read adds nothing. Those before it stay.
    """
    folder = Path(folder)
    header, files = _open(folder)
    header.check_fits(replay, str(folder))
    with Importer(replay, timeout, str(folder)) as importer:
        for file in files:
            steps, terminated, truncated, final = _read(header, file, replay._finals)
            importer.steps(steps)
            importer.end(terminated, truncated, final)
        return importer.added


def npz_example(folder: "str | PathLike[str]") -> Tree:
    """One step of such a folder, with zeros in its leaves: ``Replay(npz_example(folder), capacity)``.

    Raises:
        ValueError: ``dataset.json`` is missing or damaged, or the steps have node types beyond dict, list, tuple and
            None.

    """
    return _open(Path(folder))[0].example(str(folder))


def _save(file: Path, arrays: dict[str, Array], compress: bool) -> None:
    """As ``numpy.savez``, but a leaf may have any name: there it would be an argument's."""
    with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(name + ".npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _arrays(header: Header, episode: StoredEpisode) -> dict[str, Array]:
    ends = np.zeros((2, len(episode)), bool)
    ends[:, -1] = episode.terminated, episode.truncated
    arrays: dict[str, Array] = dict(zip(header.names, flat(header.spec, episode.steps), strict=True))
    arrays |= {"terminated": ends[0], "truncated": ends[1]}
    arrays |= {"first": np.asarray(episode.first), "environment": np.asarray(episode.environment)}
    arrays |= {"stream": np.asarray(episode.stream, np.uint64)}
    if episode.final is not None:
        finals = flat(header.spec, episode.final)
        arrays |= {_FINAL + name: array for name, array in zip(header.names, finals, strict=True)}
    return arrays


def _open(folder: Path) -> tuple[Header, list[Path]]:
    """The header of a folder, and its episodes' files in their order."""
    try:
        said = (folder / _DATASET).read_bytes()
    except OSError as error:
        raise ValueError(
            f"{folder} is not a folder that write_npz() has written to its end: {_DATASET} cannot be read: "
            f"{error.strerror}"
        ) from None
    header, data = header_from(said, str(folder / _DATASET))
    files = sorted(folder.glob("episode-*.npz"))
    if len(files) != data.get("episodes"):
        raise ValueError(f"{folder} has {len(files)} episodes, but {_DATASET} says {data.get('episodes')!r}")
    return header, files


def _read(header: Header, file: Path, needed: Collection[int]) -> tuple[list[Array], bool, bool, list[Array] | None]:
    """The steps of an episode, how it ended, and with what. ``needed``: the leaves that this must have."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    missing = {*header.names, "terminated", "truncated"} - arrays.keys()
    if missing:
        raise ValueError(f"{file} has no {', '.join(map(repr, sorted(missing)))}")
    n = len(arrays["terminated"]) if arrays["terminated"].ndim else 0
    for name in ("terminated", "truncated"):
        flags = arrays[name]
        if flags.dtype != np.bool_ or flags.shape != (n,) or n == 0:
            raise SpecMismatchError(f"{file}: {name}: got {flags.dtype}{list(flags.shape)}, expected bool[n], n >= 1")
        if flags[:-1].any():
            raise ValueError(f"{file}: {name} is true before the last step: an episode ends with its last step alone")
    steps = [
        _exact(file, name, arrays[name], leaf, (n, *leaf.shape))
        for name, leaf in zip(header.names, header.spec.leaves, strict=True)
    ]
    terminated, truncated = (bool(arrays[name][-1]) for name in ("terminated", "truncated"))
    if not any(name.startswith(_FINAL) for name in arrays):
        return steps, terminated, truncated, None
    if not terminated and not truncated:
        raise ValueError(
            f"{file} says what the episode ended with, but its last step is neither terminated nor truncated"
        )
    final = []
    for i, (name, leaf) in enumerate(zip(header.names, header.spec.leaves, strict=True)):
        array = arrays.get(_FINAL + name)
        if array is None and i in needed:
            raise ValueError(f"{file} has no {_FINAL + name!r}, and a table's NStep names it as observation")
        final.append(
            np.zeros(leaf.shape, leaf.dtype) if array is None else _exact(file, _FINAL + name, array, leaf, leaf.shape)
        )
    return steps, terminated, truncated, final


def _exact(file: Path, name: str, array: Array, leaf: Leaf, shape: tuple[int, ...]) -> Array:
    """An array of a leaf, if it is one."""
    if array.dtype.kind == "V" and array.dtype.names is None and leaf.dtype.itemsize == array.dtype.itemsize:
        array = array.view(leaf.dtype)  # numpy stores types that it does not know as bytes
    if array.dtype != leaf.dtype or array.shape != shape:
        raise SpecMismatchError(
            f"{file}: {name}: got {array.dtype}{list(array.shape)}, expected {leaf.dtype}{list(shape)}"
        )
    return np.ascontiguousarray(array).reshape(shape)
