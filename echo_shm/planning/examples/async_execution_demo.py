"""Rollouts of a transformer, with and without the reuse of its KV cache.

    python -m echo_shm.planning.examples.async_execution_demo --plot

Games of a text world are played at the same time. At each step a small causal transformer reads the context and decodes
an answer, which is what takes the time; its weights are random, so the game goes on with the walkthrough's command.
First each context is read anew, first come, first served; then prefixes are shared, and the engine dispatches by
priority. The ways take turns. EchoRL's ``AsyncExecutionEngine`` runs it, over a ``RolloutEngine``. All is measured.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from echo_shm.missing import needs
from echo_shm.planning.backbones.transformer import CausalTransformer, TransformerConfig
from echo_shm.planning.core.async_execution import AsyncExecutionEngine
from echo_shm.planning.core.bandwidth import BandwidthConfig
from echo_shm.planning.core.configs import ExecutionConfig
from echo_shm.planning.environments import TextWorld
from echo_shm.planning.examples.common import arguments, picture, run

with needs("planning.examples", "PyTorch", "torch", extra="planning-examples"):
    import torch

PROMPT = (
    "You are in a house of several rooms. Doors and chests may be locked; keys lie somewhere. Answer with one command: "
    "go DIRECTION, take THING, drop THING, open THING, unlock THING with KEY, put THING in THING, look, inventory.\n"
)

WAYS: dict[str, dict[str, Any]] = {
    "no reuse, first come": {"reuse": "none", "scheduling": BandwidthConfig(dispatch="first_come")},
    "shared, by priority": {"reuse": "shared", "scheduling": BandwidthConfig(dispatch="bandwidth")},
}


@dataclass
class Seen:
    """What one way did."""

    etps: float = 0.0
    reuse: float = 0.0
    saved: float = 0.0
    #: Seconds from a step's submission to its answer.
    waits: list[float] = field(default_factory=list)
    #: For each step: tokens of its context, and those of them that were there.
    contexts: list[tuple[int, int]] = field(default_factory=list)
    #: Of observations and answers: each is counted once, however often it is read again.
    environment_tokens: int = 0


async def play_game(engine: AsyncExecutionEngine, seed: int, steps: int, seen: Seen) -> None:
    """One game: a request for each of its steps."""
    world = TextWorld(rooms=4, max_steps=100)
    observation, _ = world.reset(seed=seed)
    context, commands = PROMPT + observation, world.walkthrough()[:steps]
    for command in commands:
        seen.environment_tokens += len(observation.encode())
        began = time.monotonic()
        name = await engine.submit_rollout(context, priority=1.0)
        result = await engine.get_result(name)
        if result is None or not result.success:
            raise RuntimeError(f"a rollout failed: {result}")
        seen.waits.append(time.monotonic() - began)
        seen.environment_tokens += result.tokens_generated
        seen.contexts.append((len(context.encode()), int(result.metadata["reuse_length"])))
        observation, *_ = world.step(command)
        context += f"\n{command}\n{observation}"


async def play(model: CausalTransformer, options: dict[str, Any], games: int, steps: int, first_seed: int) -> Seen:
    """All games at once, in one way."""
    seen = Seen()
    config = ExecutionConfig(timeout=120.0, max_action_tokens=6, max_cache_size=8_192, **options)
    async with AsyncExecutionEngine(config, model) as engine:
        await engine.get_result(await engine.submit_rollout("warm up"))
        engine.engine.tracker.reset()
        began = time.monotonic()
        await asyncio.gather(*(play_game(engine, first_seed + n, steps, seen) for n in range(games)))
        seen.etps = seen.environment_tokens / (time.monotonic() - began)
        figures = engine.get_performance_metrics()
    seen.reuse = figures["kv_reuse_rate"]
    seen.saved = figures["total_bandwidth_saved"] / figures["total_bandwidth_cost"]
    return seen


def demo(args: argparse.Namespace) -> int:
    """Plays in both ways, in turns, and says what came of it."""
    games, steps, turns, layers = (3, 2, 1, 1) if args.quick else (12, 10, 2, 2)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = CausalTransformer(TransformerConfig(vocab_size=257, layers=layers, width=64, max_length=4096))
    found: dict[str, list[Seen]] = {way: [] for way in WAYS}
    for turn in range(turns):
        for way, options in WAYS.items():
            found[way].append(asyncio.run(play(model, options, games, steps, args.seed * 1000 + turn * games)))
    print(f"{games} games at once, {len(found['shared, by priority'][0].waits)} steps, {turns} turns; medians of them")
    for way, all_seen in found.items():
        etps = statistics.median(seen.etps for seen in all_seen)
        wait = statistics.median(wait for seen in all_seen for wait in seen.waits)
        print(
            f"{way:>21}: {etps:7,.0f} environment tokens a second, an answer after {wait:.2f} s; "
            f"reuse {statistics.median(seen.reuse for seen in all_seen):.1%}, "
            f"{statistics.median(seen.saved for seen in all_seen):.1%} of the attention saved"
        )
    plain, shared = found.values()
    ratios = [two.etps / one.etps for one, two in zip(plain, shared, strict=True)]
    print(f"{statistics.median(ratios):.2f} times as many ({min(ratios):.2f} to {max(ratios):.2f})")
    if args.plot:
        with picture(args.plot, f"{games} games at once: what shared KV caches bring") as (left, right):
            for label, colour, column in (("all", "#c4531a", 0), ("there already", "#0b6bcb", 1)):
                points = sorted((tokens[0], tokens[column]) for tokens in shared[0].contexts)
                left.plot(*zip(*points, strict=True), ".", color=colour, label=label)
            left.set(xlabel="tokens of a step's context", ylabel="tokens")
            for way, all_seen in found.items():
                waits = sorted(wait for seen in all_seen for wait in seen.waits)
                right.plot(waits, [100 * (i + 1) / len(waits) for i in range(len(waits))], label=way)
            right.set(xlabel="seconds until an answer", ylabel="steps, %", xlim=(0, None))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    return run(demo, arguments("async_execution_demo", __doc__), argv)


if __name__ == "__main__":
    sys.exit(main())
