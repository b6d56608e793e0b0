"""Advantages against sums that are written out, on random episodes."""

from typing import Any

import numpy as np
import pytest
from harness.packages import need
from hypothesis import given, settings
from hypothesis import strategies as st

need("torch")

import torch  # noqa: E402

from echo_shm.planning.agents.advantages import advantages  # noqa: E402

NUMBERS = st.floats(-3, 3)


@st.composite
def rows(draw: Any) -> dict[str, np.ndarray]:
    """One segment: episodes that end terminated, truncated or not at all, each end with a row of its own."""
    kinds = draw(st.lists(st.sampled_from(["step", "terminated", "end"]), min_size=1, max_size=12))
    terminated, acted = [], []
    for kind in kinds:  # "end": what an episode has ended with; before it was a step that terminated, or was truncated
        acted.append(kind != "end")
        terminated.append(kind == "terminated")
        if kind == "terminated":
            acted.append(False)
            terminated.append(False)
    acted[-1] = False  # nothing is known of what the last row leads to
    terminated[-1] = False
    n = len(acted)
    lists = {name: draw(st.lists(NUMBERS, min_size=n, max_size=n)) for name in ("reward", "values", "log_ratio")}
    return {
        "terminated": np.array(terminated),
        "acted": np.array(acted),
        **{name: np.array(values) for name, values in lists.items()},
    }


def slow(one: dict[str, np.ndarray], gamma: float, lam: float, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums, term by term: each step adds its error, times the discounts and ratios on the way."""
    n = len(one["values"])
    value_after = [0.0 if one["terminated"][t] else one["values"][t + 1] for t in range(n - 1)]
    error = [one["reward"][t] + gamma * value_after[t] - one["values"][t] for t in range(n - 1)]
    advantage, target = np.zeros(n), one["values"].copy()
    for start in range(n - 1):
        weight = 1.0  # gamma and lambda, and the ratios of the steps after the first one up to here
        for t in range(start, n - 1):
            if not one["acted"][t]:
                break
            weight *= 1.0 if t == start else gamma * lam * rho[t]
            advantage[start] += weight * error[t]
            target[start] += rho[start] * weight * error[t]
            if one["terminated"][t]:
                break
    return advantage, target


@settings(max_examples=60, deadline=None)
@given(rows(), st.floats(0, 1), st.floats(0, 1), st.booleans(), st.floats(0.1, 3))
def test_they_are_the_sums_of_the_definition(
    one: dict[str, np.ndarray], gamma: float, lam: float, on_policy: bool, most: float
):
    """Whatever ends an episode, and whatever the ratios are."""
    ratio = np.exp(one["log_ratio"])
    tensors = {name: torch.as_tensor(one[name])[None] for name in ("reward", "terminated", "acted", "values")}
    got = advantages(
        **tensors,
        gamma=gamma,
        gae_lambda=lam,
        ratio=None if on_policy else torch.as_tensor(ratio)[None],
        max_ratio=most,
    )
    expected = slow(one, gamma, lam, np.ones_like(ratio) if on_policy else np.minimum(ratio, most))
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine[0].numpy(), theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("terminated", "expected"), [(True, 1.0 - 5.0), (False, 1.0 + 0.5 * 7.0 - 5.0)])
def test_an_end_by_a_limit_bootstraps_and_a_real_one_does_not(terminated: bool, expected: float):
    """After a truncated step comes the value of what the episode ended with, and nothing of the next episode."""
    got, target = advantages(
        torch.tensor([[1.0, 0.0, 9.0, 0.0]]),
        torch.tensor([[terminated, False, False, False]]),
        torch.tensor([[True, False, True, False]]),
        torch.tensor([[5.0, 7.0, 100.0, 100.0]]),
        gamma=0.5,
        gae_lambda=1.0,
    )
    assert got[0, 0] == expected
    assert target[0, 0] == 5.0 + expected
