"""A shared-memory experience buffer for reinforcement learning.

Worker processes write samples (pytrees of numpy arrays) into a ring in shared memory. The learner takes batches of a
fixed size, which are views of the ring. Start with :class:`Server` in the learner, and with :meth:`Server.spawn` or
:class:`ShmClient` in the workers.
"""

from importlib.metadata import version
from importlib.util import find_spec

# First: the compiled core refuses a subinterpreter with a clear message.
try:
    from echo_shm import _batch as _batch
    from echo_shm import _core as _core
    from echo_shm import _history as _history
    from echo_shm import _replay as _replay
    from echo_shm import _send as _send
    from echo_shm import _slot as _slot
except ImportError:
    _parts = ("_batch", "_core", "_history", "_replay", "_send", "_slot")
    _missing = [name for name in _parts if find_spec(f"{__name__}.{name}") is None]
    if not _missing:
        raise
    raise ModuleNotFoundError(
        f"echo_shm in {__path__[0]} is not built (missing: {', '.join(_missing)}). In a clone of the repository, "
        "build it with `pip install -e .`, or leave the folder to import the echo_shm that is installed",
        name=f"{__name__}.{_missing[0]}",
    ) from None

from echo_shm._slot import Reservation
from echo_shm.client import ShmClient
from echo_shm.errors import (
    BatchesHeldError,
    ConnectionClosedError,
    EchoShmError,
    ForkedError,
    SegmentError,
    SpecMismatchError,
    WireError,
    WorkerError,
)
from echo_shm.net.client.client import TcpClient, connect
from echo_shm.net.client.subscriber import TcpSubscriber
from echo_shm.net.transport import TcpTransport
from echo_shm.replay.client import ReplayClient
from echo_shm.replay.replay import Replay
from echo_shm.replay.table import Table
from echo_shm.ring.handle import Handle
from echo_shm.ring.metrics import HistSnapshot, SampleInfo
from echo_shm.ring.protocols import Finishing, Transport
from echo_shm.ring.sample import Lease, Sample
from echo_shm.sending import BoundSample
from echo_shm.server import Server
from echo_shm.trajectory.accumulator import TrajectoryAccumulator
from echo_shm.weights.publisher import Publisher
from echo_shm.weights.subscriber import Subscriber
from echo_shm.weights.subscription import Subscription
from echo_shm.workers.group import WorkerGroup

__version__ = version("echo-shm")

__all__ = [
    "BatchesHeldError",
    "BoundSample",
    "ConnectionClosedError",
    "EchoShmError",
    "Finishing",
    "ForkedError",
    "Handle",
    "HistSnapshot",
    "Lease",
    "Publisher",
    "Replay",
    "ReplayClient",
    "Reservation",
    "Sample",
    "SampleInfo",
    "SegmentError",
    "Server",
    "ShmClient",
    "SpecMismatchError",
    "Subscriber",
    "Subscription",
    "Table",
    "TcpClient",
    "TcpSubscriber",
    "TcpTransport",
    "TrajectoryAccumulator",
    "Transport",
    "WireError",
    "WorkerError",
    "WorkerGroup",
    "__version__",
    "connect",
]

# Public names belong to this package, wherever they are defined: in messages, in help() and in pickles.
# inspect.getsource() of a class looks into this file then, and finds nothing.
for _name in __all__:
    if not _name.startswith("_"):
        globals()[_name].__module__ = __name__
