"""Models of transformers: decoding with our blocks says what the model says of the whole sequence."""

import asyncio

import numpy as np
import pytest
from harness.packages import need
from harness.pieces import check_pieces, part

need("torch", "transformers", "tokenizers")

import torch  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from tokenizers.pre_tokenizers import WhitespaceSplit  # noqa: E402
from transformers import (  # noqa: E402
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from echo_shm.planning.backbones.huggingface import HuggingFaceBackbone, HuggingFaceTokenizer  # noqa: E402
from echo_shm.planning.backbones.protocol import LocalBackbone  # noqa: E402
from echo_shm.planning.rollouts.config import RolloutConfig  # noqa: E402
from echo_shm.planning.rollouts.engine import RolloutEngine  # noqa: E402

torch.set_num_threads(1)

SIZES = {"vocab_size": 17, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}


def llama():
    """Rotary positions, and fewer heads of keys than of queries."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(**SIZES, intermediate_size=64, num_key_value_heads=2, max_position_embeddings=24)
    )


def gpt2():
    """Positions that are learned."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=17, n_layer=2, n_embd=32, n_head=4, n_positions=24))


@pytest.mark.parametrize("make", [llama, gpt2])
def test_decoding_in_any_pieces_is_the_whole_pass(make):
    """As for our own transformer."""
    backbone = HuggingFaceBackbone(make(), num_blocks=32, block_size=4)

    def whole(tokens):
        with torch.no_grad():
            return backbone.model(torch.tensor(np.array(tokens))[None], use_cache=False).logits[0].numpy()

    @settings(max_examples=12, deadline=None)
    @given(data=st.data())
    def check(data):
        check_pieces(data, backbone, whole)

    check()


def test_a_shared_prefix_is_not_written_to():
    """A second sequence refers to the first one's blocks, and changes its own alone."""
    backbone = HuggingFaceBackbone(llama(), num_blocks=32, block_size=4)
    backbone.extend([part([1, 2, 3, 4, 5], 0, [7, 3])])
    alone = backbone.extend([part([1, 2, 3, 4, 9, 8], 0, [10, 11])])
    before = backbone.cache.tensor.clone()
    shared = backbone.extend([part([9, 8], 4, [7, 20])])
    np.testing.assert_allclose(shared, alone, atol=2e-5)
    changed = (backbone.cache.tensor != before).flatten(2).any(2).any(0).nonzero()[:, 0].tolist()
    assert changed == [20]


def test_what_was_in_a_block_before_does_not_matter():
    """Not even NaN."""
    backbone = HuggingFaceBackbone(llama(), num_blocks=32, block_size=4)
    expected = backbone.extend([part([4, 5, 6, 7], 0, [0, 1]), part([8], 0, [2])])
    backbone.cache.tensor[:] = np.nan
    np.testing.assert_array_equal(backbone.extend([part([4, 5, 6, 7], 0, [6, 5]), part([8], 0, [4])]), expected)
    assert np.isfinite(backbone.extend([part([1], 4, [6, 5]), part([1], 1, [4])])).all()


def test_models_that_keep_something_else_are_refused():
    """A sliding window forgets keys, so a prefix could not be gathered."""
    config = MistralConfig(**SIZES, intermediate_size=64, num_key_value_heads=2, sliding_window=4)
    with pytest.raises(TypeError, match="MistralForCausalLM keeps a DynamicSlidingWindowLayer: use a model"):
        HuggingFaceBackbone(MistralForCausalLM(config))


def test_it_plays_with_its_own_tokenizer():
    """The engine decodes with it, and reuses the prompt."""
    words = {f"w{i}": i for i in range(16)} | {"<end>": 16}
    inner = Tokenizer(WordLevel(words, unk_token="w0"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = HuggingFaceTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>"))
    assert tokenizer.encode("w3 w5") == [3, 5]
    assert tokenizer.decode([3, 5, 16]).split() == ["w3", "w5"]
    backbone = HuggingFaceBackbone(llama(), num_blocks=32, block_size=4)
    assert isinstance(backbone, LocalBackbone)

    async def play():
        config = RolloutConfig(max_action_tokens=3)
        async with RolloutEngine(backbone, config=config, tokenizer=tokenizer) as engine:
            return await asyncio.gather(*[engine.submit("w1 w2 w3 w4 w5 w6", seed=i) for i in range(3)])

    assert sorted(result.turns[0].reused for result in asyncio.run(play())) == [0, 4, 4]
