"""The account finds what a ring must not do."""

import numpy as np
import pytest

from harness import stamped
from harness.account import Account


def batch(*stamps):
    """A batch of these samples, each an incarnation and a sequence number."""
    samples = [stamped.stamp(stamped.example(), *stamp) for stamp in stamps]
    return {leaf: np.stack([sample[leaf] for sample in samples]) for leaf in samples[0]}


def entered(*stamps):
    """An account of these samples, in batches of one."""
    account = Account()
    for stamp in stamps:
        account.enter(batch(stamp))
    return account


def test_a_good_stream_settles():
    """Samples of several incarnations, some of them late, are all accounted for."""
    account = Account()
    account.enter(batch((1, 0), (2, 0), (1, 1)))
    account.enter(batch((2, 2), (2, 1), (1, 2)))
    account.settle({1: 3, 2: 3, 3: 0})
    assert (account.samples, account.descents) == (6, 1)


@pytest.mark.parametrize("again", [(1, 0), (1, 3)])
def test_a_doubled_sample(again):
    """A sample that comes twice is found at once, in its turn or early."""
    account = entered((1, 0), (1, 1), (1, 3))
    with pytest.raises(AssertionError, match=f"1:{again[1]} was delivered twice"):
        account.enter(batch(again))


@pytest.mark.parametrize(
    ("stamps", "sent", "message"),
    [
        ([(1, 0), (1, 2)], {1: 3}, "lost"),
        ([(1, 0), (1, 1)], {1: 3}, "3 sent, 2 delivered"),
        ([], {1: 1}, "1 sent, 0 delivered"),
        ([(1, 0), (1, 1)], {1: 1}, "1 sent, 2 delivered"),
        ([(1, 0), (2, 0)], {1: 1}, "incarnations that there were not"),
    ],
)
def test_a_stream_that_does_not_settle(stamps, sent, message):
    """A sample that is missing, in the middle or at the end, and one that nobody sent."""
    with pytest.raises(AssertionError, match=message):
        entered(*stamps).settle(sent)


def test_samples_of_an_interrupted_send():
    """As many samples as the caller says may come beyond those whose send returned, and not one more."""
    account = entered((1, 0), (1, 1))
    account.settle({1: 1}, beyond=lambda incarnation: 1)
    with pytest.raises(AssertionError, match="0 sent, 2 delivered, at most 1"):
        account.settle({1: 0}, beyond=lambda incarnation: 1)


@pytest.mark.parametrize("leaf", ["incarnation", "sequence", "payload", "sum"])
def test_a_torn_sample(leaf):
    """One wrong leaf is enough."""
    torn = batch((1, 0), (1, 1))
    torn[leaf][1] += 1
    with pytest.raises(AssertionError, match="torn"):
        Account().enter(torn)
