"""How much is measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of a run.

    Attributes:
        repetitions: How often each contender is measured; contenders take turns.
        seconds: Length of one throughput measurement, after its warm-up.
        batch_size: Samples a batch; 2048 is that of id-echo's own distributed benchmark.
        num_buffers: Batches a ring holds. With 8 of 2048, Atari's ring is 462 MB: larger than any cache.
        latency_rounds: Rings full of batches that the calls of ``sample()`` are timed on, each repetition.
        wakes: Sleeping learners woken each repetition.
        workers: Producer counts of the scaling rows.
        producers: Producer counts of the group of that name. 2 is the one that others are compared with.
        sends: Samples that they send in all, but at least 2,000 each.
        replay_steps: CartPole steps that a replay buffer stores.
        replay_frames: Atari steps that a replay buffer stores; 50,000 are 1.4 GB for each library.
        item_frames: Atari frames whose memory is measured, in a replay of stacks; a million are 7 GB.
        adapter_steps: CartPole steps that a framework's buffer stores.
        adapter_frames: Atari steps that it stores; 100,000 are 5.6 GB for Stable-Baselines3.
        replay_growth: A small and a large number of CartPole steps, whose costs are compared.
        weights: Bytes of the weights that are published.
        readers: Processes that all read one version of the smallest of them.
        replay_workers: Worker counts at which the replay's own CPU time is measured.

    """

    repetitions: int = 5
    seconds: float = 1.0
    batch_size: int = 2048
    num_buffers: int = 8
    latency_rounds: int = 20
    wakes: int = 400
    workers: tuple[int, ...] = (1, 2, 4, 8)
    producers: tuple[int, ...] = (1, 2, 8, 32, 64, 128, 256)
    sends: int = 200_000
    replay_steps: int = 1_000_000
    replay_frames: int = 50_000
    item_frames: int = 1_000_000
    adapter_steps: int = 100_000
    adapter_frames: int = 100_000
    replay_growth: tuple[int, int] = (100_000, 10_000_000)
    replay_workers: tuple[int, ...] = (1, 8, 64)
    weights: tuple[int, ...] = (1_000_000, 10_000_000, 100_000_000)
    readers: int = 64


FULL = Scale()
QUICK = Scale(
    repetitions=2,
    seconds=0.1,
    batch_size=64,
    latency_rounds=2,
    wakes=20,
    workers=(1, 2),
    producers=(2, 8),
    sends=4000,
    replay_steps=20_000,
    replay_frames=500,
    item_frames=2000,
    adapter_steps=2_000,
    adapter_frames=500,
    replay_growth=(2_000, 20_000),
    replay_workers=(1, 2),
    weights=(100_000, 1_000_000),
    readers=4,
)
