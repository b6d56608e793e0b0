"""The encoder of trajectories: a plan is made of the last states."""

from typing import Any

from echo_shm.missing import needs
from echo_shm.planning.agents.configs import PlanningConfig
from echo_shm.planning.environments.vocabulary import Vocabulary
from echo_shm.replay.validation import integer

with needs("planning.agents", "PyTorch", "torch", extra="planning-agents"):
    import torch
    from torch import nn

#: Stands for minus infinity in a softmax, whose gradient would be NaN where a whole row is masked.
_NEVER = -1e9


class BagOfTokens(nn.Module):
    """A text in a few numbers: the mean of its tokens' embeddings, in whichever order they stand.

    Args:
        vocab_size: Tokens are below it. 0 fills texts up, and does not count.
        width: Numbers of an embedding.

    """

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.embeddings = nn.EmbeddingBag(vocab_size, width, mode="mean", padding_idx=Vocabulary.pad)
        # Means of some dozens are of the size that a layer of numbers would give.
        nn.init.normal_(self.embeddings.weight, std=3.0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The means ``(..., width)`` of tokens ``(..., t)`` of any dtype; 0 where there is none."""
        bags = tokens.flatten(0, -2).long()
        means: torch.Tensor = self.embeddings(bags[:, : _longest(bags)]).unflatten(0, tokens.shape[:-1])
        return means


def _longest(tokens: torch.Tensor) -> int:
    """Tokens of the longest text of ``(n, t)``; at least 1."""
    return int((tokens != Vocabulary.pad).any(0).sum().clamp(min=1))


class TrajectoryEncoder(nn.Module):
    """The plan of a window of states: ``tau_t = F(s_{t-k+1}, ..., s_t)``.

    One layer of attention in which the latest state asks and all states of the window answer (Vaswani et al., 2017,
    section 3.2), each with an embedding of how long ago it was. All states are one matrix product, where a recurrent
    network has to take k small ones in turn. And a mask leaves a state out altogether, where a recurrent network would
    have to be told to stand still.

    Args:
        state_dim: Numbers of a state.
        config: Its ``embedding_dim``, ``state_window_size``, ``hidden_dim`` and ``heads``.
        vocab_size: A state's numbers are tokens below it, and it is embedded as :class:`BagOfTokens`. None: they are
            numbers.

    """

    def __init__(self, state_dim: int, config: PlanningConfig, vocab_size: int | None = None) -> None:
        super().__init__()
        self.state_dim = integer("state_dim", state_dim, 1)
        self.window, self.heads, width = config.state_window_size, config.heads, config.hidden_dim
        first = nn.Linear(state_dim, width) if vocab_size is None else BagOfTokens(vocab_size, width)
        self.embed = nn.Sequential(first, nn.Tanh())
        self.ago = nn.Parameter(torch.zeros(self.window, width))
        nn.init.normal_(self.ago, std=0.3)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, config.embedding_dim))

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The plans of windows.

        Args:
            states: float32 ``(..., k, state_dim)``, the latest one last.
            mask: bool ``(..., k)``: False where there is no state. What ``states`` has there is not looked at, unless
                it is not finite. The latest state is always there.

        Returns:
            ``(..., embedding_dim)``.

        Raises:
            ValueError: A shape is wrong.

        """
        if states.shape[-2:] != (self.window, self.state_dim) or mask.shape != states.shape[:-1]:
            raise ValueError(
                f"got states {tuple(states.shape)} with a mask {tuple(mask.shape)}: use (..., {self.window}, "
                f"{self.state_dim}) and (..., {self.window})"
            )
        return self._attend(self.embed(states), mask)

    def plans(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The plans of all rows of sequences. Each state is embedded once, however many windows have it.

        Args:
            states: float32 ``(n, rows, state_dim)``.
            mask: bool ``(n, rows, k)``: of the k states that end with each row, False for one that is left out.

        Returns:
            ``(n, rows, embedding_dim)``: what :meth:`forward` says of each window.

        """
        embedded = nn.functional.pad(self.embed(states), (0, 0, self.window - 1, 0))
        return self._attend(embedded.unfold(1, self.window, 1).transpose(-1, -2), mask)

    def _attend(self, embedded: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Plans ``(..., embedding_dim)`` of windows of embedded states ``(..., k, hidden_dim)``."""
        x = embedded + self.ago
        latest = x[..., -1, :]
        query = self.query(latest).unflatten(-1, (self.heads, -1))
        key, value = self.key_value(x).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        scores = torch.einsum("...hd,...khd->...hk", query, key) * query.shape[-1] ** -0.5
        scores = scores.masked_fill(~mask[..., None, :], _NEVER)
        seen = torch.einsum("...hk,...khd->...hd", scores.softmax(-1), value).flatten(-2)
        plans: torch.Tensor = self.out(torch.cat([latest, seen], dim=-1))
        return plans


def divergence(plans: torch.Tensor, previous: torch.Tensor, log_sigma: torch.Tensor, learned: bool) -> Any:
    """By how much plans differ from those of the step before.

    The plan of a step is taken for a Gaussian around ``tau_t`` of spread ``sigma`` in each of d dimensions. The KL
    divergence of two Gaussians of equal covariance is half the Mahalanobis distance of their means:
    ``KL = ||tau_t - tau_{t-1}||² / (2 sigma²)``.

    A learned sigma would grow without bound under that alone. What is minimized then is the negative log-likelihood of
    ``tau_t`` under the Gaussian around ``tau_{t-1}``, ``||tau_t - tau_{t-1}||² / (2 sigma²) + d log sigma``, up to a
    constant. Its minimum is at ``sigma² = ||tau_t - tau_{t-1}||² / d``, the mean square of the steps.

    Args:
        plans, previous: ``(..., d)``.
        log_sigma: The logarithm of sigma, a scalar.
        learned: Whether to add ``d log sigma``.

    Returns:
        ``(...)``.

    """
    squares = (plans - previous).square().sum(-1)
    half = 0.5 * squares * (-2.0 * log_sigma).exp()
    return half + plans.shape[-1] * log_sigma if learned else half
