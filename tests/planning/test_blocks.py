"""Blocks of a paged cache: who has which, against a slow model that knows what is in each place."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from echo_shm.planning.rollouts.blocks import BlockPool, Blocks, CachedSequence, as_tokens

SIZE = 3
NUM_BLOCKS = 12


class Machine(RuleBasedStateMachine):
    """Sequences that compute, publish, share, and lose their blocks at any time.

    ``written`` says of each place of each block after which tokens its keys and values were computed.
    """

    def __init__(self):
        super().__init__()
        self.blocks = Blocks(NUM_BLOCKS, SIZE)
        self.sequences = []
        self.written = np.full((NUM_BLOCKS, SIZE), None)

    def one(self, data):
        """One of the sequences."""
        if not self.sequences:
            self.opened()
        return data.draw(st.sampled_from(self.sequences), "who")

    @rule()
    def opened(self):
        """Another one."""
        self.sequences.append(CachedSequence(self.blocks))

    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=7))
    def append(self, data, tokens):
        """It grows."""
        sequence = self.one(data)
        if len(sequence.tokens) + len(tokens) <= NUM_BLOCKS * SIZE:
            sequence.append(tokens)

    @rule(data=st.data(), dies=st.booleans(), publish=st.booleans())
    def compute(self, data, dies, publish):
        """It computes what is new, as the engine has it do, and may be cancelled meanwhile."""
        sequence = self.one(data)
        sequence.find()
        while not sequence.reserve():
            next(one for one in self.sequences if one is not sequence and one.blocks).drop()
        if sequence.computed == len(sequence.tokens):
            return
        part = sequence.part()
        assert part.start + len(part.tokens) == len(sequence.tokens)
        for i, token in enumerate(part.tokens.tolist(), part.start):
            assert token == sequence.tokens[i]
            block = int(part.blocks[i // SIZE])
            assert not any(block in other.blocks for other in self.sequences if other is not sequence)
            self.written[block, i % SIZE] = tuple(sequence.tokens[: i + 1])
        if dies:
            sequence.drop()
            return
        sequence.advance(len(sequence.tokens))
        if publish:
            sequence.publish()

    @rule(data=st.data())
    def drop(self, data):
        """It loses its blocks."""
        self.one(data).drop()

    @rule(data=st.data())
    def close(self, data):
        """It ends."""
        sequence = self.one(data)
        sequence.drop()
        self.sequences.remove(sequence)

    @rule()
    def forget(self):
        """New weights: nothing that is computed is left."""
        for sequence in self.sequences:
            sequence.drop()
        self.blocks.forget()
        assert self.blocks.pool.num_free == NUM_BLOCKS
        self.written[:] = None

    @invariant()
    def what_is_computed_is_there(self):
        """Each sequence finds its own tokens, after its own tokens before."""
        for sequence in self.sequences:
            for i in range(sequence.computed):
                assert self.written[sequence.blocks[i // SIZE], i % SIZE] == tuple(sequence.tokens[: i + 1])

    @invariant()
    def each_reference_is_somebodys(self):
        """No block is lost, and none has two owners of one reference."""
        references = self.blocks.pool._references
        assert sum(references) == sum(len(one.blocks) for one in self.sequences) + len(self.blocks.index)
        assert self.blocks.pool.num_free == references.count(0)

    def teardown(self):
        """All blocks are free in the end."""
        self.forget()


TestBlocks = Machine.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_prompt_is_computed_once():
    """Two sequences share the whole blocks of one prompt, also if both computed them before either published."""
    blocks = Blocks(NUM_BLOCKS, SIZE)
    first, second, third = (CachedSequence(blocks) for _ in range(3))
    for one in (first, second):
        one.append([1, 2, 3, 4, 5, 6, 7])
        assert one.reserve()
        one.advance(7)
        one.publish()
    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] != second.blocks[2]
    assert blocks.pool.num_free == NUM_BLOCKS - 4
    third.append([1, 2, 3, 4, 5, 6])  # the last token is computed in any case
    third.find()
    assert third.computed == 3
    assert third.blocks == first.blocks[:1]


def test_without_sharing_nothing_stays():
    """Blocks are free once their sequence has dropped them."""
    blocks = Blocks(NUM_BLOCKS, SIZE, share=False)
    sequence = CachedSequence(blocks)
    sequence.append([1] * 9)
    assert sequence.reserve()
    sequence.advance(9)
    sequence.publish()
    sequence.drop()
    assert blocks.pool.num_free == NUM_BLOCKS


def test_a_pool_refuses_what_would_lose_a_block():
    """A free block is neither shared nor released, and there are only so many."""
    pool = BlockPool(2)
    (block,) = pool.take(1)
    with pytest.raises(ValueError, match="2 blocks wanted, 1 of 2 are free"):
        pool.take(2)
    pool.release([block])
    for call in (pool.share, pool.release):
        with pytest.raises(ValueError, match=f"block {block} is free"):
            call([block])


@pytest.mark.parametrize("tokens", [[], [1.5], [[1]], [-1], [9], ["a"]])
def test_bad_tokens_are_named(tokens):
    """The error has what was got, and what to use."""
    with pytest.raises(ValueError, match=r"^state has .*: use "):
        as_tokens("state", tokens, 9)
