"""What the items of an episode are, in a slow and obvious way: by counting the episode's steps from 0.

An episode is how many steps it has so far, and how it ends. Its steps' data are rows of arrays; row ``steps`` is what
it ends with, if that is known.
"""

from typing import NamedTuple

import numpy as np

from echo_shm.replay import Episode, NStep, Step

#: How an episode may end: not yet; with what is known of its end; and by hand, as the next step shows.
OPEN, TERMINATED, TRUNCATED, LEFT = "open", "terminated", "truncated", "left"
TERMINATED_FINAL, TRUNCATED_FINAL = "terminated, final", "truncated, final"
ENDS = (OPEN, TERMINATED, TRUNCATED, LEFT, TERMINATED_FINAL, TRUNCATED_FINAL)


class Part(NamedTuple):
    """An item: some steps of an episode, one after the other."""

    first: int
    steps: int
    next: int | None = None  # what a transition leads to: a step, or the row after the last one
    terminal: bool = False  # nothing follows


def parts(item, steps, end):
    """All items of an episode, in the order in which they are complete."""
    if isinstance(item, Step):
        return [Part(t, 1) for t in range(steps)]
    if isinstance(item, NStep):
        return [part for t in range(steps) if (part := transition(item.n, t, steps, end)) is not None]
    length, period, padded = shape_of(item)
    found = [Part(t, length) for t in range(0, steps - length + 1, period)]
    begin = len(found) * period  # of the next one
    covered = found[-1].first + length if found else 0
    if padded and end != OPEN and steps > covered:
        found.append(Part(begin, steps - begin))
    return found


def shape_of(item):
    """The length and the period of a sequence, and whether it is padded."""
    if isinstance(item, Episode):
        return item.max_length, item.max_length, True
    return item.length, item.period, item.pad is not None


def transition(n, t, steps, end):
    """The transition that begins at step t, or None if there is none yet, or never."""
    if t + n < steps:
        return Part(t, n, t + n)
    left = steps - t  # steps from t on
    if end == TERMINATED:
        return Part(t, left, steps - 1, terminal=True)
    if end == TERMINATED_FINAL:
        return Part(t, left, steps, terminal=True)
    if end == TRUNCATED_FINAL:
        return Part(t, left, steps)
    if end in (TRUNCATED, LEFT) and left > 1:
        return Part(t, left - 1, steps - 1)
    return None


def data_of(item, found, rows):
    """What a batch of these items has, with the episode's rows by leaf: ``obs``, ``reward``, ``act`` and ``core``."""

    def each(make):
        return np.stack([make(part) for part in found])

    if isinstance(item, Step):
        return {name: each(lambda part, one=one: one[part.first]) for name, one in rows.items()}
    if isinstance(item, NStep):
        count = item.stack.get("obs", 0)
        data = {name: each(lambda part, one=one: one[part.first]) for name, one in rows.items()}
        data["obs"] = each(lambda part: frames(rows["obs"], part.first, count, item.pad))
        data["next"] = {"obs": each(lambda part: frames(rows["obs"], part.next, count, item.pad))}
        data["reward"] = each(lambda part: discounted(rows["reward"][part.first :][: part.steps], item.gamma))
        data["discount"] = each(lambda part: np.float32(0 if part.terminal else item.gamma**part.steps))
        data["n"] = each(lambda part: part.steps)
        return data
    length, _, _ = shape_of(item)
    state = getattr(item, "state", ())
    data = {name: each(lambda part, one=one: padded(one, part, length)) for name, one in rows.items()}
    data.update({name: each(lambda part, one=rows[name]: one[part.first]) for name in state})
    data["mask"] = each(lambda part: np.arange(length) < part.steps)
    if isinstance(item, Episode):
        data["length"] = each(lambda part: part.steps)
    return data


def discounted(rewards, gamma):
    """Their sum, each discounted for those before it."""
    return sum(reward * gamma**i for i, reward in enumerate(rewards.astype(np.float64))).astype(rewards.dtype)


def frames(obs, t, count, pad):
    """The last ``count`` steps before t and t itself; 0: t alone."""
    if not count:
        return obs[t]
    first, zeros = obs[0], np.zeros_like(obs[0])
    return np.stack([obs[i] if i >= 0 else first if pad == "first" else zeros for i in range(t - count + 1, t + 1)])


def padded(one, part, length):
    """The item's steps, and zeros after them."""
    made = np.zeros((length, *one.shape[1:]), one.dtype)
    made[: part.steps] = one[part.first : part.first + part.steps]
    return made
