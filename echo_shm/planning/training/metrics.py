"""What a run of training says of itself."""

from dataclasses import dataclass, field


@dataclass
class TrainingMetrics:
    """What came of a run so far.

    Attributes:
        timesteps: Steps of all environments, without those of evaluations.
        episodes: Those that ended.
        successes: Those of them that were one.
        updates: Of the learner.
        passes: Steps that it has learned from, each counted as often as it was.
        learner_cost: The sum of the absolute policy losses of all updates: what EchoRL counts as the learner's cost.
        seconds: How long it has trained, without what came before a checkpoint.
        avg_return: The mean return of the last 100 episodes of training; None before the first.
        losses: Of the last update: see :meth:`PPO.update`.
        evaluation_results: Of the last evaluation: ``"success_rate"``, ``"avg_reward"``, ``"episodes"``.
        history: ``evaluation_results`` of all evaluations, each with ``"timesteps"``.
        worker_restarts: How often a worker that was killed was started again.
        cut_steps: Steps for which some of the text was left out, or some commands: see
            :class:`~echo_shm.planning.training.text_view.CommandView`.

    """

    timesteps: int = 0
    episodes: int = 0
    successes: int = 0
    updates: int = 0
    passes: int = 0
    learner_cost: float = 0.0
    seconds: float = 0.0
    avg_return: float | None = None
    losses: dict[str, float] = field(default_factory=dict)
    evaluation_results: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    worker_restarts: int = 0
    cut_steps: int = 0
