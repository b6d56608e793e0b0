"""Drawing tokens from logits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm.planning.rollouts.sampling import checked_logits, draw, is_usable

LOGITS = st.one_of(st.floats(-30, 30, width=32), st.just(-math.inf))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.lists(LOGITS, min_size=5, max_size=5).filter(lambda row: max(row) > -math.inf), min_size=1, max_size=4
    ),
    data=st.data(),
)
def test_a_draw_is_the_slow_one(rows, data):
    """A uniform number takes the token into whose part of the distribution it falls; greed takes the largest logit."""
    temperatures = [data.draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])) for _ in rows]
    uniforms = [data.draw(st.floats(0, 1, exclude_max=True)) for _ in rows]
    tokens, log_probs = draw(np.array(rows, np.float32), np.array(temperatures), uniforms)
    for row, temperature, uniform, token, log_prob in zip(
        rows, temperatures, uniforms, tokens.tolist(), log_probs.tolist(), strict=True
    ):
        weights = [math.exp((x - max(row)) / (temperature or 1.0)) for x in row]
        share = [weight / sum(weights) for weight in weights]
        assert math.isclose(log_prob, math.log(share[token]), rel_tol=1e-9, abs_tol=1e-9)
        if temperature == 0.0:
            assert token == row.index(max(row))
        else:
            assert share[token] > 0
            assert sum(share[:token]) - 1e-9 <= uniform <= sum(share[: token + 1]) + 1e-9


def test_what_can_be_drawn_from():
    """-inf forbids a token; NaN, +inf, or no token at all is no distribution."""
    assert is_usable(np.array([0.0, -np.inf]))
    for bad in ([0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf]):
        assert not is_usable(np.array(bad))


@pytest.mark.parametrize("bad", [None, [[1.0]], np.zeros((1, 2), np.int64)])
def test_what_is_no_array_of_floats_is_refused(bad):
    """The error says what came."""
    with pytest.raises(TypeError, match=r"the backbone returned .*: an array of floats was expected"):
        checked_logits(bad, 1, 2)
