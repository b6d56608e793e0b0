"""What a worker process does: it runs the user's function with a client, and reports how that ended."""

import contextlib
import importlib
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeAlias

from echo_shm.errors import ConnectionClosedError
from echo_shm.ring import producers
from echo_shm.workers.parent_death import die_with_parent


class Client(Protocol):
    """What a worker sends with: a context manager that is attached."""

    @property
    def ring_closed(self) -> bool:
        """Whether nothing can be sent any more, because whoever takes it has closed."""
        ...

    def __enter__(self) -> "Client": ...

    def __exit__(self, *_: object) -> None: ...


#: Makes the client in the worker's process. It pickles.
Connect: TypeAlias = Callable[[], Client]


def _listen(control: Connection, by_signal: bool) -> None:
    """Starts the thread that ends this process when its parent ends, and stops its producers when it is told to.

    The thread waits until the parent's end of a pipe closes. With ``by_signal``, the kernel also sends a SIGKILL, which
    reaches a worker that is stopped or holds the GIL. The kernel sends it when the thread that started the worker
    ends, so only a worker that the parent's main thread started may ask for it.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    events: list[Any] = [parent.sentinel, control]

    def obey() -> None:
        with contextlib.suppress(EOFError, OSError):
            control.recv_bytes()
            producers.stop_all()

    def listen() -> None:
        if control in multiprocessing.connection.wait(events):
            obey()  # it is told one thing only
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    if control.poll():  # before this worker connects
        obey()
        events.remove(control)
    if by_signal and parent.pid is not None:
        die_with_parent(parent.pid)
    threading.Thread(target=listen, name="echo_shm-control", daemon=True).start()


def _set_signals() -> None:
    """Leaves Ctrl-C to the parent, which the terminal interrupts as well and which then stops its workers.

    A forked worker would otherwise run its parent's handlers, and tell its parent's event loop of its own signals.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # before it is unblocked: one that is pending is discarded
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def _work(connect: Connect, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Runs the function. A worker that is not to send any more has finished, whatever it was about to do."""
    try:
        with connect() as client:
            try:
                fn(client, *args)
            except ConnectionClosedError:
                if not client.ring_closed:
                    raise
    except ConnectionClosedError:
        if not producers.all_stopped():
            raise


def run_worker(
    control: Connection, by_signal: bool, connect: Connect, fn: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Runs a whole worker process. ``control`` takes its failure to the parent, and the order to stop from it."""
    _set_signals()
    _listen(control, by_signal)
    try:
        _work(connect, fn, args)
    except KeyboardInterrupt:
        # Only of a handler that the function has set.
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        pickled = None
        with contextlib.suppress(Exception):  # the exception may contain something that does not pickle
            pickled = pickle.dumps(error)
        control.send(("".join(traceback.format_exception(error)), pickled))
        sys.exit(1)


class _ByValue:
    """A function that pickles with its code, by cloudpickle."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn

    def __call__(self, *args: Any) -> Any:
        return self._fn(*args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        dumps: Callable[[Any], bytes] = importlib.import_module("cloudpickle").dumps
        return pickle.loads, (dumps(self._fn),)


def importable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns something that a new process can load. Functions that it cannot import are changed.

    Raises:
        TypeError: It cannot be loaded there, and cloudpickle is not installed.

    """
    code, name = getattr(fn, "__code__", None), getattr(fn, "__qualname__", "")
    typed = not hasattr(sys.modules["__main__"], "__file__") or (code is not None and code.co_filename.startswith("<"))
    nameless = "<lambda>" in name or "<locals>" in name
    if not nameless and (getattr(fn, "__module__", None) != "__main__" or not typed):
        return fn
    if importlib.util.find_spec("cloudpickle") is not None:
        return _ByValue(fn)
    if nameless:
        raise TypeError(
            f"{name} is a lambda or is defined inside a function, so a new process cannot import it: define it at the "
            "top level of a module, use context='fork', or install cloudpickle: pip install cloudpickle"
        )
    raise TypeError(
        f"{getattr(fn, '__qualname__', fn)!s} was typed into an interpreter or a notebook, so a new process cannot "
        "import it: put it into a .py file and import it, use context='fork', or install cloudpickle: "
        "pip install cloudpickle"
    )
