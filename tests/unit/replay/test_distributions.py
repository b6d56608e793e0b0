"""What is drawn, and what is removed, is distributed as the selectors say.

Pearson's chi-square test, at a significance of one in ten million. The seeds are fixed, so a build either always passes
or always fails, and a correct one fails with that probability once and for all.
"""

import itertools
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from harness.item_model import parts
from harness.replay_model import chances

from echo_shm import Replay, Table
from echo_shm.replay import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Sequence, Softmax, Uniform

EXAMPLE = np.zeros((), np.int64)
RANDOM = [Uniform(), Prioritized(0.6), Prioritized(1.0), Prioritized(0.0), Softmax(1.0), Softmax(0.3)]

#: The quantile of the normal distribution for the significance.
Z = 5.2


def fits(counts, probabilities):
    """Whether counts can be of these probabilities: both by outcome. Rare outcomes are taken together."""
    assert set(counts) <= set(probabilities), "something came that cannot come"
    total = sum(counts.values())
    cells, rest = [], [0, 0.0]
    for outcome, probability in probabilities.items():
        cell = [counts.get(outcome, 0), probability * total]
        if cell[1] >= 5:
            cells.append(cell)
        else:
            rest = [rest[0] + cell[0], rest[1] + cell[1]]
    if rest[1] >= 5:
        cells.append(rest)
    assert len(cells) > 1
    statistic, freedom = sum((seen - expected) ** 2 / expected for seen, expected in cells), len(cells) - 1
    # Wilson and Hilferty, "The distribution of chi-square", 1931
    spread = 2 / (9 * freedom)
    return statistic < freedom * (1 - spread + Z * math.sqrt(spread)) ** 3


def items_of(priorities):
    """Items for the model, in order of insertion, by their steps."""
    return [SimpleNamespace(step=step, priority=priority, inserted=step, touched=step) for step, priority in priorities]


def fill(replay, count, rng):
    """Adds count items, changes the priorities of most, removes a quarter, and adds as many. Priorities by step."""
    replay.extend(np.arange(count), np.ones(count))
    keys = {}
    while len(keys) < count:
        batch = replay.sample(count)
        keys.update(zip(batch.data.tolist(), batch.key.tolist(), strict=True))
    gone, changed, added = rng.permutation(count)[: count // 4], np.arange(count), np.arange(count, count + count // 4)
    for choice in ([0.0, 1.0, 5.0], [0.0, 0.3, 0.5, 1.0, 2.0, 3.0]):
        priorities = rng.choice(choice, count)
        replay.update([keys[step] for step in changed.tolist()], priorities)
    replay.delete([keys[step] for step in gone.tolist()])
    more = rng.choice([0.0, 0.2, 4.0], len(added))
    replay.extend(added, more)
    left = {step: priority for step, priority in enumerate(priorities.tolist()) if step not in set(gone.tolist())}
    return left | dict(zip(added.tolist(), more.tolist(), strict=True))


@pytest.mark.parametrize("sampler", RANDOM, ids=repr)
def test_samples(sampler):
    """Items come as often as their probabilities say, after updates, deletions and insertions; so do pairs in a row."""
    for count in (8, 3000):
        with Replay(EXAMPLE, 4000, [Table("a", sampler=sampler)], seed=1) as replay:
            expected = chances(sampler, items_of(fill(replay, count, np.random.default_rng(1)).items()))
            singles, pairs = Counter(), Counter()
            for _ in range(150):
                batch = replay.sample(1000)
                steps = batch.data.tolist()
                singles.update(steps)
                pairs.update(zip(steps[::2], steps[1::2], strict=True))
                assert batch.probability[0] == pytest.approx(expected[steps[0]], rel=1e-9)
            assert fits(singles, expected)
            if count == 8:
                both = {(a, b): p * q for (a, p), (b, q) in itertools.product(expected.items(), repeat=2)}
                assert fits(pairs, both)


@pytest.mark.parametrize("sampler", RANDOM, ids=repr)
def test_samples_without_replacement(sampler):
    """Each round is a permutation, as likely as drawing one after the other among those left makes it."""
    priorities = {0: 1.0, 1: 0.0, 2: 3.0, 3: 0.5, 4: 1.5}

    def orders(left):
        if not left:
            return {(): 1.0}
        first = chances(sampler, items_of(left.items()))
        return {
            (step, *rest): p * q
            for step, p in first.items()
            for rest, q in orders({other: left[other] for other in left if other != step}).items()
        }

    with Replay(EXAMPLE, 10, [Table("a", sampler=sampler, replacement=False)], seed=2) as replay:
        replay.extend(np.arange(5), [priorities[step] for step in range(5)])
        counts = Counter(tuple(replay.sample(5).data.tolist()) for _ in range(20_000))
    assert fits(counts, orders(priorities))


@pytest.mark.parametrize("remover", RANDOM, ids=repr)
def test_removals(remover):
    """The remover takes an item with its probability, the newcomer too."""
    table = Table("a", sampler=Fifo(), remover=remover, max_size=5, replacement=False)
    counts = Counter()
    with Replay(EXAMPLE, 10, [table], seed=3) as replay:
        for _ in range(5_000):
            replay.reset()
            replay.extend(np.arange(5), [1.0, 1.0, 2.0, 1.0, 0.5])
            keys = replay.sample(5).key
            replay.update(keys[[0, 1, 3]], [0.0, 3.0, 1.5])
            replay.delete(keys[4:])
            replay.extend(np.arange(5, 7), [0.25, 1.0])
            # The newcomers come first, as the others were drawn in this round already.
            (gone,) = {0, 1, 2, 3, 5, 6} - set(replay.sample(5).data.tolist() + replay.sample(5).data.tolist())
            counts[gone] += 1
    left = {0: 0.0, 1: 3.0, 2: 2.0, 3: 1.5, 5: 0.25, 6: 1.0}
    assert fits(counts, chances(remover, items_of(left.items())))


@pytest.mark.parametrize("pad", ["zero", None])
def test_all_windows(pad):
    """Each window of the steps that are stored is as likely as any other, whatever came and went; so are pairs."""
    item, rng, windows, step = Sequence(5, 1, pad), np.random.default_rng(4), [], 0
    with Replay(EXAMPLE, 60, [Table("a", item=item)], seed=4) as replay:
        while step < 500:
            steps = int(rng.integers(1, 13))
            found = parts(item, steps, "truncated")
            windows += [range(step + part.first, step + part.first + part.steps) for part in found]
            replay.extend(np.arange(step, step + steps), truncated=np.arange(steps) == steps - 1)
            step += steps
        there = {tuple(window): 0 for window in windows if window[0] >= step - replay.num_steps}
        assert replay.info().size == len(there) > 20
        keys = {}
        for _ in range(9):
            batch = replay.sample(1000)
            keys.update(zip(_windows_of(batch), batch.key.tolist(), strict=True))
        assert set(keys) == set(there)
        gone = sorted(keys)[:: 3 if pad else 2]
        assert replay.delete([keys[window] for window in gone]) == len(gone)
        left = sorted(set(there) - set(gone))
        singles, pairs = Counter(), Counter()
        for _ in range(40):
            drawn = _windows_of(replay.sample(1000))
            singles.update(drawn)
            pairs.update(zip(drawn[::2], drawn[1::2], strict=True))
        assert fits(singles, dict.fromkeys(left, 1 / len(left)))
        assert fits(pairs, dict.fromkeys(itertools.product(left, repeat=2), 1 / len(left) ** 2))


def _windows_of(batch):
    """The numbers of the steps of each item."""
    return [tuple(row[mask].tolist()) for row, mask in zip(batch.data["step"], batch.data["mask"], strict=True)]


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("sampler", [*RANDOM, Fifo(), Lifo(), MinHeap(), MaxHeap()], ids=repr)
def test_a_seed_repeats_the_draws(sampler, replacement):
    """The same seed gives the same draws, however they are divided into calls; another seed gives others."""

    def draws(seed, *sizes):
        with Replay(EXAMPLE, 100, [Table("a", sampler=sampler, replacement=replacement)], seed=seed) as replay:
            replay.extend(np.arange(100), np.linspace(0, 1, 100))
            return [key for size in sizes for key in replay.sample(size).key.tolist()]

    whole = draws(7, 300)
    assert draws(7, *[3] * 100) == draws(7, *[1] * 300) == draws(7, 257, 43) == whole
    if sampler in RANDOM:
        assert draws(8, 300) != whole


def test_tables_draw_independently():
    """Two tables of the same items do not draw the same ones."""
    with Replay(EXAMPLE, 100, [Table("a"), Table("b")], seed=5) as replay:
        replay.extend(np.arange(8))
        pairs = Counter()
        for _ in range(20):
            pairs.update(zip(*(replay.sample(1000, name).data.tolist() for name in "ab"), strict=True))
        assert fits(pairs, dict.fromkeys(itertools.product(range(8), repeat=2), 1 / 64))
