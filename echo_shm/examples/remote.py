"""Workers on another host, with PyTorch: rollouts come over TCP, weights go back, and a cut link ends nothing.

    sudo python -m echo_shm.examples.remote --seed 1 --plot remote.svg

The other host is a network namespace of this machine, with a cable to it that is pulled for some seconds while the
workers play; that takes root and iproute2. Without them, the workers connect over loopback, and no link is cut. On a
real host run, with the learner's address and key:

    ECHO_SHM_KEY=... python -m echo_shm.examples.remote --worker tcp://HOST:PORT
"""

import argparse
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

import echo_shm
from echo_shm import Server, TcpTransport
from echo_shm.examples.common import Progress, arguments, need, run

ENVS, HORIZON = 8, 16  # of a worker: how many environments, and how many steps of each are a rollout
BATCH, MAX_AGE = 1, 20  # rollouts, and how many versions their weights may be old
GAMMA, LAMBDA, ENTROPY, LEARNING_RATE, REWARD = 0.98, 0.9, 0.001, 1e-3, 0.05
HERE, THERE = "10.99.7.1", "10.99.7.2"  # both ends of the cable

#: One rollout. The last row of ``obs`` is what the last action has led to.
ROLLOUT: dict[str, Any] = {
    "obs": np.zeros((HORIZON + 1, ENVS, 4), np.float32),
    "action": np.zeros((HORIZON, ENVS), np.int64),
    "log_prob": np.zeros((HORIZON, ENVS), np.float32),
    "reward": np.zeros((HORIZON, ENVS), np.float32),
    "terminated": np.zeros((HORIZON, ENVS), np.bool_),
    "truncated": np.zeros((HORIZON, ENVS), np.bool_),
    "is_reset": np.zeros((HORIZON, ENVS), np.bool_),  # this row resets an environment, and is no step
    "episode_return": np.zeros((HORIZON, ENVS), np.float32),  # where an episode ends; elsewhere nan
}


# --- on the other host: numpy alone


def logits_of(weights: list[Any], obs: Any) -> Any:
    """The policy: two layers of tanh. The weights are those of ``networks()``."""
    w1, b1, w2, b2, w3, b3 = weights
    return np.tanh(np.tanh(obs @ w1.T + b1) @ w2.T + b2) @ w3.T + b3


def play(address: str, seed: int) -> NoReturn:
    """A worker: plays without end, each rollout with the newest weights that have come."""
    envs = need("gymnasium").make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
    rng, rollout = np.random.default_rng(seed), {name: leaf.copy() for name, leaf in ROLLOUT.items()}
    obs, _ = envs.reset(seed=seed)
    over, returns = np.zeros(ENVS, bool), np.zeros(ENVS, np.float32)
    key = bytes.fromhex(os.environ["ECHO_SHM_KEY"])
    with echo_shm.connect(address, ROLLOUT, authkey=key) as client:
        subscriber = client.subscriber()
        weights = subscriber.latest()
        while True:
            subscriber.poll(into=weights)
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
            client.send(rollout)  # it carries the version of its weights
            client.wait()  # until it is in the ring: the client would send ahead, with weights that grow old


# --- the other host


@contextlib.contextmanager
def other_host(args: argparse.Namespace) -> Iterator[tuple[str, list[str], Any]]:
    """Another host with a cable to this one: this end's address, what runs a command there, and what sets the link."""
    if os.geteuid() != 0 or shutil.which("ip") is None or args.loopback:
        print("workers connect over loopback: another network namespace takes root and iproute2", file=sys.stderr)
        yield "127.0.0.1", [], None
        return
    name = f"echo-{os.getpid()}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "cable", "netns", name)
        ip("addr", "add", f"{HERE}/24", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "addr", "add", f"{THERE}/24", "dev", "cable")
        ip("-n", name, "link", "set", "cable", "up")
        yield HERE, ["ip", "netns", "exec", name], lambda state: ip("link", "set", name, state)
    finally:
        ip("netns", "del", name)  # and the cable


@contextlib.contextmanager
def workers_on(there: list[str], address: str, key: bytes, args: argparse.Namespace) -> Iterator[None]:
    """Starts the workers there, and ends them."""
    command = [*there, sys.executable, "-m", "echo_shm.examples.remote", "--worker", address]
    started = [
        subprocess.Popen([*command, "--seed", str(args.seed * 1000 + i)], env={**os.environ, "ECHO_SHM_KEY": key.hex()})
        for i in range(args.workers)
    ]
    try:
        yield
    finally:
        for worker in started:
            worker.kill()
            worker.wait()


# --- the learner


def networks(torch: Any) -> tuple[Any, Any]:
    """The policy, and the value of a state."""

    def network(outputs: int) -> Any:
        nn = torch.nn
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    return network(2), network(1)


def v_trace(torch: Any, batch: dict[str, Any], ratio: Any, values: Any) -> tuple[Any, Any]:
    """The values to learn, and the advantages (Espeholt et al., "IMPALA", 2018, equation 1)."""
    going_on = ~batch["terminated"]
    same_episode = going_on & ~batch["truncated"]
    rho = ratio.clamp(max=1.0)
    deltas = rho * (REWARD * batch["reward"] + GAMMA * values[:, 1:] * going_on - values[:, :-1])
    above = torch.zeros_like(values)  # by how much the target is above the value; of the step after the last one: 0
    for t in reversed(range(HORIZON)):
        above[:, t] = deltas[:, t] + GAMMA * LAMBDA * rho[:, t] * same_episode[:, t] * above[:, t + 1]
    following = values[:, 1:] + above[:, 1:] * same_episode
    advantage = rho * (REWARD * batch["reward"] + GAMMA * following * going_on - values[:, :-1])
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
        losses = -log_prob * advantage + 0.5 * (values[:, :-1] - target).square() - ENTROPY * entropy
        optimizer.zero_grad()
        losses[~batch["is_reset"]].mean().backward()
        for network in (policy, value):
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()

    progress, ages, key, cut_at = Progress(args), [0], secrets.token_bytes(16), args.steps * args.cut_at
    with other_host(args) as (host, there, set_link), contextlib.ExitStack() as stack:
        server = stack.enter_context(
            Server(ROLLOUT, BATCH, num_buffers=4, writable=True, transport=TcpTransport(0, host=host, authkey=key))
        )
        publisher = server.publisher(weights)
        publisher.publish(weights)
        server.start()
        stack.enter_context(workers_on(there, f"tcp://{host}:{server.port}", key, args))
        # Copies: old rollouts may be left out for long while the last one is in use, and it must not hold up the ring.
        for sample in server.dataset_iter(max_age=MAX_AGE, copy=True):
            batch = sample.batch
            ages.append(int((publisher.version - sample.versions).max()))
            update({name: torch.as_tensor(leaf) for name, leaf in batch.items()})
            progress.add(int((~batch["is_reset"]).sum()), batch["episode_return"].ravel())
            if progress.over:
                break
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * progress.left
            publisher.publish(weights)
            if set_link is not None and progress.steps >= cut_at:
                print(f"{progress.steps:>9,} steps  the link is cut for {args.cut:g} s", flush=True)
                set_link("down")
                threading.Timer(args.cut, set_link, ["up"]).start()
                cut_at = float("inf")
    return progress.finish(f"; weights were at most {max(ages)} versions old")


def main() -> None:
    """Runs the learner, or a worker."""
    parser = arguments(__doc__, steps=800_000, target=475.0)
    parser.add_argument("--worker", metavar="ADDRESS", help="play for the learner at that address")
    parser.add_argument("--cut", type=float, default=5.0, help="seconds for which the link is cut (%(default)s)")
    parser.add_argument("--cut-at", type=float, default=0.1, help="after which part of the steps (%(default)s)")
    parser.add_argument("--loopback", action="store_true", help="make no other network namespace")
    run(lambda args: play(args.worker, args.seed) if args.worker else learn(args), parser)


if __name__ == "__main__":
    main()
