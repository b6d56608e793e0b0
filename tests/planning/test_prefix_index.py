"""The index of cached prefixes."""

import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from echo_shm.planning import PrefixIndex

from .twins import SlowPrefixIndex

#: Two of them often share a prefix.
SEQUENCES = st.lists(st.sampled_from([0, 0, 0, 1]), max_size=12)
BLOCK_BYTES = 10


class PrefixIndexMachine(RuleBasedStateMachine):
    """The index, and a dictionary of prefixes. Each block that is offered has a number of its own."""

    @initialize(capacity=st.integers(1, 15), block_size=st.integers(1, 3))
    def begin(self, capacity, block_size):
        """Both are empty."""
        rest = capacity % BLOCK_BYTES  # less than a block
        self.index = PrefixIndex(capacity * BLOCK_BYTES + rest, block_size=block_size, block_bytes=BLOCK_BYTES)
        self.model = SlowPrefixIndex(capacity, block_size)
        self.offered, self.leases = 0, []

    @rule(tokens=SEQUENCES)
    def match(self, tokens):
        """Both find the same."""
        found = self.model.match(tokens)
        length, blocks = self.index.match(tokens)
        assert length == len(found)
        assert blocks.tolist() == self.model.blocks(found)

    @rule(tokens=SEQUENCES)
    def lease(self, tokens):
        """A lease says what a match does."""
        found = self.model.match(tokens)
        self.model.lease(found)
        self.hold(self.index.lease(tokens), found)

    @rule(tokens=SEQUENCES, lease=st.booleans())
    def insert(self, tokens, lease):
        """Both take the same blocks, and let the same ones go, in the same order."""
        numbers = list(range(self.offered, self.offered + len(tokens) // self.model.block_size))
        self.offered += len(numbers)
        found, known, evicted = self.model.insert(tokens, numbers)
        done = self.index.insert(np.array(tokens, np.int32), numbers, lease=lease)
        assert done[:2] == (known, len(found) // self.model.block_size - known)
        assert done.evicted.tolist() == evicted
        assert (done.lease is not None) == lease
        if done.lease is not None:
            self.model.lease(found)
            self.hold(done.lease, found)

    def hold(self, lease, prefix):
        """Keeps a lease that names this prefix."""
        assert lease.length == len(prefix)
        assert lease.blocks.tolist() == self.model.blocks(prefix)
        self.leases.append((lease, prefix))

    @rule(data=st.data())
    def release(self, data):
        """A lease still names the blocks that it named at first. A second release changes nothing."""
        if self.leases:
            lease, prefix = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
            assert lease.blocks.tolist() == self.model.blocks(prefix)
            self.model.release(prefix)
            lease.release()
            lease.release()

    @rule(size=st.integers(0, 3 * BLOCK_BYTES))
    def evict(self, size):
        """Both evict the same."""
        assert self.index.evict(size).tolist() == self.model.evict(-(-size // BLOCK_BYTES))

    @invariant()
    def holds_as_much(self):
        """Both count the same."""
        if hasattr(self, "index"):
            assert len(self.index) == len(self.model.numbers) <= self.model.capacity
            assert self.index.bytes == len(self.index) * BLOCK_BYTES <= self.index.capacity


PrefixIndexMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
test_against_a_dictionary = PrefixIndexMachine.TestCase


def test_what_was_used_longest_ago_goes_first():
    """A match is a use, and so is the end of a lease. A lease keeps what it names, and all that leads there."""
    index = PrefixIndex(9)
    for first in (1, 2, 3):
        index.insert([first, 0], [10 * first, 10 * first + 1])
    lease = index.lease([1, 0, 0])
    assert index.match([2, 0, 0]).blocks.tolist() == [20, 21]
    assert index.evict(3).tolist() == [31, 30, 21]
    lease.release()
    assert index.evict(1).tolist() == [20]
    assert index.evict(9).tolist() == [11, 10]


def test_what_is_continued_stays():
    """An insertion does not evict the prefix that it continues, and takes what finds room."""
    index = PrefixIndex(3)
    index.insert([1, 2], [10, 11])
    index.insert([9], [12])
    done = index.insert([1, 2, 3, 4, 5], range(13, 18))
    assert (done.known, done.taken, done.evicted.tolist()) == (2, 1, [12])
    assert index.match([1, 2, 3, 4]).blocks.tolist() == [10, 11, 15]


def test_many_sequences_with_many_forks():
    """Thousands of nodes, made and evicted over and over: the table and its nodes grow and are used again."""
    rng = np.random.default_rng(0)
    index, held = PrefixIndex(20_000), set()
    for i in range(3000):
        tokens = rng.integers(0, 3, 60)
        tokens[rng.integers(0, 60) :] += 10 * i
        done = index.insert(tokens, np.arange(60 * i, 60 * i + 60))
        held.update(range(60 * i + done.known, 60 * i + done.known + done.taken))
        assert held.issuperset(done.evicted.tolist())
        held.difference_update(done.evicted.tolist())
        assert index.match(np.append(tokens, 0)).length == 60
    assert len(index) == len(held) == 20_000
    assert sorted(index.evict(20_000)) == sorted(held)


def test_threads_take_turns():
    """Threads that use one index at a time see a tree that is whole."""
    index = PrefixIndex(300)

    def use(seed):
        rng = np.random.default_rng(seed)
        for _ in range(1000):
            tokens = rng.integers(0, 2, 20)
            with index.lease(tokens) as lease:
                index.insert(tokens, np.arange(20))
                assert index.match(tokens).length >= lease.length
        wrong.remove(seed)

    wrong = {0, 1, 2, 3}
    threads = [threading.Thread(target=use, args=(seed,)) for seed in sorted(wrong)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    cached = len(index)
    assert len(index.evict(300)) == cached > 0
    assert len(index) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity=0: use an integer, 1 or more"),
        ({"capacity": 10, "block_bytes": 11}, "capacity=10 is less than one block of block_bytes=11: use more"),
        ({"capacity": 10, "block_size": 0}, "block_size=0: use an integer, 1 or more"),
        ({"capacity": 10.0}, "capacity=10.0: use an integer, 1 or more"),
    ],
)
def test_bad_settings(arguments, message):
    """A setting that cannot be is refused."""
    with pytest.raises(ValueError, match=message):
        PrefixIndex(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda index: index.match([1.5]), "tokens holds float64: use integers"),
        (lambda index: index.lease(np.zeros((2, 2), int)), r"tokens has shape \(2, 2\): use one dimension"),
        (lambda index: index.match([2**63]), "tokens holds uint64: use integers of at most 63 bits"),
        (lambda index: index.insert([1, 2, 3, 4, 5], [1]), "got 1 blocks for 5 tokens: use 2, one for each 2 tokens"),
        (lambda index: index.insert([1, 2], [-1]), "a block has number -1: use 0 or more"),
        (lambda index: index.insert([1, 2], [1], lease=1), "lease=1: use True or False"),
        (lambda index: index.evict(-1), "size=-1: use an integer, 0 or more"),
    ],
)
def test_bad_input(call, message):
    """What the index cannot take is refused, and nothing changes."""
    index = PrefixIndex(10, block_size=2)
    with pytest.raises(ValueError, match=message):
        call(index)
    assert len(index) == 0
