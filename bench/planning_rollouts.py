"""What reuse of KV caches and the order of dispatch bring: ``python -m bench.planning_rollouts``.

A transformer with random weights plays a text game of fixed length, whose instructions all rollouts share. Each way of
running is an engine of its own; they take turns, so that whatever else the machine does falls on all of them. Printed
are environment tokens a second (ETPS), and for each second of CPU time of the engine's process, as ratios against the
first way in the same turn; and the reuse rate: which share of the tokens of contexts was computed before.

The first way, ``none``, reads the whole context anew at each step of an environment, as a server without a prefix cache
does, and dispatches first come, first served. ``rollout`` reuses a rollout's own steps before; ``shared`` shares
prefixes among rollouts, too.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from echo_shm.planning import BandwidthConfig, RolloutConfig, RolloutEngine

if TYPE_CHECKING:
    from echo_shm.planning import CausalTransformer

INSTRUCTIONS = (
    "You are in a house with a kitchen, a cellar, a garden and an attic. Somewhere in it is a golden coin. "
    "Commands are: go DIRECTION, take THING, drop THING, open THING, look, inventory. Doors may be closed. "
    "Answer with one command. You win when you hold the coin.\n"
)

WAYS = [
    ("none", "first_come"),
    ("none", "bandwidth"),
    ("rollout", "first_come"),
    ("shared", "first_come"),
    ("shared", "bandwidth"),
]


class House:
    """Shows rooms, whatever is answered, for as many steps as the options say."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The first room."""
        self._seed, self._step, self._steps = seed or 0, 0, (options or {})["steps"]
        return self._room(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The next room."""
        self._step += 1
        ends = self._step >= self._steps
        return self._room(), float(ends), ends, False, {}

    def _room(self) -> str:
        rooms = ("kitchen", "cellar", "garden", "attic")
        return f"You are in the {rooms[(self._seed + self._step) % 4]}. There is a door to the north. It is open."

    def close(self) -> None:
        """Nothing is left."""


async def _play(model: "CausalTransformer", reuse: Any, dispatch: Any, chosen: argparse.Namespace) -> dict[str, float]:
    from echo_shm.planning import TransformerBackbone  # not at the top: workers, which import this file, need no torch

    config = RolloutConfig(
        max_concurrent_rollouts=chosen.concurrent,
        timeout=3600.0,
        max_action_tokens=8,
        max_batch=chosen.batch,
        reuse=reuse,
        scheduling=BandwidthConfig(dispatch=dispatch),
    )
    backbone = TransformerBackbone(model, num_blocks=chosen.blocks)
    slots = -(-chosen.concurrent // 2)
    async with RolloutEngine(
        backbone, House, workers=2, envs_per_worker=slots, config=config, context="forkserver"
    ) as engine:
        await engine.submit("", seed=0, options={"steps": 1})  # starts what starts once
        while len(engine.pids) < 2:
            await asyncio.sleep(0.01)
        engine.tracker.reset()
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.gather(
            *[engine.submit(INSTRUCTIONS, seed=i, options={"steps": chosen.steps}) for i in range(chosen.rollouts)]
        )
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        figures = engine.tracker.snapshot()
        return {
            "etps": figures.environment_tokens / seconds,
            "per_cpu_second": figures.environment_tokens / cpu,
            "reuse_rate": figures.reuse_rate,
            "bandwidth_spent": figures.bandwidth_spent / figures.bandwidth_total,
            "preempted": engine.counts.preempted,
        }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.planning_rollouts", description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rollouts", type=int, default=48)
    parser.add_argument("--concurrent", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one line of JSON at the end")
    chosen = parser.parse_args()

    import torch

    from echo_shm.planning import CausalTransformer, TransformerConfig

    torch.manual_seed(0)
    torch.set_num_threads(chosen.threads)
    length = len(INSTRUCTIONS) + 100 * (chosen.steps + 1)
    model = CausalTransformer(
        TransformerConfig(vocab_size=257, layers=chosen.layers, width=chosen.width, max_length=length)
    )
    turns: list[dict[str, dict[str, float]]] = []
    for _ in range(chosen.repetitions):
        turns.append({})
        for reuse, dispatch in WAYS:
            turns[-1][f"{reuse}, {dispatch}"] = asyncio.run(_play(model, reuse, dispatch, chosen))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    first = ", ".join(WAYS[0])
    print("| way | ETPS | against the first | of a CPU second, likewise | reuse rate | bandwidth spent | preempted |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for way in turns[0]:
        shown = []
        for figure in ("etps", "per_cpu_second"):
            ratios = sorted(turn[way][figure] / turn[first][figure] for turn in turns)
            shown.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        medians = {name: statistics.median(turn[way][name] for turn in turns) for name in turns[0][way]}
        print(
            f"| {way} | {medians['etps']:.0f} | {' | '.join(shown)} | "
            f"{medians['reuse_rate']:.1%} | {medians['bandwidth_spent']:.1%} | {medians['preempted']:.0f} |"
        )
    if chosen.json:
        print(json.dumps(turns))


if __name__ == "__main__":
    main()
