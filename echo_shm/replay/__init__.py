"""A replay, and what its tables are made of: how they choose items, and when they may be sampled and inserted into."""

from echo_shm.replay.batch import Batch, HotColdInfo, LimiterInfo, PartInfo, TableInfo
from echo_shm.replay.client import ReplayClient
from echo_shm.replay.episodes import StoredEpisode
from echo_shm.replay.history import Pattern
from echo_shm.replay.item import Column, Episode, NStep, Sequence, Step, Trajectory
from echo_shm.replay.rate_limiters import MinSize, Queue, RateLimiter, SampleToInsertRatio, Stack
from echo_shm.replay.remote import RemoteWriter
from echo_shm.replay.replay import Replay
from echo_shm.replay.restoring import Restored
from echo_shm.replay.selectors import (
    CustomSelector,
    Fifo,
    HotCold,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    Softmax,
    Uniform,
)
from echo_shm.replay.table import Table
from echo_shm.replay.writer import ReplayHandle, Writer

__all__ = [
    "Batch",
    "Column",
    "CustomSelector",
    "Episode",
    "Fifo",
    "HotCold",
    "HotColdInfo",
    "Lifo",
    "LimiterInfo",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "NStep",
    "PartInfo",
    "Pattern",
    "Prioritized",
    "Queue",
    "RateLimiter",
    "RemoteWriter",
    "Replay",
    "ReplayClient",
    "ReplayHandle",
    "Restored",
    "SampleToInsertRatio",
    "Sequence",
    "Softmax",
    "Stack",
    "Step",
    "StoredEpisode",
    "Table",
    "TableInfo",
    "Trajectory",
    "Uniform",
    "Writer",
]

# As in echo_shm itself: public names belong to the package that users import them from.
for _name in __all__:
    globals()[_name].__module__ = __name__
