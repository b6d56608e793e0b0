"""The thread in which a local backbone computes."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class BackboneThread:
    """Runs one function at a time, while the event loop goes on.

    A call that hangs cannot be ended: no thread can. It keeps this thread, which is a daemon, so that the process can
    end. Whoever has waited long enough calls :meth:`abandon`: the call's result is dropped, should it ever come.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="echo_shm-backbone", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            loop, future, function = call
            try:
                answer, error = function(), None
            except BaseException as raised:
                answer, error = None, raised
            try:
                loop.call_soon_threadsafe(_settle, future, answer, error)
            except RuntimeError:  # the loop is closed, so nobody waits
                return
            del call, future, function, answer, error

    async def call(self, function: Callable[[], _T]) -> _T:
        """Runs the function after those before. If the caller is cancelled, the function still runs."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._calls.put((loop, future, function))
        return await future

    def end(self, timeout: float = 1.0) -> None:
        """Ends the thread after the call that runs, and waits for it so long (seconds)."""
        self._calls.put(None)
        self._thread.join(timeout)

    def abandon(self) -> None:
        """Ends the thread after the call that runs, and does not wait."""
        self._calls.put(None)


def _settle(future: "asyncio.Future[Any]", answer: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(answer)
    elif isinstance(error, StopIteration):  # a future refuses it
        future.set_exception(RuntimeError(f"the backbone raised {error!r}"))
    else:
        future.set_exception(error)
