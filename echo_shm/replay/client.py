"""A replay in another process, of this machine or another, as those see it that do not have it."""

import contextlib
import ssl
import threading
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, NoReturn, cast

import numpy as np

from echo_shm._core import lib
from echo_shm.errors import SegmentError
from echo_shm.replay import arguments
from echo_shm.replay.batch import Batch, TableInfo, read_table_info
from echo_shm.replay.remote import RemoteWriter
from echo_shm.replay.stock import Stock
from echo_shm.replay.validation import integer
from echo_shm.replay.ways import LocalWay, RemoteWay, Way
from echo_shm.replay.writer import ReplayHandle, Writer
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.updates import UPDATE_BLOCK, UPDATE_KEYS
from echo_shm.spec import Tree
from echo_shm.timeouts import check_timeout

#: How the address of a replay on another host begins.
_TCP = "tcp://"


class ReplayClient:
    """A way into a replay: to write steps, to take batches, to update and delete items, and to look.

    Threads may share a client; a forked child must not use its parent's. It is a context manager that closes on exit.

    The replay may be on another host, if it has a transport: ``ReplayClient("tcp://host:port")``. Each update and each
    deletion is then made once, and each batch acknowledged once, over lost connections and killed bridges, too.

    Args:
        handle_or_name: ``replay.handle``, the replay's name, or the address of its transport.
        example: Pytree of numpy arrays, as of one step. It is only needed to attach by name or address to a replay
            whose steps have node types beyond dict, OrderedDict, list, tuple and None.
        authkey, tls, reconnect, timeout, close_timeout: As for :class:`TcpClient`. On the replay's own machine they
            are ignored, so that the same call works there.

    Raises:
        SegmentError: There is no such replay, or its process is dead.
        SpecMismatchError: The example does not fit, or one is needed.
        ConnectionClosedError: It is closed, or the server at that address is no replay's.
        WireError, OSError: As for :class:`TcpClient`.

    """

    def __init__(
        self,
        handle_or_name: ReplayHandle | str,
        example: Tree = None,
        *,
        authkey: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        reconnect: bool | float = True,
        timeout: float | None = None,
        close_timeout: float | None = 10.0,
    ) -> None:
        if not isinstance(handle_or_name, str | ReplayHandle):
            raise TypeError(
                "ReplayClient takes a replay's name or address, or replay.handle, not "
                f"{type(handle_or_name).__name__} {handle_or_name!r:.80}"
            )
        self._way: Way
        if isinstance(handle_or_name, str) and handle_or_name.startswith(_TCP):
            self._way = RemoteWay(
                handle_or_name,
                example,
                authkey=authkey,
                tls=tls,
                reconnect=reconnect,
                timeout=timeout,
                close_timeout=close_timeout,
            )
        else:
            self._way = LocalWay(handle_or_name, example)
        self._block = np.zeros((), UPDATE_BLOCK)
        self._lock = threading.Lock()
        #: The tables that are known to have items that age.
        self._ageing: set[int] = set()

    @property
    def name(self) -> str:
        """The replay's name; its address if it is on another host."""
        return self._way.what

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables' names."""
        return self._way.names

    def writer(self, *, learner_grace: float | None = 30.0) -> Writer | RemoteWriter:
        """A new :class:`Writer`, or :class:`RemoteWriter`, which is the caller's to close.

        A RemoteWriter has this client's keywords, and waits for the next replay for ``reconnect`` seconds.
        """
        return self._way.writer(learner_grace)

    def update(self, keys: Any, priorities: Any, table: str | None = None, timeout: float | None = None) -> None:
        """Sends new priorities of items. Items that are gone by then are ignored.

        When it returns, no process's death loses them. On another host, this client is responsible for them from then
        on: it sends them within a millisecond, and again after a lost connection, until the replay's host has them.

        Args:
            keys, priorities, table: As for :meth:`Replay.update`.
            timeout: Seconds to wait while the replay takes nothing; None: no limit, or on another host the client's
                own ``timeout``.

        Raises:
            ValueError: An argument is out of range. Nothing was sent.
            TimeoutError: The replay took nothing in time. Some blocks of 256 keys may have been sent.
            ConnectionClosedError, ForkedError: As :meth:`Writer.add`.

        """
        wanted = arguments.keys(keys)
        given = arguments.new_priorities(priorities, len(wanted))
        self._send(lib.ES_UPDATE_PRIORITIES, wanted, given, self._number(table), timeout)

    def delete(self, keys: Any, table: str | None = None, timeout: float | None = None) -> None:
        """Has items removed. Items that are gone by then are ignored. Arguments and errors are those of update()."""
        wanted = arguments.keys(keys)
        self._send(lib.ES_UPDATE_DELETE, wanted, np.zeros(len(wanted)), self._number(table), timeout)

    def learned(self, table: str | None = None, timeout: float | None = None) -> None:
        """The learner, which is this process, has made an update: see :meth:`Replay.learned`. It counts once.

        Args:
            table: The table. None: the only one.
            timeout: As for :meth:`update`.

        Raises:
            ValueError: The table is unknown, or has another sampler than :class:`HotCold`.
            TimeoutError, ConnectionClosedError, ForkedError: As :meth:`update`. Nothing was counted.

        """
        number = self._number(table)
        if number not in self._ageing:
            info = self.info(self.tables[number])
            assert isinstance(info, TableInfo)
            if info.hot_cold is None:
                raise ValueError(arguments.no_ages(self.tables[number]))
            self._ageing.add(number)
        with self._lock:
            self._block["table"], self._block["kind"], self._block["n"] = number, lib.ES_UPDATE_LEARNED, 0
            self._way.send(self._block, check_timeout(timeout))

    def dataset_iter(
        self,
        n: int,
        table: str | None = None,
        prefetch: int = 4,
        timeout: float | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Iterator[Batch]:
        """Yields batches of n items, which the replay draws ahead into shared memory, until it is closed.

        All clients that iterate over the same table with the same n share the batches: each batch goes to one of them.
        If a client is killed, another one gets the batch that it had. If the replay is killed, the iteration goes on
        with the next one.

        With ``rank`` and ``world_size`` the clients are a data-parallel group, and each has a share of its own: the
        k-th batch of a rank is the ``(k * world_size + rank)``-th that is drawn for the group, counted from 0, however
        fast the others are. Batches are drawn until a rank whose turn it is has ``prefetch + 1`` that it has not
        released. So if a client is killed, the others wait once they have taken what was drawn for them. The next
        client of that rank first gets the batches that the dead one had not released, in their order. If a client stops
        iterating, its share waits likewise. A group of another ``world_size`` begins with the next draw, and takes over
        nothing. The members may be on several hosts. A rank whose client was on another host stays taken for a second
        after its connection was lost.

        A batch's arrays lie in shared memory, and may be written to. Their place is taken until nothing refers to any
        of them. So hold only a few batches, or copy: the replay draws no more while all places are taken.

        From another host, the arrays are this process's own. A batch is acknowledged, and its place in the replay's
        shared memory free, when the next one is asked for, or the iteration ends. If the connection is lost before
        that, or this process is killed, the batch is delivered again: here, if this client has connected again within
        a second and its user does not have it yet, else to another one.

        Args:
            n: How many items, 1 or more.
            table: The table. None: the only one.
            prefetch: How many batches the replay may draw ahead, 1 or more; the first client of a table and n decides.
                What is drawn ahead has the priorities and the weights of that time. From another host it is also how
                many may be on their way.
            timeout: The iteration ends once nothing came for so many seconds; None: no limit.
            rank: Which member of a group this is, below ``world_size``; None: of none.
            world_size: How many members the group has, 1 to 32.

        Raises:
            ValueError: A number is out of range, or the table is unknown.
            SegmentError: The replay could not make the ring for the batches: the message says why. Or another client
                has that rank, on another host still after 2 seconds.
            ConnectionClosedError: The replay was killed, and no other one came for 30 seconds, or on another host for
                ``reconnect`` seconds; or another replay has its place.
            BatchesHeldError: As :meth:`Server.sample`: this client refers to all batches that the ring has room for.
            ForkedError: Called in a child of the process that made the client.

        The replay's process draws in its calls, or with ``thread=True`` at any time.
        """
        number, n, prefetch = self._number(table), arguments.count(n), integer("prefetch", prefetch, 1)
        one = BatchRing(number, n, *_member(rank, world_size))
        return _until_none(self._way.batches(one, prefetch, check_timeout(timeout)))

    def _polled(self, n: int, table: str, prefetch: int, pause: float) -> Generator[Batch | None]:
        """As :meth:`dataset_iter`; but where nothing comes for so many seconds, it yields None and goes on.

        It is for items that may be drawn any number of times. What has come from another host keeps no other iteration
        waiting, and may not come again if this iteration ends before its user has it.
        """
        return self._way.batches(BatchRing(self._number(table), n, 0, 0), prefetch, pause, early=True)

    def _stock(self, table: str, prefetch: int, pause: float) -> Stock | None:
        """So many items drawn ahead, which are taken singly, and done together. None: they are not to be had yet."""
        return self._way.stock(self._number(table), prefetch, pause)

    def _send(self, kind: int, keys: Any, priorities: Any, table: int, timeout: float | None) -> None:
        timeout = check_timeout(timeout)
        for first in range(0, len(keys), UPDATE_KEYS):
            some = keys[first : first + UPDATE_KEYS]
            with self._lock:
                block = self._block
                block["table"], block["kind"], block["n"] = table, kind, len(some)
                block["keys"][: len(some)] = some
                block["priorities"][: len(some)] = priorities[first : first + UPDATE_KEYS]
                self._way.send(block, timeout)

    def info(self, table: str | None = None) -> TableInfo | dict[str, TableInfo]:
        """What :meth:`Replay.info` said when the replay last wrote it down: at most a tenth of a second of work ago.

        Raises:
            ValueError: The table is unknown.
            ConnectionClosedError: The replay is closed.

        """
        number = None if table is None and len(self.tables) > 1 else self._number(table)
        said = self._way.figures()
        try:  # whatever the figures are: the error below says what is wrong with them
            infos = {name: read_table_info(said[name]) for name in self.tables}  # type: ignore[index]
        except (KeyError, TypeError, AttributeError) as error:
            raise SegmentError(f"the board of replay {self.name!r} cannot be read: {error!r}") from None
        return infos if number is None else infos[self.tables[number]]

    def _number(self, table: object) -> int:
        if table is None and len(self.tables) == 1:
            return 0
        if table is None:
            raise ValueError(f"this replay has {arguments.listed(self.tables)}: say which one, table=...")
        if not isinstance(table, str) or table not in self.tables:
            raise ValueError(arguments.unknown_table(table, self.tables))
        return self.tables.index(table)

    def close(self) -> None:
        """Leaves the replay. Idempotent. What was sent stays sent."""
        self._way.close()

    def __enter__(self) -> "ReplayClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReplayClient of {self.name!r}, {'closed' if self._way.closed else 'open'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ReplayClient belongs to its process: pickle replay.handle, and attach there: ReplayClient(handle)"
        )


def _until_none(coming: Generator[Batch | None]) -> Iterator[Batch]:
    """What comes before nothing came in time. It refers to no batch that its user may still use."""
    with contextlib.closing(coming):
        yield from cast(Iterator[Batch], iter(coming.__next__, None))


def _member(rank: object, world_size: object) -> tuple[int, int]:
    """A member of a group; 0 and 0 if there is no group."""
    if rank is None and world_size is None:
        return 0, 0
    if rank is None or world_size is None:
        raise ValueError(f"rank={rank!r}, world_size={world_size!r}: use both, or neither")
    size, number = integer("world_size", world_size, 1), integer("rank", rank, 0)
    if size > lib.ES_MAX_OUTBOXES:
        raise ValueError(f"world_size={size}: use at most {lib.ES_MAX_OUTBOXES}")
    if number >= size:
        raise ValueError(f"rank={number}: use 0 to {size - 1}, below world_size={size}")
    return number, size
