"""PPO on CartPole, with PyTorch: workers play, the learner maps what they have played, and the weights go back.

    python -m echo_shm.examples.ppo --seed 1 --plot ppo.svg

A worker plays a rollout with the latest weights, writes it into the ring itself, and waits for the next weights. A
batch is one rollout of each worker, so all of it is played with the weights that the learner has just published.
"""

import argparse
from typing import Any

import numpy as np

from echo_shm import Server, ShmClient
from echo_shm.examples.common import Progress, arguments, need, run, seeds_of

ENVS, HORIZON = 8, 32  # of a worker: how many environments, and how many steps of each are a rollout
GAMMA, LAMBDA = 0.98, 0.8
EPOCHS, MINIBATCH, LEARNING_RATE, CLIP = 20, 256, 1e-3, 0.2

#: One rollout. The last row of ``obs`` is what the last action has led to.
ROLLOUT = {
    "obs": np.zeros((HORIZON + 1, ENVS, 4), np.float32),
    "action": np.zeros((HORIZON, ENVS), np.int64),
    "log_prob": np.zeros((HORIZON, ENVS), np.float32),
    "reward": np.zeros((HORIZON, ENVS), np.float32),
    "terminated": np.zeros((HORIZON, ENVS), np.bool_),
    "truncated": np.zeros((HORIZON, ENVS), np.bool_),
    "is_reset": np.zeros((HORIZON, ENVS), np.bool_),  # this row resets an environment, and is no step
    "episode_return": np.zeros((HORIZON, ENVS), np.float32),  # where an episode ends; elsewhere nan
}


# --- in the workers: numpy alone


def logits_of(weights: list[Any], obs: Any) -> Any:
    """The policy: two layers of tanh. The weights are those of ``networks()``."""
    w1, b1, w2, b2, w3, b3 = weights
    return np.tanh(np.tanh(obs @ w1.T + b1) @ w2.T + b2) @ w3.T + b3


def play(client: ShmClient, seed: int) -> None:
    """A worker: a rollout with each version of the weights, until the learner stops it."""
    envs = need("gymnasium").make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
    rng = np.random.default_rng(seed)
    obs, _ = envs.reset(seed=seed)
    over, returns = np.zeros(ENVS, bool), np.zeros(ENVS, np.float32)
    subscriber = client.subscriber()
    while True:
        subscriber.wait(subscriber.version + 1)
        weights = subscriber.latest()
        with client.reserve() as rollout:
            for t in range(HORIZON):
                logits = logits_of(weights, obs)
                action = (logits + rng.gumbel(size=logits.shape)).argmax(1)
                log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
                rollout["obs"][t] = obs
                rollout["action"][t] = action
                rollout["log_prob"][t] = log_probs[np.arange(ENVS), action]
                rollout["is_reset"][t] = over
                obs, reward, terminated, truncated, _ = envs.step(action)
                returns = np.where(over, 0.0, returns + reward)
                over = terminated | truncated
                rollout["reward"][t] = reward
                rollout["terminated"][t] = terminated
                rollout["truncated"][t] = truncated
                rollout["episode_return"][t] = np.where(over, returns, np.nan)
            rollout["obs"][HORIZON] = obs


# --- in the learner


def networks(torch: Any) -> tuple[Any, Any]:
    """The policy, and the value of a state."""

    def network(outputs: int) -> Any:
        nn = torch.nn
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    return network(2), network(1)


def advantages_of(batch: dict[str, Any], values: Any) -> Any:
    """Generalized advantage estimation (Schulman et al., 2016). ``values`` has a row more than the steps."""
    going_on = ~batch["terminated"]
    same_episode = going_on & ~batch["truncated"]
    deltas = batch["reward"] + GAMMA * values[:, 1:] * going_on - values[:, :-1]
    advantage, rows = 0.0, []
    for t in reversed(range(HORIZON)):
        advantage = deltas[:, t] + GAMMA * LAMBDA * same_episode[:, t] * advantage
        rows.append(advantage)
    return rows[::-1]


def learn(args: argparse.Namespace) -> int:
    """The learner."""
    torch = need("torch")
    torch.set_num_threads(1)  # the other processor is the workers'
    torch.manual_seed(args.seed)
    policy, value = networks(torch)
    weights = list(policy.parameters())
    optimizer = torch.optim.Adam([*weights, *value.parameters()], lr=LEARNING_RATE, fused=True)

    def update(batch: dict[str, Any]) -> None:
        with torch.no_grad():
            values = value(batch["obs"]).squeeze(-1)
            advantage = torch.stack(advantages_of(batch, values), 1)
            target = advantage + values[:, :-1]
        steps = ~batch["is_reset"]  # what follows picks those rows, and makes one dimension of the first three
        obs, action, old = batch["obs"][:, :-1][steps], batch["action"][steps], batch["log_prob"][steps]
        advantage, target = advantage[steps], target[steps]
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(obs)).split(MINIBATCH):
                log_prob = policy(obs[rows]).log_softmax(1).gather(1, action[rows, None])[:, 0]
                ratio = (log_prob - old[rows]).exp()
                gain = advantage[rows]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clipped = ratio.clamp(1 - CLIP * progress.left, 1 + CLIP * progress.left)
                loss = -torch.min(ratio * gain, clipped * gain).mean()
                loss = loss + 0.5 * (value(obs[rows]).squeeze(-1) - target[rows]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_([*weights, *value.parameters()], 0.5)
                optimizer.step()

    progress = Progress(args)
    with Server(ROLLOUT, batch_size=args.workers, num_buffers=2, writable=True) as server:
        publisher = server.publisher(weights)
        publisher.publish(weights)
        with server.spawn(play, args.workers, seeds_of(args)) as workers:
            for batch, _ in server.dataset_iter(until=workers):
                update({name: torch.as_tensor(leaf) for name, leaf in batch.items()})  # no copy
                progress.add(int((~batch["is_reset"]).sum()), batch["episode_return"].ravel())
                if progress.over:
                    break
                optimizer.param_groups[0]["lr"] = LEARNING_RATE * progress.left
                publisher.publish(weights)
    return progress.finish()


if __name__ == "__main__":
    run(learn, arguments(__doc__, steps=300_000, target=475.0))
