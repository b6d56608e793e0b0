"""DQN with prioritized replay, which Stable-Baselines3 does not have.

    model = PrioritizedDQN("MlpPolicy", "CartPole-v1", alpha=0.6, beta=0.4)

Schaul et al., Prioritized Experience Replay, 2016: https://arxiv.org/abs/1511.05952, the proportional variant.
"""

from typing import Any, NamedTuple

import numpy as np

from echo_shm.missing import needs

with needs("adapters.sb3_dqn", "Stable-Baselines3", "stable_baselines3", "torch", extra="sb3"):
    import torch
    from stable_baselines3 import DQN
    from torch.nn import functional

from echo_shm.adapters.sb3 import ReplayBuffer
from echo_shm.replay import Prioritized

__all__ = ["PrioritizedDQN", "PrioritizedReplayBuffer", "PrioritizedSamples"]


class PrioritizedSamples(NamedTuple):
    """A batch as Stable-Baselines3 has it, and two more: ``weights`` of shape (n, 1), and ``keys`` of its items.

    ``observations`` and ``next_observations`` are tensors, or dicts of tensors. ``discounts`` is None with one step.
    """

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None
    weights: torch.Tensor
    keys: Any


class PrioritizedReplayBuffer(ReplayBuffer):
    """A :class:`~echo_shm.adapters.sb3.ReplayBuffer` that draws by priorities. Observations may be dicts.

    Args:
        alpha: The exponent of the priorities; 0 is uniform.
        epsilon: What is added to each error, so that a transition with none is still drawn.
        args, kwargs: As for ``ReplayBuffer``.

    Raises:
        ValueError: A number is out of range.

    A new transition has the highest priority so far. With any algorithm but :class:`PrioritizedDQN`, update the
    priorities yourself.
    """

    #: The exponent of the importance weights, 0 or more: 1 corrects the draw in full.
    beta: float = 0.4

    def __init__(self, *args: Any, alpha: float = 0.6, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(*args, sampler=Prioritized(alpha=alpha), **kwargs)
        self.epsilon = epsilon

    # It has more fields. Without Stable-Baselines3 nothing is known of the other type.
    def sample(self, batch_size: int, env: Any = None) -> PrioritizedSamples:  # type: ignore[override, unused-ignore]
        """Draws transitions. See ``ReplayBuffer``; the weights are for this object's ``beta``."""
        batch = self._transitions.sample(batch_size, self.beta)
        weights = self._tensor(batch.weight.astype(np.float32).reshape(-1, 1))
        return PrioritizedSamples(**{"discounts": None, **self._fields(batch, env)}, weights=weights, keys=batch.key)

    def update_priorities(self, keys: Any, errors: Any) -> None:
        """Gives transitions new priorities: the errors' absolute values.

        Args:
            keys: Those of a batch.
            errors: A tensor or an array of as many floats.

        Raises:
            ValueError: An error is not finite, or there are too many or too few.

        """
        values = errors.detach().cpu().numpy() if isinstance(errors, torch.Tensor) else np.asarray(errors)
        self.replay.update(keys, np.abs(values.reshape(-1).astype(np.float64)) + self.epsilon)


class PrioritizedDQN(DQN):
    """Stable-Baselines3's DQN, which draws by its TD errors and weighs its loss.

    Args:
        policy, env, kwargs: As for ``DQN``. ``replay_buffer_kwargs`` may have what a ``ReplayBuffer`` takes.
        alpha: The exponent of the priorities.
        beta, final_beta: The exponent of the importance weights, at the beginning of ``learn()`` and at its end.
        n_steps: A transition is over so many steps.
        gamma: The discount of one step.

    Raises:
        ValueError: A number is out of range.

    """

    def __init__(
        self,
        policy: Any,
        env: Any,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        final_beta: float = 1.0,
        n_steps: int = 1,
        gamma: float = 0.99,
        replay_buffer_class: type[PrioritizedReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        kind = PrioritizedReplayBuffer if replay_buffer_class is None else replay_buffer_class
        if not issubclass(kind, PrioritizedReplayBuffer):
            raise ValueError(f"replay_buffer_class={kind.__name__}: use a PrioritizedReplayBuffer, or leave it out")
        self.beta, self.final_beta = beta, final_beta
        mine = {"alpha": alpha, "n_steps": n_steps, "gamma": gamma, **(replay_buffer_kwargs or {})}
        super().__init__(policy, env, gamma=gamma, replay_buffer_class=kind, replay_buffer_kwargs=mine, **kwargs)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Makes so many gradient steps, and updates the priorities after each."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        buffer: Any = self.replay_buffer
        left = float(self._current_progress_remaining)  # 1 at the beginning of learn(), 0 at its end
        buffer.beta = self.final_beta + (self.beta - self.final_beta) * left
        losses = []
        for _ in range(gradient_steps):
            batch = buffer.sample(batch_size, env=self._vec_normalize_env)
            discounts = self.gamma if batch.discounts is None else batch.discounts
            with torch.no_grad():
                best = self.q_net_target(batch.next_observations).max(dim=1, keepdim=True).values
                target = batch.rewards + (1 - batch.dones) * discounts * best
            chosen = self.q_net(batch.observations).gather(1, batch.actions.long())
            loss = (batch.weights * functional.smooth_l1_loss(chosen, target, reduction="none")).mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            buffer.update_priorities(batch.keys, target - chosen)
            losses.append(loss.item())
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("train/beta", buffer.beta)
