"""Policies that follow a plan."""

import math

from echo_shm.missing import needs
from echo_shm.replay.validation import integer

with needs("planning.agents", "PyTorch", "torch", extra="planning-agents"):
    import torch
    from torch import nn

from echo_shm.planning.backbones.transformer import CausalTransformer


def _layers(inputs: int, width: int, outputs: int, gain: float) -> nn.Sequential:
    """Two layers of tanh. Weights are orthogonal, those of the output small.

    Andrychowicz et al., "What matters in on-policy reinforcement learning", 2021, section 3.2: a policy that is nearly
    uniform at first learns faster.
    """
    sizes = [(inputs, width, math.sqrt(2)), (width, width, math.sqrt(2)), (width, outputs, gain)]
    layers: list[nn.Module] = []
    for before, after, scale in sizes:
        linear = nn.Linear(before, after)
        nn.init.orthogonal_(linear.weight, scale)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class PolicyNetwork(nn.Module):
    """A policy over discrete actions, and the value of a state. Both see the state and the plan, side by side.

    Args:
        state_dim: Numbers of a state.
        action_dim: How many actions there are.
        latent_dim: Numbers of a plan. 0: there are no plans.
        hidden_dim: Width of the layers.

    """

    def __init__(self, state_dim: int, action_dim: int, latent_dim: int, hidden_dim: int = 64) -> None:
        super().__init__()
        inputs = integer("state_dim", state_dim, 1) + integer("latent_dim", latent_dim, 0)
        width = integer("hidden_dim", hidden_dim, 1)
        self.policy = _layers(inputs, width, integer("action_dim", action_dim, 2), 0.01)
        self.value = _layers(inputs, width, 1, 1.0)

    def forward(self, states: torch.Tensor, plans: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and values.

        Args:
            states: float32 ``(..., state_dim)``.
            plans: float32 ``(..., latent_dim)``; None if there are no plans.

        Returns:
            Logits ``(..., action_dim)``, and values ``(...)``.

        """
        inputs = states if plans is None else torch.cat([states, plans], dim=-1)
        return self.policy(inputs), self.value(inputs).squeeze(-1)


class SoftPrefixPolicy(nn.Module):
    """A transformer that follows a plan: the plan becomes embeddings before the first token, which all tokens see.

    That is prefix tuning at the level of embeddings (Lester et al., 2021, "The power of scale for parameter-efficient
    prompt tuning"), with a prefix that is not learned as such but made of the plan.

    Args:
        model: Its weights learn, too. The prefix counts in its ``max_length``.
        latent_dim: Numbers of a plan.
        prefix_length: How many embeddings a plan becomes.

    """

    def __init__(self, model: CausalTransformer, latent_dim: int, prefix_length: int = 4) -> None:
        super().__init__()
        self.model = model
        self.prefix_length = integer("prefix_length", prefix_length, 1)
        width = model.config.width
        if prefix_length >= model.config.max_length:
            raise ValueError(
                f"prefix_length={prefix_length}: use fewer than the model's max_length={model.config.max_length}"
            )
        self.prefix = nn.Linear(integer("latent_dim", latent_dim, 1), prefix_length * width)
        # The embeddings of tokens have entries of this size, too.
        nn.init.normal_(self.prefix.weight, std=(latent_dim * width) ** -0.5)
        self.value = nn.Linear(width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def embeddings(self, plans: torch.Tensor) -> torch.Tensor:
        """The prefix ``(n, prefix_length, width)`` of plans ``(n, latent_dim)``."""
        prefix: torch.Tensor = self.prefix(plans).unflatten(-1, (self.prefix_length, -1))
        return prefix

    def forward(self, tokens: torch.Tensor, plans: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and values after each token.

        Args:
            tokens: int64 ``(n, t)``. Shorter sequences are filled up at their end: no token sees a later one.
            plans: float32 ``(n, latent_dim)``.

        Returns:
            Logits ``(n, t, vocab_size)`` of the next token, and values ``(n, t)``.

        """
        hidden = self.model.hidden(tokens, self.embeddings(plans))
        return self.model.logits(hidden), self.value(hidden).squeeze(-1)
