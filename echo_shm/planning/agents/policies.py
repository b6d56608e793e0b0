"""Policies that follow a plan."""

import math

from echo_shm.missing import needs
from echo_shm.replay.validation import integer

with needs("planning.agents", "PyTorch", "torch", extra="planning-agents"):
    import torch
    from torch import nn

from echo_shm.planning.backbones.transformer import CausalTransformer
from echo_shm.planning.environments.vocabulary import Vocabulary

#: The logit of a command that is not there. Minus infinity would make NaN of an entropy.
_NEVER = -1e9


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
        self.state_dim = integer("state_dim", state_dim, 1)
        inputs = self.state_dim + integer("latent_dim", latent_dim, 0)
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
        latent_dim: Numbers of a plan. 0: there are no plans, and there is no prefix.
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
        self.prefix = None
        if integer("latent_dim", latent_dim, 0):
            self.prefix = nn.Linear(latent_dim, prefix_length * width)
            # The embeddings of tokens have entries of this size, too.
            nn.init.normal_(self.prefix.weight, std=(latent_dim * width) ** -0.5)
        self.value = nn.Linear(width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def embeddings(self, plans: torch.Tensor) -> torch.Tensor:
        """The prefix ``(n, prefix_length, width)`` of plans ``(n, latent_dim)``."""
        assert self.prefix is not None, "there are no plans: latent_dim=0"
        prefix: torch.Tensor = self.prefix(plans).unflatten(-1, (self.prefix_length, -1))
        return prefix

    def hidden(self, tokens: torch.Tensor, plans: torch.Tensor | None) -> torch.Tensor:
        """What the last layer says of each token, ``(n, t, width)``. See :meth:`forward`."""
        return self.model.hidden(tokens, None if plans is None else self.embeddings(plans))

    def forward(self, tokens: torch.Tensor, plans: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and values after each token.

        Args:
            tokens: int64 ``(n, t)``. Shorter sequences are filled up at their end: no token sees a later one.
            plans: float32 ``(n, latent_dim)``; None if there are no plans.

        Returns:
            Logits ``(n, t, vocab_size)`` of the next token, and values ``(n, t)``.

        """
        hidden = self.hidden(tokens, plans)
        return self.model.logits(hidden), self.value(hidden).squeeze(-1)


class CommandPolicy(nn.Module):
    """A policy over the commands that a text ends with, and the value of a state. Both follow the plan.

    A text is an observation and the commands that are possible, each ended by the token ``<act>``, as
    :class:`~echo_shm.planning.training.text_view.CommandView` makes it. The transformer reads it behind the prefix.
    What it says at the ends of commands are keys, and what it says at the last one, which has seen them all, is the
    query and the value. A logit is the product of key and query: a pointer (Vinyals et al., "Pointer networks", 2015),
    with the scale of Vaswani et al., 2017.

    Args:
        soft_prefix: Its transformer, prefix and value.
        commands: Most commands of a text. Further ones are not looked at.

    """

    def __init__(self, soft_prefix: SoftPrefixPolicy, commands: int) -> None:
        super().__init__()
        self.soft_prefix, self.commands = soft_prefix, integer("commands", commands, 2)
        width = soft_prefix.model.config.width
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        # At first all commands are about as likely.
        nn.init.orthogonal_(self.query.weight, 0.1)
        nn.init.zeros_(self.query.bias)

    def forward(self, states: torch.Tensor, plans: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and values.

        Args:
            states: Tokens ``(..., t)`` of any dtype that has them exactly, ended by zeros. Of a text without commands
                all logits are the same.
            plans: float32 ``(..., latent_dim)``; None if there are no plans.

        Returns:
            Logits ``(..., commands)``, -1e9 of commands that are not there, and values ``(...)``.

        """
        tokens = states.flatten(0, -2).long()
        number = torch.arange(tokens.shape[1], device=tokens.device)
        ends = torch.where(tokens == Vocabulary.act, number, -1)
        last = ends.amax(1).clamp(min=0)
        longest = 1 + (int(last.amax()) if len(last) else 0)
        hidden = self.soft_prefix.hidden(tokens[:, :longest], None if plans is None else plans.flatten(0, -2))
        summary = hidden[torch.arange(len(hidden), device=hidden.device), last]

        # The places of the commands' ends, in their order.
        count = min(longest, self.commands)
        places = torch.where(ends < 0, longest, ends)[:, :longest].sort(1).values[:, :count]
        width = hidden.shape[2]
        said = hidden.gather(1, places.clamp(max=longest - 1)[..., None].expand(-1, -1, width))
        logits = torch.einsum("nkw,nw->nk", self.key(said), self.query(summary)) * width**-0.5
        logits = logits.masked_fill(places == longest, _NEVER)
        logits = nn.functional.pad(logits, (0, self.commands - count), value=_NEVER)
        values = self.soft_prefix.value(summary).squeeze(-1)
        return logits.unflatten(0, states.shape[:-1]), values.unflatten(0, states.shape[:-1])
