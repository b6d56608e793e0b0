"""Decoding behind a soft prefix: what is said, and who shares what is computed."""

import asyncio

import numpy as np
import pytest
from harness.packages import need
from harness.token_backbone import TokenBackbone

need("torch")

import torch  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from echo_shm.planning import Planned, RolloutConfig, RolloutEngine, SoftPrefixPolicy  # noqa: E402
from echo_shm.planning.backbones.protocol import Part  # noqa: E402
from echo_shm.planning.backbones.transformer import (  # noqa: E402
    CausalTransformer,
    TransformerBackbone,
    TransformerConfig,
)
from echo_shm.planning.rollouts.blocks import as_prefix, prefix_names  # noqa: E402

torch.set_num_threads(1)  # tests run beside each other, and the models are tiny

BLOCK, PREFIX, WIDTH = 4, 6, 32
PROMPT = [5, 3, 9, 1, 7, 2]


def make() -> tuple[SoftPrefixPolicy, TransformerBackbone]:
    """A policy that follows plans, with random weights, and the backbone that decodes with them."""
    torch.manual_seed(0)
    model = CausalTransformer(TransformerConfig(vocab_size=11, layers=2, width=WIDTH, heads=2, max_length=40))
    return SoftPrefixPolicy(model, 5, PREFIX), TransformerBackbone(model, num_blocks=32, block_size=BLOCK)


@given(
    st.lists(st.integers(0, 10), min_size=1, max_size=12), st.lists(st.integers(1, 9), max_size=5), st.integers(0, 9)
)
@settings(max_examples=30, deadline=None)
def test_a_prefix_read_in_any_pieces_is_that_of_the_training_pass(tokens: list[int], cuts: list[int], seed: int):
    """Beside another sequence with another prefix, wherever the pieces end: within the prefix, too."""
    policy, backbone = make()
    plans = torch.randn(2, 5, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        prefixes = policy.embeddings(plans).numpy()
        expected = policy(torch.tensor([tokens, tokens[::-1]]), plans)[0][:, -1].numpy()
    sequences = [
        np.array([*prefix_names(prefix), *one]) for prefix, one in zip(prefixes, (tokens, tokens[::-1]), strict=True)
    ]
    blocks = np.split(np.random.default_rng(seed).permutation(32)[:10], 2)
    ends = sorted({min(end, PREFIX + len(tokens)) for end in np.cumsum([*cuts, 40]).tolist()})
    for begin, end in zip([0, *ends], ends, strict=False):
        logits = backbone.extend(
            [
                Part(one[begin:end], begin, own, prefix)
                for one, own, prefix in zip(sequences, blocks, prefixes, strict=True)
            ]
        )
    np.testing.assert_allclose(logits, expected, atol=2e-5)


async def answers(backbone: TransformerBackbone, states: list) -> list:
    """The turns of rollouts of one answer each, one after the other, without any chance."""
    config = RolloutConfig(temperature=0.0, max_action_tokens=5)
    async with RolloutEngine(backbone, tokenizer=Numbers(), config=config) as engine:
        return [(await engine.submit(state)).turns[0] for state in states]


class Numbers:
    """Tokens as text."""

    end = 0

    def encode(self, text: str) -> list[int]:
        """The numbers of a text."""
        return [int(word) for word in text.split()]

    def decode(self, tokens: list[int]) -> str:
        """A text of numbers."""
        return " ".join(map(str, tokens))


def test_a_rollout_follows_its_plan_and_shares_blocks_with_none_that_has_another():
    """Its answer is what the policy says token by token; what is reused is of an equal prefix alone."""
    policy, backbone = make()
    plans = 3 * torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        one, two = policy.embeddings(plans).numpy()
    states = [
        *(Planned(PROMPT, one), Planned(PROMPT, one.copy()), Planned(" ".join(map(str, PROMPT)), two), PROMPT),
        *(Planned(PROMPT, two), Planned(PROMPT, two[:4])),
    ]
    turns = asyncio.run(answers(backbone, states))
    whole = (PREFIX + len(PROMPT) - 1) // BLOCK * BLOCK  # of the last token the logits are needed
    assert [turn.reused for turn in turns] == [0, whole, 0, 0, whole, 0]
    assert turns[0].context_length == PREFIX + len(PROMPT)
    said = []
    for plan in plans:
        tokens = list(PROMPT)
        while len(tokens) < len(PROMPT) + 5 and (tokens == PROMPT or tokens[-1] != Numbers.end):
            with torch.no_grad():
                tokens.append(int(policy(torch.tensor([tokens]), plan[None])[0][0, -1].argmax()))
        said.append(tokens[len(PROMPT) :])
    assert [turn.action_tokens for turn in turns[:3]] == [said[0], said[0], said[1]]
    assert said[0] != said[1] != turns[3].action_tokens


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        (np.zeros((2, 31)), r"prefix has shape \(2, 31\): use \(p, 32\)"),
        (np.zeros((0, 32)), r"prefix has shape \(0, 32\): use \(p, 32\), p at least 1"),
        (np.full((2, 32), np.nan), "prefix has numbers that are not finite"),
        (np.zeros((40, 32)), "does not fit"),
    ],
)
def test_prefixes_that_cannot_be_used_are_refused(prefix: np.ndarray, said: str):
    """What was got, and what to use."""
    with pytest.raises(ValueError, match=said):
        asyncio.run(answers(make()[1], [Planned([1], prefix)]))


def test_prefixes_are_taken_as_a_policy_makes_them():
    """With their gradients, and of dtypes that numpy has not. A plan behind a plan is refused."""
    backbone = make()[1]
    plan = torch.full((2, 32), 0.5, dtype=torch.bfloat16, requires_grad=True)
    assert (as_prefix("prefix", plan, backbone) == 0.5).all()
    with pytest.raises(TypeError, match=r"state\.state is Planned: use text or tokens"):
        asyncio.run(answers(backbone, [Planned(Planned([1], np.zeros((2, 32))), np.zeros((2, 32)))]))


def test_a_backbone_without_embeddings_takes_no_prefix():
    """It would not know what to do with it."""
    with pytest.raises(TypeError, match="prefix: TokenBackbone takes no soft prefix: use a TransformerBackbone"):
        as_prefix("prefix", np.zeros((2, WIDTH)), TokenBackbone())
