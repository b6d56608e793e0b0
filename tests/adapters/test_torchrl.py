"""The replay buffer for TorchRL: what comes in, what goes out, priorities, other processes, and a training."""

import multiprocessing
import os

import numpy as np
import pytest
from harness.packages import need

need("torchrl")

import tensordict  # noqa: E402
import torch  # noqa: E402
from harness.waiting import poll  # noqa: E402

from echo_shm import Replay, SegmentError, SpecMismatchError  # noqa: E402
from echo_shm.adapters.torchrl import ReplayBuffer  # noqa: E402
from echo_shm.replay import Prioritized  # noqa: E402

#: Frameworks take long to import, and Numba to compile.
pytestmark = pytest.mark.watchdog(300)


def steps(numbers):
    """Steps whose leaves are made of their numbers."""
    numbers = torch.as_tensor(numbers)
    n = len(numbers)
    following = {"observation": torch.ones(n, 4) * (numbers[:, None] + 1), "reward": numbers[:, None].double()}
    data = {"observation": torch.ones(n, 4) * numbers[:, None], "action": numbers.long(), "next": following}
    return tensordict.TensorDict(data, [n])


@pytest.fixture
def buffer():
    """One with priorities."""
    with_priorities = ReplayBuffer(100, sampler=Prioritized(1.0, 1.0), batch_size=32)
    yield with_priorities
    with_priorities.close()


def test_what_is_sampled_is_what_came(buffer):
    """All leaves of a step are of the same step, and so are those below ``next``."""
    buffer.extend(steps(range(10)))
    buffer.add(steps([10])[0])
    buffer.extend(steps(range(11, 17)).reshape(2, 3))
    sample, info = buffer.sample(500, return_info=True)
    assert sample.batch_size == (500,)
    assert set(sample["action"].tolist()) == set(range(17))
    assert set(sample.keys(True, True)) == {
        "observation", "action", ("next", "observation"), ("next", "reward"), "index", "priority_weight"
    }  # fmt: skip
    for key, value in steps(sample["action"].tolist()).items(True, True):
        assert torch.equal(sample[key], value)
        assert sample[key].dtype == value.dtype
    assert info.keys() == {"index", "priority_weight"}
    assert sample["index"].dtype == torch.int64
    assert len(set(sample["index"].tolist())) == 17
    assert len(buffer) == buffer.write_count == 17
    assert next(iter(buffer)).batch_size == (32,)


def test_a_sample_is_no_copy(buffer, monkeypatch):
    """The tensors lie where the batch of the replay lies."""
    buffer.extend(steps(range(10)))
    batches, sample = [], Replay.sample
    monkeypatch.setattr(
        Replay, "sample", lambda *args, **kwargs: batches.append(sample(*args, **kwargs)) or batches[-1]
    )
    data = buffer.sample()
    (batch,) = batches
    assert data["observation"].data_ptr() == batch.data["observation"].ctypes.data
    assert data["next", "reward"].data_ptr() == batch.data["next"]["reward"].ctypes.data
    assert data["index"].data_ptr() == batch.key.ctypes.data


def test_priorities_decide(buffer):
    """What has the only positive priority is all that is drawn; weights correct for the rest."""
    data = steps(range(10))
    data["td_error"] = torch.ones(10, 1)
    buffer.extend(data)
    sample = buffer.sample(400)
    sample["td_error"] = torch.where(sample["action"] == 3, 1e9, 1e-9)
    buffer.update_tensordict_priority(sample)
    again = buffer.sample()
    assert set(again["action"].tolist()) == {3}
    assert again["priority_weight"].max() < 1e-6
    buffer.beta = 0.0
    assert torch.equal(buffer.sample()["priority_weight"], torch.ones(32))
    buffer.update_priority(again["index"], 1e-9)
    assert set(buffer.sample(400)["action"].tolist()) == set(range(10))


def test_a_state_brings_all_back(buffer):
    """Indices and priorities stay those of before, and so does what is drawn next."""
    buffer.extend(steps(range(10)))
    sample = buffer.sample()
    buffer.update_priority(sample["index"], sample["action"] + 0.5)
    state = buffer.state_dict()
    assert sum(len(part) for file in state.values() for part in file["parts"].values()) < 2_000_000
    other = ReplayBuffer(5, batch_size=32, sampler=Prioritized(1.0, 1.0))
    try:
        other.load_state_dict(state)
        assert (other.sample() == buffer.sample()).all()
        other.update_priority(sample["index"][:1], 1e12)
        assert other.sample()["action"].tolist() == [int(sample["action"][0])] * 32
        buffer.empty()
        assert len(buffer) == buffer.write_count == 0
        assert len(other) == 10
    finally:
        other.close()


def test_wrong_steps_are_refused(buffer):
    """The message names the leaf and says what to do; nothing is stored."""
    with pytest.raises(RuntimeError, match="extend"):
        buffer.sample()
    buffer.extend(steps([1]))
    with pytest.raises(KeyError, match=r"next.reward: got nothing, expected a tensor"):
        buffer.extend(steps([1]).exclude(("next", "reward")))
    with pytest.raises(KeyError, match="other: a step of the example does not have it"):
        buffer.extend(steps([1]).set("other", torch.ones(1)))
    with pytest.raises(SpecMismatchError, match="observation"):
        buffer.extend(steps([1]).set("observation", torch.ones(1, 5)))
    with pytest.raises(KeyError, match="set priority_key"):
        buffer.update_tensordict_priority(buffer.sample())
    with pytest.raises(RuntimeError, match="batch_size"):
        next(iter(ReplayBuffer(10, steps([1]))))
    assert len(buffer) == 1


@pytest.mark.parametrize("key", ["td_error", ("agents", "td_error"), ("agents", "deep", "td_error")])
@pytest.mark.parametrize("others", [True, False])
def test_priorities_may_be_nested(key, others):
    """They come with the first steps and with later ones, or do not, and are not stored."""
    buffer = ReplayBuffer(100, sampler=Prioritized(1.0, 1.0), batch_size=300, priority_key=key)
    first, second = steps(range(3)), steps(range(3, 6))
    for data in (first, second) if others else ():
        data["agents", "deep", "number"] = data["action"]
    first[key], second[key] = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    try:
        buffer.extend(first)
        buffer.extend(second)
        sample = buffer.sample()
        assert set(sample["action"].tolist()) == {1, 5}
        assert key not in sample.keys(True, True)
        sample[key] = torch.where(sample["action"] == 1, 1e9, 0.0)
        buffer.update_tensordict_priority(sample)
        assert set(buffer.sample()["action"].tolist()) == {1}
        buffer.extend(sample[:10])
        assert len(buffer) == 16
        buffer.extend(steps(range(2)) if not others else second.exclude(key))
        assert len(buffer) == (19 if others else 18)
    finally:
        buffer.close()


def test_wrong_trees_are_refused(buffer):
    """The message says what is there, and what belongs there."""
    with pytest.raises(ValueError, match=r"batch size \[0\], which has no row"):
        buffer.extend(steps([]))
    with pytest.raises(TypeError, match=r"leaf next.reward has dtype torch.bfloat16"):
        buffer.extend(steps([1]).set(("next", "reward"), torch.ones(1, dtype=torch.bfloat16)))
    assert not buffer.initialized
    buffer.extend(steps([1]))
    with pytest.raises(KeyError, match="observation: got a TensorDict, expected a tensor"):
        buffer.extend(steps([1]).set("observation", steps([1])))
    with pytest.raises(KeyError, match="next: got a Tensor, expected a TensorDict"):
        buffer.extend(steps([1]).set("next", torch.ones(1)))
    assert len(buffer) == 1


def test_what_cannot_be_loaded_leaves_the_buffer_as_it_is(buffer, tmp_path):
    """With a name, and with a directory; what can be loaded is."""
    buffer.extend(steps(range(10)))
    buffer.dumps(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    named = ReplayBuffer(100, steps([0]), name=f"torchrl-{os.getpid()}", store="shm")
    kept = ReplayBuffer(100, store=str(tmp_path / "run"))
    try:
        with pytest.raises(SegmentError, match="no complete checkpoint"):
            named.loads(tmp_path / "bad")
        named.extend(steps(range(3)))
        assert len(named) == 3
        named.loads(tmp_path / "good")
        assert len(named) == 10
        kept.load_state_dict(buffer.state_dict())
        with pytest.raises(ValueError, match=r"loads\(\): store=.*run' is a directory .* needs an empty one"):
            kept.loads(tmp_path / "good")
        kept.extend(steps(range(3)))
        assert len(kept) == 13
        rebuild, arguments = buffer.__reduce__()
        other = rebuild(*arguments)
        with pytest.raises(RuntimeError, match="only the process that made"):
            other.loads(tmp_path / "good")
        other.close()
    finally:
        named.close()
        kept.close()


def _extend(buffer, first):
    """What a worker process does."""
    for number in range(first, first + 500, 10):
        buffer.extend(steps(range(number, number + 10)))
    buffer.close()


def test_other_processes_extend_what_has_priorities():
    """Two processes extend while the learner samples and updates: no step is lost, and none is torn."""
    context = multiprocessing.get_context("spawn")
    buffer = ReplayBuffer(2000, steps([0]), sampler=Prioritized(0.6, 0.4), batch_size=64)
    workers = [context.Process(target=_extend, args=(buffer, 1000 * i)) for i in range(2)]
    try:
        for worker in workers:
            worker.start()
        updates = 0
        assert poll(lambda: len(buffer) > 0, 200.0)
        while buffer.write_count < 1000:
            sample = buffer.sample()
            assert torch.equal(sample["next", "observation"][:, 0], sample["action"] + 1.0)
            sample["td_error"] = torch.rand(64)
            buffer.update_tensordict_priority(sample)
            updates += 1
        assert updates > 0
        every = buffer.sample(20_000)["action"].unique()
        assert len(every) > 900
        assert set(every.tolist()) <= {*range(500), *range(1000, 1500)}
    finally:
        for worker in workers:
            worker.join()
        buffer.close()


def test_a_learner_in_another_process_samples_and_updates(buffer):
    """What is joined by pickling draws and updates, too."""
    buffer.extend(steps(range(10)))
    rebuild, arguments = buffer.__reduce__()
    other = rebuild(*arguments)
    try:
        sample = other.sample()
        assert torch.equal(sample["next", "reward"][:, 0], sample["action"].double())
        other.update_priority(sample["index"][:1], 1e12)
        only = {int(sample["action"][0])}
        assert poll(lambda: set(buffer.sample()["action"].tolist()) == only, 60.0)  # a thread stores what was sent
        with pytest.raises(RuntimeError, match="only the process that made"):
            other.empty()
    finally:
        other.close()


def test_its_dqn_learns():
    """TorchRL's DQNTrainer balances the pole with this buffer."""
    from tensordict.nn import TensorDictSequential
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, RewardSum, TransformedEnv
    from torchrl.modules import MLP, EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, HardUpdate
    from torchrl.trainers.algorithms import DQNTrainer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    frames = 6000
    env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
    env.set_seed(0)
    network = MLP(in_features=4, out_features=2, num_cells=[64, 64])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    greedy = EGreedyModule(env.action_spec, annealing_num_steps=2000, eps_init=1.0, eps_end=0.05)
    policy = TensorDictSequential(actor, greedy)
    loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True, double_dqn=True)
    loss.make_value_estimator(gamma=0.99)
    buffer = ReplayBuffer(10_000, sampler=Prioritized(0.6, 0.4), batch_size=128)
    returns = []

    def note(batch):
        returns.extend(batch["next", "episode_reward"][batch["next", "done"]].tolist())
        return batch

    trainer = DQNTrainer(
        collector=Collector(env, policy, frames_per_batch=100, total_frames=frames),
        total_frames=frames,
        frame_skip=1,
        optim_steps_per_batch=20,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), lr=2e-3),
        replay_buffer=buffer,
        target_net_updater=HardUpdate(loss, value_network_update_interval=50),
        greedy_module=greedy,
        enable_logging=False,
        progress_bar=False,
    )
    trainer.register_op("batch_process", note)
    try:
        trainer.train()
        assert buffer.write_count == frames
        assert np.mean(returns[-10:]) > 80
    finally:
        buffer.close()
