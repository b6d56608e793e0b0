"""PPO on CartPole, with JAX: one compiled function learns from a batch of the ring.

    python -m echo_shm.examples.jax_ppo --seed 1 --plot jax_ppo.svg

A worker plays a rollout with the latest weights, writes it into the ring itself, and waits for the next weights. A
batch is one rollout of each worker. The compiled function reads it where the workers wrote it: its arrays are not
copied, and stay as they are until the computation is done.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from echo_shm import Server, ShmClient
from echo_shm.examples.common import Progress, arguments, need, run, seeds_of

ENVS, HORIZON = 8, 32  # of a worker: how many environments, and how many steps of each are a rollout
GAMMA, LAMBDA = 0.98, 0.8
EPOCHS, MINIBATCHES, LEARNING_RATE, CLIP = 20, 2, 1e-3, 0.2

#: One rollout. The last row of ``obs`` is what the last action has led to. JAX makes 32 bits of 64.
ROLLOUT = {
    "obs": np.zeros((HORIZON + 1, ENVS, 4), np.float32),
    "action": np.zeros((HORIZON, ENVS), np.int32),
    "log_prob": np.zeros((HORIZON, ENVS), np.float32),
    "reward": np.zeros((HORIZON, ENVS), np.float32),
    "terminated": np.zeros((HORIZON, ENVS), np.bool_),
    "truncated": np.zeros((HORIZON, ENVS), np.bool_),
    "is_reset": np.zeros((HORIZON, ENVS), np.bool_),  # this row resets an environment, and is no step
    "episode_return": np.zeros((HORIZON, ENVS), np.float32),  # where an episode ends; elsewhere nan
}


def network(layers: Any, x: Any, tanh: Callable[[Any], Any]) -> Any:
    """The network of workers (of numpy's arrays) and learner (of JAX's)."""
    for weight, bias in layers[:-1]:
        x = tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def play(client: ShmClient, seed: int) -> None:
    """A worker: a rollout with each version of the weights, until the learner stops it. It needs no JAX."""
    envs = need("gymnasium").make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
    rng = np.random.default_rng(seed)
    obs, _ = envs.reset(seed=seed)
    over, returns = np.zeros(ENVS, bool), np.zeros(ENVS, np.float32)
    subscriber = client.subscriber()
    while True:
        subscriber.wait(subscriber.version + 1)
        layers = subscriber.latest()
        with client.reserve() as rollout:
            for t in range(HORIZON):
                logits = network(layers, obs, np.tanh)
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


def first_layers(rng: np.random.Generator, outputs: int) -> list[Any]:
    """Weights of a network with two hidden layers."""
    sizes = [4, 64, 64, outputs]
    return [
        (rng.normal(0, (1 / before) ** 0.5, (before, after)).astype(np.float32), np.zeros(after, np.float32))
        for before, after in itertools.pairwise(sizes)
    ]


def compiled(jax: Any) -> Callable[..., Any]:
    """``update(state, batch, key, left)`` returns the next state: the weights, two moments of Adam, and a count."""
    jnp, tree_map = jax.numpy, jax.tree.map

    def value_of(params: Any, obs: Any) -> Any:
        return network(params["value"], obs, jnp.tanh)[..., 0]

    def advantages_of(batch: Any, values: Any) -> Any:
        """Generalized advantage estimation (Schulman et al., 2016), backwards over the time, which is axis 1."""
        going_on = ~batch["terminated"]
        deltas = batch["reward"] + GAMMA * values[:, 1:] * going_on - values[:, :-1]
        decays = GAMMA * LAMBDA * (going_on & ~batch["truncated"])

        def back(advantage: Any, row: Any) -> Any:
            advantage = row[0] + row[1] * advantage
            return advantage, advantage

        rows = jnp.swapaxes(deltas, 0, 1), jnp.swapaxes(decays, 0, 1)
        return jnp.swapaxes(jax.lax.scan(back, jnp.zeros_like(values[:, 0]), rows, reverse=True)[1], 0, 1)

    def loss_of(params: Any, rows: Any, clip: Any) -> Any:
        log_probs = jax.nn.log_softmax(network(params["policy"], rows["obs"], jnp.tanh))
        log_prob = jnp.take_along_axis(log_probs, rows["action"][:, None], 1)[:, 0]
        ratio, step = jnp.exp(log_prob - rows["log_prob"]), rows["step"]
        mean = jnp.average(rows["advantage"], weights=step)
        gain = (rows["advantage"] - mean) / jnp.sqrt(jnp.average((rows["advantage"] - mean) ** 2, weights=step) + 1e-8)
        losses = -jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - clip, 1 + clip) * gain)
        losses += 0.5 * (value_of(params, rows["obs"]) - rows["target"]) ** 2
        return jnp.average(losses, weights=step)

    def adam(state: Any, grads: Any, rate: Any) -> Any:
        params, first, second, count = state
        norm = jnp.sqrt(sum((grad**2).sum() for grad in jax.tree.leaves(grads)))
        grads = tree_map(lambda grad: grad * jnp.minimum(1.0, 0.5 / (norm + 1e-8)), grads)
        first = tree_map(lambda mean, grad: 0.9 * mean + 0.1 * grad, first, grads)
        second = tree_map(lambda mean, grad: 0.999 * mean + 0.001 * grad**2, second, grads)
        count, rate = count + 1, rate * jnp.sqrt(1 - 0.999 ** (count + 1)) / (1 - 0.9 ** (count + 1))
        params = tree_map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second)
        return params, first, second, count

    def update(state: Any, batch: Any, key: Any, left: Any) -> Any:
        values = value_of(state[0], batch["obs"])
        advantage = advantages_of(batch, values)
        rows = {"obs": batch["obs"][:, :-1], "action": batch["action"], "log_prob": batch["log_prob"]}
        rows |= {"advantage": advantage, "target": advantage + values[:, :-1], "step": ~batch["is_reset"] * 1.0}
        rows = {name: leaf.reshape(-1, *leaf.shape[3:]) for name, leaf in rows.items()}

        def learn_from(state: Any, picked: Any) -> Any:
            minibatch = {name: leaf[picked] for name, leaf in rows.items()}
            grads = jax.grad(loss_of)(state[0], minibatch, CLIP * left)
            return adam(state, grads, LEARNING_RATE * left), None

        order = jax.vmap(lambda one: jax.random.permutation(one, len(rows["obs"])))(jax.random.split(key, EPOCHS))
        return jax.lax.scan(learn_from, state, order.reshape(EPOCHS * MINIBATCHES, -1))[0]

    return jax.jit(update)  # type: ignore[no-any-return]


def learn(args: argparse.Namespace) -> int:
    """The learner."""
    jax = need("jax")
    from echo_shm.adapters.jax import batches  # here, because a worker needs no JAX

    rng, key, update = np.random.default_rng(args.seed), jax.random.key(args.seed), compiled(jax)
    params = {"policy": first_layers(rng, 2), "value": first_layers(rng, 1)}
    zeros = jax.tree.map(np.zeros_like, params)
    state, progress = (params, zeros, zeros, np.int32(0)), Progress(args)
    with Server(ROLLOUT, batch_size=args.workers, num_buffers=2) as server:
        publisher = server.publisher(params["policy"])
        publisher.publish(params["policy"])
        with server.spawn(play, args.workers, seeds_of(args)) as workers:
            for batch, _ in batches(server, until=workers):
                key, mine = jax.random.split(key)
                state = update(state, batch, mine, progress.left)
                progress.add(int((~batch["is_reset"]).sum()), np.asarray(batch["episode_return"]).ravel())
                if progress.over:
                    break
                publisher.publish(state[0]["policy"])  # waits for the computation
    return progress.finish()


if __name__ == "__main__":
    run(learn, arguments(__doc__, steps=300_000, target=475.0))
