"""Where a learner's experience comes from: rollouts as they are played, or a replay. The one place that knows both.

Both have a ring that the learner takes samples of, and so decides how far actors run ahead. Without a replay a sample
is a rollout. With one it is a report of as many rows, which are in the replay already.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from echo_shm.client import ShmClient
from echo_shm.missing import needs
from echo_shm.planning.agents.configs import ReplayConfig
from echo_shm.planning.agents.planner import LatentPlanner
from echo_shm.planning.agents.ppo import PPO, Estimates
from echo_shm.planning.agents.segments import Segments, row_example
from echo_shm.planning.hot_cold import HotColdReplay
from echo_shm.planning.plans import EmaPlan
from echo_shm.planning.surprise import SurpriseWriter
from echo_shm.planning.training import checkpoints
from echo_shm.planning.training.actor import Actor, rollout_example
from echo_shm.planning.training.settings import Settings
from echo_shm.replay import Replay, Sequence, Table
from echo_shm.ring.handle import Handle
from echo_shm.server import Server
from echo_shm.spec import Array
from echo_shm.workers.group import WorkerGroup

with needs("planning.training", "PyTorch", "torch", extra="planning-agents"):
    import torch


class News(NamedTuple):
    """What a sample of the ring says."""

    #: Steps that were played, and of how many some of the text was left out.
    steps: int
    cut_steps: int
    #: The returns of episodes that have ended, and whether each was a success.
    returns: Array
    successes: Array


class Experience(Protocol):
    """What a learner learns from."""

    def shared(self, ppo: PPO) -> EmaPlan:
        """The plan that all share."""
        ...

    def spawn(self, weights: "Weights", first_seed: int) -> "contextlib.AbstractContextManager[WorkerGroup]":
        """Starts the actors with those weights. They are stopped at the end of the block."""
        ...

    def take(self, timeout: float) -> News | None:
        """The next sample of the ring. None: there was none in time."""
        ...

    def due(self, steps: int, updates: int) -> int:
        """How many updates are to be made now that so many steps were played, and so many updates made."""
        ...

    def learn(self, ppo: PPO) -> dict[str, float]:
        """Makes one update."""
        ...

    def publish(self, weights: "Weights") -> None:
        """Gives new weights to the actors."""
        ...

    def checkpoint(self, directory: Path) -> str | None:
        """Writes what is stored below that directory, and returns the name of what it has written, if anything."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


def open_experience(settings: Settings, restored: Path | None = None) -> Experience:
    """The experience that a configuration asks for.

    Args:
        settings: Of the run.
        restored: A checkpoint of a replay to go on with.

    """
    replay = settings.config.replay
    return Rollouts(settings) if replay is None else Replayed(settings, replay, restored)


class Weights(NamedTuple):
    """What actors get from the learner: a pytree of arrays."""

    #: The planner's ``state_dict()``.
    planner: Any
    #: How many updates it has made, int64 ``()``.
    updates: Any
    #: The state of the plan that all share.
    shared: Any

    @classmethod
    def of(cls, planner: LatentPlanner, updates: int, shared: EmaPlan) -> "Weights":
        """Those of a planner on a processor. Tensors are the planner's own memory."""
        return cls(dict(planner.state_dict()), np.array(updates), shared.state)


@contextlib.contextmanager
def _actor(settings: Settings, seed: int) -> Iterator[tuple[Actor, Any]]:
    """An actor of this process, and the tree into which its weights go."""
    torch.set_num_threads(1)  # the other processors are others'
    with contextlib.closing(settings.make_envs(settings.envs)) as envs:
        planner = settings.planner()
        weights = tuple(Weights.of(planner, 0, planner.ema))
        yield Actor(envs, planner, seed, settings.success_return), weights


def _seeds(settings: Settings, first: int) -> list[int]:
    """For each worker a seed. Each of its environments has the next one, and no two environments have the same."""
    return [first + worker * settings.envs for worker in range(settings.workers)]


# --- rollouts ---------------------------------------------------------------------


def play_rollouts(client: ShmClient, settings: Settings, worker: int, seed: int) -> None:
    """A worker: it plays a rollout with each version of the weights, until it is stopped."""
    subscriber = client.subscriber()
    with _actor(settings, seed) as (actor, weights):
        while True:
            subscriber.wait(subscriber.version + 1)
            subscriber.poll(into=weights)
            actor.updates = int(weights[1])
            with client.reserve() as rollout:
                rollout["worker"][...] = worker
                actor.rollout(settings.config.rollout_length, rollout)


class Rollouts:
    """Rollouts as they are played. A batch is one of each worker, all with the weights that were published last.

    If a worker is killed and starts again, it plays once more with the weights at hand. From then on a rollout may be
    a version late, which its log-probabilities account for.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, config = settings, settings.config
        sizes = settings.envs, settings.window, config.rollout_length, settings.state_dim
        example = {**rollout_example(*sizes), "worker": np.zeros((), np.int64)}
        self._server = Server(example, batch_size=settings.workers, num_buffers=2, writable=True)
        self._batch: Mapping[str, Array] | None = None

    def shared(self, ppo: PPO) -> EmaPlan:
        """See :class:`Experience`."""
        return ppo.planner.ema

    @contextlib.contextmanager
    def spawn(self, weights: Weights, first_seed: int) -> Iterator[WorkerGroup]:
        """See :class:`Experience`."""
        self._publisher = self._server.publisher(tuple(weights))
        self.publish(weights)
        n = self._settings.workers
        args = [self._settings] * n, range(n), _seeds(self._settings, first_seed)
        with self._server.spawn(play_rollouts, n, *args, restart=True) as workers:
            yield workers

    def take(self, timeout: float) -> News | None:
        """See :class:`Experience`."""
        self._batch = None  # its place in the ring is free then
        try:
            sample = self._server.sample(timeout)
        except TimeoutError:
            return None
        assert sample is not None, "the ring is open, and workers go on until they are stopped"
        batch: Any = sample.batch
        # In the order of workers, so that the same seeds learn the same. A copy.
        order = np.argsort(batch["worker"], kind="stable")
        self._batch = {name: leaf[order] for name, leaf in batch.items() if name != "worker"}
        return _news(int(self._batch["acted"].sum()), self._batch)

    def due(self, steps: int, updates: int) -> int:
        """See :class:`Experience`."""
        return 1  # for each batch

    def learn(self, ppo: PPO) -> dict[str, float]:
        """See :class:`Experience`."""
        assert self._batch is not None
        rows = {name: self._batch[name].reshape(-1, *self._batch[name].shape[2:]) for name in row_example(0)}
        segments = Segments.of(rows, self._settings.window, _device(ppo))
        losses, estimates = ppo.update(segments, batch_size=self._settings.config.batch_size)
        ppo.planner.ema.update(ppo.planner.mean_plans(segments, estimates.plans))
        return losses

    def publish(self, weights: Weights) -> None:
        """See :class:`Experience`."""
        self._publisher.publish(tuple(weights))

    def checkpoint(self, directory: Path) -> str | None:
        """See :class:`Experience`."""
        return None  # nothing is stored

    def close(self) -> None:
        """See :class:`Experience`."""
        self._batch = None
        self._server.close()


# --- a replay ---------------------------------------------------------------------


def play_into_replay(writer: Any, settings: Settings, seed: int, reports: Handle) -> None:
    """A worker: it plays without end with the latest weights. Each row goes to the replay, and a report to the learner.

    The report waits until the learner takes it. So what is learned from is counted, but for a few rows, and actors do
    not run away from the learner.
    """
    subscriber = writer.subscriber()
    nobody = np.zeros(settings.envs, bool)
    with ShmClient(reports) as client, _actor(settings, seed) as (actor, weights):
        while True:
            if subscriber.poll(into=weights):
                actor.updates = int(weights[1])
                if isinstance(writer, SurpriseWriter):
                    writer.adopt(weights[2])
            played = actor.step()
            row = {**played.row, **_plan_leaf(settings, played.plans)}
            # What an episode ends with is a row like others: its last one.
            writer.add_vector(row, ~row["acted"], nobody, "disabled")
            ends = {"episode_return": played.episode_return, "success": played.success, "cut": played.cut}
            client.send({"steps": np.int64(row["acted"].sum()), **ends})


class Replayed:
    """A replay, from which whole sequences are drawn: by surprise, or uniformly to compare with.

    A sequence overlaps the one before it by the rows that its first windows need, and by the row that its last step has
    led to. So each step is learned from in one sequence of the table.
    """

    def __init__(self, settings: Settings, config: ReplayConfig, restored: Path | None) -> None:
        self._settings, self._config = settings, config
        self._by_surprise = config.sampling == "surprise"
        kind = HotColdReplay if self._by_surprise else Replay
        self.replay: Any = _new_replay(settings, config) if restored is None else kind.restore(restored)
        self._reports = Server(_report_example(settings), batch_size=1, num_buffers=2 * settings.workers)

    def shared(self, ppo: PPO) -> EmaPlan:
        """See :class:`Experience`."""
        return self.replay.ema if self._by_surprise else ppo.planner.ema

    @contextlib.contextmanager
    def spawn(self, weights: Weights, first_seed: int) -> Iterator[WorkerGroup]:
        """See :class:`Experience`."""
        self._publisher = self.replay.publisher(tuple(weights))
        self.publish(weights)
        n = self._settings.workers
        args = [self._settings] * n, _seeds(self._settings, first_seed), [self._reports.handle] * n
        with self.replay.spawn(play_into_replay, n, *args, restart=True) as self._workers:
            yield self._workers

    def take(self, timeout: float) -> News | None:
        """See :class:`Experience`."""
        self._workers.check()
        self.replay.info()  # stores what has come, so that no actor waits for it
        try:
            sample = self._reports.sample(timeout)
        except TimeoutError:
            return None
        assert sample is not None
        batch: Any = sample.batch
        return _news(int(batch["steps"][0]), batch)

    def due(self, steps: int, updates: int) -> int:
        """See :class:`Experience`."""
        config = self._settings.config
        if steps < config.learning_starts or self.replay.info().size == 0:
            return 0
        return max(0, (steps - config.learning_starts) // config.train_frequency - updates)

    def learn(self, ppo: PPO) -> dict[str, float]:
        """See :class:`Experience`."""
        batch = self.replay.sample(self._settings.sequences)
        segments = Segments.of(batch.data, self._settings.window, _device(ppo))
        weights = batch.weight / batch.weight.max()
        losses, estimates = ppo.update(segments, weights, batch_size=self._settings.config.batch_size, epochs=1)
        means = ppo.planner.mean_plans(segments, estimates.plans)
        if self._by_surprise:
            self.replay.update(batch.key, self._scores(segments, estimates))
            if estimates.plans is not None:
                self.replay.observe(means)
            self.replay.learned()
        else:
            ppo.planner.ema.update(means)
        return losses

    def _scores(self, segments: Segments, estimates: Estimates) -> Array:
        """The mean surprise of each sequence's steps, by the shared plan as it is; 0 of one without any."""
        learned = segments.learned.cpu().numpy()
        rewards = segments.reward.cpu().numpy()[learned].astype(np.float64)
        plans = np.zeros((len(rewards), 1), np.float32)
        if estimates.plans is not None:
            plans = estimates.plans[segments.learned].cpu().numpy()
        each = np.zeros(learned.shape)
        each[learned] = self.replay.surprise(plans, rewards)
        scores: Array = each.sum(1) / learned.sum(1).clip(1)
        return scores

    def publish(self, weights: Weights) -> None:
        """See :class:`Experience`."""
        self._publisher.publish(tuple(weights))

    def checkpoint(self, directory: Path) -> str | None:
        """See :class:`Experience`."""
        checkpoints.prune_replays(directory)  # what runs that were killed have left, so that it does not add up
        # All of them stay until the file that names this one is there: it is saved next, and prunes them.
        return Path(self.replay.checkpoint(checkpoints.replays(directory), keep=sys.maxsize)).name

    def close(self) -> None:
        """See :class:`Experience`."""
        self._reports.close()
        self.replay.close()


def _new_replay(settings: Settings, config: ReplayConfig) -> Replay:
    length, seed = settings.config.rollout_length, settings.config.seed
    item = Sequence(settings.window + length + 1, period=length)
    hot, cold = (max(1, rows // length) for rows in (config.hot_buffer_size, config.cold_buffer_size))
    # What the streams keep, beyond the rows of sequences: those of a sequence that is not complete.
    spare = settings.config.num_actors * 2 * item.length
    example = row_example(settings.state_dim)
    if config.sampling == "uniform":
        table = Table("experience", item=item, max_size=hot + cold)
        return Replay(example, (hot + cold) * length + spare, [table], seed=seed)
    return HotColdReplay(
        {**example, **_plan_leaf(settings, None, ())},
        hot,
        cold,
        decay=settings.config.planning.ema_decay,
        plan_weight=config.plan_weight,
        reward_weight=config.reward_weight,
        age_threshold=config.age_threshold,
        max_age=settings.config.ppo.max_age,
        temperature=config.temperature,
        target_effective=config.target_effective,
        beta=config.beta,
        item=item,
        spare_steps=(hot + cold) * (length - 1) + spare,
        seed=seed,
    )


def _plan_leaf(settings: Settings, plans: Array | None, shape: tuple[int, ...] | None = None) -> dict[str, Array]:
    """The plans of rows, where the replay needs them. Without an encoder they are one zero."""
    replay = settings.config.replay
    if replay is None or replay.sampling == "uniform":
        return {}
    dim = settings.config.planning.embedding_dim if settings.config.planning.conditioned else 1
    shape = (settings.envs,) if shape is None else shape
    return {"plan": np.zeros((*shape, dim), np.float32) if plans is None else plans}


def _report_example(settings: Settings) -> dict[str, Any]:
    """What a worker says of a row of each of its environments."""
    shape = (settings.envs,)
    flags = {"success": np.zeros(shape, np.bool_), "cut": np.zeros(shape, np.bool_)}
    return {"steps": np.zeros((), np.int64), "episode_return": np.zeros(shape), **flags}


def _news(steps: int, batch: Any) -> News:
    ended = ~np.isnan(batch["episode_return"])
    return News(steps, int(batch["cut"].sum()), batch["episode_return"][ended], batch["success"][ended])


def _device(ppo: PPO) -> "torch.device":
    return ppo.planner.log_sigma.device
