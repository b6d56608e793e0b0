"""The transformer: decoding with blocks says what the training pass says, and it trains."""

import numpy as np
import pytest
from harness.packages import need
from harness.pieces import check_pieces, part

need("torch")

import torch  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from echo_shm.planning.backbones.paged import enough  # noqa: E402
from echo_shm.planning.backbones.protocol import LocalBackbone  # noqa: E402
from echo_shm.planning.backbones.transformer import (  # noqa: E402
    CausalTransformer,
    TransformerBackbone,
    TransformerConfig,
)

torch.set_num_threads(1)  # tests run beside each other, and the models are tiny

BLOCK = 4
CONFIG = TransformerConfig(vocab_size=11, layers=2, width=32, heads=2, max_length=40)


def make(seed=0):
    """A backbone with random weights."""
    torch.manual_seed(seed)
    return TransformerBackbone(CausalTransformer(CONFIG), num_blocks=64, block_size=BLOCK)


def whole(backbone, tokens):
    """The logits after each token, from the training pass: ``(t, vocab_size)``."""
    with torch.no_grad():
        return backbone.model(torch.tensor(np.array(tokens))[None])[0].numpy()


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_decoding_in_any_pieces_is_the_training_pass(data):
    """Sequences that grow by any pieces, in any company, in any blocks, get the logits of the whole sequence."""
    backbone = make()
    check_pieces(data, backbone, lambda tokens: whole(backbone, tokens))


def test_a_shared_prefix_is_as_good_as_an_own_one():
    """A second sequence that refers to the first one's full blocks gets the logits of its own whole pass."""
    backbone = make()
    prefix = [1, 2, 3, 4, 5, 6, 7, 8]
    first, second = [*prefix, 9, 10], [*prefix, 3, 0, 5]
    backbone.extend([part(first, 0, [7, 3, 9])])
    before = backbone.cache.tensor.clone()
    logits = backbone.extend([part(second[8:], 8, [7, 3, 20])])
    np.testing.assert_allclose(logits[0], whole(backbone, second)[-1], atol=2e-5)
    changed = (backbone.cache.tensor != before).flatten(2).any(2).any(0).nonzero()[:, 0].tolist()
    assert changed == [20]  # nobody writes to what is shared


def test_what_was_in_a_block_before_does_not_matter():
    """A block that another sequence has left, even full of NaN, is as good as a new one."""
    backbone = make()
    tokens = [4, 5, 6, 7, 8]
    expected = backbone.extend([part(tokens, 0, [0, 1])])
    backbone.cache.tensor[:, 5:7] = np.nan
    np.testing.assert_array_equal(backbone.extend([part(tokens, 0, [6, 5])]), expected)


def test_a_soft_prefix_is_seen_by_every_token():
    """Embeddings before the tokens change all logits; the same embeddings as tokens change them in the same way."""
    model = make().model
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    before = torch.tensor([[7, 8], [9, 10]])
    with torch.no_grad():
        by_prefix = model(tokens, model.embedding(before))
        by_tokens = model(torch.cat([before, tokens], 1))[:, 2:]
        alone = model(tokens)
    np.testing.assert_allclose(by_prefix, by_tokens, atol=1e-5)
    assert (by_prefix - alone).abs().amax(-1).min() > 1e-3


def test_it_trains():
    """In some steps of gradient descent it learns to continue a sequence, and the backbone decodes so."""
    backbone = make()
    tokens = torch.arange(24)[None] % 8
    weights = list(backbone.model.parameters())
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(backbone.model(tokens[:, :-1])[0], tokens[0, 1:])
        with torch.no_grad():
            for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight -= 0.1 * slope
    assert backbone.extend([part([5, 6, 7, 0, 1, 2], 0, [0, 1])]).argmax() == 3


def test_it_is_a_local_backbone():
    """Its sizes are those of the model and of its tensor."""
    backbone = make()
    assert isinstance(backbone, LocalBackbone)
    assert (backbone.vocab_size, backbone.max_length, backbone.block_size, backbone.num_blocks) == (11, 40, BLOCK, 64)
    assert backbone.cache.tensor.shape == (2, 64, 2, 2, BLOCK, 16)
    assert backbone.block_bytes * 64 == backbone.cache.tensor.numel() * 4


def test_a_cache_has_enough_blocks_unless_they_are_too_large():
    """Those of 128 sequences; within 256 MiB; 512 all the same; those of one sequence in any case."""
    assert TransformerBackbone(CausalTransformer(CONFIG), block_size=BLOCK).num_blocks == 128 * 10
    mib = 1 << 20
    assert [enough(10, size) for size in (mib // 8, mib // 4, mib)] == [1280, 1024, 512]
    assert enough(700, mib) == 700


@pytest.mark.parametrize("bad", [{"vocab_size": 0}, {"layers": 1.5}, {"width": 30}, {"heads": 3}, {"max_length": -1}])
def test_bad_sizes_are_named(bad):
    """The error has the size and what to use."""
    with pytest.raises(ValueError, match=rf"{next(iter(bad))}=.*use "):
        TransformerConfig(**{"vocab_size": 11, "width": 32, "heads": 2, **bad})


def test_too_long_a_sequence_is_refused():
    """The training pass says how long one may be."""
    with pytest.raises(ValueError, match="41 tokens: max_length=40"):
        make().model(torch.zeros(1, 41, dtype=torch.int64))
