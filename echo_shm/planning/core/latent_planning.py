"""EchoRL's names of the encoder of trajectories, the policy, and what learns both."""

import dataclasses

from echo_shm.missing import needs
from echo_shm.planning.agents import encoder
from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig
from echo_shm.planning.agents.planner import LatentPlanner
from echo_shm.planning.agents.policies import PolicyNetwork
from echo_shm.planning.agents.ppo import PPO
from echo_shm.spec import Array

with needs("planning.core", "PyTorch", "torch", extra="planning-agents"):
    import torch

__all__ = ["LatentPlanningOptimizer", "PlanningConfig", "PolicyNetwork", "TrajectoryEncoder", "TrajectoryPrior"]


def _with_present(config: PlanningConfig) -> PlanningConfig:
    """EchoRL's window is ``s_{t-k}`` to ``s_t``: k + 1 states, and ours k."""
    return dataclasses.replace(config, state_window_size=config.state_window_size + 1)


def filled(states: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows that are as long as the encoder's, and which of their states are there: a shorter one begins late."""
    missing = window - states.shape[-2]
    longer = torch.nn.functional.pad(states, (0, 0, max(missing, 0), 0))
    mask = torch.arange(longer.shape[-2], device=states.device) >= missing
    return longer, mask.expand(longer.shape[:-1])


class TrajectoryEncoder(encoder.TrajectoryEncoder):
    """:class:`echo_shm.planning.TrajectoryEncoder` of windows of k + 1 states, or fewer, without a mask.

    There, six layers of a transformer, whose mean over the window becomes the plan; here, one layer of attention from
    the latest state.

    Args:
        state_dim: Numbers of a state.
        config: As of ours; ``state_window_size`` is k.
        device: Where its parameters are. There, "cuda" was the default, and nothing was moved there.

    """

    def __init__(self, state_dim: int, config: PlanningConfig, device: str = "cpu") -> None:
        super().__init__(state_dim, _with_present(config))
        self.to(device)

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """The plans ``(..., embedding_dim)`` of windows ``(..., up to k + 1, state_dim)``, the latest state last."""
        if mask is None:
            states, mask = filled(states, self.window)
        return super().forward(states, mask)


@dataclasses.dataclass
class TrajectoryPrior:
    """The plans of some windows."""

    #: ``(n, embedding_dim)``, without a gradient.
    latent_plan: torch.Tensor
    state_window: torch.Tensor
    #: Updates that were made before.
    timestamp: int
    surprise_score: float | None = None


class LatentPlanningOptimizer(PPO):
    """A :class:`LatentPlanner` and the :class:`PPO` that learns it, by EchoRL's name.

    ``compute_planning_loss`` is not here, since there the ratio of the policies was that of a policy with itself,
    always 1: ``update(segments)`` learns, as PPO does.

    Args:
        state_dim: Numbers of a state.
        action_dim: How many actions there are.
        config: As of ours; ``state_window_size`` is k of windows of k + 1.
        device: Where it computes. There, "cuda" was the default, and nothing was moved there.

    """

    def __init__(self, state_dim: int, action_dim: int, config: PlanningConfig, device: str = "cpu") -> None:
        planner = LatentPlanner(state_dim, action_dim, _with_present(config)).to(device)
        super().__init__(planner, PPOConfig(learning_rate=config.learning_rate))

    @property
    def trajectory_encoder(self) -> encoder.TrajectoryEncoder | None:
        """The encoder; None of a configuration that is not ``conditioned``."""
        return self.planner.encoder

    @property
    def policy_network(self) -> PolicyNetwork:
        """The policy. It returns logits and values; there, logits alone."""
        return self.planner.policy

    @torch.no_grad()
    def encode_trajectory(self, state_window: torch.Tensor) -> TrajectoryPrior:
        """The plans of windows ``(n, up to k + 1, state_dim)``. There, noise was added to them."""
        if self.planner.encoder is None:
            raise ValueError("there are no plans with conditioned=False: use PlanningConfig(conditioned=True)")
        plans = self.planner.encoder(*filled(state_window, self.planner.encoder.window))
        return TrajectoryPrior(plans, state_window, self.updates)

    def get_trajectory_surprise(self, trajectory_prior: TrajectoryPrior, reward: float = 0.0) -> float:
        """The mean surprise of the plans, which the shared plan takes then.

        There, the shared plan had taken a plan before it was compared with it, and the reward counted ``kl_weight``.
        """
        plans = trajectory_prior.latent_plan.cpu().numpy()
        scores = self.planner.ema.score_and_update(plans.reshape(-1, plans.shape[-1]), reward)
        trajectory_prior.surprise_score = float(torch.as_tensor(scores).mean())
        return trajectory_prior.surprise_score

    def get_ema_plan(self) -> Array:
        """The plan that all share, ``(embedding_dim,)``; zeros before the first."""
        plan: Array = self.planner.ema.state["plan"]
        return plan
