"""The kernels of planning, against memory, a dictionary of prefix hashes, and numpy's whole softmax.

All contenders are in this process and take turns. What is timed is the library's call.
"""

import ctypes
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.scale import Scale
from bench.table import Figure, Floor
from echo_shm import Replay, Table
from echo_shm.planning import EmaPlan, PrefixIndex, plan_surprise
from echo_shm.replay import Softmax

_PLANS, _DIM = 4096, 512

#: Bytes of batches that are read in turn, so that none is in the cache when it comes again.
_FROM_MEMORY = 256 << 20
_TOKENS, _SEQUENCES, _BLOCK = 2000, 100, 16
_DRAWN = 256

_Tokens = npt.NDArray[np.int64]


def rate(call: Callable[[], object], seconds: float) -> float:
    """Calls a second: the median of five parts of the time. One call comes first, and is not timed."""
    call()
    rates = []
    for _ in range(5):
        calls, start = 0, time.perf_counter()
        while (now := time.perf_counter()) - start < seconds / 5 or calls == 0:
            call()
            calls += 1
        rates.append(calls / (now - start))
    return sorted(rates)[2]


def turns(calls: Sequence[Callable[[], object]], size: Scale) -> list[list[float]]:
    """For each call, its rate in each repetition. They take turns."""
    rounds = [[rate(call, size.seconds) for call in calls] for _ in range(size.repetitions)]
    return [list(one) for one in zip(*rounds, strict=True)]


def _plans(size: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """Plans that are scored, and scored and taken, against a loop that only reads them.

    One batch is read again and again, and then lies in the processor's cache; or many are, one after the other, and
    come from memory, as those do that were drawn from a replay.
    """
    figures = []
    for dtype in (np.float32, np.float64):
        for where, nbytes in (("from memory", _FROM_MEMORY), ("from the cache", 1)):
            first = np.random.default_rng(0).standard_normal((_PLANS, _DIM)).astype(dtype)
            batches = itertools.cycle([first, *(first.copy() for _ in range(nbytes // first.nbytes))])
            rewards, ema = np.zeros(_PLANS), EmaPlan(_DIM, dtype=dtype)
            ema.update(first[0])
            shared = ema.plan
            rates = turns(
                [
                    lambda: plan_surprise(next(batches), shared, rewards),  # noqa: B023 - called in this turn of the loop
                    lambda: ema.score_and_update(next(batches), rewards),  # noqa: B023
                    lambda: lib.bench_read(next(batches).ctypes.data, first.nbytes),  # noqa: B023
                ],
                size,
            )
            score, take, read = ([rate * first.nbytes / 1e6 for rate in one] for one in rates)
            what = f"{_PLANS:,} plans of {_DIM} {np.dtype(dtype).name}, {where}"
            peer = "a loop in C that reads them"
            figures += [
                Figure(f"`plan_surprise` of {what}", "MB/s", score, peer, read, Floor(0.8)),
                Figure(f"`EmaPlan.score_and_update` of {what}", "MB/s", take, peer, read),
            ]
    return figures


@dataclass
class _Hashes:
    """A dictionary of the hashes of all prefixes of what is cached, each made of the one before it."""

    block: int

    def __post_init__(self) -> None:
        self.cached: dict[int, int] = {}

    def insert(self, tokens: list[int]) -> None:
        """Every prefix, by whole blocks."""
        hashed = 0
        for end in range(self.block, len(tokens) + 1, self.block):
            hashed = hash((hashed, tuple(tokens[end - self.block : end])))
            self.cached[hashed] = end

    def match(self, tokens: list[int]) -> int:
        """From the shortest prefix on, up to the first that is not there."""
        hashed, found, block = 0, 0, self.block
        for end in range(block, len(tokens), block):
            hashed = hash((hashed, tuple(tokens[end - block : end])))
            if hashed not in self.cached:
                break
            found = end
        return found


@dataclass
class _WholeHashes(_Hashes):
    """A dictionary of the hash of each prefix on its own: simple, and quadratic."""

    def insert(self, tokens: list[int]) -> None:
        """Every prefix."""
        for end in range(1, len(tokens) + 1):
            self.cached[hash(tuple(tokens[:end]))] = end

    def match(self, tokens: list[int]) -> int:
        """From the longest prefix on, up to the first that is there."""
        return next((end for end in range(len(tokens) - 1, 0, -1) if hash(tuple(tokens[:end])) in self.cached), 0)


def _sequences(n: int, length: int) -> _Tokens:
    """Sequences of which each shares a prefix with some others: half of it with all, a quarter with every tenth."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50_000, (n, length))
    tokens[:, : length // 2] = tokens[0, : length // 2]
    for first in range(10):
        tokens[first::10, : length * 3 // 4] = tokens[first % n, : length * 3 // 4]
    return tokens


def _prefixes(size: Scale) -> list[Figure]:
    """A lookup of what is cached but for its last token, and of what shares half with something cached."""
    tokens, new = _sequences(_SEQUENCES, _TOKENS), np.random.default_rng(1).integers(0, 50_000, _TOKENS // 2)
    whole, half = np.append(tokens[7], 1), np.append(tokens[7, : _TOKENS // 2], new)
    figures = []
    for block, peers in ((1, (_Hashes, _WholeHashes)), (_BLOCK, (_Hashes,))):
        index, dictionaries = PrefixIndex(10**6, block_size=block), [peer(block) for peer in peers]
        for one in tokens:
            index.insert(one, np.arange(_TOKENS // block))
            for dictionary in dictionaries:
                dictionary.insert(one.tolist())
        for what, query in (("all", whole), ("half", half)):
            listed = query.tolist()
            found = index.match(query).length
            assert [dictionary.match(listed) for dictionary in dictionaries] == [found] * len(dictionaries)
            calls = [lambda i=index, q=query: i.match(q), lambda i=index, q=listed: i.match(q)]
            calls += [lambda d=dictionary, q=listed: d.match(q) for dictionary in dictionaries]
            array, as_list, *theirs = ([1e6 / rate for rate in one] for one in turns(calls, size))
            path = f"`PrefixIndex.match` of {len(query):,} tokens, {what} cached, blocks of {block}"
            floor = Floor(1 / 20) if block == 1 else None
            figures += [
                Figure(path, "µs", array, "a dictionary of chained hashes", theirs[0], floor),
                Figure(f"{path}, as a list", "µs", as_list, "a dictionary of chained hashes", theirs[0]),
            ]
            figures += [Figure(path, "µs", array, "a dictionary of whole hashes", one) for one in theirs[1:]]
    return figures


def _many(size: Scale) -> list[Figure]:
    """A lookup among few cached sequences and among many. Those of many are not in the processor's caches."""
    many, rng = max(size.replay_steps // 10, 10), np.random.default_rng(0)
    tokens = _sequences(many, 64)
    order = rng.permutation(many)
    calls = []
    for n in (10, many):
        index = PrefixIndex(64 * many)
        for one in tokens[:n]:
            index.insert(one, np.arange(64))
        queries = [tokens[i] for i in order if i < n]

        def call(index: PrefixIndex = index, queries: list[_Tokens] = queries) -> None:
            for query in queries[: len(queries) // 10 or 1]:
                index.match(query)

        calls.append((call, len(queries) // 10 or 1))
    rates = turns([call for call, _ in calls], size)
    costs = [[1e6 / rate / n for rate in one] for one, (_, n) in zip(rates, calls, strict=True)]
    path = f"`PrefixIndex.match` of 64 tokens, {many:,} sequences cached"
    return [Figure(path, "µs", costs[1], "10 cached", costs[0])]


def _softmax(size: Scale) -> list[Figure]:
    """Draws of 256 items by softmax, whose priorities then change, against a softmax of all priorities in numpy."""
    n, rng = size.replay_steps, np.random.default_rng(0)
    priorities, changed, temperature = rng.exponential(1.0, n), rng.exponential(1.0, _DRAWN), 1.0
    table = Table("train", sampler=Softmax(temperature))

    def by_numpy() -> None:
        weights = np.exp((priorities - priorities.max()) / temperature)
        sums = np.cumsum(weights)
        drawn = np.searchsorted(sums, rng.random(_DRAWN) * sums[-1])
        probability = weights[drawn] / sums[-1]
        priorities[drawn] = changed
        assert probability.min() > 0

    with Replay({"x": np.zeros((), np.int64)}, n, [table]) as replay:
        replay.extend({"x": np.arange(n)}, priorities)

        def by_replay() -> None:
            replay.update(replay.sample(_DRAWN).key, changed)

        ours, theirs = turns([by_replay, by_numpy], size)
    path = f"`sample({_DRAWN})` by softmax and `update`, {n:,} items"
    return [Figure(path, "batches/s", ours, "numpy's softmax of all", theirs, Floor(50))]


def planning(size: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """All rows."""
    return [*_plans(size, lib), *_prefixes(size), *_many(size), *_softmax(size)]
