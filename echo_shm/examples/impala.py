"""IMPALA on CartPole, with PyTorch: workers never wait for weights, and V-trace makes up for their age.

    python -m echo_shm.examples.impala --seed 1 --plot impala.svg
    python -m echo_shm.examples.impala --seed 1 --lag 20    # workers that look for new weights at every 20th rollout

Each rollout is stamped with the version of the weights that played it. The learner leaves out what is older than
``--max-age`` versions, and corrects the rest by how likely its own policy is to have acted the same (Espeholt et al.,
"IMPALA", 2018, equation 1).
"""

import argparse
from typing import Any

import numpy as np

from echo_shm import Server, ShmClient
from echo_shm.examples.common import Progress, arguments, need, run, seeds_of

ENVS, HORIZON = 8, 16  # of a worker: how many environments, and how many steps of each are a rollout
BATCH = 1  # rollouts
GAMMA, LAMBDA, MOST_RHO, MOST_C = 0.98, 0.9, 1.0, 1.0
ENTROPY, LEARNING_RATE, SCALE = 0.001, 2e-3, 0.05  # of rewards

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


def play(client: ShmClient, seed: int, lag: int) -> None:
    """A worker: plays without end. Before every ``lag``-th rollout it takes the latest weights."""
    envs = need("gymnasium").make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
    rng = np.random.default_rng(seed)
    obs, _ = envs.reset(seed=seed)
    over, returns = np.zeros(ENVS, bool), np.zeros(ENVS, np.float32)
    subscriber = client.subscriber()
    weights, rollouts = subscriber.latest(), 0
    while True:
        if rollouts % lag == 0:
            subscriber.poll(into=weights)
        rollouts += 1
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


def v_trace(torch: Any, batch: dict[str, Any], ratio: Any, values: Any) -> tuple[Any, Any]:
    """The values to learn, and the advantages. ``values`` has a row more than the steps: (B, HORIZON + 1, ENVS)."""
    going_on = ~batch["terminated"]
    same_episode = going_on & ~batch["truncated"]
    rho, c = ratio.clamp(max=MOST_RHO), LAMBDA * ratio.clamp(max=MOST_C)
    deltas = rho * (SCALE * batch["reward"] + GAMMA * values[:, 1:] * going_on - values[:, :-1])
    above = torch.zeros_like(values)  # by how much the target is above the value; of the step after the last one: 0
    for t in reversed(range(HORIZON)):
        above[:, t] = deltas[:, t] + GAMMA * c[:, t] * same_episode[:, t] * above[:, t + 1]
    # An episode's last observation begins no step of it, so its value stays as it is.
    following = values[:, 1:] + above[:, 1:] * same_episode
    advantage = rho * (SCALE * batch["reward"] + GAMMA * following * going_on - values[:, :-1])
    return (values + above)[:, :-1], advantage


def learn(args: argparse.Namespace) -> int:
    """The learner."""
    torch = need("torch")
    torch.set_num_threads(1)  # the other processor is the workers'
    torch.manual_seed(args.seed)
    policy, value = networks(torch)
    weights = list(policy.parameters())
    optimizer = torch.optim.Adam([*weights, *value.parameters()], lr=LEARNING_RATE, fused=True)

    def update(batch: dict[str, Any]) -> None:
        log_probs = policy(batch["obs"][:, :-1]).log_softmax(-1)
        log_prob = log_probs.gather(-1, batch["action"][..., None])[..., 0]
        values = value(batch["obs"])[..., 0]
        with torch.no_grad():
            target, advantage = v_trace(torch, batch, (log_prob - batch["log_prob"]).exp(), values)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        steps = ~batch["is_reset"]
        losses = -log_prob * advantage + 0.5 * (values[:, :-1] - target).square() - ENTROPY * entropy
        optimizer.zero_grad()
        losses[steps].mean().backward()
        for network in (policy, value):
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()

    progress, ages = Progress(args), []
    with Server(ROLLOUT, batch_size=BATCH, num_buffers=args.buffers, writable=True) as server:
        publisher = server.publisher(weights)
        publisher.publish(weights)
        with server.spawn(play, args.workers, seeds_of(args), [args.lag] * args.workers) as workers:
            for batch, info in server.dataset_iter(until=workers, max_age=args.max_age):
                update({name: torch.as_tensor(leaf) for name, leaf in batch.items()})  # no copy
                progress.add(int((~batch["is_reset"]).sum()), batch["episode_return"].ravel())
                ages.append(info.age_max)
                if progress.over:
                    break
                optimizer.param_groups[0]["lr"] = LEARNING_RATE * progress.left
                publisher.publish(weights)
    return progress.finish(
        f"; weights {np.mean(ages):.1f} versions old, at most {max(ages)}; {info.too_old} rollouts left out"
    )


if __name__ == "__main__":
    parser = arguments(__doc__, steps=400_000, target=475.0)
    parser.add_argument("--lag", type=int, default=1, help="rollouts that a worker plays with the same weights")
    parser.add_argument("--max-age", type=int, default=20, help="versions after which a rollout is too old")
    parser.add_argument("--buffers", type=int, default=4, help="batches that the ring holds")
    run(learn, parser)
