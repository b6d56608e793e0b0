"""An agent that plans: an encoder makes a plan of what it has seen, and a policy follows it."""

import math
from typing import NamedTuple

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.agents.configs import PlanningConfig
from echo_shm.planning.agents.encoder import TrajectoryEncoder, divergence
from echo_shm.planning.agents.policies import CommandPolicy, PolicyNetwork, SoftPrefixPolicy
from echo_shm.planning.agents.segments import Segments
from echo_shm.planning.backbones.transformer import CausalTransformer, TransformerConfig
from echo_shm.planning.plans import EmaPlan
from echo_shm.spec import Array

with needs("planning.agents", "PyTorch", "torch", extra="planning-agents"):
    import torch
    from torch import nn

#: The least spread of a plan that is learned. Plans that do not change at all would let it fall without bound.
_LEAST_SIGMA = 1e-3


class Decision(NamedTuple):
    """What an agent does."""

    #: int64 ``(n,)``.
    action: torch.Tensor
    #: float32 ``(n,)``: the logarithms of the actions' probabilities.
    log_prob: torch.Tensor
    #: float32 ``(n, embedding_dim)``; None without an encoder.
    plans: torch.Tensor | None


class Evaluation(NamedTuple):
    """What an agent says of rows."""

    #: ``(n, rows, action_dim)`` and ``(n, rows)``; of chosen rows ``(m, action_dim)`` and ``(m,)``.
    logits: torch.Tensor
    values: torch.Tensor
    #: ``(n, rows, embedding_dim)``; None without an encoder.
    plans: torch.Tensor | None


class LatentPlanner(nn.Module):
    """A policy over discrete actions that is conditioned on a latent plan of the last states.

    States are vectors of numbers, for a :class:`PolicyNetwork`; or texts with commands to choose from, for a
    :class:`CommandPolicy` that has the plan as a soft prefix.

    Args:
        state_dim: Numbers, or tokens, of a state.
        action_dim: How many actions there are.
        config: With ``conditioned=False`` there is no encoder and there are no plans.
        vocab_size: States are tokens below it, as :class:`~echo_shm.planning.training.text_view.CommandView` makes
            them: float32, which has them exactly. None: they are numbers.

    Attributes:
        ema: The plan that all share: a running mean, which says how surprising a plan is. No gradient reaches it.

    """

    def __init__(self, state_dim: int, action_dim: int, config: PlanningConfig, vocab_size: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.action_dim = action_dim
        self.encoder = TrajectoryEncoder(state_dim, config, vocab_size) if config.conditioned else None
        latent_dim = config.embedding_dim if config.conditioned else 0
        self.policy: PolicyNetwork | CommandPolicy
        if vocab_size is None:
            self.policy = PolicyNetwork(state_dim, action_dim, latent_dim, config.hidden_dim)
        else:
            self.policy = _command_policy(state_dim, action_dim, latent_dim, config, vocab_size)
        log_sigma = torch.tensor(math.log(config.sigma))
        self.log_sigma = nn.Parameter(log_sigma, requires_grad=config.conditioned and config.learn_sigma)
        self.ema = EmaPlan(config.embedding_dim, config.ema_decay)

    @property
    def sigma(self) -> float:
        """The spread of a plan given the one before it."""
        return float(self._log_sigma().exp())

    def _log_sigma(self) -> torch.Tensor:
        return self.log_sigma.clamp(min=math.log(_LEAST_SIGMA)) if self.config.learn_sigma else self.log_sigma

    @torch.no_grad()
    def act(self, states: torch.Tensor, mask: torch.Tensor, generator: torch.Generator | None = None) -> Decision:
        """Draws an action for each window.

        Args:
            states: float32 ``(n, k, state_dim)``, the latest last.
            mask: bool ``(n, k)``.
            generator: Of the draws. None: PyTorch's own.

        """
        plans = None if self.encoder is None else self.encoder(states, mask)
        log_probs = self.policy(states[:, -1], plans)[0].log_softmax(-1)
        action = torch.multinomial(log_probs.exp(), 1, generator=generator)
        return Decision(action[:, 0], log_probs.gather(1, action)[:, 0], plans)

    def evaluate(self, segments: Segments, chosen: torch.Tensor | None = None) -> Evaluation:
        """Logits, values and plans.

        Args:
            segments: Of which all rows have a plan.
            chosen: bool ``(n, rows)``: the m rows that have logits ``(m, action_dim)`` and values ``(m,)``. None: all.

        """
        encoder, states = self.encoder, segments.obs
        plans = None if encoder is None else encoder.plans(states, segments.window_mask(encoder.window))
        if chosen is None:
            logits, values = self.policy(states, plans)
        else:
            logits, values = self.policy(states[chosen], None if plans is None else plans[chosen])
        return Evaluation(logits, values, plans)

    def temporal_divergence(self, segments: Segments, plans: torch.Tensor | None) -> torch.Tensor:
        """The mean :func:`~echo_shm.planning.agents.encoder.divergence` of a step's plan from the one before it.

        Only steps count that are learned from and do not begin an episode. 0 if there are none.
        """
        if plans is None:
            return segments.reward.new_zeros(())
        later, episode = segments.learned[:, 1:], segments.episode
        pairs = later & (episode[:, 1:] == episode[:, :-1])
        each = divergence(plans[:, 1:], plans[:, :-1], self._log_sigma(), self.config.learn_sigma)
        mean: torch.Tensor = each[pairs].sum() / pairs.sum().clamp(min=1)
        return mean

    def mean_plans(self, segments: Segments, plans: torch.Tensor | None) -> Array:
        """The mean plan of each segment that has a step to learn from, for :meth:`EmaPlan.update`.

        Returns:
            float32 ``(m, embedding_dim)``; without an encoder zeros.

        """
        taught = segments.learned.any(1)
        if plans is None:
            return np.zeros((int(taught.sum()), self.config.embedding_dim), np.float32)
        counted = segments.learned[..., None]
        means = (plans.detach() * counted).sum(1) / counted.sum(1).clamp(min=1)
        found: Array = means[taught].cpu().numpy()
        return found


def _command_policy(
    tokens: int, commands: int, latent_dim: int, config: PlanningConfig, vocab_size: int
) -> CommandPolicy:
    if config.hidden_dim % (2 * config.heads):
        raise ValueError(
            f"heads={config.heads} with hidden_dim={config.hidden_dim}: a policy that reads texts needs a hidden_dim "
            "that 2 * heads divides"
        )
    sizes = TransformerConfig(vocab_size, config.layers, config.hidden_dim, config.heads, tokens + config.prefix_length)
    return CommandPolicy(SoftPrefixPolicy(CausalTransformer(sizes), latent_dim, config.prefix_length), commands)
