"""Segments: rows that an agent has seen, one after the other, and which of them it may learn from.

A row is an observation with what was done there. A step leads from its row to the next one. What an episode ends with
has a row of its own, in which nothing was done: ``acted`` is False there. So the row after a step always has what the
step has led to, of a truncated episode, too, and nothing else has to say where to bootstrap.

A segment begins with rows that are there for the plans of those after them: as many as a window has. Each of the
learner's steps is in one segment alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from echo_shm.missing import needs
from echo_shm.spec import Tree

with needs("planning.agents", "PyTorch", "torch", extra="planning-agents"):
    import torch


def row_example(state_dim: int) -> dict[str, Any]:
    """One row, as a tree of arrays: what a replay's steps are.

    Keys:
        obs: float32 ``(state_dim,)``: numbers, or tokens, which float32 has exactly up to 2**24.
        action: int64; 0 where nothing was done, as the next two.
        log_prob: float32: the logarithm of the probability with which the action was drawn.
        reward: float32: what the action earned.
        terminated: Whether the action ended the episode for good.
        update: int64: how many updates the policy had made that acted.
        acted: Whether there was an action.
        first: Whether the row begins an episode.

    """
    return {
        "obs": np.zeros(state_dim, np.float32),
        "action": np.zeros((), np.int64),
        "log_prob": np.zeros((), np.float32),
        "reward": np.zeros((), np.float32),
        "terminated": np.zeros((), np.bool_),
        "update": np.zeros((), np.int64),
        "acted": np.zeros((), np.bool_),
        "first": np.zeros((), np.bool_),
    }


@dataclass(frozen=True)
class Segments:
    """n segments of as many rows, as tensors ``(n, rows, ...)``. The fields are those of :func:`row_example`, and more.

    Build them with :meth:`of`.
    """

    obs: torch.Tensor
    action: torch.Tensor
    log_prob: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    update: torch.Tensor
    #: bool: a step, with a row after it that says what it has led to.
    acted: torch.Tensor
    #: int64: rows of one episode have the same number.
    episode: torch.Tensor
    #: bool: a step to learn from. Its window, and that of the row before it, are in the segment.
    learned: torch.Tensor

    @classmethod
    def of(cls, rows: Mapping[str, Tree], window: int, device: "torch.device | str" = "cpu") -> "Segments":
        """Segments of arrays ``(n, rows, ...)``.

        Args:
            rows: The keys of :func:`row_example`, and perhaps ``"mask"``: bool, False where there is no row, which is
                at the end. Arrays that may be written to are not copied.
            window: How many rows a window has, and how many a segment begins with that are not learned from, unless it
                begins with an episode.
            device: Where the tensors are to be.

        """
        found = {name: torch.as_tensor(np.asarray(rows[name]), device=device) for name in row_example(0)}
        there = torch.ones_like(found["acted"]) if "mask" not in rows else torch.as_tensor(rows["mask"], device=device)
        episode = found["first"].long().cumsum(1)
        follows = torch.zeros_like(there)
        follows[:, :-1] = there[:, 1:] & (episode[:, 1:] == episode[:, :-1])
        acted = found["acted"] & there & follows
        number = torch.arange(there.shape[1], device=device)
        # Before the first row of all that is known, there may have been more of its episode: number 0 is cut off.
        learned = acted & ((number >= window) | (episode > 0))
        del found["first"], found["acted"]
        return cls(acted=acted, episode=episode, learned=learned, **found)

    def __len__(self) -> int:
        return len(self.obs)

    def pick(self, chosen: torch.Tensor) -> "Segments":
        """Those segments, by number: a copy."""
        return Segments(**{name: tensor[chosen] for name, tensor in vars(self).items()})

    def window_mask(self, size: int) -> torch.Tensor:
        """Which of a row's last states are of its own episode: bool ``(n, rows, size)``, the row itself last."""
        before = torch.full_like(self.episode[:, : size - 1], -1)[:, :1].expand(-1, size - 1)
        episodes = torch.cat([before, self.episode], dim=1).unfold(1, size, 1)
        return episodes == self.episode[..., None]
