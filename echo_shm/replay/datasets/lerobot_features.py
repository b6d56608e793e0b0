"""What a LeRobot dataset says of its features in ``meta/info.json``, and how a column of its Parquet files has them."""

import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echo_shm.errors import SpecMismatchError
from echo_shm.replay.datasets.common import need
from echo_shm.spec import Array, Leaf

if TYPE_CHECKING:
    import pyarrow as pa

#: The version of the format, and where a dataset has what.
VERSION = "v3.0"
INFO = "meta/info.json"
TASKS = "meta/tasks.parquet"
STATS = "meta/stats.json"
EPISODES_FILES = "meta/episodes/*/*.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
FILES_PER_CHUNK = 1000

#: The features that LeRobot makes itself.
OWN = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}

#: LeRobot has arrays of up to this many dimensions.
_DIMENSIONS = 5


class Feature(NamedTuple):
    """A feature.

    Attributes:
        name: ``"observation.images.top"``, say.
        dtype: The name of a dtype of numpy, or ``"image"``, ``"video"``, ``"string"``.
        shape: Of one frame's: (1,) for a number.
        names: What its dimensions are called, or None.
        is_depth: Whether frames are depth maps.

    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    is_depth: bool = False

    @property
    def is_image(self) -> bool:
        """Whether a column has encoded images."""
        return self.dtype == "image"

    @property
    def is_channels_first(self) -> bool:
        """Whether images are (channels, height, width)."""
        if isinstance(self.names, list) and self.names and str(self.names[0]).startswith("channel"):
            return True
        return not self.names and self.shape[0] == 3 != self.shape[-1]

    def to_json(self) -> dict[str, Any]:
        """The entry of ``meta/info.json``."""
        return {"dtype": self.dtype, "shape": list(self.shape), "names": self.names}

    def zeros(self) -> Array:
        """One frame of zeros.

        Raises:
            ValueError: There is no array of it.

        """
        self.check_readable()
        if self.is_image or self.is_video:
            return np.zeros(self.shape, np.uint8)
        return np.zeros(() if self.shape == (1,) else self.shape, self.dtype)

    @property
    def is_video(self) -> bool:
        """Whether its frames are in videos, and in no column."""
        return self.dtype == "video"

    @property
    def is_readable(self) -> bool:
        """Whether it is an array, an image or a video."""
        return _is_number(self.dtype) or ((self.is_image or self.is_video) and not self.is_depth)

    def check_readable(self) -> None:
        """Raises ValueError unless it is an array, an image or a video."""
        if not self.is_readable:
            kind = f"{self.dtype} of depth maps" if self.is_depth else repr(self.dtype)
            raise ValueError(f"feature {self.name!r} is {kind}: steps have numbers, bools, images and videos in color")


def feature_of(name: str, leaf: Leaf, what: str) -> Feature:
    """The feature that a leaf becomes.

    Raises:
        TypeError: LeRobot stores nothing like it.

    """
    if leaf.dtype.kind not in "biuf" or not leaf.dtype.isnative or leaf.dtype.itemsize > 8:
        raise TypeError(f"{what}: {leaf.name} is {leaf.dtype}: LeRobot has numbers and bools")
    if leaf.nbytes == 0 or len(leaf.shape) > _DIMENSIONS:
        raise TypeError(
            f"{what}: {leaf.name} has shape {list(leaf.shape)}: LeRobot has arrays of 1 to {_DIMENSIONS} dimensions, "
            "none of them 0"
        )
    if is_image(leaf):
        first = leaf.shape[-1] != 3
        return Feature(name, "image", leaf.shape, _CHANNELS_FIRST if first else _CHANNELS_LAST)
    return Feature(name, leaf.dtype.name, leaf.shape or (1,))


_CHANNELS_LAST = ["height", "width", "channels"]
_CHANNELS_FIRST = ["channels", "height", "width"]


def is_image(leaf: Leaf) -> bool:
    """Whether a leaf is stored as images: uint8 of shape (height, width, 3) or (3, height, width)."""
    return leaf.dtype == np.uint8 and len(leaf.shape) == 3 and 3 in (leaf.shape[0], leaf.shape[-1])


def _is_number(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:
        return False


# --- info.json -----------------------------------------------------------------


class Info(NamedTuple):
    """What ``meta/info.json`` says of a dataset.

    Attributes:
        features: By name.
        frames: How many there are.
        fps: Frames a second.
        video_path: Where the videos are: a format.
        files: The Parquet files with frames, in order.

    """

    features: dict[str, Feature]
    frames: int
    fps: float
    video_path: str
    files: list[Path]

    def feature(self, name: str, what: str) -> Feature:
        """A feature that can be read.

        Raises:
            ValueError: There is none.

        """
        found = self.features.get(name)
        if found is None:
            raise ValueError(f"{what} has no feature {name!r}: it has {', '.join(map(repr, self.features))}")
        found.check_readable()
        return found


def read_info(folder: Path) -> Info:
    """Reads ``meta/info.json``.

    Raises:
        ValueError: It is missing, damaged or of another version.

    """
    file = folder / INFO
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder} is no LeRobot dataset, or none that was written to its end: {INFO} cannot be read: {error}"
        ) from None
    version = said.get("codebase_version") if isinstance(said, dict) else None
    if version != VERSION:
        raise ValueError(
            f"{file}: got format {version!r}, expected {VERSION!r}: LeRobot's scripts convert a dataset of an older one"
        )
    try:
        features = {
            name: Feature(name, str(one["dtype"]), tuple(map(int, one["shape"])), one.get("names"), _is_depth(one))
            for name, one in said["features"].items()
        }
        frames, fps, video_path = int(said["total_frames"]), float(said["fps"]), str(said.get("video_path"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} is damaged: {error!r}") from None
    return Info(features, frames, fps, video_path, sorted(folder.glob("data/*/*.parquet")))


def _is_depth(entry: Any) -> bool:
    said = {**(entry.get("video_info") or {}), **(entry.get("info") or {})}
    return bool(said.get("is_depth_map") or said.get("video.is_depth_map"))


# --- columns -------------------------------------------------------------------


def column_type(feature: Feature) -> "pa.DataType":
    """A feature's type in a Parquet file."""
    pa = need("pyarrow", "lerobot")
    if feature.is_image:
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kind = pa.from_numpy_dtype(np.dtype(feature.dtype))
    if feature.shape == (1,):
        return kind
    if len(feature.shape) == 1:
        return pa.list_(kind, feature.shape[0])
    for _ in feature.shape:
        kind = pa.list_(kind)
    return kind


def to_arrow(feature: Feature, array: Array) -> "pa.Array":
    """A column of an array with a leading n."""
    pa = need("pyarrow", "lerobot")
    kind = column_type(feature)
    if feature.is_image:
        return pa.array([{"bytes": _png(feature, one), "path": None} for one in array], kind)
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    if feature.shape == (1,):
        return column
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(column, type=kind)
    for size in reversed(feature.shape):
        offsets = np.arange(0, len(column) + 1, size, dtype=np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), column)
    return column


def from_arrow(feature: Feature, column: "pa.Array", where: str) -> Array:
    """The array with a leading n that a column has.

    Raises:
        SpecMismatchError: The column is not what the feature says.
        ValueError: An image is missing or damaged.

    """
    pa = need("pyarrow", "lerobot")
    n = len(column)
    if isinstance(column, pa.ExtensionArray):  # of Hugging Face's datasets, if that is imported
        column = column.storage
    if feature.is_image:
        if not pa.types.is_struct(column.type) or column.type.get_field_index("bytes") < 0:
            raise SpecMismatchError(f"{where}: got {column.type}, expected images")
        images = [
            _decoded(feature, one, f"{where}, row {i}") for i, one in enumerate(column.field("bytes").to_pylist())
        ]
        return np.stack(images) if images else np.zeros((0, *feature.shape), np.uint8)
    kind = column_kind = column.type
    for size in feature.shape:
        if not (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)):
            break  # a number, or a mistake
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != size).any():  # of a null it is NaN
            raise SpecMismatchError(f"{where}: got a list that is not as long as {INFO} says: {list(feature.shape)}")
        column = column.flatten()
        kind = column.type
    if column.null_count:
        raise ValueError(f"{where}: there are nulls")
    array: Array = np.ascontiguousarray(column.to_numpy(zero_copy_only=False))
    if array.dtype != feature.dtype or len(array) != n * math.prod(feature.shape):
        raise SpecMismatchError(f"{where}: got {column_kind}, but {INFO} says {feature.dtype}{list(feature.shape)}")
    return array.reshape(n, *feature.shape)


def _png(feature: Feature, image: Array) -> bytes:
    pil = need("PIL.Image", "lerobot")
    file = io.BytesIO()
    last = image.transpose(1, 2, 0) if feature.is_channels_first else image
    pil.fromarray(np.ascontiguousarray(last)).save(file, "png")
    return file.getvalue()


def _decoded(feature: Feature, image: bytes | None, where: str) -> Array:
    pil = need("PIL.Image", "lerobot")
    if image is None:
        raise ValueError(f"{where}: the image is not in the Parquet file")
    try:
        with pil.open(io.BytesIO(image)) as opened:
            array = np.asarray(opened)
    except (OSError, ValueError, SyntaxError) as error:
        raise ValueError(f"{where}: the image cannot be decoded: {error}") from None
    array = array[..., None] if array.ndim == 2 else array
    return array.transpose(2, 0, 1) if feature.is_channels_first else array
