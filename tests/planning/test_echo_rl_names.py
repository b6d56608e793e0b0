"""Code in the shape of EchoRL's README runs once its imports name this package, and means what ours means."""

import math

import numpy as np
import pytest
from harness.packages import need
from harness.programs import run_python
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm import planning
from echo_shm.planning import kernels
from echo_shm.planning.core import PrioritizedReplayBuffer, ReplayConfig, prioritized_replay
from echo_shm.planning.utils.monitoring import MetricsCollector, PerformanceMetrics, SystemMonitor

from .echo_rl_snippets import ran


def test_the_kernels_are_ours_and_need_no_framework():
    """By EchoRL's names, in its order of arguments, and of its types."""
    found = ran("""
import numpy as np
from echo_rl.kernels import (EMAPlanTracker, attention_bandwidth_cost, bandwidth_aware_priorities,
    bandwidth_efficiency, effective_bandwidth_cost, kernels_available, plan_surprise)

tracker = EMAPlanTracker(3, decay=0.5)
first = tracker.initialized, tracker.get_ema().tolist()
tracker.update(np.array([2.0, 0.0, 4.0]))
tracker.update(np.array([0.0, 0.0, 0.0]))
surprise = plan_surprise(np.ones(3), tracker.get_ema(), -4.0, surprise_weight=3.0, reward_weight=0.5)
full, left = attention_bandwidth_cost(90, 2.0), effective_bandwidth_cost(90, 30, scale=2.0)
rewards = np.array([2.0, 1.0], dtype=np.float32)
priorities = bandwidth_aware_priorities(rewards, np.array([7.0, 3.0]), np.array([0.5, 0.0]))
eta = bandwidth_efficiency(6.0, 10.0, -2.0)
available = kernels_available()
""")
    assert found["first"] == (False, [0.0, 0.0, 0.0])
    assert found["tracker"].get_ema().tolist() == [1.0, 0.0, 2.0]
    assert isinstance(found["tracker"], planning.EmaPlan)
    assert found["surprise"] == 3.0 * 2.0 + 0.5 * 4.0
    assert (found["full"], found["left"]) == (8190.0, 8190.0 - 930.0)
    assert found["priorities"].dtype == np.float32
    expected = planning.rollout_priorities([2.0, 1.0], [7.0, 3.0], [0.5, 0.0])
    np.testing.assert_allclose(found["priorities"], expected, rtol=1e-6)
    assert found["eta"] == planning.bandwidth_efficiency(6.0, 10.0, -2.0) == 0.5
    assert found["available"] is True
    program = "import sys; sys.modules['torch'] = None; from echo_shm.planning.kernels import *; print(EMAPlanTracker)"
    assert "EMAPlanTracker" in run_python(program).stdout


HASHES = st.lists(st.integers(0, 5), max_size=8)


@settings(deadline=None, max_examples=50)
@given(HASHES, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=6), st.integers(1, 3))
def test_prefix_match_finds_the_longest_proper_prefix(hashes, entries, least):
    """And of entries with one hash the first."""
    best = -1, 0
    for length in range(least, len(hashes)):
        found = [index for one, index in entries if one == hashes[length - 1]]
        best = (found[0], length) if found else best
    assert kernels.prefix_match(np.array(hashes, np.uint64), entries, least) == best


@settings(deadline=None, max_examples=15)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=12), st.floats(0.2, 3.0), st.floats(0, 1), st.integers(0, 99))
def test_priority_sample_draws_by_softmax(priorities, temperature, beta, seed):
    """The weights are those of the softmax's probabilities, and the same seed draws the same."""
    indices, weights = kernels.priority_sample(priorities, 8, temperature, beta, seed)
    assert len(indices) == len(weights) == min(8, len(priorities))
    assert (indices.dtype, weights.dtype) == (np.int64, np.float32)
    powers = np.exp(np.array(priorities) / temperature)
    expected = planning.importance_weights(powers[indices] / powers.sum(), len(priorities), beta)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    assert kernels.priority_sample(priorities, 8, temperature, beta, seed)[0].tolist() == indices.tolist()


def test_bandwidth_is_counted_as_ours():
    """Priorities, what was saved, and the efficiency."""
    found = ran("""
from echo_rl.core.bandwidth import BandwidthAwareScheduler, BandwidthConfig, BandwidthEfficiencyTracker

config = BandwidthConfig(bandwidth_weight=0.5, history_size=10)
priority = BandwidthAwareScheduler(config).compute_priority(reward=3.0, seq_len=40, queue_time=1.5, reuse_len=10)
plain = BandwidthConfig(enable_bandwidth_scheduling=False)
waited = BandwidthAwareScheduler(plain).compute_priority(3.0, 40, 1.5, 10)
tracker = BandwidthEfficiencyTracker(config)
steps = [(1.0, 40, 0), (0.0, 55, 40), (2.0, 70, 64)]
costs = [tracker.record_rollout_step(reward, seq_len=t, reuse_len=reuse) for reward, t, reuse in steps]
tracker.record_learner_update(weighted_pg_loss=-0.25)
seen = tracker.snapshot()
""")
    cost = planning.effective_cost(40, 10)
    assert found["priority"] == planning.rollout_priorities(3.0, cost, 1.5, bandwidth_weight=0.5)
    assert found["waited"] == planning.rollout_priorities(3.0, 0.0, 1.5)
    seen, costs = found["seen"], found["costs"]
    assert costs == [planning.effective_cost(t, reuse) for _, t, reuse in found["steps"]]
    assert seen.eta_bw == planning.bandwidth_efficiency([1.0, 0.0, 2.0], costs, -0.25)
    assert seen.total_bandwidth_saved == planning.attention_cost(40) + planning.attention_cost(64)
    assert seen.total_effective_rollout_cost == sum(costs)
    assert seen.kv_reuse_rate == (40 + 64) / (40 + 55 + 70)
    assert (seen.num_rollout_steps, seen.num_updates, seen.total_reward) == (3, 1, 3.0)


def test_the_replay_draws_what_a_hot_cold_replay_draws():
    """The same steps, scores, keys and weights, from one seed. Ages make steps cold."""
    found = ran("""
import numpy as np
from echo_rl.core import ReplayConfig
from echo_rl.core.prioritized_replay import HotColdBuffer, PrioritizedReplayBuffer

config = ReplayConfig(hot_buffer_size=30, cold_buffer_size=20, age_threshold=2, temperature=2.0)
replay_buffer = PrioritizedReplayBuffer(config=config, latent_dim=4)
nothing = replay_buffer.sample_batch(batch_size=4, temperature=2.0)
rng = np.random.default_rng(3)
rows = [(rng.normal(size=2), rng.normal(size=(1, 4)), i % 3, float(i), i % 5 == 4) for i in range(10)]
for i, (state, plan, action, reward, done) in enumerate(rows):
    for _ in range({6: 3, 8: 2}.get(i, 0)):
        replay_buffer.update_experience_ages()
    replay_buffer.add_experience(state, plan, action, reward, state + 1, done)
experiences, weights = replay_buffer.sample_batch(batch_size=12, temperature=2.0)
sizes = replay_buffer.hot_cold_buffer.get_statistics()
made = isinstance(replay_buffer.hot_cold_buffer, HotColdBuffer)
""")
    example = {"plan": np.zeros(4), "action": np.zeros((), np.int64), "reward": np.zeros((), np.float32)}
    with planning.HotColdReplay(example, 30, 20, age_threshold=2, temperature=2.0) as replay:
        for i, (_, plan, action, reward, done) in enumerate(found["rows"]):
            for _ in range({6: 3, 8: 2}.get(i, 0)):
                replay.learned()
            replay.add({"plan": plan[0], "action": action, "reward": np.float32(reward)}, terminated=done)
        batch = replay.sample(12)
        expected = batch.data["action"].tolist(), batch.priority.tolist(), batch.weight.tolist()
        assert (replay.parts.hot.size, replay.parts.cold.size) == (4, 6)
    drawn = found["experiences"]
    assert found["nothing"] == ([], [])
    assert ([int(one.action) for one in drawn], [one.priority for one in drawn], found["weights"]) == expected
    assert all((one.next_state == one.state + 1).all() for one in drawn)
    assert found["made"]
    assert found["sizes"] == {"hot_buffer_size": 4, "cold_buffer_size": 6, "total_size": 10, "moved": 6}
    buffer = found["replay_buffer"]
    with pytest.raises(ValueError, match=r"temperature=0.5: this buffer draws at 2.0"):
        buffer.sample_batch(2, temperature=0.5)
    with pytest.raises(ValueError, match="latent_plan has 3 numbers: use 4"):
        buffer.add_experience(np.zeros(2), np.zeros(3), 0, 0.0, np.zeros(2), False)
    buffer.close()


def test_a_replay_that_memory_cannot_hold_is_cut(monkeypatch):
    """The defaults would take some 70 GB of such steps. A warning says what is kept."""
    monkeypatch.setattr(prioritized_replay, "_SHARE", 1e-4)
    buffer = PrioritizedReplayBuffer(config=ReplayConfig())
    with pytest.warns(UserWarning, match=r"11,000,000 steps of 6,\d+ bytes do not fit into memory; they are [\d,]+"):
        buffer.add_experience(
            np.zeros(512, np.float32), np.zeros(512, np.float32), 1, 1.0, np.zeros(512, np.float32), False
        )
    made = buffer.hot_cold_buffer.replay
    assert 11 < made.capacity < 11_000_000
    buffer.close()


ENVIRONMENTS = """
from echo_rl.environments.webshop import WebShopConfig, WebShopEnvironment
from echo_rl.environments.cruxeval import CRUXEvalConfig, CRUXEvalEnvironment
from echo_rl.environments.arc import ARCConfig, ARCEnvironment

envs = [
    WebShopEnvironment(WebShopConfig(website_type="books", budget_limit=80.0)),
    CRUXEvalEnvironment(CRUXEvalConfig(language="python", max_code_length=500)),
    ARCEnvironment(ARCConfig(grid_size=6, task_type="pattern_completion")),
]
"""

MINIGRID = """
from echo_rl.environments.minigrid import MiniGridConfig, MiniGridEnvironment

envs = [MiniGridEnvironment(MiniGridConfig(grid_size=6, task_type="key_door"))]
"""


@pytest.mark.parametrize("snippet", [ENVIRONMENTS, MINIGRID])
def test_environments_have_gymnasiums_interface(snippet):
    """They are ours, with EchoRL's configurations."""
    need("gymnasium", *(["minigrid"] if snippet is MINIGRID else []))
    for env in ran(snippet)["envs"]:
        ours = type(env).__mro__[1]
        assert ours.__name__ in planning.environments.__all__
        observation, _ = env.reset(seed=3)
        again, _ = ours(env.config).reset(seed=3)
        assert str(observation) == str(again)
        assert env.observation_space.contains(env.step(env.action_space.sample())[0])


def test_alfworld_needs_its_data(monkeypatch):
    """The name is there, and an error says where the games come from."""
    need("gymnasium")
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="alfworld-download"):
        ran("""
from echo_rl.environments.alfworld import ALFWorldConfig, ALFWorldEnvironment

env = ALFWorldEnvironment(ALFWorldConfig(task_type="pick_and_place", max_objects=60))
""")


def test_monitoring_reads_what_there_is():
    """Readings of this process, figures of a tracker and of a run; nothing that was not read."""
    found = ran("""
from echo_rl.utils.monitoring import MetricsCollector, PerformanceMonitor

monitor = PerformanceMonitor()
before = monitor.system_monitor.get_current_metrics()
monitor.start_monitoring()
monitor.stop_monitoring()
report = monitor.get_performance_report()
collector = MetricsCollector(max_history=3)
""")
    assert found["before"] == {}
    system = found["report"]["system_metrics"]
    assert 1e6 < system["process_memory"] < 1e12
    assert 0 < system["memory_usage"] <= 100
    assert found["report"]["training_metrics"]["process_memory"]["count"] == 1
    collector = found["collector"]
    tracker = planning.EfficiencyTracker()
    tracker.record_rollout_step(1.0, 50, 20)
    collector.collect_metrics(tracker.snapshot())
    assert collector.get_metric_summary("eta")["mean"] == tracker.snapshot().eta
    for loss in (5.0, 1.0, 2.0, 6.0):
        collector.collect_metrics(PerformanceMetrics(timestamp=0.0, step=3, episode=1, policy_loss=loss))
        collector.collect_metrics({"losses": {"kl": loss}, "name": "text", "flag": True})
    expected = {"mean": 3.0, "std": math.sqrt(14 / 3), "min": 1.0, "max": 6.0, "median": 2.0, "count": 3}
    assert collector.get_metric_summary("policy_loss") == pytest.approx(expected)
    assert collector.get_metric_summary("losses.kl", window_size=1)["mean"] == 6.0
    assert collector.get_metric_summary("success_rate") == {}  # None
    assert not {"name", "flag"} & set(collector.get_all_metrics_summary())
    with pytest.raises(TypeError, match="metrics is int: use a dataclass or a mapping"):
        collector.collect_metrics(3)


def test_the_monitors_thread_reads_until_it_is_stopped():
    """Each interval once."""
    collector = MetricsCollector()
    monitor = SystemMonitor(0.001, collector)
    monitor.start_monitoring()
    monitor.start_monitoring()
    while not collector.get_metric_summary("cpu_usage"):
        assert monitor.monitoring_active
    monitor.stop_monitoring()
    count = collector.get_metric_summary("cpu_usage", 10_000)["count"]
    assert not monitor.monitoring_active
    assert count >= 2  # the thread's, and the last one
