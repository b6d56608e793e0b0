"""Pong in a replay that stores each frame once, beside the buffer of Stable-Baselines3.

    python -m echo_shm.examples.atari --steps 20000

Workers play at random and write frames of 84 x 84. What is drawn are transitions over three steps, whose observations
are stacks of four frames: the replay stacks them when it draws. Stable-Baselines3's buffer stores stacks, twice: each
before its step and after it. If it is installed (pip install stable-baselines3), it is filled with as many transitions
and measured in the same way; otherwise its size is calculated from its arrays.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from echo_shm import Replay, Table
from echo_shm.examples.common import MissingPackage, arguments, need, run, seeds_of
from echo_shm.replay import NStep, Writer

ENVS, FRAME, STACK, BATCH = 4, (84, 84), 4, 32

STEP = {
    "obs": np.zeros(FRAME, np.uint8),
    "action": np.zeros((), np.int64),
    "reward": np.zeros((), np.float32),
}


def play(writer: Writer, seed: int) -> None:
    """A worker: plays at random, until the learner stops it."""
    ale_py = need("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # otherwise it prints a banner
    envs = ale_py.AtariVectorEnv("pong", ENVS, num_threads=1, stack_num=1)
    rng = np.random.default_rng(seed)
    obs, _ = envs.reset(seed=seed)
    while True:
        action = rng.integers(0, 6, ENVS)
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        step = {"obs": obs[:, 0], "action": action, "reward": reward.astype(np.float32)}
        writer.add_vector(step, terminated, truncated, "next_step", final={"obs": next_obs[:, 0]})
        obs = next_obs


def resident() -> int:
    """The memory of this process, in bytes."""
    return int(psutil.Process().memory_info().rss)


def rate_of(draw: Callable[[], object], seconds: float) -> str:
    """How fast a function is that draws ``BATCH`` transitions."""
    draw()
    batches, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        draw()
        batches += 1
    return f"{BATCH * batches / (time.perf_counter() - started):>8,.0f} drawn a second"


def say(who: str, count: int, size: float, rest: str) -> None:
    """Prints one line of the comparison."""
    print(f"{who:<18}  {count:>8,} transitions  {size / 1e6:>8,.0f} MB  {rest}", flush=True)


def stable_baselines3(replay: Any, steps: int) -> tuple[Callable[[], object], int]:
    """Its buffer, filled with transitions of the replay: how to draw from it, and its size in bytes."""
    buffers, spaces = need("stable_baselines3.common.buffers"), need("gymnasium").spaces
    stacks = spaces.Box(0, 255, (STACK, *FRAME), np.uint8)
    before = resident()
    buffer = buffers.ReplayBuffer(steps, stacks, spaces.Discrete(6), device="cpu")
    while not buffer.full:
        data = replay.sample(BATCH).data
        ended = data["discount"] == 0.0
        for i in range(BATCH):
            following = data["next"]["obs"][i]
            buffer.add(data["obs"][i], following, data["action"][i], data["reward"][i], ended[i], [{}])
    return lambda: buffer.sample(BATCH), resident() - before


def learn(args: argparse.Namespace) -> int:
    """The learner, which here only draws."""
    need("ale_py")
    before, started = resident(), time.monotonic()
    table = Table("train", item=NStep(3, 0.99, observation=["obs"], stack={"obs": STACK}))
    replay: Any
    with Replay(STEP, args.steps, [table], seed=args.seed, thread=True) as replay:
        with replay.spawn(play, args.workers, seeds_of(args)):
            while replay.info("train").inserted < args.steps:
                time.sleep(0.05)  # a thread of the replay stores what comes
        seconds = time.monotonic() - started
        batch = replay.sample(BATCH).data
        assert batch["obs"].shape == batch["next"]["obs"].shape == (BATCH, STACK, *FRAME)
        mine, size = resident() - before, replay.info("train").size
        print(f"{args.workers} workers played {args.steps:,} steps in {seconds:.1f} s")
        say("echo_shm", size, mine, rate_of(lambda: replay.sample(BATCH), args.seconds))
        try:
            draw, theirs = stable_baselines3(replay, size)
            say("Stable-Baselines3", size, theirs, rate_of(draw, args.seconds))
        except MissingPackage:
            theirs = size * (2 * STACK * int(np.prod(FRAME)) + 8 + 4 + 4 + 4)  # two stacks, action, reward, two flags
            say("Stable-Baselines3", size, theirs, "(calculated)")
    print(f"done: as many transitions in {theirs / mine:.1f} times less memory")
    return 0


if __name__ == "__main__":
    parser = arguments(__doc__, steps=20_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to draw from each (%(default)s)")
    run(learn, parser)
