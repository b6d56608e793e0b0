"""Code in the shape of EchoRL's README that needs PyTorch: the encoder, the policy, the engine and its caches."""

import asyncio
import gc

import numpy as np
import pytest
from harness.packages import need
from hypothesis import given, settings
from hypothesis import strategies as st

from .echo_rl_snippets import ran

need("torch")

import torch  # noqa: E402

from echo_shm import planning  # noqa: E402
from echo_shm.planning.core import AsyncExecutionEngine, ExecutionConfig, KVCacheManager  # noqa: E402

PLANNING = """
import torch
from echo_rl.core import PlanningConfig
from echo_rl.core.latent_planning import LatentPlanningOptimizer, PolicyNetwork, TrajectoryEncoder

config = PlanningConfig(embedding_dim=6, state_window_size=3, kl_weight=0.2, learning_rate=1e-3)
encoder = TrajectoryEncoder(state_dim=5, config=config)
policy = PolicyNetwork(state_dim=5, action_dim=4, latent_dim=6)
optimizer = LatentPlanningOptimizer(state_dim=5, action_dim=4, config=config)
windows = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
plans, short = encoder(windows), encoder(windows[:, 2:])
prior = optimizer.encode_trajectory(windows)
"""


def test_plans_are_those_of_our_encoder():
    """A window has k + 1 states; of a shorter one the missing states are masked."""
    found = ran(PLANNING)
    encoder, windows = found["encoder"], found["windows"]
    assert isinstance(encoder, planning.TrajectoryEncoder)
    assert encoder.window == 4
    there = torch.ones(2, 4, dtype=torch.bool)
    assert torch.equal(found["plans"], encoder(windows, there))
    there[:, :2] = False
    torch.testing.assert_close(found["short"], encoder(windows, there))
    with pytest.raises(ValueError, match=r"got states \(2, 5, 5\)"):
        encoder(torch.zeros(2, 5, 5))
    assert type(found["policy"]) is planning.PolicyNetwork
    optimizer, prior = found["optimizer"], found["prior"]
    assert isinstance(optimizer, planning.PPO)
    assert [group["lr"] for group in optimizer.optimizer.param_groups] == [1e-3, 1e-3]
    ema = planning.EmaPlan(6)
    first = ema.score_and_update(prior.latent_plan.numpy(), 1.5).mean()
    assert optimizer.get_trajectory_surprise(prior, 1.5) == pytest.approx(first)
    assert optimizer.get_ema_plan().tolist() == ema.plan.tolist()
    assert prior.surprise_score == pytest.approx(first)
    torch.testing.assert_close(prior.latent_plan, optimizer.trajectory_encoder(windows, torch.ones(2, 4) > 0))


def test_rollouts_run_on_a_transformer():
    """Each answer is the model's own, and what was saved is what the reused prefixes cost."""
    found = ran("""
import torch
from echo_rl.core.async_execution import AsyncExecutionEngine, ExecutionConfig
from echo_shm.planning import CausalTransformer, TransformerConfig

torch.manual_seed(1)
model = CausalTransformer(TransformerConfig(vocab_size=257, layers=1, width=16, heads=2, max_length=128))
sequence = list(range(100, 150))

async def main():
    config = ExecutionConfig(max_concurrent_rollouts=8, max_cache_size=64, timeout=20.0, temperature=0.0,
        max_action_tokens=3)
    async with AsyncExecutionEngine(config=config, model=model, device="cpu") as engine:
        names = [await engine.submit_rollout(state_sequence=sequence[:40 + i], priority=1.0 + i, metadata={"i": i})
            for i in range(4)]
        results = [await engine.get_result(name) for name in names]
        again = await engine.get_result(names[0])
        return results, again, engine.get_performance_metrics(), engine.engine.tracker.snapshot()
""")
    results, again, figures, seen = found["result"]
    assert again is None  # it was fetched
    for i, result in enumerate(results):
        context = [*found["sequence"][: 40 + i]]
        for _ in range(3):
            with torch.no_grad():
                context.append(int(found["model"](torch.tensor([context]))[0, -1].argmax()))
        answer = context[40 + i :]
        assert result.metadata["tokens"] == answer[: len(result.metadata["tokens"])]
        assert result.success
        assert result.metadata["i"] == i
        assert result.tokens_generated == len(result.metadata["tokens"])
    reused = [result.metadata["reuse_length"] for result in results]
    assert sorted(reused) == [0, 32, 32, 32]  # two whole blocks of 16
    assert figures["total_bandwidth_saved"] == sum(planning.attention_cost(n) for n in reused) == seen.bandwidth_saved
    assert (figures["total_rollouts"], figures["completed_rollouts"], figures["active_rollouts"]) == (4, 4, 0)
    assert figures["kv_reuse_rate"] == seen.reuse_rate > 0


def test_rollouts_run_on_a_policy(recwarn):
    """The action is the policy's. A program that never closes its engine ends without a word."""
    found = ran("""
import torch
from echo_rl.core import ExecutionConfig, PlanningConfig
from echo_rl.core.async_execution import AsyncExecutionEngine
from echo_rl.core.latent_planning import PolicyNetwork
from echo_shm.planning import LatentPlanner

torch.manual_seed(2)
policy_network = PolicyNetwork(state_dim=5, action_dim=4, latent_dim=6)
planner = LatentPlanner(5, 4, PlanningConfig(embedding_dim=6, state_window_size=3))
torch.nn.init.normal_(policy_network.policy[-1].weight)
torch.nn.init.normal_(planner.policy.policy[-1].weight)
state_windows = [torch.randn(2, 5) for _ in range(8)]
refused = []

async def main():
    texts = []
    for model in (policy_network, planner):
        execution_engine = AsyncExecutionEngine(config=ExecutionConfig(temperature=0.0), model=model)
        for state_window in state_windows:
            request_id = await execution_engine.submit_rollout(state_sequence=state_window, priority=1.0)
            texts.append((await execution_engine.get_result(request_id)).metadata["text"])
        try:
            await execution_engine.submit_rollout(torch.zeros(3, 7))
        except ValueError as error:
            refused.append(str(error))
    return texts, execution_engine.get_performance_metrics()
""")
    texts, figures = found["result"]
    assert figures == {"total_rollouts": 8, "active_rollouts": 0, "completed_rollouts": 8}  # nothing else is measured
    states, planner = torch.stack(found["state_windows"]), found["planner"]
    bare = found["policy_network"](states[:, -1], torch.zeros(8, 6))[0].argmax(-1)
    mask = torch.tensor([[False, True, True]]).expand(8, 3)
    plans = planner.encoder(torch.nn.functional.pad(states, (0, 0, 1, 0)), mask)
    planned = planner.policy(states[:, -1], plans)[0].argmax(-1)
    assert texts == [str(one) for one in [*bare.tolist(), *planned.tolist()]]
    assert found["refused"] == ["state_sequence has shape (3, 7): use (t, 5), at least one state"] * 2
    gc.collect()
    assert not recwarn.list


def test_what_is_no_model_or_fails(monkeypatch):
    """It is refused, or its result says so."""
    with pytest.raises(TypeError, match="model is Linear: use a CausalTransformer, a backbone"):
        AsyncExecutionEngine(ExecutionConfig(), torch.nn.Linear(2, 2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device='cuda:0', and PyTorch finds no CUDA here: use device='cpu'"):
        AsyncExecutionEngine(ExecutionConfig(), planning.PolicyNetwork(3, 2, 0), device="cuda:0")
    with pytest.raises(ValueError, match="device='bogus' is none of PyTorch's"):
        AsyncExecutionEngine(ExecutionConfig(), planning.PolicyNetwork(3, 2, 0), device="bogus")

    async def fail():
        policy = planning.PolicyNetwork(3, 2, 0)
        async with AsyncExecutionEngine(ExecutionConfig(retries=0), policy) as engine:
            with torch.no_grad():
                policy.policy[0].weight.fill_(float("nan"))
            return await engine.get_result(await engine.submit_rollout(np.zeros((1, 3))))

    result = asyncio.run(fail())
    assert not result.success
    assert result.error.startswith("RolloutError: the rollout was tried 1 time")


SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=12)


@settings(deadline=None, max_examples=40)
@given(SEQUENCES, st.booleans(), st.integers(1, 30))
def test_a_cache_manager_gives_the_rows_of_the_longest_prefix(sequences, vectors, size):
    """Where all fits, as a dictionary of all prefixes would; where not, right rows of some prefix all the same."""
    manager = KVCacheManager(config=ExecutionConfig(max_cache_size=size))
    kept = {}
    for sequence in sequences:
        states = torch.eye(3)[sequence] if vectors else torch.tensor(sequence)
        rows, length = manager.get_kv_cache(states)
        longest = max((n for n in range(1, len(sequence)) if tuple(sequence[:n]) in kept), default=0)
        if len(kept) <= size:
            assert length == longest
        assert length <= longest
        assert (rows is None) == (length == 0)
        if length:
            assert rows.tolist() == [kept[tuple(sequence[: n + 1])] for n in range(length)]
        # A row depends on the whole prefix, as keys and values do.
        made = [[float(hash(tuple(sequence[: n + 1])) % 1000)] for n in range(len(sequence))]
        for n, row in enumerate(made):
            kept.setdefault(tuple(sequence[: n + 1]), row)
        manager.store_kv_cache(states, torch.tensor(made))
    stats = manager.get_cache_stats()
    assert stats["cache_size"] <= size
    assert len(manager._rows) == stats["cache_size"]
    assert stats["hit_count"] + stats["miss_count"] == len(sequences)
