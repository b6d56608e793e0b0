"""Which rollout to serve first: reward for each unit of bandwidth.

    python -m echo_shm.planning.examples.bandwidth_efficient_demo --plot

Games of a text world are played by their walkthroughs, a few steps in each dispatch. A step costs what attention over
its context costs, less what a cached prefix saves. Four ways play the same games: by arrival without caches, by arrival
with them, by priority, where each step is expected to bring the same, and by priority, where the expected reward of a
step is 1 over the steps that its game still takes, as a good value function might say. All numbers are counted in the
run; waiting is counted in dispatches. Look which of them wins most games for half of the bandwidth: a priority is as
good as the reward that is expected.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from echo_shm.planning.core.bandwidth import BandwidthConfig, BandwidthEfficiencyTracker
from echo_shm.planning.environments import TextWorld
from echo_shm.planning.examples.common import arguments, picture, run
from echo_shm.planning.prefix_index import PrefixIndex
from echo_shm.planning.rollouts.scheduler import BandwidthAwareScheduler

PROMPT = "You are in a house. Your goal comes first. Answer with one command, such as: go north."

#: Tokens of a block of the cache, and how many blocks there are.
BLOCK, BLOCKS = 8, 50_000

#: For each way: whether caches are shared, the order of dispatch, and whether the reward that is expected is told.
Way = tuple[bool, Literal["bandwidth", "first_come"], bool]
WAYS: dict[str, Way] = {
    "first come, no reuse": (False, "first_come", False),
    "first come": (True, "first_come", False),
    "priority, rewards alike": (True, "bandwidth", False),
    "priority": (True, "bandwidth", True),
}


@dataclass
class Game:
    """A game, and what its policy has read of it."""

    world: TextWorld
    context: list[int]
    commands: list[str]
    done: int = 0

    @classmethod
    def begin(cls, seed: int) -> "Game":
        """A world of 2 to 6 rooms."""
        world = TextWorld(rooms=2 + seed % 5, locked_doors=seed % 2, max_steps=200)
        observation, _ = world.reset(seed=seed)
        return cls(world, [*PROMPT.encode(), *observation.encode()], world.walkthrough())

    def expected(self, told: bool) -> float:
        """The reward of the next step that is expected."""
        return 1.0 / (len(self.commands) - self.done) if told else 1.0

    def step(self) -> tuple[float, bool]:
        """The next command of the walkthrough: its reward, and whether the game is over."""
        command = self.commands[self.done]
        observation, reward, terminated, truncated, _ = self.world.step(command)
        self.context += f"\n{command}\n{observation}".encode()
        self.done += 1
        return reward, terminated or truncated


@dataclass
class Seen:
    """What was counted in one way."""

    #: After each dispatch: the bandwidth that was spent, the games that were won, and the efficiency.
    spent: list[float] = field(default_factory=list)
    won: list[float] = field(default_factory=list)
    eta: list[float] = field(default_factory=list)
    #: Of each step that waited: its cost, how long it had waited, and its priority when it was dispatched.
    waiting: list[tuple[float, float, float]] = field(default_factory=list)
    saved: float = 0.0
    reuse: float = 0.0


def play(seeds: Sequence[int], way: Way, batch: int) -> Seen:
    """Plays all games, ``batch`` steps a dispatch."""
    share, dispatch, told = way
    config = BandwidthConfig(dispatch=dispatch, max_wait=200)
    tracker, index = BandwidthEfficiencyTracker(config), PrefixIndex(BLOCKS, block_size=BLOCK)
    now, seen, blocks = 0.0, Seen(), 0
    scheduler = BandwidthAwareScheduler(config, clock=lambda: now)
    games = {number: Game.begin(seed) for number, seed in enumerate(seeds)}
    arrived = dict.fromkeys(games, 0.0)

    def reused(game: Game) -> int:
        return index.match(game.context).length if share else 0

    for number, game in games.items():
        scheduler.add(number, game.expected(told), len(game.context), reused(game))
    while len(scheduler):
        chosen = [int(str(one)) for one in scheduler.order()[:batch]]
        scheduler.dispatched(list(chosen))
        for number in chosen:
            game = games[number]
            length, known, waited = len(game.context), reused(game), now - arrived[number]
            full = length // BLOCK
            made = index.insert(game.context[: full * BLOCK], list(range(blocks, blocks + full)))
            blocks += made.taken + made.known
            priority = scheduler.compute_priority(game.expected(told), length, waited, known)
            reward, over = game.step()
            seen.waiting.append((tracker.record_rollout_step(reward, length, known), waited, priority))
            if not over:
                arrived[number] = now + 1
                scheduler.add(number, game.expected(told), len(game.context), reused(game))
        now += 1
        figures = tracker.snapshot()
        seen.spent.append(figures.total_effective_rollout_cost)
        seen.won.append(figures.total_reward)
        seen.eta.append(figures.eta_bw)
        seen.saved, seen.reuse = figures.total_bandwidth_saved, figures.kv_reuse_rate
    return seen


def demo(args: argparse.Namespace) -> int:
    """Plays in all ways, and says what came of it."""
    n, batch = (5, 2) if args.quick else (60, 4)
    seeds = range(args.seed * 1000, args.seed * 1000 + n)
    found = {name: play(seeds, way, batch) for name, way in WAYS.items()}
    budget = 0.5 * found["priority"].spent[-1]
    print(f"{n} games of a text world, {len(found['priority'].waiting)} steps, {batch} of them a dispatch")
    for way, seen in found.items():
        half = int(np.searchsorted(seen.spent, budget, side="right"))
        won = seen.won[half - 1] if half else 0.0
        print(
            f"{way:>23}: spent {seen.spent[-1]:12,.0f}, saved {seen.saved:12,.0f} (reuse {seen.reuse:5.1%}), "
            f"eta {seen.eta[-1]:.2e}; {won:.0f} games won for the first {budget:,.0f}"
        )
    if args.plot:
        with picture(args.plot, f"{n} games of a text world: what a dispatch by priority brings") as (left, right):
            cost, waited, priority = np.array(found["priority"].waiting).T
            dots = left.scatter(cost, priority, c=waited, s=8, cmap="viridis")
            left.figure.colorbar(dots, ax=left, label="dispatches waited")
            left.set(xscale="log", yscale="log", xlabel="effective cost of a step", ylabel="priority")
            for way, seen in found.items():
                right.plot(seen.spent, seen.won, label=way)
            right.set(xlabel="bandwidth spent (entries of the KV cache)", ylabel="games won", xscale="log")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    return run(demo, arguments("bandwidth_efficient_demo", __doc__), argv)


if __name__ == "__main__":
    sys.exit(main())
