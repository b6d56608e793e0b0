"""How an agent learns: proximal policy optimization, from rollouts as they come or from a replay."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from echo_shm.missing import needs
from echo_shm.planning.agents.advantages import advantages
from echo_shm.planning.agents.configs import PPOConfig
from echo_shm.planning.agents.planner import LatentPlanner
from echo_shm.planning.agents.segments import Segments
from echo_shm.spec import Array

with needs("planning.agents", "PyTorch", "torch", extra="planning-agents"):
    import torch


class Estimates(NamedTuple):
    """What the current policy says of segments before it learns from them; all without gradients."""

    #: ``(n, rows)``: as of :func:`~echo_shm.planning.agents.advantages.advantages`.
    advantage: torch.Tensor
    target: torch.Tensor
    #: ``(n, rows, embedding_dim)``, or None.
    plans: torch.Tensor | None


class PPO:
    """Proximal policy optimization of a :class:`LatentPlanner`.

    The loss of a step, with ``ratio = pi(a | s) / mu(a | s)``, where mu is the policy that acted, whose log-probability
    is stored with the step::

        - min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon) A)      Schulman et al., 2017, equation 7
        + value_loss_coef (V - target)² / 2
        - entropy_coef H(pi)
        + kl_coef (ratio - 1 - log ratio)                            an unbiased estimate of KL(mu || pi)
        + kl_weight D                                                the plan's divergence from the one before it

    A and target are computed by the current value function when :meth:`update` begins. The estimate of the KL is the
    third in Schulman, "Approximating KL divergence", 2020, http://joschu.net/blog/kl-approx.html.

    Experience of a replay is learned from in the same way: whole sequences are drawn, A and target are made anew with
    V-trace's corrections, and the clip keeps the policy near the one that acted: beyond it a step has no gain any
    more. So what is too old teaches less and less, and ``max_age`` leaves it out. The loss of a sequence is multiplied
    by its importance weight, which undoes the bias of drawing by priority (Schaul et al., 2016, section 3.4).

    The same seed, segments and device give the same losses.

    Args:
        planner: What learns. Its parameters stay on their device.
        config: The coefficients.
        seed: Of the order in which segments are learned from.

    """

    def __init__(self, planner: LatentPlanner, config: PPOConfig, *, seed: int = 0) -> None:
        self.planner, self.config = planner, config
        self.generator = torch.Generator().manual_seed(seed)
        self.updates = 0
        #: Steps that were learned from, each counted as often as it was: what learning has cost.
        self.passes = 0
        parts = [[*planner.policy.parameters()]]
        rates = [config.learning_rate]
        if planner.encoder is not None:
            parts.append([*planner.encoder.parameters(), *([planner.log_sigma] if planner.config.learn_sigma else [])])
            rates.append(planner.config.learning_rate)
        self._parameters = [one for part in parts for one in part]
        self._rates = rates
        groups = [{"params": part, "lr": rate} for part, rate in zip(parts, rates, strict=True)]
        self.optimizer = torch.optim.Adam(groups, eps=1e-5)

    def scale_learning_rates(self, scale: float) -> None:
        """From now on, the learning rates are those of the configurations times this."""
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * scale

    @torch.no_grad()
    def estimate(self, segments: Segments) -> Estimates:
        """Advantages, targets and plans, by the current networks."""
        logits, values, plans = self.planner.evaluate(segments)
        ratio = (_log_prob(logits, segments.action) - segments.log_prob).exp()
        made = advantages(
            segments.reward * self.config.reward_scale,
            segments.terminated,
            segments.acted,
            values,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
            ratio=torch.where(segments.acted, ratio, 1.0),
            max_ratio=self.config.max_ratio,
        )
        return Estimates(*made, plans)

    def update(
        self, segments: Segments, weights: Array | None = None, *, batch_size: int = 256, epochs: int | None = None
    ) -> tuple[dict[str, float], Estimates]:
        """Learns from segments: whole ones in an order drawn at random, each ``epochs`` times.

        Args:
            segments: On the planner's device.
            weights: ``(n,)``: importance weights. None: 1.
            batch_size: About how many steps a minibatch has. It is made of whole segments.
            epochs: None: those of the configuration.

        Returns:
            Means over the minibatches: ``policy_loss``, ``value_loss``, ``entropy``, ``kl``, ``temporal_kl``,
            ``clip_fraction``, ``gradient_norm`` and ``loss``; none if there is no step to learn from. And what was
            estimated before.

        Raises:
            FloatingPointError: The loss is not finite. The networks are as they were before that minibatch.

        """
        if self.config.max_age is not None:
            young = self.updates - segments.update <= self.config.max_age
            segments = dataclasses.replace(segments, learned=segments.learned & young)
        estimates = self.estimate(segments)
        steps = int(segments.learned.sum())
        self.updates += 1
        if steps == 0:
            return {}, estimates
        advantage = estimates.advantage
        if self.config.normalize_advantages:
            mine = advantage[segments.learned]
            advantage = (advantage - mine.mean()) / (mine.std(correction=0) + 1e-8)
        n = len(segments)
        weight = torch.ones(n) if weights is None else torch.as_tensor(weights, dtype=torch.float32)
        weight = weight.to(advantage.device)
        pieces = min(n, max(1, round(steps / batch_size)))
        sums: dict[str, float] = {}
        count = 0
        rounds = self.config.epochs if epochs is None else epochs
        self.passes += steps * rounds
        for _ in range(rounds):
            order = torch.randperm(n, generator=self.generator)
            for chosen in order.to(advantage.device).tensor_split(pieces):
                part = segments.pick(chosen)
                said = self._step(part, advantage[chosen], estimates.target[chosen], weight[chosen])
                sums = {name: sums.get(name, 0.0) + value for name, value in said.items()}
                count += 1
        return {name: value / count for name, value in sums.items()}, estimates

    def _step(
        self, segments: Segments, advantage: torch.Tensor, target: torch.Tensor, weight: torch.Tensor
    ) -> dict[str, float]:
        """One step of the optimizer."""
        loss, said = self._loss(segments, advantage, target, weight)
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm)
        if not torch.isfinite(loss) or not torch.isfinite(norm):
            raise FloatingPointError(
                f"update {self.updates}: the loss is {float(loss.detach())} and its gradient {float(norm)}: are all "
                "rewards and observations finite? Otherwise use lower learning rates"
            )
        self.optimizer.step()
        return said | {"loss": float(loss.detach()), "gradient_norm": float(norm)}

    def _loss(
        self, segments: Segments, advantage: torch.Tensor, target: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        config, learned = self.config, segments.learned
        logits, values, plans = self.planner.evaluate(segments, learned)
        count = learned.sum().clamp(min=1)
        each = weight[:, None].expand(learned.shape)[learned]

        def mean(value: torch.Tensor) -> torch.Tensor:
            return (each * value).sum() / count

        log_probs = logits.log_softmax(-1)
        log_prob = log_probs.gather(-1, segments.action[learned][:, None])[:, 0]
        log_ratio = log_prob - segments.log_prob[learned]
        ratio, gain = log_ratio.exp(), advantage[learned]
        clipped = ratio.clamp(1 - config.clip_epsilon, 1 + config.clip_epsilon)
        terms = {
            "policy_loss": -mean(torch.minimum(ratio * gain, clipped * gain)),
            "value_loss": mean(0.5 * (values - target[learned]).square()),
            "entropy": mean(-(log_probs.exp() * log_probs).sum(-1)),
            "kl": mean(ratio - 1 - log_ratio),
            "temporal_kl": self.planner.temporal_divergence(segments, plans),
        }
        factors = (1.0, config.value_loss_coef, -config.entropy_coef, config.kl_coef, self.planner.config.kl_weight)
        loss = sum((factor * term for factor, term in zip(factors, terms.values(), strict=True)), torch.zeros(()))
        said = {name: float(term.detach()) for name, term in terms.items()}
        said["clip_fraction"] = float(((ratio - 1).abs() > config.clip_epsilon).float().mean()) if len(ratio) else 0.0
        return loss, said

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """All that the next update depends on, for ``torch.save``. Tensors are those that learn, not copies."""
        return {
            "planner": self.planner.state_dict(),
            "ema": {name: torch.as_tensor(array) for name, array in self.planner.ema.state.items()},
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "updates": self.updates,
            "passes": self.passes,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of :meth:`state`, whose planner had the same sizes.

        Raises:
            RuntimeError: It is that of networks of other sizes.
            ValueError: It is that of plans of another size.

        """
        self.planner.load_state_dict(state["planner"])
        self.planner.ema.state = {name: tensor.numpy() for name, tensor in state["ema"].items()}
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.updates, self.passes = state["updates"], state.get("passes", 0)


def _log_prob(logits: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """The logarithm of the probability ``(...)`` of actions ``(...)``, of logits ``(..., action_dim)``."""
    return logits.log_softmax(-1).gather(-1, action[..., None])[..., 0]
