"""Remote backbones against servers on this machine that speak their wire formats, and the limits on them."""

import asyncio
import contextlib
import itertools
import time

import pytest
from harness.http_answers import HttpAnswers
from harness.packages import need

from echo_shm.planning.backbones.limits import BudgetSpentError, Failure, Limiter, RemoteLimits
from echo_shm.planning.backbones.protocol import BackboneError, Completion, Message, RemoteBackbone
from echo_shm.planning.rollouts.config import RolloutConfig, RolloutError
from echo_shm.planning.rollouts.engine import RolloutEngine

TALK = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes?"), Message("user", "Go on")]
QUICK = {"initial_delay": 1e-3, "max_delay": 1e-3}


# --- the wire formats of their documentation


def openai(url, limits):
    """A backbone of an OpenAI-compatible server."""
    need("openai")
    from echo_shm.planning.backbones.openai import OpenAIBackbone

    return OpenAIBackbone("m", base_url=f"{url}/v1", api_key="key", limits=limits)


OPENAI = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "go north"}, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 30,
        "completion_tokens": 4,
        "total_tokens": 34,
        "prompt_tokens_details": {"cached_tokens": 16},
    },
}


def anthropic(url, limits):
    """A backbone of Anthropic's API."""
    need("anthropic")
    from echo_shm.planning.backbones.anthropic import AnthropicBackbone

    return AnthropicBackbone("m", base_url=url, api_key="key", limits=limits)


ANTHROPIC = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "go "}, {"type": "text", "text": "north"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 16, "output_tokens": 4},
}


def gemini(url, limits):
    """A backbone of the Gemini API."""
    need("google")
    need("google.genai")
    from echo_shm.planning.backbones.gemini import GeminiBackbone

    return GeminiBackbone("m", base_url=url, api_key="key", limits=limits)


GEMINI = {
    "candidates": [
        {"content": {"role": "model", "parts": [{"text": "go "}, {"text": "north"}]}, "finishReason": "STOP"}
    ],
    "usageMetadata": {
        "promptTokenCount": 30,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 1,
        "totalTokenCount": 34,
        "cachedContentTokenCount": 16,
    },
}

SENT = {
    openai: (
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Yes?"},
                {"role": "user", "content": "Go on"},
            ],
            "max_tokens": 7,
            "temperature": 0.5,
            "stop": "\n",
        },
    ),
    anthropic: (
        "/v1/messages",
        {
            "model": "m",
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Yes?"},
                {"role": "user", "content": "Go on"},
            ],
            "max_tokens": 7,
            "temperature": 0.5,
            "stop_sequences": ["\n"],
        },
    ),
    gemini: (
        "/models/m:generateContent",
        {
            "systemInstruction": {"parts": [{"text": "Be brief."}], "role": "user"},
            "contents": [
                {"role": "user", "parts": [{"text": "Hi"}]},
                {"role": "model", "parts": [{"text": "Yes?"}]},
                {"role": "user", "parts": [{"text": "Go on"}]},
            ],
            "generationConfig": {"maxOutputTokens": 7, "temperature": 0.5, "stopSequences": ["\n"]},
        },
    ),
}

SERVERS = [(openai, OPENAI), (anthropic, ANTHROPIC), (gemini, GEMINI)]


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    """No proxy of this machine is asked."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def talk(make, *answers, **limits):
    """What a backbone answers to TALK, or raises, and the server and the limiter afterwards."""

    async def run():
        async with HttpAnswers(*answers) as server:
            backbone = make(server.url, RemoteLimits(**{**QUICK, **limits}))
            assert isinstance(backbone, RemoteBackbone)
            try:
                answer = await backbone.complete(TALK, max_tokens=7, temperature=0.5, stop="\n")
            except BackboneError as error:
                answer = error
            await backbone.close()
            return answer, server, backbone.limiter

    return asyncio.run(run())


@pytest.mark.parametrize(("make", "answer"), SERVERS)
def test_the_wire_format(make, answer):
    """What is sent is what the API's documentation asks for, and its answer is read whole."""
    got, server, limiter = talk(make, (200, {}, answer), input_cost=1e6, output_cost=2e6)
    assert got == Completion("go north", 30, 4, 16)
    ((path, headers, body),) = server.asked
    wanted_path, wanted = SENT[make]
    assert path.endswith(wanted_path)
    assert "key" in {
        value.removeprefix("Bearer ") for value in headers.values()
    }  # in which header is the client's choice
    assert body == wanted
    assert (limiter.requests, limiter.input_tokens, limiter.output_tokens, limiter.cost) == (1, 30, 4, 38.0)


@pytest.mark.parametrize(("make", "answer"), SERVERS)
def test_what_passes_is_tried_again(make, answer):
    """Too many requests, an error of the server, a lost connection and a hang are retried; nothing else asks twice."""
    failing = [(429, {"retry-after": "0"}, {"error": {"message": "slow"}}), (503, {}, {"error": {}}), "drop", "hang"]
    got, server, limiter = talk(make, *failing, (200, {}, answer), request_timeout=0.3)
    assert got == Completion("go north", 30, 4, 16)
    assert len(server.asked) == limiter.requests == 5
    assert limiter.retried == 4


@pytest.mark.parametrize(("make", "answer"), SERVERS)
def test_what_does_not_pass_is_told_at_once(make, answer):
    """A refused request is not sent again, and costs nothing. The error has the server's words."""
    refusal = (400, {}, {"error": {"message": "no such model", "type": "invalid", "status": "INVALID"}})
    got, server, limiter = talk(make, refusal, (200, {}, answer), input_cost=1.0)
    assert isinstance(got, BackboneError)
    assert "after 1 requests: status 400: " in str(got)
    assert "no such model" in str(got)
    assert (len(server.asked), limiter.cost) == (1, 0.0)


NONSENSE = [
    *[(make, answer) for make, _ in SERVERS for answer in ({}, [], None, "text", 5, b"no JSON", b"\xff")],
    *[(openai, {**OPENAI, "choices": choices}) for choices in (None, [], ["go north"], [{"message": None}])],
    *[(openai, {**OPENAI, "choices": [{"message": message, "finish_reason": reason}]})
      for message, reason in (
          ({"content": None}, "stop"),
          ({"content": 5}, "stop"),
          ({"content": ""}, None),
          ({"content": ""}, "content_filter"),
          ({"content": "", "refusal": "no"}, "stop"),
      )],
    (openai, {**OPENAI, "usage": {"prompt_tokens": -1, "completion_tokens": 4}}),
    (openai, {**OPENAI, "usage": {"prompt_tokens": "many", "completion_tokens": 4}}),
    (anthropic, {**ANTHROPIC, "content": None}),
    (anthropic, {**ANTHROPIC, "content": [{"type": "text", "text": None}]}),
    (anthropic, {**ANTHROPIC, "content": [], "stop_reason": None}),
    (anthropic, {**ANTHROPIC, "content": [], "stop_reason": "refusal"}),
    (anthropic, {**ANTHROPIC, "usage": {"input_tokens": 9, "output_tokens": -4}}),
    *[(gemini, {**GEMINI, "candidates": candidates}) for candidates in (None, [], [{}], [{"finishReason": "SAFETY"}])],
    (gemini, {**GEMINI, "candidates": [], "promptFeedback": {"blockReason": "SAFETY"}}),
    (gemini, {**GEMINI, "usageMetadata": {"promptTokenCount": -1}}),
]  # fmt: skip


@pytest.mark.parametrize(("make", "answer"), NONSENSE)
def test_nonsense_is_no_answer(make, answer):
    """Status 200 with something else than an answer is an error. It counts with all that was set aside, once."""
    got, server, limiter = talk(make, (200, {}, answer), output_cost=1e6)
    assert isinstance(got, BackboneError)
    assert "did not answer, after 1 requests: it answered nonsense: " in str(got)
    assert (len(server.asked), limiter.cost) == (1, 7.0)


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (openai, {**OPENAI, "choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}),
        (anthropic, {**ANTHROPIC, "content": []}),
        (anthropic, {**ANTHROPIC, "content": [{"type": "thinking", "thinking": "Hm"}], "stop_reason": "max_tokens"}),
        (gemini, {**GEMINI, "candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]}),
    ],
)
def test_an_answer_may_be_empty(make, answer):
    """A model may end its answer at once."""
    assert talk(make, (200, {}, answer))[0] == Completion("", 30, 4, 16)


@pytest.mark.parametrize(("make", "answer"), SERVERS)
def test_an_engine_tries_again_after_nonsense(make, answer):
    """A rollout whose server answers nonsense is tried again, and then fails. All of it is counted."""

    async def run():
        async with (
            HttpAnswers((200, {}, {}), (200, {}, answer), (200, {}, {})) as server,
            RolloutEngine(make(server.url, RemoteLimits(**QUICK)), config=RolloutConfig()) as engine,
        ):
            result = await engine.submit("Where to?")
            assert (result.text, result.attempts) == ("go north", 2)
            with pytest.raises(RolloutError, match=r"tried 2 times: BackboneError: .* it answered nonsense"):
                await engine.submit("And now?")
            counts = engine.counts
            assert (counts.finished, counts.failed, counts.backbone_errors, counts.retried) == (1, 1, 3, 2)

    asyncio.run(run())


def test_an_engine_asks_a_server():
    """Rollouts are conversations; a server that fails too often ends its rollout, which is tried again before."""

    async def run():
        broken = (500, {}, {"error": {"message": "broken"}})
        async with HttpAnswers((200, {}, OPENAI), broken) as server:
            limits = RemoteLimits(retries=1, **QUICK)
            async with RolloutEngine(openai(server.url, limits), config=RolloutConfig(max_action_tokens=7)) as engine:
                result = await engine.submit("Where to?")
                assert (result.text, result.turns[0].context_length, result.turns[0].reused) == ("go north", 30, 16)
                assert server.asked[0][2]["messages"] == [{"role": "user", "content": "Where to?"}]
                with pytest.raises(RolloutError, match=r"tried 2 times: BackboneError: .* status 500: "):
                    await engine.submit("And now?")
                assert len(server.asked) == 1 + 2 * 2
                with pytest.raises(TypeError, match="a remote backbone takes text"):
                    await engine.submit([1, 2])
                assert engine.tracker.snapshot().reuse_rate == 16 / 30

    asyncio.run(run())


# --- limits, by a clock that sleeping moves


class Clock:
    """Seconds that pass when somebody sleeps."""

    now = 0.0

    def __call__(self):
        """What it shows."""
        return self.now

    async def sleep(self, seconds):
        """Lets them pass."""
        self.now += seconds


class Boom(Exception):
    """What a call raises; its argument is the failure."""


def limited(answers, n=1, text="ten tokens", max_tokens=5, **limits):
    """Asks n times, one after the other. Returns what came, when each request went, and the limiter."""
    clock = Clock()
    limiter = Limiter(RemoteLimits(**limits), lambda e: e.args[0] if isinstance(e, Boom) else None, clock, clock.sleep)
    script, went = iter(answers), []

    async def ask():
        went.append(clock.now)
        answer = next(script)
        if isinstance(answer, Failure):
            raise Boom(answer)
        return answer

    async def run():
        return [await limiter.complete([Message("user", text)], max_tokens, ask) for _ in range(n)]

    try:
        return asyncio.run(run()), went, limiter
    except BackboneError as error:
        return error, went, limiter


DONE = Completion("ok", 10, 5)


def test_requests_are_spread_over_the_minute():
    """With 6 requests a minute one goes each 10 seconds; with 60 tokens a minute one of 15 tokens each 15 seconds."""
    assert limited([DONE] * 3, 3, requests_per_minute=6.0)[1] == [0.0, 10.0, 20.0]
    assert limited([DONE] * 3, 3, tokens_per_minute=60.0)[1] == [0.0, 15.0, 30.0]


@pytest.mark.parametrize("limit", [{"requests_per_minute": 1200.0}, {"tokens_per_minute": 18_000.0}])
def test_many_at_once_are_spread_too(limit):
    """20 requests a second, or 300 tokens: none goes before its time, however many wait."""
    went = []

    async def ask():
        went.append(time.monotonic())
        await asyncio.sleep(0.2)  # the answers come late, so what they cost is not known when others want to go
        return DONE

    async def play():
        limiter = Limiter(RemoteLimits(**limit), lambda _: None)
        await asyncio.gather(*[limiter.complete([Message("user", "four")], 5, ask) for _ in range(5)])

    asyncio.run(play())
    assert went[-1] - went[0] >= 4 * 0.049


def test_a_server_that_wants_to_be_left_alone_is():
    """The longer of the server's and our own time counts. Ours doubles."""
    busy, later = Failure("status 429: slow", True), Failure("status 429: slow", True, 20.0)
    _, went, _ = limited([busy, busy, later, busy, DONE], initial_delay=1.0, max_delay=3.0)
    waits = [b - a for a, b in itertools.pairwise(went)]
    assert 0.5 <= waits[0] <= 1.0
    assert 1.0 <= waits[1] <= 2.0
    assert waits[2] == 20.0
    assert 1.5 <= waits[3] <= 3.0


def test_nothing_waits_forever():
    """The number of tries and the time of all of them are bounded, and what goes wrong is told."""
    busy = Failure("status 503: down", True)
    error, went, _ = limited([busy] * 99, retries=2)
    assert str(error) == "the backbone did not answer, after 3 requests: status 503: down"
    assert len(went) == 3
    error, went, _ = limited([Failure("status 429: slow", True, 1000.0)], timeout=50.0)
    assert "have to wait longer than timeout=50 s: status 429: slow" in str(error)
    error, went, _ = limited([DONE] * 9, 9, requests_per_minute=1.0, timeout=50.0)
    assert "for the limits on requests and tokens" in str(error)
    assert went == [0.0]


def test_a_budget_is_never_exceeded():
    """A request that could cost too much is not sent. One without an answer costs the most that it could."""
    cost = {"input_cost": 1e6, "output_cost": 1e6}
    most = len("ten tokens") + 16 + 5
    answers, went, limiter = limited([DONE] * 9, 2, max_cost=most + 15.0, **cost)
    assert answers == [DONE, DONE]
    assert limiter.cost == 30.0
    error, went, limiter = limited([DONE] * 9, 3, max_cost=most + 15.0, **cost)
    assert isinstance(error, BudgetSpentError)
    assert len(went) == 2
    error, went, limiter = limited([Failure("lost", True)] * 9, max_cost=2.5 * most, initial_delay=1e-3, **cost)
    assert isinstance(error, BudgetSpentError)
    assert limiter.cost == 2 * most
    with pytest.raises(ValueError, match="set what tokens cost"):
        RemoteLimits(max_cost=1.0)


def test_an_error_that_is_not_the_servers_is_raised():
    """A mistake in the program is not tried again."""

    async def ask():
        raise KeyError("mine")

    limiter = Limiter(RemoteLimits(), lambda error: None)
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(limiter.complete(TALK, 5, ask))
    assert limiter.requests == 1


def test_only_so_many_are_asked_at_once():
    """Others wait for their turn."""
    now = most = 0

    async def ask():
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return DONE

    async def run():
        limiter = Limiter(RemoteLimits(max_concurrent=3), lambda error: None)
        await asyncio.gather(*[limiter.complete(TALK, 5, ask) for _ in range(10)])

    began = time.monotonic()
    asyncio.run(run())
    assert most == 3
    assert time.monotonic() - began < 30


# --- cancelling


def cancelled_after(turns, begin):
    """Cancels a completion so many turns of the loop after what it waits for has come, for the room or the answer.

    Returns what became of it, and how many places are free then.
    """

    async def run():
        limiter = Limiter(RemoteLimits(max_concurrent=1), lambda _: None)
        come = asyncio.get_running_loop().create_future()

        async def ask():
            await come
            return DONE

        async def complete():
            return await limiter.complete(TALK, 5, ask)

        if begin == "room":
            await limiter._room.acquire()
            come.set_result(None)
        task = asyncio.create_task(complete())
        for _ in range(10):  # until it waits
            await asyncio.sleep(0)
        if begin == "room":
            limiter._room.release()
        else:
            come.set_result(None)
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for _ in range(3):
            await asyncio.sleep(0)
        return was_cancelled, task.cancelled(), limiter._room._value

    return asyncio.run(run())


@pytest.mark.parametrize("begin", ["room", "answer"])
def test_no_cancellation_is_lost(begin):
    """Also in the turn of the loop in which the answer comes, or the room for its request. The room is free then."""
    ends = [cancelled_after(turns, begin) for turns in range(12)]
    assert {(was_cancelled, cancelled) for was_cancelled, cancelled, _ in ends} == {(True, True), (False, False)}
    assert {free for _, _, free in ends} == {1}


def test_who_waits_too_long_for_room_has_none():
    """The error says so, and the place is given to nobody."""

    async def run():
        limiter = Limiter(RemoteLimits(max_concurrent=1, timeout=0.01), lambda _: None)
        await limiter._room.acquire()
        with pytest.raises(BackboneError, match=r"was busy for 0\.01 s"):
            await limiter.complete(TALK, 5, lambda: None)
        limiter._room.release()
        for _ in range(3):
            await asyncio.sleep(0)
        return limiter._room._value

    assert asyncio.run(run()) == 1
