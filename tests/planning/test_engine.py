"""The engine with real worker processes: what rollouts return, and what goes wrong beside them."""

import asyncio
import contextlib
import os
import time

import numpy as np
import pytest
from harness.text_games import Counting, Unloadable, broken
from harness.token_backbone import TokenBackbone
from harness.waiting import until

from echo_shm import ConnectionClosedError, Replay, WorkerError
from echo_shm.planning.backbones.limits import BudgetSpentError
from echo_shm.planning.backbones.protocol import BackboneError
from echo_shm.planning.backbones.tokenizers import ByteTokenizer
from echo_shm.planning.rollouts import fleet
from echo_shm.planning.rollouts.config import RolloutConfig, RolloutError
from echo_shm.planning.rollouts.engine import RolloutEngine
from echo_shm.planning.rollouts.scheduler import BandwidthConfig
from echo_shm.planning.rollouts.steps import TextSteps
from echo_shm.workers import worker

END = ByteTokenizer.end
SHORT = {"max_action_tokens": 6, "environment_timeout": 20.0}


def engine(backbone, env=Counting, *, workers=1, slots=4, **config):
    """An engine whose workers start quickly."""
    config = RolloutConfig(**{**SHORT, **config})
    return RolloutEngine(backbone, env, workers=workers, envs_per_worker=slots, config=config, context="forkserver")


def greedy(backbone, tokens):
    """The likeliest answer to a context, computed alone: its tokens."""
    answer = []
    while len(answer) < SHORT["max_action_tokens"] and END not in answer:
        answer.append(int(backbone.logits([*tokens, *answer]).argmax()))
    return answer


def check_game(backbone, state, result, seed):
    """Whether a game of Counting is as it would be alone, from what was read to what was answered."""
    context = list(state.encode())
    shown = [f"game {seed}", *(f"step {i}" for i in range(1, len(result.turns) + 1))]
    for i, turn in enumerate(result.turns):
        assert turn.observation == shown[i]
        context += f"{shown[i]}\n".encode()
        assert turn.context_length == len(context)
        assert turn.action_tokens == greedy(backbone, context)
        context += turn.action_tokens
    assert result.observation == shown[-1]
    assert (result.terminated, result.truncated, result.success, result.reward) == (True, False, True, 1.0)


async def everything_is_free(running, backbone):
    """No rollout and no prefix has a block any more."""
    await running.update(lambda: None)
    assert running.free_blocks == backbone.num_blocks


@pytest.mark.parametrize("reuse", ["shared", "rollout", "none"])
def test_many_rollouts_are_as_each_alone(reuse):
    """With too few blocks for all of them, and whoever comes and goes, each gets the answers to its own context."""
    backbone = TokenBackbone(num_blocks=40, max_length=150)

    async def play():
        async with engine(backbone, slots=16, reuse=reuse, temperature=0.0, max_batch=5) as running:
            results = await asyncio.gather(*[running.submit("Count! ", 1.0 + i % 3, seed=i) for i in range(24)])
            await everything_is_free(running, backbone)
            return results, running.counts, running.tracker.snapshot()

    results, counts, figures = asyncio.run(play())
    for i, result in enumerate(results):
        check_game(backbone, "Count! ", result, i)
    assert (counts.submitted, counts.finished) == (24, 24)
    assert counts.preempted > 0
    assert (figures.episodes, figures.successes, figures.steps, figures.reward) == (24, 24, 72, 24.0)
    contexts = [turn.context_length for result in results for turn in result.turns]
    assert figures.context_tokens == sum(contexts)
    assert figures.bandwidth_total == sum(t * (t + 1) // 2 for t in contexts)
    assert (figures.reused_tokens == 0) == (reuse == "none")
    assert all(turn.reused <= turn.context_length - 1 for result in results for turn in result.turns)


def test_a_group_reads_its_prompt_once():
    """Of rollouts that are submitted together only the first one computes the whole blocks of what they share."""
    backbone = TokenBackbone(num_blocks=200)
    prompt = "A prompt of 41 bytes, shared by all of us"

    async def play():
        async with engine(backbone, None) as running:
            return await asyncio.gather(*[running.submit(prompt, seed=i) for i in range(5)])

    results = asyncio.run(play())
    assert sorted(result.turns[0].reused for result in results) == [0, 40, 40, 40, 40]
    assert len({result.text for result in results}) == 5  # each draws its own


def test_a_seed_draws_the_same_in_any_company():
    """What a rollout with a seed draws depends on nothing that runs beside it."""

    async def play(seeds):
        async with engine(TokenBackbone(num_blocks=300), None) as running:
            results = await asyncio.gather(*[running.submit("Say something.", seed=seed) for seed in seeds])
            return [result.turns[0] for result in results]

    (alone,), many = asyncio.run(play([0])), asyncio.run(play([5, 6, 0, 8]))
    assert alone.action_tokens == many[2].action_tokens
    assert alone.log_probs == many[2].log_probs


@pytest.mark.parametrize("what", ["die", "leave", "hang"])
def test_a_worker_that_ends_or_hangs_costs_one_attempt(what, tmp_path):
    """Its rollouts begin again, in the worker that is started in its place; those of the other do not notice."""
    backbone = TokenBackbone(num_blocks=300)
    options = {"what": what, "when": 2, "once": str(tmp_path / "memory")}

    async def play():
        limit = 0.4 if what == "hang" else 20.0
        async with engine(backbone, workers=2, temperature=0.0, environment_timeout=limit) as running:
            results = await asyncio.gather(*[running.submit("", seed=i, options=options) for i in range(8)])
            await asyncio.to_thread(until, lambda: len(running.pids) == 2)
            await everything_is_free(running, backbone)
            return results, running.counts

    results, counts = asyncio.run(play())
    for i, result in enumerate(results):
        check_game(backbone, "", result, i)
    attempts = [result.attempts for result in results]
    assert max(attempts) == 2
    assert 1 <= counts.workers_lost == attempts.count(2) <= 4
    assert (counts.finished, counts.failed, counts.retried) == (8, 0, counts.workers_lost)


@pytest.mark.parametrize(("what", "told"), [("raise", "RuntimeError: the dog ate it"), ("exit", "SystemExit: 1")])
def test_an_environment_that_always_fails_ends_its_rollout_alone(what, told):
    """It is tried twice. The error has the environment's own words."""
    backbone = TokenBackbone(num_blocks=300)

    async def play():
        async with engine(backbone, temperature=0.0) as running:
            bad = running.submit("", options={"what": what, "when": 1})
            results = await asyncio.gather(bad, *[running.submit("", seed=i) for i in range(3)], return_exceptions=True)
            await everything_is_free(running, backbone)
            return results, running.counts

    (error, *results), counts = asyncio.run(play())
    assert isinstance(error, RolloutError)
    assert f"tried 2 times: EnvironmentFailedError: {told}" in str(error)
    for i, result in enumerate(results):
        check_game(backbone, "", result, i)
        assert result.attempts == 1
    assert (counts.failed, counts.finished, counts.environment_errors, counts.retried) == (1, 3, 2, 1)


def test_an_environment_that_cannot_be_made_says_so():
    """What its constructor raised is in the error."""

    async def play():
        async with engine(TokenBackbone(), broken) as running:
            with pytest.raises(RolloutError, match="OSError: no disk"):
                await running.submit("x")

    asyncio.run(play())


@pytest.mark.parametrize(("kills", "told"), [(False, "exited with status 1"), (True, r"^all workers have ended.*-9")])
def test_workers_that_cannot_run_are_an_error(kills, told, monkeypatch):
    """If no worker can ever start, whoever waits for an environment is told."""
    monkeypatch.setattr(fleet, "_MAX_RESTARTS", 1)

    async def play():
        async with engine(TokenBackbone(), Unloadable(kills)) as running:
            with pytest.raises(WorkerError, match=told):
                await running.submit("x")

    asyncio.run(play())


def test_an_environment_that_ends_its_process_ends_its_rollouts_alone(monkeypatch):
    """However many such rollouts there are in a row, the next one runs."""
    monkeypatch.setattr(fleet, "_IN_A_ROW", 3)
    monkeypatch.setattr(worker, "SHORTEST_DELAY", 1e-3)

    async def play():
        async with engine(TokenBackbone(num_blocks=300)) as running:
            for _ in range(4):
                with pytest.raises(RolloutError, match="tried 2 times: WorkerLostError"):
                    await running.submit("", options={"what": "leave", "when": 1})
            await running.submit("", seed=1)

    asyncio.run(play())


def test_workers_that_end_before_they_can_play_end_the_run(monkeypatch):
    """After some restarts, and for good."""
    monkeypatch.setattr(fleet, "_IN_A_ROW", 3)
    monkeypatch.setattr(worker, "SHORTEST_DELAY", 1e-3)

    async def play():
        async with engine(TokenBackbone(), Unloadable()) as running:
            for _ in range(2):
                with pytest.raises(WorkerError, match=r"started again \d times, and ended before .* with status 1\."):
                    await running.submit("")
            await asyncio.to_thread(until, lambda: running._fleet._group.finished)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("!raise", "ZeroDivisionError: of the backbone"),
        ("!nan", "logits that are no numbers"),
        ("!shape", r"logits of shape \(1, 256\): \(1, 257\) was expected"),
    ],
)
def test_nonsense_of_a_backbone_ends_one_rollout(word, told):
    """The rollout to which the backbone answers nonsense fails. Those in the same batch get their own answers."""
    backbone = TokenBackbone(num_blocks=300)

    async def play():
        async with engine(backbone, None, temperature=0.0) as running:
            prompts = [f"{word} me", *(f"me {i}" for i in range(4))]
            results = await asyncio.gather(*map(running.submit, prompts), return_exceptions=True)
            await everything_is_free(running, backbone)
            return results, running.counts

    (error, *results), counts = asyncio.run(play())
    assert isinstance(error, RolloutError)
    with pytest.raises(BackboneError, match=told):
        raise error.__cause__
    for i, result in enumerate(results):
        assert result.turns[0].action_tokens == greedy(backbone, f"me {i}".encode())
    assert (counts.failed, counts.finished, counts.backbone_errors, counts.retried) == (1, 4, 2, 1)


def test_a_backbone_that_hangs_is_given_up():
    """All rollouts fail in time, more are refused, and the engine can be left while the call still runs."""
    backbone = TokenBackbone()

    async def play():
        async with engine(backbone, None, backbone_timeout=0.2) as running:
            results = await asyncio.gather(*map(running.submit, ["!hang", "me"]), return_exceptions=True)
            assert [type(result) for result in results] == [BackboneError] * 2
            with pytest.raises(BackboneError, match=r"did not answer within 0.2 s: it is not used any more"):
                await running.submit("more")
            assert running.free_blocks == backbone.num_blocks
            assert running.counts.failed == 3

    began = time.monotonic()
    try:
        asyncio.run(play())
        assert time.monotonic() - began < 10  # the call waits for 30 s
    finally:
        backbone.gate.set()


def test_a_cancelled_rollout_leaves_nothing():
    """Cancelled, or timed out, in the middle of a call: others go on, and all blocks and places are free."""
    backbone = TokenBackbone()

    async def play():
        async with engine(backbone, None, max_concurrent_rollouts=3, temperature=0.0) as running:
            backbone.gate.clear()
            tasks = [asyncio.create_task(running.submit(f"me {i}", timeout=0.2 if i == 1 else 30)) for i in range(4)]
            with pytest.raises(TimeoutError, match=r"still ran after 0\.2 s"):
                await tasks[1]
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            assert len(running._running) <= 3
            backbone.gate.set()
            for i in (2, 3):
                assert (await tasks[i]).turns[0].action_tokens == greedy(backbone, f"me {i}".encode())
            await everything_is_free(running, backbone)
            counts = running.counts
            assert (counts.cancelled, counts.timed_out, counts.finished, counts.submitted) == (1, 1, 2, 4)

    asyncio.run(play())


def test_a_cancelled_rollouts_environment_is_used_again(tmp_path):
    """Its environment is free when it has answered: the only one there is then plays the next rollout's game."""
    backbone = TokenBackbone()
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)

    async def play():
        async with engine(backbone, slots=1, temperature=0.0) as running:
            options = {"what": "wait", "when": 2, "for": fifo}
            cancelled = asyncio.create_task(running.submit("", seed=1, options=options))
            opened = None
            while opened is None:
                with contextlib.suppress(OSError):  # nobody reads it yet
                    opened = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
                await asyncio.sleep(0.001)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            following = asyncio.create_task(running.submit("", seed=2))
            await asyncio.sleep(0)
            os.close(opened)
            check_game(backbone, "", await following, 2)
            await everything_is_free(running, backbone)

    asyncio.run(play())


def test_closing_ends_what_runs():
    """Who waits for a result is told, whether its rollout ran or was queued."""
    backbone = TokenBackbone()

    async def play():
        async with engine(backbone, None, max_concurrent_rollouts=1) as running:
            backbone.gate.clear()
            tasks = [asyncio.create_task(running.submit("me")) for _ in range(2)]
            while not backbone.calls:
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.05, backbone.gate.set)
        assert running.free_blocks == backbone.num_blocks
        for task in tasks:
            with pytest.raises(ConnectionClosedError):
                await task
        with pytest.raises(ConnectionClosedError):
            await running.submit("more")
        assert running.counts.closed == 2
        await running.close()

    asyncio.run(play())


def test_a_close_that_is_cancelled_ends_the_workers():
    """Whoever calls it again waits for the end."""

    async def play():
        async with engine(TokenBackbone(num_blocks=300)) as running:
            await running.submit("")
            (pid,) = running.pids
            closing = asyncio.create_task(running.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            await running.close()
            assert not os.path.exists(f"/proc/{pid}")

    asyncio.run(play())


class Spent:
    """A remote backbone without money."""

    asked = 0

    async def complete(self, messages, max_tokens, temperature):
        """Refuses."""
        self.asked += 1
        raise BudgetSpentError("nothing is left")

    async def close(self):
        """Nothing to end."""


def test_a_budget_that_is_spent_is_not_asked_again():
    """The rollout fails at once: to begin again would cost what is left."""
    backbone = Spent()

    async def play():
        async with engine(backbone, None) as running:
            with pytest.raises(RolloutError, match="tried 1 time: BudgetSpentError: nothing is left"):
                await running.submit("x")

    asyncio.run(play())
    assert backbone.asked == 1


def test_an_episode_whose_writer_dies_is_not_played_again(monkeypatch):
    """Some of its steps may be in the replay already."""

    async def lost(*_):
        raise fleet.WorkerLostError("worker 1 died before it answered")

    async def play(replay, steps):
        monkeypatch.setattr(fleet.Environment, "record", lost)
        running = RolloutEngine(
            TokenBackbone(num_blocks=300), Counting, workers=1, replay=replay, record=steps, context="forkserver"
        )
        async with running:
            with pytest.raises(RolloutError, match="tried 1 time: WorkerLostError"):
                await running.submit("")

    steps = TextSteps(context=20, action=6)
    with Replay(steps.example, 100, thread=True) as replay:
        asyncio.run(play(replay, steps))


def test_a_rollout_that_waits_for_tokens_does_not_starve():
    """With the worst priority, and others that keep coming, it is done before they are."""
    backbone = TokenBackbone(num_blocks=500)
    config = BandwidthConfig(max_wait=3)

    async def play():
        async with engine(backbone, None, max_batch=1, scheduling=config, max_concurrent_rollouts=2) as running:
            done = []

            async def one(name, priority):
                await running.submit(name, priority)
                done.append(name)

            await asyncio.gather(one("poor", 1e-9), *[one(f"rich {i}", 1e9) for i in range(12)])
            return done

    assert asyncio.run(play()).index("poor") <= 6


def test_new_weights_are_used_at_once():
    """After an update nothing of the old weights is left: a running answer goes on with the new ones alone."""
    backbone = TokenBackbone()
    prompt = "A prompt that is longer than a block"

    def change():
        backbone.salt = 1
        return "changed"

    async def play():
        async with engine(backbone, None, temperature=0.0) as running:
            old = await running.submit(prompt)
            assert old.turns[0].action_tokens == greedy(backbone, prompt.encode())
            task = asyncio.create_task(running.submit(prompt + "?"))
            while len(backbone.calls) < 9:
                await asyncio.sleep(0)
            assert await running.update(change) == "changed"
            calls = len(backbone.calls)
            half = (await task).turns[0]
            assert backbone.calls[calls][0][0] == 0  # read anew from its begin
            assert half.version == 0
            new = await running.submit(prompt)
            assert (new.turns[0].reused, new.turns[0].version) == (0, 1)
            assert new.turns[0].action_tokens == greedy(backbone, prompt.encode())

    asyncio.run(play())


def test_episodes_come_to_the_replay_whole():
    """Each step has its context, answer and reward; of a rollout that failed there is nothing."""
    steps = TextSteps(context=20, action=6)

    async def play(replay):
        running = RolloutEngine(
            TokenBackbone(num_blocks=300),
            Counting,
            workers=1,
            replay=replay,
            record=steps,
            config=RolloutConfig(**SHORT),
        )  # workers by "spawn", as a user has them
        async with running:
            failing = running.submit("", options={"what": "raise", "when": 2})
            results = await asyncio.gather(
                *[running.submit("", seed=i) for i in range(3)], failing, return_exceptions=True
            )
            return results[:3]

    with Replay(steps.example, 100, thread=True) as replay:
        results = asyncio.run(play(replay))
        stored = [episode.steps for episode in replay.episodes()]
    assert sorted(map(len, (one["reward"] for one in stored))) == [3, 3, 3]
    expected = {tuple(result.turns[0].action_tokens): result for result in results}
    for one in stored:
        length = int(one["action_length"][0])
        result = expected.pop(tuple(one["action"][0][:length].tolist()))
        assert one["reward"].tolist() == [0.0, 0.0, 1.0]
        context = []
        for i, turn in enumerate(result.turns):
            context += turn.observation_tokens
            assert one["context"][i][: one["context_length"][i]].tolist() == context[-20:]
            assert one["context_length"][i] == min(20, len(context)) == min(20, turn.context_length)
            np.testing.assert_array_equal(one["log_prob"][i][: len(turn.log_probs)], np.float32(turn.log_probs))
            context += turn.action_tokens


def test_a_context_that_is_full_truncates_the_episode():
    """The rollout ends before what does not fit. If nothing fits, that is an error, and not tried again."""
    backbone = TokenBackbone(max_length=40)

    async def play():
        async with engine(backbone) as running:
            result = await running.submit("", options={"length": 50})
            assert result.truncated
            assert not result.terminated
            assert 1 <= len(result.turns) < 6
            assert sum(len(t.observation_tokens) + len(t.action_tokens) for t in result.turns) <= 40
            with pytest.raises(ValueError, match="do not fit into the backbone's context"):
                await running.submit("x" * 40)
            assert running.counts.retried == 0

    asyncio.run(play())


@pytest.mark.parametrize(
    ("state", "arguments", "told"),
    [
        ([300], {}, "state has tokens from 300 to 300: use 0 to 256"),
        ("x", {"priority": float("nan")}, "priority=nan"),
        ("x", {"priority": float("inf")}, "priority=inf"),
        ("x", {"seed": -1}, "seed=-1"),
        ("x", {"timeout": 0}, "timeout=0"),
        ("x", {"temperature": -1.0}, "temperature=-1.0"),
        ("", {}, "nothing to answer to"),
    ],
)
def test_bad_arguments_are_named(state, arguments, told):
    """The error has what was got, and what to use."""

    async def play():
        async with engine(TokenBackbone(), None) as running:
            with pytest.raises(ValueError, match=told):
                await running.submit(state, **arguments)

    asyncio.run(play())


def test_bad_engines_are_refused():
    """A backbone of no kind, one half of a pair, too few blocks for one sequence, an engine that was not entered."""
    with pytest.raises(TypeError, match="backbone is int: use a LocalBackbone or a RemoteBackbone"):
        RolloutEngine(3)
    with pytest.raises(ValueError, match="replay and record go together"):
        RolloutEngine(TokenBackbone(), Counting, record=TextSteps())
    with (
        Replay(TextSteps().example, 100) as replay,
        pytest.raises(ValueError, match=r"use Replay\(\.\.\., thread=True\)"),
    ):
        RolloutEngine(TokenBackbone(), Counting, replay=replay, record=TextSteps())
    with pytest.raises(ValueError, match="reuse='all': use"):
        RolloutConfig(reuse="all")

    async def enter():
        with pytest.raises(RuntimeError, match="async with"):
            await engine(TokenBackbone()).submit("x")
        with contextlib.suppress(AttributeError):
            async with engine(TokenBackbone(num_blocks=3), None):
                pytest.fail("it has too few blocks")

    with pytest.raises(ValueError, match="max_length=200 takes 50: use more blocks"):
        asyncio.run(enter())
