"""The encoder, the policies, and the divergence of plans."""

import dataclasses
import math

import numpy as np
import pytest
from harness.packages import need
from hypothesis import given, settings
from hypothesis import strategies as st

need("torch")

import torch  # noqa: E402

from echo_shm.planning.agents.configs import PlanningConfig  # noqa: E402
from echo_shm.planning.agents.encoder import BagOfTokens, TrajectoryEncoder, divergence  # noqa: E402
from echo_shm.planning.agents.planner import LatentPlanner  # noqa: E402
from echo_shm.planning.agents.policies import CommandPolicy, PolicyNetwork, SoftPrefixPolicy  # noqa: E402
from echo_shm.planning.agents.segments import Segments  # noqa: E402
from echo_shm.planning.backbones.transformer import CausalTransformer, TransformerConfig  # noqa: E402
from echo_shm.planning.environments.vocabulary import Vocabulary  # noqa: E402

K, DIM = 4, 3
CONFIG = PlanningConfig(embedding_dim=5, state_window_size=K, hidden_dim=8, heads=2)


def encoder() -> TrajectoryEncoder:
    """An encoder of small windows."""
    torch.manual_seed(0)
    return TrajectoryEncoder(DIM, CONFIG)


@pytest.mark.parametrize("there", [1, 2, 4])
def test_what_is_masked_is_left_out(there: int):
    """Numbers before an episode's start change nothing; those after it do. So does how long ago a state was."""
    states = torch.randn(1, K, DIM, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(K) >= K - there)[None]
    plan = encoder()(states, mask)
    other = torch.where(mask[..., None], states, 1e3)
    torch.testing.assert_close(encoder()(other, mask), plan, rtol=0, atol=1e-6)
    assert (encoder()(states, torch.ones_like(mask)) - plan).abs().max() > 1e-3 or there == K
    turned = torch.cat([states[:, : K - there], states[:, K - there : -1].flip(1), states[:, -1:]], dim=1)
    assert (encoder()(turned, mask) - plan).abs().max() > 1e-4 or there < 3


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_plans_of_sequences_are_those_of_their_windows(begins: list[bool], seed: int):
    """Each state embedded once gives what windows give that are cut out one by one."""
    generator = torch.Generator().manual_seed(seed)
    rows = len(begins)
    obs = torch.randn(1, rows, DIM, generator=generator)
    zeros = torch.zeros(1, rows)
    flags = {"first": torch.tensor([begins]), "acted": zeros.bool(), "terminated": zeros.bool()}
    counts = {"action": zeros.long(), "update": zeros.long(), "log_prob": zeros, "reward": zeros}
    segments = Segments.of({"obs": obs, **flags, **counts}, K)
    got = encoder().plans(segments.obs, segments.window_mask(K))
    for r in range(rows):
        start = max([0, *(j for j in range(r + 1) if begins[j])])
        mine = obs[0, max(start, r + 1 - K) : r + 1]
        states, mask = torch.zeros(1, K, DIM), torch.zeros(1, K, dtype=torch.bool)
        states[0, K - len(mine) :], mask[0, K - len(mine) :] = mine, True
        torch.testing.assert_close(encoder()(states, mask)[0], got[0, r], rtol=1e-5, atol=1e-5)


def test_an_encoder_refuses_other_shapes():
    """It says which ones it takes."""
    with pytest.raises(ValueError, match=r"got states \(2, 3, 3\) with a mask \(2, 3\): use \(..., 4, 3\)"):
        encoder()(torch.zeros(2, 3, 3), torch.ones(2, 3, dtype=torch.bool))


@given(st.integers(0, 999), st.floats(-2, 2))
@settings(max_examples=30, deadline=None)
def test_the_divergence_is_that_of_two_gaussians(seed: int, log_sigma: float):
    """Against PyTorch's own distributions. With a learned sigma: their negative log-likelihood, up to a constant."""
    generator = torch.Generator().manual_seed(seed)
    one, two = (torch.randn(6, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    log = torch.tensor(log_sigma, dtype=torch.float64)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(one, log.exp()), normal(two, log.exp())).sum(-1)
    torch.testing.assert_close(divergence(one, two, log, False), expected)
    likelihood = -normal(two, log.exp()).log_prob(one).sum(-1) - 2.5 * math.log(2 * math.pi)
    torch.testing.assert_close(divergence(one, two, log, True), likelihood)


def test_a_learned_sigma_finds_the_size_of_the_steps():
    """The loss has its minimum where sigma² is the mean square of a plan's change, and does not run away from there."""
    one, two = torch.zeros(200, 5), 0.3 * torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    log_sigma = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.Adam([log_sigma], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        divergence(one, two, log_sigma, True).mean().backward()
        optimizer.step()
    assert float(log_sigma.detach().exp()) == pytest.approx(float(two.square().mean().sqrt()), rel=0.02)


def test_a_planner_acts_by_what_it_evaluates():
    """The frequencies of its actions are the probabilities of its logits, and the log-probabilities are theirs."""
    torch.manual_seed(1)
    planner = LatentPlanner(DIM, 3, CONFIG)
    planner.policy.policy[-1].bias.data = torch.tensor([0.0, 1.0, -1.0])
    n = 20_000
    states, mask = torch.randn(1, K, DIM).expand(n, -1, -1), torch.ones(n, K, dtype=torch.bool)
    done = planner.act(states, mask, torch.Generator().manual_seed(0))
    logits, _ = planner.policy(states[:1, -1], done.plans[:1])
    expected = logits.softmax(-1)[0].detach()
    np.testing.assert_allclose(np.bincount(done.action, minlength=3) / n, expected, atol=0.015)
    torch.testing.assert_close(done.log_prob, expected.log()[done.action], rtol=1e-4, atol=1e-5)


def test_a_planner_without_plans_has_no_encoder():
    """It is a plain policy, to compare with."""
    planner = LatentPlanner(DIM, 3, PlanningConfig(conditioned=False, state_window_size=K))
    done = planner.act(torch.zeros(2, K, DIM), torch.ones(2, K, dtype=torch.bool))
    assert planner.encoder is None
    assert done.plans is None
    assert not any("encoder" in name for name in planner.state_dict())


def test_a_policy_is_nearly_uniform_at_first_and_sees_its_plan():
    """Both outputs depend on state and plan."""
    torch.manual_seed(0)
    policy = PolicyNetwork(DIM, 6, 5, 16)
    states, plans = torch.randn(2, 7, DIM, requires_grad=True), torch.randn(2, 7, 5, requires_grad=True)
    logits, values = policy(states, plans)
    assert (logits.shape, values.shape) == ((2, 7, 6), (2, 7))
    assert logits.detach().softmax(-1).sub(1 / 6).abs().max() < 0.02
    for output in (logits.square().sum(), values.sum()):
        for gradient in torch.autograd.grad(output, (states, plans), retain_graph=True):
            assert gradient.abs().min() > 0


# --- a plan as a soft prefix ------------------------------------------------------


def prefixed() -> SoftPrefixPolicy:
    """A small transformer with plans of 5 numbers."""
    torch.manual_seed(0)
    model = CausalTransformer(TransformerConfig(vocab_size=11, layers=2, width=16, heads=2, max_length=12))
    return SoftPrefixPolicy(model, 5, prefix_length=3)


def test_a_soft_prefix_reaches_every_token_and_gets_their_gradients():
    """Another plan changes what is said after each token; and no token sees a later one."""
    policy = prefixed()
    tokens = torch.randint(11, (2, 6))
    plans = torch.randn(2, 5, requires_grad=True)
    logits, values = policy(tokens, plans)
    assert (logits.shape, values.shape) == ((2, 6, 11), (2, 6))
    for t in range(6):
        (gradient,) = torch.autograd.grad(logits[:, t].square().sum(), plans, retain_graph=True)
        assert gradient.abs().max() > 0
    later = tokens.clone()
    later[:, -1] = (later[:, -1] + 1) % 11
    torch.testing.assert_close(policy(later, plans)[0][:, :-1], logits[:, :-1], rtol=0, atol=1e-6)
    swapped = policy(tokens, plans.flip(0))[0]
    assert (swapped - logits).abs().amax((0, 2)).min() > 1e-4


def test_a_soft_prefix_is_what_embeddings_of_tokens_are():
    """If a plan becomes the embeddings of some tokens, they are read as if these tokens came first."""
    policy = prefixed()
    first = torch.randint(11, (1, 3))
    policy.prefix.weight.data.zero_()
    policy.prefix.bias.data = policy.model.embedding(first).detach().flatten()
    tokens = torch.randint(11, (1, 6))
    expected = policy.model(torch.cat([first, tokens], dim=1))[:, 3:]
    torch.testing.assert_close(policy(tokens, torch.randn(1, 5))[0], expected, rtol=1e-5, atol=1e-5)


def test_a_prefix_that_fills_the_model_is_refused():
    """There would be no place for a token."""
    with pytest.raises(ValueError, match="prefix_length=12: use fewer than the model's max_length=12"):
        SoftPrefixPolicy(prefixed().model, 5, prefix_length=12)


def test_a_bag_of_tokens_is_their_mean_however_they_are_filled_up():
    """Also beside a longer text; of no tokens it is 0."""
    bag = BagOfTokens(11, 4)
    tokens = torch.tensor([[[5, 4, 0, 0, 0], [6, 6, 6, 7, 0]], [[0] * 5, [3] * 5]])
    means = bag(tokens.float())
    weight = bag.embeddings.weight
    expected = [[weight[[4, 5]].mean(0), weight[[6, 6, 6, 7]].mean(0)], [torch.zeros(4), weight[3]]]
    torch.testing.assert_close(means, torch.stack([torch.stack(row) for row in expected]))


# --- a policy over the commands of a text ------------------------------------------

TEXTS = st.tuples(
    st.lists(st.integers(4, 10), max_size=4), st.lists(st.lists(st.integers(4, 10), max_size=3), max_size=4)
)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans(), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_commands_logit_is_what_the_transformer_says_at_its_end(texts: list, conditioned: bool, seed: int):
    """Each text read alone, up to its last command, gives what all of them give together, filled up."""
    torch.manual_seed(seed)
    commands, length = 3, 24
    model = CausalTransformer(TransformerConfig(vocab_size=11, layers=2, width=16, heads=2, max_length=length + 3))
    policy = CommandPolicy(SoftPrefixPolicy(model, 5 if conditioned else 0, prefix_length=3), commands)
    policy.soft_prefix.value.weight.data.normal_()
    plans = torch.randn(1, len(texts), 5) if conditioned else None
    states = torch.zeros(1, len(texts), length)
    for state, (words, choices) in zip(states[0], texts, strict=True):
        tokens = [*words, Vocabulary.end, *(token for one in choices for token in (*one, Vocabulary.act))]
        state[: len(tokens)] = torch.tensor(tokens)
    logits, values = policy(states, plans)
    assert (logits.shape, values.shape) == ((1, len(texts), commands), (1, len(texts)))
    for i, (words, choices) in enumerate(texts):
        ends = np.cumsum([len(words), *(len(one) + 1 for one in choices)])[1:].tolist()
        tokens = states[:1, i, : (ends or [0])[-1] + 1].long()
        hidden = policy.soft_prefix.hidden(tokens, None if plans is None else plans[:, i])[0]
        scores = [float((policy.key(hidden[end]) @ policy.query(hidden[-1]) / 4).detach()) for end in ends[:commands]]
        expected = torch.tensor(scores + [-1e9] * (commands - len(scores)))
        torch.testing.assert_close(logits[0, i], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(values[0, i], policy.soft_prefix.value(hidden[-1])[0], rtol=1e-4, atol=1e-5)


def test_a_planner_of_texts_draws_commands_that_are_there():
    """Its plan is made of the texts before, which reach every logit; without plans the transformer has no prefix."""
    states = torch.zeros(200, K, 12)
    states[:, :, :8] = torch.tensor([5, 6, 1, 7, 3, 8, 9, 3])  # two commands
    mask = torch.ones(200, K, dtype=torch.bool)
    for conditioned in (True, False):
        torch.manual_seed(0)
        config = dataclasses.replace(CONFIG, conditioned=conditioned, layers=1)
        planner = LatentPlanner(12, 4, config, vocab_size=11)
        done = planner.act(states, mask, torch.Generator().manual_seed(0))
        assert set(done.action.tolist()) == {0, 1}
        before = states.clone()
        before[:, 0, 0] = 10
        changed = planner.act(before, mask, torch.Generator().manual_seed(0)).log_prob - done.log_prob
        assert bool(changed.abs().max() > 0) is conditioned
    none, no_values = planner.policy(states[:0, -1])  # a minibatch may have no step to learn from
    assert (none.shape, no_values.shape) == ((0, 4), (0,))
    with pytest.raises(ValueError, match="heads=4 with hidden_dim=12: a policy that reads texts needs a hidden_dim"):
        LatentPlanner(12, 4, PlanningConfig(hidden_dim=12, heads=4), vocab_size=11)
