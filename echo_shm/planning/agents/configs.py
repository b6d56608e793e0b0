"""What an agent and its training are told. ``reading.py`` reads it from a file, or from arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from echo_shm.planning.reading import Readable
from echo_shm.replay.validation import above_zero, at_least_zero, flag, integer, number


def _share(label: str, value: object) -> None:
    if at_least_zero(label, value) > 1:
        raise ValueError(f"{label}={value!r}: use a number from 0 to 1")


def _text(label: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{label}={value!r}: use a text that is not empty")


@dataclass(frozen=True)
class PlanningConfig(Readable):
    """The encoder of trajectories, and how its plans are used."""

    #: Numbers of a plan.
    embedding_dim: int = 512
    #: k: how many states a plan is made of, the latest one among them.
    state_window_size: int = 8
    #: What the divergence between successive plans counts in the loss.
    kl_weight: float = 0.1
    #: Of the encoder. The policy has that of :class:`PPOConfig`.
    learning_rate: float = 3e-4
    #: Whether the policy sees the plan. Without it there is no encoder: a plain policy, to compare with.
    conditioned: bool = True
    #: Width of the encoder's and the policy's layers.
    hidden_dim: int = 64
    #: Heads of attention. They divide ``hidden_dim``; of a policy that reads texts twice as many do.
    heads: int = 4
    #: Of texts: the transformer's blocks, and how many embeddings a plan becomes before the first token.
    layers: int = 2
    prefix_length: int = 4
    #: The spread of a plan given the one before, in each dimension. If it is learned, it begins so.
    sigma: float = 1.0
    learn_sigma: bool = False
    #: Of the shared plan; from 0 to below 1.
    ema_decay: float = 0.99

    def __post_init__(self) -> None:
        for name in ("embedding_dim", "state_window_size", "hidden_dim", "heads", "layers", "prefix_length"):
            integer(name, getattr(self, name), 1)
        for name in ("learning_rate", "sigma"):
            above_zero(name, getattr(self, name))
        for name in ("conditioned", "learn_sigma"):
            flag(name, getattr(self, name))
        at_least_zero("kl_weight", self.kl_weight)
        _share("ema_decay", self.ema_decay)
        if self.ema_decay == 1:
            raise ValueError("ema_decay=1: use a number below 1, or the shared plan would never change")
        if self.hidden_dim % self.heads:
            raise ValueError(f"heads={self.heads}: use a number that divides hidden_dim={self.hidden_dim}")


@dataclass(frozen=True)
class PPOConfig(Readable):
    """How a policy learns: :class:`~echo_shm.planning.agents.ppo.PPO` has the formulas."""

    learning_rate: float = 3e-4
    #: By how much the probability of an action may change before its gain no longer counts.
    clip_epsilon: float = 0.2
    value_loss_coef: float = 0.5
    entropy_coef: float = 0.01
    #: What the divergence of the policy from the one that acted counts.
    kl_coef: float = 0.1
    gae_lambda: float = 0.95
    gamma: float = 0.99
    #: Rewards are multiplied by it. Choose it so that returns are about 1 to 10: a plan is made for the policy and for
    #: the value, and the gradient of large values would drown that of the policy.
    reward_scale: float = 1.0
    #: How often each step of a rollout is learned from. What a replay draws is learned from once a draw.
    epochs: int = 4
    #: Above this norm, gradients are scaled down to it.
    max_grad_norm: float = 0.5
    normalize_advantages: bool = True
    #: Most that an importance ratio counts in values and traces: V-trace's bounds.
    max_ratio: float = 1.0
    #: Updates after which a step is too old to learn from. None: no bound.
    max_age: int | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip_epsilon", "max_grad_norm", "max_ratio", "reward_scale"):
            above_zero(name, getattr(self, name))
        for name in ("value_loss_coef", "entropy_coef", "kl_coef"):
            at_least_zero(name, getattr(self, name))
        for name in ("gae_lambda", "gamma"):
            _share(name, getattr(self, name))
        integer("epochs", self.epochs, 1)
        flag("normalize_advantages", self.normalize_advantages)
        if self.max_age is not None:
            integer("max_age", self.max_age, 0)


@dataclass(frozen=True)
class ReplayConfig(Readable):
    """The replay of an agent that learns from its steps again. The memory of all its steps is set aside at once."""

    #: Most steps that are recent, and most that are older.
    hot_buffer_size: int = 1_000_000
    cold_buffer_size: int = 10_000_000
    #: Updates after which a step is no longer recent.
    age_threshold: int = 1000
    #: Of the softmax over surprise. Low ones draw the most surprising alone.
    temperature: float = 1.0
    #: The effective sample size of what is recent, and of what is older, as a share of it: the temperature is chosen
    #: for it. None: the temperature stays.
    target_effective: float | None = None
    #: ``"surprise"``, or ``"uniform"`` to compare with.
    sampling: Literal["surprise", "uniform"] = "surprise"
    #: How much of the bias of drawing by surprise is undone: 0 none, 1 all.
    beta: float = 0.4
    #: What the distance from the shared plan, and the reward, count in a surprise.
    plan_weight: float = 1.0
    reward_weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("hot_buffer_size", "cold_buffer_size", "age_threshold"):
            integer(name, getattr(self, name), 1)
        above_zero("temperature", self.temperature)
        if self.target_effective is not None and not 0 < number("target_effective", self.target_effective) <= 1:
            raise ValueError(f"target_effective={self.target_effective!r}: use a number above 0 and at most 1, or None")
        for name in ("beta", "plan_weight", "reward_weight"):
            at_least_zero(name, getattr(self, name))
        if self.sampling not in ("surprise", "uniform"):
            raise ValueError(f"sampling={self.sampling!r}: use 'surprise' or 'uniform'")


#: float32 has all integers up to 2**24. Four are marks.
_MOST_WORDS = 2**24 - 4


@dataclass(frozen=True)
class TextConfig(Readable):
    """How texts become arrays: :class:`~echo_shm.planning.training.text_view.CommandView` has the rules."""

    #: Tokens of an observation with its commands. What does not fit is left out, and counted.
    max_tokens: int = 256
    #: Most commands to choose from.
    max_commands: int = 32
    #: Of an environment without a vocabulary: how many numbers words have.
    word_numbers: int = 4096

    def __post_init__(self) -> None:
        integer("max_tokens", self.max_tokens, 2)
        integer("max_commands", self.max_commands, 2)
        if integer("word_numbers", self.word_numbers, 1) > _MOST_WORDS:
            raise ValueError(f"word_numbers={self.word_numbers}: use at most {_MOST_WORDS}")


@dataclass(frozen=True)
class TrainingConfig(Readable):
    """A run of training.

    Without a ``replay``, rollouts are learned from as they come, and then forgotten. Then ``learning_starts`` and
    ``train_frequency`` say nothing.
    """

    #: An environment of Gymnasium; ``"module:Name-v0"`` imports the module first. ``"TextWorld"``, and the other names
    #: of ``echo_shm.planning.environments``, are those.
    env_name: str
    #: What the environment is made with: its sizes, for instance.
    env_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: Steps of all environments together.
    total_timesteps: int = 1_000_000
    #: With a replay: steps before the first update.
    learning_starts: int = 10_000
    #: With a replay: steps for each update.
    train_frequency: int = 4
    #: Steps between two evaluations, and between two checkpoints.
    evaluation_frequency: int = 10_000
    save_frequency: int = 50_000
    #: Environments that are played at the same time. ``num_workers`` processes share them.
    num_actors: int = 128
    #: Threads with which the learner computes. There is one learner. For small networks 1 is faster, and far so on a
    #: machine that is busy.
    num_learners: int = 2
    #: Steps of a minibatch, as whole sequences of ``rollout_length``.
    batch_size: int = 256
    #: Where the learner computes: a device of PyTorch. ``"auto"``: ``"cuda"`` if it is there. Actors use processors.
    device: str = "auto"
    #: Processes that play. None: as many as there are processors, and at most ``num_actors``.
    num_workers: int | None = None
    #: Steps of a sequence, of each environment.
    rollout_length: int = 32
    #: Whether the learning rates fall to 0 until the end.
    anneal: bool = False
    evaluation_episodes: int = 20
    #: The return at which an episode is a success, unless its last ``info`` has ``"is_success"`` or ``"success"``.
    #: None: the ``reward_threshold`` of the environment, and if it has none, anything above 0.
    success_return: float | None = None
    #: Training ends when an evaluation has this success rate. None: after ``total_timesteps``.
    stop_at: float | None = None
    #: The directory of checkpoints. None: none are made.
    checkpoint: str | None = None
    seed: int = 0
    progress: bool = True
    planning: PlanningConfig = field(default_factory=PlanningConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    text: TextConfig = field(default_factory=TextConfig)
    replay: ReplayConfig | None = None

    def __post_init__(self) -> None:
        for name in ("env_name", "device"):
            _text(name, getattr(self, name))
        for name in (
            *("total_timesteps", "train_frequency", "evaluation_frequency", "save_frequency", "num_actors"),
            *("num_learners", "batch_size", "rollout_length", "evaluation_episodes"),
        ):
            integer(name, getattr(self, name), 1)
        for name in ("learning_starts", "seed"):
            integer(name, getattr(self, name), 0)
        if self.num_workers is not None:
            integer("num_workers", self.num_workers, 1)
            if self.num_workers > self.num_actors:
                raise ValueError(f"num_workers={self.num_workers}: use at most num_actors={self.num_actors}")
        if self.stop_at is not None:
            _share("stop_at", self.stop_at)
        if self.checkpoint is not None:
            _text("checkpoint", self.checkpoint)
        for name in ("anneal", "progress"):
            flag(name, getattr(self, name))
        if not isinstance(self.env_kwargs, Mapping) or not all(isinstance(name, str) for name in self.env_kwargs):
            raise TypeError(f"env_kwargs={self.env_kwargs!r:.80}: use a mapping of names to values")
        object.__setattr__(self, "env_kwargs", dict(self.env_kwargs))  # whoever gave it may change it
        kinds = {"planning": PlanningConfig, "ppo": PPOConfig, "text": TextConfig, "replay": ReplayConfig}
        for name, kind in kinds.items():
            given = getattr(self, name)
            if not isinstance(given, kind) and (name, given) != ("replay", None):
                raise TypeError(f"{name}={given!r:.80}: use a {kind.__name__}")
        max_age, by_surprise = self.ppo.max_age, self.replay is not None and self.replay.sampling == "surprise"
        if self.replay is not None and by_surprise and max_age is not None and max_age < self.replay.age_threshold:
            raise ValueError(
                f"ppo.max_age={max_age} is below replay.age_threshold={self.replay.age_threshold}: steps would go "
                "before they are cold; use a larger max_age, or a smaller age_threshold"
            )
