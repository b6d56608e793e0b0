"""IMPALA on CartPole, with PyTorch: workers never wait for weights, and V-trace makes up for their age.

    python -m echo_shm.examples.impala --seed 1 --plot impala.svg
    python -m echo_shm.examples.impala --seed 1 --lag 20    # workers that look for new weights at every 20th rollout
    python -m echo_shm.examples.impala --env MiniGrid-DoorKey-5x5-v0 --gamma 0.99 --entropy 0.01 --scale 5 --every 2048

Each rollout is stamped with the version of the weights that played it. The learner leaves out what is older than
``--max-age`` versions, and corrects the rest by how likely its own policy is to have acted the same (Espeholt et al.,
"IMPALA", 2018, equation 1).
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from echo_shm import Server, ShmClient
from echo_shm.examples.common import Progress, arguments, need, run, seeds_of

ENVS, HORIZON = 8, 16  # of a worker: how many environments, and how many steps of each are a rollout
BATCH = 1  # rollouts
MOST_RHO, MOST_C = 1.0, 1.0


def make_envs(env: str, n: int) -> Any:
    """Environments whose observations are vectors, and whose actions are numbers."""
    if env == "CartPole-v1":
        return need("gymnasium").make_vec(env, n, vectorization_mode="vector_entry_point")
    return need("echo_shm.planning.training.environments").make_vector(env, n)  # one-hot, or flat


def rollout_of(obs: int) -> dict[str, Any]:
    """One rollout. The last row of ``obs`` is what the last action has led to."""
    return {
        "obs": np.zeros((HORIZON + 1, ENVS, obs), np.float32),
        "action": np.zeros((HORIZON, ENVS), np.int64),
        "log_prob": np.zeros((HORIZON, ENVS), np.float32),
        "reward": np.zeros((HORIZON, ENVS), np.float32),
        "terminated": np.zeros((HORIZON, ENVS), np.bool_),
        "truncated": np.zeros((HORIZON, ENVS), np.bool_),
        "is_reset": np.zeros((HORIZON, ENVS), np.bool_),  # this row resets an environment, and is no step
        # Where an episode ends; elsewhere nan. In float32 the least number above 0 that --success takes would be 0.
        "episode_return": np.zeros((HORIZON, ENVS), np.float64),
    }


# --- in the workers: numpy alone


def logits_of(weights: list[Any], obs: Any) -> Any:
    """The policy: two layers of tanh. The weights are those of ``networks()``."""
    w1, b1, w2, b2, w3, b3 = weights
    return np.tanh(np.tanh(obs @ w1.T + b1) @ w2.T + b2) @ w3.T + b3


def drawn(weights: list[Any], obs: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Actions of the policy, and the logarithms of their probabilities."""
    logits = logits_of(weights, obs)
    action = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return action, log_probs[np.arange(len(action)), action]


def play(client: ShmClient, seed: int, env: str, lag: int) -> None:
    """A worker: plays without end. Before every ``lag``-th rollout it takes the latest weights."""
    envs = make_envs(env, ENVS)
    rng = np.random.default_rng(seed)
    obs, _ = envs.reset(seed=seed)
    over, returns = np.zeros(ENVS, bool), np.zeros(ENVS)
    subscriber = client.subscriber()
    weights, rollouts = subscriber.latest(), 0
    while True:
        if rollouts % lag == 0:
            subscriber.poll(into=weights)
        rollouts += 1
        with client.reserve() as rollout:
            for t in range(HORIZON):
                rollout["obs"][t] = obs
                action, rollout["log_prob"][t] = drawn(weights, obs, rng)
                rollout["action"][t] = action
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


def networks(torch: Any, obs: int, actions: int) -> tuple[Any, Any]:
    """The policy, and the value of a state."""

    def network(outputs: int) -> Any:
        nn = torch.nn
        return nn.Sequential(nn.Linear(obs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    return network(actions), network(1)


def v_trace(torch: Any, args: argparse.Namespace, batch: dict[str, Any], ratio: Any, values: Any) -> tuple[Any, Any]:
    """The values to learn, and the advantages. ``values`` has a row more than the steps: (B, HORIZON + 1, ENVS)."""
    reward, gamma = args.scale * batch["reward"], args.gamma
    going_on = ~batch["terminated"]
    same_episode = going_on & ~batch["truncated"]
    rho, c = ratio.clamp(max=MOST_RHO), args.trace * ratio.clamp(max=MOST_C)
    deltas = rho * (reward + gamma * values[:, 1:] * going_on - values[:, :-1])
    above = torch.zeros_like(values)  # by how much the target is above the value; of the step after the last one: 0
    for t in reversed(range(HORIZON)):
        above[:, t] = deltas[:, t] + gamma * c[:, t] * same_episode[:, t] * above[:, t + 1]
    # An episode's last observation begins no step of it, so its value stays as it is.
    following = values[:, 1:] + above[:, 1:] * same_episode
    advantage = rho * (reward + gamma * following * going_on - values[:, :-1])
    return (values + above)[:, :-1], advantage


def evaluation_seed(seed: int, last: bool = False) -> int:
    """The seed of an evaluation. Those of neighbouring runs are far apart, as each environment has the next one."""
    return 2**30 + 2**29 * last + seed * 1_000_003 % 2**28


def evaluate(weights: list[Any], args: argparse.Namespace, seed: int) -> dict[str, float]:
    """Plays episodes that nobody learns from, as many in each environment. The same seed plays the same ones."""
    n = min(args.episodes, 16)
    envs, rng, each = make_envs(args.env, n), np.random.default_rng(seed), -(-args.episodes // n)
    arrays = [weight.detach().numpy() for weight in weights]
    obs, _ = envs.reset(seed=seed)
    over, returns, count, ended = np.zeros(n, bool), np.zeros(n), np.zeros(n, int), []
    while count.min() < each:
        obs, reward, terminated, truncated, _ = envs.step(drawn(arrays, obs, rng)[0])
        returns = np.where(over, 0.0, returns + reward)
        over = terminated | truncated
        ended += returns[over & (count < each)].tolist()
        count += over
    envs.close()
    rate = float(np.mean(np.array(ended) >= args.success))
    return {"success_rate": rate, "avg_reward": float(np.mean(ended)), "episodes": float(len(ended))}


def learn(args: argparse.Namespace) -> int:
    """The learner."""
    torch = need("torch")
    torch.set_num_threads(1)  # the other processor is the workers'
    torch.manual_seed(args.seed)
    some = make_envs(args.env, 1)
    obs, actions = some.single_observation_space.shape[0], int(some.single_action_space.n)
    some.close()
    policy, value = networks(torch, obs, actions)
    weights = list(policy.parameters())
    optimizer = torch.optim.Adam([*weights, *value.parameters()], lr=args.learning_rate, fused=True)

    def update(batch: dict[str, Any]) -> None:
        log_probs = policy(batch["obs"][:, :-1]).log_softmax(-1)
        log_prob = log_probs.gather(-1, batch["action"][..., None])[..., 0]
        values = value(batch["obs"])[..., 0]
        with torch.no_grad():
            target, advantage = v_trace(torch, args, batch, (log_prob - batch["log_prob"]).exp(), values)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        steps = ~batch["is_reset"]
        losses = -log_prob * advantage + 0.5 * (values[:, :-1] - target).square() - args.entropy * entropy
        optimizer.zero_grad()
        losses[steps].mean().backward()
        for network in (policy, value):
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()

    progress, ages, began, successes = Progress(args), [], time.monotonic(), 0
    history: list[dict[str, float]] = []
    with Server(rollout_of(obs), batch_size=BATCH, num_buffers=args.buffers, writable=True) as server:
        publisher = server.publisher(weights)
        publisher.publish(weights)
        each = [args.env] * args.workers, [args.lag] * args.workers
        with server.spawn(play, args.workers, seeds_of(args), *each) as workers:
            for batch, info in server.dataset_iter(until=workers, max_age=args.max_age):
                update({name: torch.as_tensor(leaf) for name, leaf in batch.items()})  # no copy
                before = progress.steps
                progress.add(int((~batch["is_reset"]).sum()), batch["episode_return"].ravel())
                successes += int((batch["episode_return"] >= args.success).sum())
                ages.append(info.age_max)
                if args.every and (progress.steps // args.every > before // args.every or progress.over):
                    history.append({"timesteps": progress.steps, **evaluate(weights, args, evaluation_seed(args.seed))})
                if progress.over or (history and history[-1]["success_rate"] >= args.stop):
                    break
                if args.anneal:
                    optimizer.param_groups[0]["lr"] = args.learning_rate * progress.left
                publisher.publish(weights)
    if args.json:
        last = evaluate(weights, args, evaluation_seed(args.seed, last=True))
        said = {"timesteps": progress.steps, "successes": successes, "seconds": time.monotonic() - began}
        Path(args.json).write_text(json.dumps({**said, "history": history, "last": last}), encoding="utf-8")
    return progress.finish(
        f"; weights {np.mean(ages):.1f} versions old, at most {max(ages)}; {info.too_old} rollouts left out"
    )


if __name__ == "__main__":
    parser = arguments(__doc__, steps=400_000, target=475.0)
    parser.add_argument("--env", default="CartPole-v1", help="of Gymnasium, with discrete actions (%(default)s)")
    parser.add_argument("--lag", type=int, default=1, help="rollouts that a worker plays with the same weights")
    parser.add_argument("--max-age", type=int, default=20, help="versions after which a rollout is too old")
    parser.add_argument("--buffers", type=int, default=4, help="batches that the ring holds")
    for name, number, what in (
        ("gamma", 0.98, "how much a later reward counts"),
        ("trace", 0.9, "lambda of V-trace"),
        ("entropy", 0.001, "what the entropy counts in the loss"),
        ("learning-rate", 2e-3, "at first"),
        ("scale", 0.05, "of rewards"),
        ("success", 475.0, "the return that makes an episode a success"),
        ("stop", math.inf, "success rate of an evaluation at which training ends"),
    ):
        parser.add_argument(f"--{name}", type=float, default=number, help=f"{what} (%(default)s)")
    anneal = "whether the learning rate falls to 0 over the steps (%(default)s)"
    parser.add_argument("--anneal", action=argparse.BooleanOptionalAction, default=True, help=anneal)
    parser.add_argument("--every", type=int, default=0, help="steps between two evaluations; 0: none (%(default)s)")
    parser.add_argument("--episodes", type=int, default=32, help="of an evaluation (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the evaluations, and a last one, into this file")
    run(learn, parser)
