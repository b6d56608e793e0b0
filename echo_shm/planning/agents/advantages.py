"""Advantages of steps that another policy may have taken."""

from echo_shm.missing import needs

with needs("planning.agents", "PyTorch", "torch", extra="planning-agents"):
    import torch


def advantages(
    reward: torch.Tensor,
    terminated: torch.Tensor,
    acted: torch.Tensor,
    values: torch.Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    ratio: torch.Tensor | None = None,
    max_ratio: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalized advantage estimation, with V-trace's corrections for steps of another policy.

    With ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, where the value after a terminated step is 0, and
    ``rho_t = min(max_ratio, ratio_t)``::

        A_t     = delta_t       + gamma lambda E_{t+1}
        E_t     = rho_t delta_t + gamma lambda rho_t E_{t+1}
        target_t = V(s_t) + E_t

    E is 0 where nothing was done, so nothing is carried over the end of an episode. A truncated step bootstraps from
    the value of the row after it, which is what the episode ended with.

    With ``ratio=None``, or 1 everywhere, A and E are the same: the estimate of Schulman et al., "High-dimensional
    continuous control using generalized advantage estimation", 2016, equation 16. Otherwise E is that of V-trace
    (Espeholt et al., "IMPALA", 2018, equation 1, with one bound for both of its ratios, and lambda as in its remark 2).
    A leaves out the ratio of its own step, since the objective multiplies by it.

    Args:
        reward: ``(n, rows)``.
        terminated: bool ``(n, rows)``.
        acted: bool ``(n, rows)``: the row has a step, and the next row is what it led to.
        values: ``(n, rows)``.
        gamma: The discount of a step.
        gae_lambda: 0: one step. 1: all of them.
        ratio: ``(n, rows)``: how much likelier the action is now than when it was drawn. None: as likely.
        max_ratio: Most that a ratio counts.

    Returns:
        A and the targets of the values, ``(n, rows)``; 0 and the values where nothing was done.

    """
    rho = torch.ones_like(values) if ratio is None else ratio.clamp(max=max_ratio)
    follows = torch.zeros_like(values)
    follows[:, :-1] = values[:, 1:]
    going_on = gamma * (~terminated).to(values.dtype)
    delta = torch.where(acted, reward + going_on * follows - values, 0.0)
    carried = gae_lambda * torch.where(acted, going_on, 0.0)
    result, excess = torch.zeros_like(values), torch.zeros_like(values)
    later = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        result[:, t] = delta[:, t] + carried[:, t] * later
        later = excess[:, t] = torch.where(acted[:, t], rho[:, t] * result[:, t], 0.0)
    return result, values + excess
