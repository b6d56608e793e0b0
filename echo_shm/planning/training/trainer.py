"""A run of training: actors play, a learner learns, and now and then it is evaluated and saved."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from echo_shm.missing import needs
from echo_shm.planning.agents.configs import TrainingConfig
from echo_shm.planning.agents.devices import usable
from echo_shm.planning.agents.ppo import PPO
from echo_shm.planning.training import checkpoints
from echo_shm.planning.training.evaluation import evaluate
from echo_shm.planning.training.experience import Experience, News, Weights, open_experience
from echo_shm.planning.training.metrics import TrainingMetrics
from echo_shm.planning.training.progress import Progress
from echo_shm.planning.training.settings import Settings
from echo_shm.workers.group import WorkerGroup

with needs("planning.training", "PyTorch", "torch", extra="planning-agents"):
    import torch

#: How long the learner waits for actors before the event loop has its turn (seconds).
_WAIT = 0.05

#: Seeds of evaluations lie beyond those of actors.
_EVALUATION_SEED = 2**30


class EchoRLTrainer:
    """Trains a :class:`LatentPlanner` with PPO::

        config = TrainingConfig(env_name="CartPole-v1", total_timesteps=100_000, num_actors=16)
        metrics = asyncio.run(EchoRLTrainer(config).train())
        print(metrics.evaluation_results["success_rate"])

    Start it under ``if __name__ == "__main__":``, since actors are processes that import the main module.

    A worker that is killed is started again; what it had not sent is lost. One whose environment raises ends the
    training with that exception. Ctrl-C, and cancelling the task, end it too, with a last checkpoint if there is a
    directory for them. (Python 3.10 has no turn for it after Ctrl-C: then the last one stays.)

    Args:
        config: What to train, and how.
        resume: Go on from the newest checkpoint in ``config.checkpoint``. Networks, optimizer, shared plan, replay,
            counters and the learner's generators are as they were. Environments begin new episodes, with other seeds.

    Raises:
        ValueError: The environment cannot be used, or numbers do not fit together; PyTorch does not know the device, or
            it is not here; or there is no checkpoint to resume from, or there is one and ``resume`` is False.
        TypeError: The environment does not take these ``env_kwargs``.
        gymnasium.error.Error: There is no such environment.
        OSError: The environment's data are not there.

    """

    def __init__(self, config: TrainingConfig, *, resume: bool = False) -> None:
        self.config = config
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        device = usable(auto if config.device == "auto" else config.device)
        self.settings = Settings.of(config)
        self.planner = self.settings.planner().to(device)
        self.ppo = PPO(self.planner, config.ppo, seed=config.seed)
        self.metrics = TrainingMetrics()
        # Actors, and evaluations, use processors. It is the planner itself if that does.
        on_processor = self.planner.log_sigma.device.type == "cpu"
        self._acting = self.planner if on_processor else self.settings.planner()
        self._returns: deque[float] = deque(maxlen=100)
        self._replay: Path | None = None
        #: The processes that play, once :meth:`train` has started them.
        self.workers: WorkerGroup | None = None
        self._open(resume)

    # -- checkpoints

    def _open(self, resume: bool) -> None:
        directory = self.config.checkpoint
        path = None if directory is None else checkpoints.newest(directory)
        if path is None:
            if resume:
                raise ValueError(f"checkpoint={directory!r} has no checkpoint to resume from: use resume=False")
            return
        if not resume:
            raise ValueError(
                f"checkpoint={directory!r} has checkpoints of a run: use resume=True to go on with it, or another "
                "directory"
            )
        state = checkpoints.load(path)
        try:
            self.ppo.load_state(state["ppo"])
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{path} is of an agent of other sizes: {error}") from None
        self.metrics = TrainingMetrics(**state["metrics"])
        self._returns.extend(state["returns"])
        if (state["replay"] is None) != (self.config.replay is None):
            raise ValueError(f"{path} is of a run {'without' if state['replay'] is None else 'with'} a replay")
        if state["replay"] is not None:
            self._replay = path.parent / "replay" / state["replay"]

    def save(self, experience: Experience) -> Path:
        """Writes a checkpoint to ``config.checkpoint``."""
        assert self.config.checkpoint is not None
        directory = Path(self.config.checkpoint)
        directory.mkdir(parents=True, exist_ok=True)
        replay = experience.checkpoint(directory)  # before the file that names it
        state = {"ppo": self.ppo.state(), "metrics": asdict(self.metrics), "returns": list(self._returns)}
        return checkpoints.save(directory, {**state, "replay": replay})

    # -- training

    async def train(self) -> TrainingMetrics:
        """Trains until ``total_timesteps``, or ``stop_at``, is reached. It ends with an evaluation.

        The learner computes in this thread. The event loop has its turn between two updates.

        Raises:
            BaseException: What a worker raised.
            FloatingPointError: The loss is not finite.

        """
        began = time.monotonic() - self.metrics.seconds
        with _threads(self.config.num_learners), contextlib.ExitStack() as stack:
            experience = open_experience(self.settings, self._replay)
            stack.callback(experience.close)
            progress = stack.enter_context(Progress(self.config))
            seed = self.config.seed * 1_000_003 + self.metrics.timesteps
            workers = stack.enter_context(experience.spawn(self._weights(experience), seed % 2**29))
            self.workers = workers
            try:
                while not self._finished():
                    self.metrics.seconds = time.monotonic() - began
                    await self._turn(experience, workers, progress)
            except asyncio.CancelledError:  # between two updates: all is as it should be
                if self.config.checkpoint is not None:
                    self.save(experience)
                raise
            if not self._evaluated():
                await self._evaluate()
            if self.config.checkpoint is not None:
                self.save(experience)
        self.metrics.seconds = time.monotonic() - began
        return self.metrics

    def _finished(self) -> bool:
        stop_at, results = self.config.stop_at, self.metrics.evaluation_results
        good = stop_at is not None and self._evaluated() and results["success_rate"] >= stop_at
        return good or self.metrics.timesteps >= self.config.total_timesteps

    async def _turn(self, experience: Experience, workers: WorkerGroup, progress: Progress) -> None:
        """Takes what there is, learns from it, and evaluates and saves if it is time."""
        await asyncio.sleep(0)
        news = experience.take(_WAIT)
        if news is None:
            return
        before = self.metrics.timesteps
        self._count(news)
        self.metrics.worker_restarts = workers.restarts
        for _ in range(experience.due(self.metrics.timesteps, self.ppo.updates)):
            if self.config.anneal:
                self.ppo.scale_learning_rates(1.0 - min(1.0, before / self.config.total_timesteps))
            self.metrics.losses = experience.learn(self.ppo)
            self.metrics.updates, self.metrics.passes = self.ppo.updates, self.ppo.passes
            self.metrics.learner_cost += abs(self.metrics.losses.get("policy_loss", 0.0))
            experience.publish(self._weights(experience))
            await asyncio.sleep(0)
        progress.show(self.metrics)
        if self._passed(before, self.config.evaluation_frequency):
            await self._evaluate()
        if self.config.checkpoint is not None and self._passed(before, self.config.save_frequency):
            self.save(experience)

    def _count(self, news: News) -> None:
        self.metrics.timesteps += news.steps
        self.metrics.cut_steps += news.cut_steps
        self.metrics.episodes += len(news.returns)
        self.metrics.successes += int(news.successes.sum())
        self._returns.extend(news.returns.tolist())
        if self._returns:
            self.metrics.avg_return = sum(self._returns) / len(self._returns)

    def _passed(self, before: int, every: int) -> bool:
        return self.metrics.timesteps // every > before // every

    def _weights(self, experience: Experience) -> Weights:
        """What actors get. If the planner is elsewhere, they come to a processor first."""
        if self._acting is not self.planner:
            self._acting.load_state_dict(self.planner.state_dict())
        return Weights.of(self._acting, self.ppo.updates, experience.shared(self.ppo))

    def _evaluated(self) -> bool:
        """Whether there was an evaluation after the last step."""
        return bool(self.metrics.history) and self.metrics.history[-1]["timesteps"] == self.metrics.timesteps

    async def _evaluate(self) -> None:
        if self._acting is not self.planner:
            self._acting.load_state_dict(self.planner.state_dict())
        seed = _EVALUATION_SEED + apart(self.config.seed)
        result = await evaluate(self._acting, self.settings, self.config.evaluation_episodes, seed)
        self.metrics.evaluation_results = result.as_dict()
        self.metrics.history.append({"timesteps": float(self.metrics.timesteps), **result.as_dict()})


def apart(seed: int) -> int:
    """A seed below 2**28. Those of neighbouring seeds are far apart: environments add their numbers to it."""
    return seed * 1_000_003 % 2**28


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    """PyTorch computes with so many threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
