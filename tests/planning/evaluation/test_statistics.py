"""Intervals, paired tests and Holm's correction, against slow ones and against known values."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm.planning.evaluation.statistics import bootstrap, holm, paired_test

FEW = settings(max_examples=40, deadline=None)
NUMBERS = st.integers(-8, 8).map(float)


@FEW
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=7))
def test_the_paired_test_counts_all_ways_to_turn_the_pairs(pairs):
    """Its p-value is that of looking at each way by itself. The order of pairs and of sides does not matter."""
    differences = [a - b for a, b in pairs]
    ways = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(pairs))
    ]
    expected = sum(abs(way) >= abs(sum(differences)) for way in ways) / len(ways)
    first, second = zip(*pairs, strict=True)
    assert paired_test(first, second) == pytest.approx(expected)
    assert paired_test(second[::-1], first[::-1]) == pytest.approx(expected)


def test_known_p_values():
    """Ten pairs that all differ the same way have 2 / 2**10; many pairs are drawn, and give about the same."""
    assert paired_test(range(10, 20), range(10)) == 2 / 2**10
    assert paired_test([1.0], [0.0]) == 1.0
    # Darwin's maize as Fisher has tested it (The Design of Experiments, 1935, section 21): 1,726 of 2**15 ways.
    crossed = [188, 96, 168, 176, 153, 172, 177, 163, 146, 173, 186, 168, 177, 184, 96]
    selfed = [139, 163, 160, 160, 147, 149, 149, 122, 132, 144, 130, 144, 102, 124, 144]
    exact = paired_test(crossed, selfed)
    assert exact == 1726 / 2**15
    noise = [0.0] * 10  # ties change nothing, but make more pairs than are looked at one by one
    assert paired_test([*crossed, *noise], [*selfed, *noise]) == pytest.approx(exact, abs=0.005)


@FEW
@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_is_as_it_is_defined(p_values):
    """The k-th smallest is refused at a level if it and all smaller ones are below the level over what is left."""
    n = len(p_values)
    for i, adjusted in enumerate(holm(p_values)):
        order = sorted(range(n), key=p_values.__getitem__)
        rank = order.index(i)
        assert adjusted == min(1.0, max((n - k) * p_values[order[k]] for k in range(rank + 1)))


def test_known_corrections():
    """The example by which Holm's method is usually shown."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@FEW
@given(st.lists(NUMBERS, min_size=1, max_size=6), st.integers(1, 5), NUMBERS)
def test_intervals_move_with_their_values(values, scale, shift):
    """An interval is around its estimate and within the values; other units give the same one in other units."""
    found = bootstrap(values, resamples=200)
    assert found.estimate == pytest.approx(np.mean(values))
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    other = bootstrap([scale * one + shift for one in values], resamples=200)
    assert [other.low, other.high] == pytest.approx([scale * one + shift for one in (found.low, found.high)])


def test_known_intervals():
    """Of ten zeros and ones the number of ones in a resample is binomial, whose quantiles are known."""
    found = bootstrap([0.0, 1.0] * 5)
    assert (found.estimate, found.low, found.high) == (0.5, pytest.approx(0.2), pytest.approx(0.8))
    half = bootstrap([0.0, 1.0] * 5, level=0.5)
    assert (half.low, half.high) == (pytest.approx(0.4), pytest.approx(0.6))
    medians = bootstrap([1.0, 2.0, 90.0], np.median)
    assert (medians.estimate, medians.low, medians.high) == (2.0, 1.0, 90.0)
    rows = bootstrap([[1.0, 2.0], [3.0, 6.0]], lambda drawn, axis: drawn.sum(axis)[:, 0] / drawn.sum(axis)[:, 1])
    assert (rows.estimate, rows.low, rows.high) == (0.5, 0.5, 0.5)  # of pairs that are drawn together


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: bootstrap([]), "use one finite number or more"),
        (lambda: bootstrap([1.0, np.nan]), "use one finite number or more"),
        (lambda: bootstrap([1.0], level=1.0), "level=1.0: use a number between 0 and 1"),
        (lambda: paired_test([1.0], [1.0, 2.0]), "first has 1 values and second has 2: use pairs"),
        (lambda: paired_test([np.inf], [1.0]), "first=.*: use one finite number or more"),
        (lambda: holm([0.1, 1.5]), r"p_values\[1\]=1.5: use numbers from 0 to 1"),
    ],
)
def test_bad_values_are_refused(call, told):
    """The message says which ones."""
    with pytest.raises(ValueError, match=told):
        call()
