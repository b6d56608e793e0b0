"""What asking a server may cost: requests and tokens a minute, money, tries and time."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from echo_shm.planning.backbones.protocol import BackboneError, Completion, Message
from echo_shm.replay.validation import above_zero, at_least_zero, integer

_T = TypeVar("_T")

#: Tokens that a server may add to each message, at most.
_TOKENS_AROUND_A_MESSAGE = 16


class BudgetSpentError(BackboneError):
    """A request was not sent, because it could cost more than is left of the budget."""


@dataclass(frozen=True)
class RemoteLimits:
    """How a remote backbone asks its server. Times are in seconds; None is no limit.

    Costs are in any currency. Before a request the most that it can cost is set aside: a token for each byte of its
    text and some around each message, and ``max_tokens`` of the answer. So ``max_cost`` is never exceeded, if a
    server's tokens have a byte or more. A request that got no answer, or nonsense, counts with all that was set aside.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrent: int = 16
    max_cost: float | None = None
    #: Of a million tokens.
    input_cost: float = 0.0
    output_cost: float = 0.0
    #: How often a request is sent again after status 408, 409, 429 or 5xx, a timeout, or a lost connection.
    retries: int = 4
    #: Before the first retry at most so long, then twice as long each time, up to ``max_delay``; a server's
    #: ``retry-after`` counts if it is longer.
    initial_delay: float = 0.5
    max_delay: float = 30.0
    #: Of one request, and of a completion with all its waits and retries.
    request_timeout: float = 60.0
    timeout: float = 180.0

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            if getattr(self, name) is not None:
                above_zero(name, getattr(self, name))
        integer("max_concurrent", self.max_concurrent, 1)
        integer("retries", self.retries, 0)
        for name in ("initial_delay", "max_delay", "request_timeout", "timeout"):
            above_zero(name, getattr(self, name))
        for name in ("input_cost", "output_cost"):
            at_least_zero(name, getattr(self, name))
        if self.max_cost is not None:
            at_least_zero("max_cost", self.max_cost)
            if not self.input_cost and not self.output_cost:
                raise ValueError(f"max_cost={self.max_cost!r} without input_cost and output_cost: set what tokens cost")


@dataclass(frozen=True)
class Failure:
    """Why a request got no answer."""

    told: str
    #: Whether the same request may succeed later.
    passes: bool
    #: Seconds that the server wants to be left alone.
    retry_after: float = 0.0


def failed_with_status(status: int, told: str, headers: object) -> Failure:
    """The failure that an HTTP status stands for. ``headers`` has ``get``, or is None."""
    retry_after = 0.0
    with contextlib.suppress(AttributeError, ValueError):  # no headers, or a date
        retry_after = max(0.0, float(headers.get("retry-after") or 0.0))  # type: ignore[attr-defined]
    passes = status in (408, 409, 429) or status >= 500
    return Failure(f"status {status}: {told}", passes, retry_after if retry_after < 86400 else 0.0)


def checked(
    text: object,
    reason: object,
    no_ends: Container[object],
    input_tokens: object,
    output_tokens: object,
    cached_tokens: object,
) -> Completion:
    """An answer whose parts are what they should be. Tokens that are None are 0: the server does not say.

    Args:
        text: What the server said. It may be empty if the answer has ended.
        reason: Why it has ended.
        no_ends: Reasons with which an empty text is no answer: the server withholds it, or wants something else first.
        input_tokens, output_tokens, cached_tokens: As of :class:`Completion`.

    Raises:
        ValueError: They are something else.

    """
    if not isinstance(text, str):
        raise ValueError(f"the text is {text!r:.80}: a string was expected")
    if not text and (reason is None or reason in no_ends):
        raise ValueError(f"the text is empty, and the reason for its end is {reason!r:.80}")
    counts = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cached_tokens": cached_tokens}
    return Completion(text, **{name: 0 if n is None else integer(name, n, 0) for name, n in counts.items()})


def unreadable(error: Exception) -> Failure | None:
    """The failure of an answer that has another form than the API's, if reading it has raised this error; else None."""
    if isinstance(error, ValueError | TypeError | AttributeError | LookupError | RecursionError):
        told = " ".join(f"{type(error).__name__}: {error}".split())
        return Failure(f"it answered nonsense: {told:.300}", False)
    return None


async def _within(seconds: float, work: Awaitable[_T]) -> _T:
    """What it returns. It has ended when this ends, also if this is cancelled.

    :func:`asyncio.wait_for` would lose a cancellation that comes in the same turn of the loop as the answer, before
    Python 3.12.

    Raises:
        asyncio.TimeoutError: It took longer, and was cancelled.

    """
    task = asyncio.ensure_future(work)
    try:
        if seconds > 0:  # else it does not even begin
            await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it was raised above, or nobody wants it


class _Pace:
    """So much a minute, evenly."""

    def __init__(self, per_minute: float | None) -> None:
        self._seconds = 60.0 / per_minute if per_minute else 0.0
        self._free_at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next one may go."""
        return max(0.0, self._free_at - now)

    def take(self, now: float, amount: float) -> None:
        """Counts so much."""
        self._free_at = max(now, self._free_at) + amount * self._seconds


class Limiter:
    """Asks a server within limits.

    Args:
        limits: These.
        explain: Why a call raised this exception; None if it is no failure of the server's, and is raised as it is.
        clock, sleep: Seconds.

    """

    def __init__(
        self,
        limits: RemoteLimits,
        explain: Callable[[Exception], Failure | None],
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.limits, self._explain, self._clock, self._sleep = limits, explain, clock, sleep
        self._requests, self._tokens = _Pace(limits.requests_per_minute), _Pace(limits.tokens_per_minute)
        self._room = asyncio.Semaphore(limits.max_concurrent)
        #: What was spent, with what is set aside for requests under way.
        self.cost = 0.0
        self.requests = self.retried = self.input_tokens = self.output_tokens = 0

    async def complete(
        self, messages: Sequence[Message], max_tokens: int, ask: Callable[[], Awaitable[Completion]]
    ) -> Completion:
        """Calls ``ask`` until it returns an answer.

        Raises:
            BudgetSpentError: What is left of the budget may not be enough.
            BackboneError: The server refused, answered nonsense, or did not answer in time, or not within the retries.

        """
        if not messages:
            raise ValueError("there are no messages: give at least one")
        tokens = sum(len(message.text.encode()) + _TOKENS_AROUND_A_MESSAGE for message in messages)
        most = self._price(tokens, max_tokens)
        deadline = self._clock() + self.limits.timeout
        await self._enter()
        try:
            for attempt in range(self.limits.retries + 1):
                while (wait := max(pace.wait(self._clock()) for pace in (self._requests, self._tokens))) > 0:
                    await self._pause(wait, deadline)  # and look again: others may have gone meanwhile
                came = await self._try(ask, most, tokens + max_tokens, deadline)
                if isinstance(came, Completion):
                    return came
                failure = came
                if not failure.passes or attempt == self.limits.retries:
                    break
                self.retried += 1
                delay = min(self.limits.max_delay, self.limits.initial_delay * 2**attempt) * random.uniform(0.5, 1.0)
                await self._pause(max(delay, failure.retry_after), deadline, failure)
        finally:
            self._room.release()
        raise BackboneError(f"the backbone did not answer, after {attempt + 1} requests: {failure.told}")

    async def _enter(self) -> None:
        """Takes one of ``max_concurrent`` places, or none if it raises."""
        entering = asyncio.ensure_future(self._room.acquire())
        entered = False
        try:
            await asyncio.wait({entering}, timeout=self.limits.timeout)
            entered = entering.done()
        finally:
            if not entered:  # it may get the place all the same, in this turn of the loop
                entering.cancel()
                entering.add_done_callback(self._leave_unless_cancelled)
        if not entered:
            raise BackboneError(f"the backbone was busy for {self.limits.timeout:g} s")

    def _leave_unless_cancelled(self, entering: "asyncio.Future[Any]") -> None:
        if not entering.cancelled():
            self._room.release()

    async def _try(
        self, ask: Callable[[], Awaitable[Completion]], most: float, tokens: int, deadline: float
    ) -> Completion | Failure:
        """One request, which costs at most so much, and has at most so many tokens."""
        limit = self.limits.max_cost
        if limit is not None and self.cost + most > limit:
            raise BudgetSpentError(
                f"the request could cost {most:g}: {self.cost:g} of max_cost={limit:g} are spent or set aside"
            )
        self.cost += most
        self.requests += 1
        self._requests.take(self._clock(), 1)
        self._tokens.take(self._clock(), tokens)  # as the cost: others must not count on them meanwhile
        seconds = min(self.limits.request_timeout, max(0.0, deadline - self._clock()))
        try:
            answer = await _within(seconds, ask())
        except asyncio.TimeoutError:
            return Failure(f"no answer within {seconds:g} s", True)
        except Exception as error:
            if (failure := self._explain(error)) is None:
                raise
            if failure.told.startswith("status "):  # refused: it costs nothing
                self.cost -= most
                self._tokens.take(self._clock(), -tokens)
            return failure
        if answer.input_tokens or answer.output_tokens:  # else the server does not say
            self.cost += self._price(answer.input_tokens, answer.output_tokens) - most
            self._tokens.take(self._clock(), answer.input_tokens + answer.output_tokens - tokens)
        self.input_tokens += answer.input_tokens
        self.output_tokens += answer.output_tokens
        return answer

    def _price(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.limits.input_cost + output_tokens * self.limits.output_cost) / 1e6

    async def _pause(self, seconds: float, deadline: float, failure: Failure | None = None) -> None:
        """Waits, if the deadline comes later."""
        if seconds <= 0.0:
            return
        if self._clock() + seconds >= deadline:
            why = f": {failure.told}" if failure else " for the limits on requests and tokens"
            raise BackboneError(f"the backbone would have to wait longer than timeout={self.limits.timeout:g} s{why}")
        await self._sleep(seconds)
