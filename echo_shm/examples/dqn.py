"""Double DQN on CartPole, with PyTorch and a prioritized replay.

    python -m echo_shm.examples.dqn --seed 1 --plot dqn.svg
    python -m echo_shm.examples.dqn --seed 1 --uniform      # the same without priorities, to compare

Workers play with the latest weights and write steps. The replay makes transitions of them, draws by priority (Schaul et
al., "Prioritized experience replay", 2016), and lets nobody run ahead: every transition is drawn 8 times on average,
whoever is faster.
"""

import argparse
from typing import Any

import numpy as np
from optree import tree_map

from echo_shm import Replay, Table
from echo_shm.examples.common import Progress, arguments, need, run, seeds_of
from echo_shm.replay import Episode, Fifo, NStep, Prioritized, SampleToInsertRatio, Uniform, Writer

ENVS, CAPACITY, FIRST_STEPS = 4, 50_000, 1_000
BATCH, DRAWS_PER_STEP, GAMMA, N_STEPS = 64, 8.0, 0.99, 1
LEARNING_RATE, FOLLOW, PUBLISH_EVERY = 1e-3, 0.01, 10  # FOLLOW: by how much the frozen network follows, each update
EXPLORE_STEPS, LEAST_EPSILON = 4_000, 0.02  # of a worker: in how many steps epsilon falls from 1

STEP = {
    "obs": np.zeros(4, np.float32),
    "action": np.zeros((), np.int64),
    "reward": np.zeros((), np.float32),
}


# --- in the workers: numpy alone


def values_of(weights: list[Any], obs: Any) -> Any:
    """The value of each action. The weights are those of ``network()``."""
    w1, b1, w2, b2, w3, b3 = weights
    hidden = np.maximum(np.maximum(obs @ w1.T + b1, 0.0) @ w2.T + b2, 0.0)
    return hidden @ w3.T + b3


def play(writer: Writer, seed: int) -> None:
    """A worker: plays without end, and looks for new weights at every step."""
    envs = need("gymnasium").make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
    rng = np.random.default_rng(seed)
    obs, _ = envs.reset(seed=seed)
    subscriber = writer.subscriber()
    weights, steps = subscriber.latest(), 0
    while True:
        subscriber.poll(into=weights)
        epsilon = max(LEAST_EPSILON, 1.0 - steps / EXPLORE_STEPS)
        action = values_of(weights, obs).argmax(1)
        action = np.where(rng.random(ENVS) < epsilon, rng.integers(0, 2, ENVS), action)
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        step = {"obs": obs, "action": action, "reward": reward.astype(np.float32)}
        writer.add_vector(step, terminated, truncated, "next_step", final={"obs": next_obs})
        obs, steps = next_obs, steps + ENVS


# --- in the learner


def network(torch: Any) -> Any:
    """The value of each action in a state."""
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))


def tables_of(uniform: bool) -> list[Table]:
    """The transitions to learn from; and the episodes as a queue, for their returns."""
    limiter = SampleToInsertRatio(DRAWS_PER_STEP, FIRST_STEPS, error_buffer=DRAWS_PER_STEP * 100 + BATCH)
    return [
        Table(
            "train",
            sampler=Uniform() if uniform else Prioritized(alpha=0.6, beta=0.4),
            rate_limiter=limiter,
            item=NStep(N_STEPS, GAMMA, observation=["obs"]),
        ),
        Table("episodes", sampler=Fifo(), max_times_sampled=1, item=Episode(max_length=500)),
    ]


def learn(args: argparse.Namespace) -> int:
    """The learner."""
    torch = need("torch")
    torch.set_num_threads(1)  # the other processor is the workers'
    torch.manual_seed(args.seed)
    online, frozen = network(torch), network(torch)
    frozen.load_state_dict(online.state_dict())
    weights = list(online.parameters())
    optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE, fused=True)

    def update(data: dict[str, Any], weight: Any) -> Any:
        """Returns the absolute errors, which become the items' priorities."""
        with torch.no_grad():
            best = online(data["next"]["obs"]).argmax(1, keepdim=True)
            future = frozen(data["next"]["obs"]).gather(1, best)[:, 0]
            target = data["reward"] + data["discount"] * future
        value = online(data["obs"]).gather(1, data["action"][:, None])[:, 0]
        loss = (weight * torch.nn.functional.smooth_l1_loss(value, target, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 10.0)
        optimizer.step()
        return (value.detach() - target).abs()

    progress, updates = Progress(args), 0
    with Replay(STEP, CAPACITY, tables_of(args.uniform), seed=args.seed) as replay:
        publisher = replay.publisher(weights)
        publisher.publish(weights)
        with replay.spawn(play, args.workers, seeds_of(args)):
            while not progress.over:
                batch: Any = replay.sample(BATCH, "train", beta=1.0 - 0.6 * progress.left)
                data: Any = tree_map(torch.as_tensor, batch.data)
                errors = update(data, torch.as_tensor((batch.weight / batch.weight.max()).astype(np.float32)))
                if not args.uniform:
                    replay.update(batch.key, errors.numpy() + 1e-3, "train")
                updates += 1
                with torch.no_grad():
                    for slow, fast in zip(frozen.parameters(), weights, strict=True):
                        slow.lerp_(fast, FOLLOW)
                if updates % PUBLISH_EVERY == 0:
                    optimizer.param_groups[0]["lr"] = LEARNING_RATE * progress.left
                    publisher.publish(weights)
                    info: Any = replay.info()
                    ended: Any = replay.sample(info["episodes"].size, "episodes") if info["episodes"].size else None
                    returns = ended.data["reward"].sum(1) if ended else []
                    progress.add(info["train"].inserted - progress.steps, returns)
    return progress.finish()


if __name__ == "__main__":
    parser = arguments(__doc__, steps=300_000, target=475.0)
    parser.add_argument("--uniform", action="store_true", help="draw every transition with the same probability")
    run(learn, parser)
