"""Sequences of a local backbone that grow piece by piece."""

import numpy as np
from hypothesis import strategies as st

from echo_shm.planning.backbones.protocol import Part


def part(tokens, start, blocks):
    """New tokens of a sequence, with its blocks."""
    return Part(np.array(tokens), start, np.array(blocks))


def check_pieces(data, backbone, whole, atol=2e-5):
    """Lets up to four sequences grow by any pieces, and compares the logits with those of ``whole(tokens)``.

    ``whole`` has the logits after each token, ``(t, vocab_size)``, computed without a cache.
    """
    size = backbone.block_size
    n = data.draw(st.integers(1, 4), "sequences")
    order = iter(data.draw(st.permutations(range(backbone.num_blocks)), "blocks"))
    lengths = data.draw(st.lists(st.integers(1, backbone.max_length), min_size=n, max_size=n), "lengths")
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    tokens = [rng.integers(0, backbone.vocab_size, length) for length in lengths]
    blocks = [np.array([next(order) for _ in range(-(-length // size))]) for length in lengths]
    expected = [whole(one) for one in tokens]
    done = [0] * n
    while left := [i for i in range(n) if done[i] < lengths[i]]:
        chosen = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True), "who")
        sizes = [data.draw(st.sampled_from([1, 1, 3, 40]), "tokens") for _ in chosen]
        parts = [
            Part(tokens[i][done[i] : done[i] + size], done[i], blocks[i]) for i, size in zip(chosen, sizes, strict=True)
        ]
        logits = backbone.extend(parts)
        assert logits.shape == (len(parts), backbone.vocab_size)
        assert logits.dtype == np.float32
        for i, one, row in zip(chosen, parts, logits, strict=True):
            done[i] += len(one.tokens)
            np.testing.assert_allclose(row, expected[i][done[i] - 1], atol=atol)
