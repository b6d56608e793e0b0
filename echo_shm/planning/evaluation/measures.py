"""What is measured of a run."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Measures:
    """What came of one run. What such a run cannot have is None.

    Attributes:
        success_rate: Of ``episodes`` that nobody learned from: the share that succeeded, each tried once. Of an agent
            that learns, they are played when it has stopped, with seeds that did not decide when it stops.
        avg_reward: Their mean return.
        episodes: How many they were.
        steps: Steps of environments: of an agent that learns, those that it learned from; of others, of the episodes.
        steps_to_threshold: Of an agent that learns: after how many of them an evaluation first had the success rate of
            the threshold, at most as many as it may make. If none had, as many: a lower bound.
        reached: Whether one had.
        seconds: How long it took, with its evaluations. It says little on a machine that does other things, too.
        learner_passes: Steps that went through the learner, each as often as it did.
        passes_per_success: These for each episode that succeeded while it learned.
        learner_cost: The sum of its absolute policy losses, which EchoRL's efficiency counts as the learner's cost.
        cut_steps: Of an agent that learns: steps of which some text or commands had no room.
        failed: Of a language model: episodes in which it did not answer, however often it was asked, or answered
            nonsense. Each counts as one without success. Of ReAct, its return and its steps count as 0.
        etps: Of a language model: tokens of observations and actions a second, of episodes that did not fail. Of a
            server's model those that the server counts, for ReAct; None for a tree of thoughts, which sends all again
            with each question, or if the server does not say.
        eta: Of a language model: reward for each entry of a KV cache that attention has read.
        kv_reuse: The share of the tokens that it read which were computed before.
        bandwidth_per_success: Entries of a KV cache for each episode that succeeded.
        history: Of an agent that learns: ``timesteps``, ``success_rate``, ``avg_reward`` of each evaluation.

    """

    success_rate: float
    avg_reward: float
    episodes: int
    steps: int
    seconds: float
    steps_to_threshold: int | None = None
    reached: bool | None = None
    learner_passes: int | None = None
    passes_per_success: float | None = None
    learner_cost: float | None = None
    cut_steps: int | None = None
    failed: int | None = None
    etps: float | None = None
    eta: float | None = None
    kv_reuse: float | None = None
    bandwidth_per_success: float | None = None
    history: list[dict[str, float]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


def reached_at(history: list[dict[str, float]], threshold: float, most: int) -> dict[str, Any]:
    """When the first evaluation had the success rate of the threshold: see :class:`Measures`.

    Agents stop at different steps beyond ``most``, as their rollouts are long. That must not count.
    """
    for one in history:
        if one["success_rate"] >= threshold:
            return {"steps_to_threshold": min(int(one["timesteps"]), most), "reached": True}
    return {"steps_to_threshold": most, "reached": False}
