"""Steps of a replay to and from files that others read: NumPy, Parquet, Minari, LeRobot, and Reverb's checkpoints."""

from echo_shm.replay.datasets.lerobot import lerobot_example, read_lerobot, write_lerobot
from echo_shm.replay.datasets.minari import minari_example, read_minari, write_minari
from echo_shm.replay.datasets.npz import npz_example, read_npz, write_npz
from echo_shm.replay.datasets.parquet import parquet_example, read_parquet, write_parquet
from echo_shm.replay.datasets.reverb import read_reverb

__all__ = [
    "lerobot_example",
    "minari_example",
    "npz_example",
    "parquet_example",
    "read_lerobot",
    "read_minari",
    "read_npz",
    "read_parquet",
    "read_reverb",
    "write_lerobot",
    "write_minari",
    "write_npz",
    "write_parquet",
]

# As in echo_shm itself: public names belong to the package that users import them from.
for _name in __all__:
    globals()[_name].__module__ = __name__
