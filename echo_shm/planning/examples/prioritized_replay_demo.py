"""A replay with a hot and a cold part: what is drawn by surprise, and what uniformly.

    python -m echo_shm.planning.examples.prioritized_replay_demo --plot

Plans wander slowly; a few of them, which earn a reward, lie far off, as where an agent has done something new. The same
steps go into EchoRL's ``PrioritizedReplayBuffer``, over a ``HotColdReplay``, and into a replay that is drawn uniformly.
What is drawn is counted. The steps are made up; all that is printed of the replays is measured.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from echo_shm import Replay, Table
from echo_shm.planning.core.prioritized_replay import PrioritizedReplayBuffer, ReplayConfig
from echo_shm.planning.examples.common import arguments, picture, run
from echo_shm.spec import Array

DIM, RARE, FAR = 16, 0.02, 4.0

#: Steps for each update of the learner, and draws of a batch.
STEPS, BATCH = 20, 64


def stream(seed: int) -> Iterator[tuple[Array, float, bool]]:
    """Plans, rewards, and whether a step is one of the rare ones."""
    rng = np.random.default_rng(seed)
    centre = np.zeros(DIM)
    while True:
        centre += rng.normal(0.0, 0.01, DIM)
        is_rare = bool(rng.random() < RARE)
        away = FAR * rng.normal(size=DIM) / DIM**0.5 if is_rare else rng.normal(0.0, 0.3, DIM)
        yield (centre + away).astype(np.float32), float(is_rare), is_rare


def demo(args: argparse.Namespace) -> int:
    """Fills both replays, draws from them, and says what was drawn."""
    updates = 60 if args.quick else 1_000
    config = ReplayConfig(
        hot_buffer_size=updates * STEPS,
        cold_buffer_size=updates * STEPS // 2,
        age_threshold=updates // 5,
        target_effective=0.2,
        beta=1.0,
    )
    example = {"rare": np.zeros((), np.bool_)}
    size = config.hot_buffer_size + config.cold_buffer_size
    table = Table("uniform", max_size=size)
    sizes, stored, by_surprise, weights, uniformly, scores = [], 0, [], [], [], []
    buffer = PrioritizedReplayBuffer(config, latent_dim=DIM)
    with Replay(example, size + 256, [table], seed=args.seed) as uniform:
        steps = stream(args.seed)
        for update in range(updates):
            for _ in range(STEPS):
                plan, reward, is_rare = next(steps)
                buffer.add_experience(np.float32(update), plan, is_rare, reward, np.float32(update), False)
                uniform.add({"rare": is_rare})
                stored += is_rare
            experiences, importance = buffer.sample_batch(BATCH)
            by_surprise += [float(one.action) for one in experiences]
            scores += [one.priority for one in experiences]
            weights += importance
            batch = uniform.sample(BATCH)
            assert batch is not None
            data: Any = batch.data
            uniformly += data["rare"].tolist()
            buffer.update_experience_ages()
            seen = buffer.hot_cold_buffer.get_statistics()
            sizes.append((seen["hot_buffer_size"], seen["cold_buffer_size"]))
        replay = buffer.hot_cold_buffer.replay
        assert replay is not None
        parts = replay.parts
        kept = replay.sample(4_096)
        assert kept is not None
    total = updates * STEPS
    print(f"{total:,} steps in {updates:,} updates: {sizes[-1][0]:,} are hot, {sizes[-1][1]:,} cold")
    for name, part in (("hot", parts.hot), ("cold", parts.cold)):
        share = part.effective_sample_size / part.size if part.size else 0.0
        print(f"{name:>5}: drawn as from {share:.0%} of its steps; temperature {part.temperature:.3g}")
    print(f"rare steps: {stored / total:.1%} of all, {np.mean(uniformly):.1%} of what is drawn uniformly, ", end="")
    print(f"{np.mean(by_surprise):.1%} of what is drawn by surprise")
    corrected = np.average(by_surprise, weights=weights)
    print(f"with the importance weights (N P)**-{config.beta:g} they count {corrected:.1%} again")
    if args.plot:
        with picture(args.plot, "A replay with a hot and a cold part, drawn by surprise") as (left, right):
            left.stackplot(range(updates), *np.array(sizes).T, labels=("hot", "cold"), colors=("#c4531a", "#0b6bcb"))
            left.set(xlabel="updates of the learner", ylabel="steps")
            right.bar(
                ["stored", "drawn\nuniformly", "drawn by\nsurprise", "by surprise,\nweighted"],
                [100 * stored / total, 100 * np.mean(uniformly), 100 * np.mean(by_surprise), 100 * corrected],
                color=["#8c959f", "#8c959f", "#c4531a", "#0b6bcb"],
            )
            right.set(ylabel="rare steps, %")
    buffer.close()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    return run(demo, arguments("prioritized_replay_demo", __doc__), argv)


if __name__ == "__main__":
    sys.exit(main())
