"""The account of a storm on a replay over nodes: what came to the learners of its queue, against what was sent."""

from collections import Counter
from pathlib import Path

import numpy as np

from echo_shm.adapters.ray.sources import stock_of
from stress.ray_actors import MANY, QUEUED, Log, Notes


class Account:
    """What the notes say now.

    Attributes:
        steps: Of each incarnation, how many times each step came that it has sent.
        missing: Of each incarnation, its confirmed steps that have not come, each with the shards that it may be in. A
            step that a learner had taken early, and that went with it, is not among them.
        sent, confirmed, came, twice: How many steps.
        with_learners: How many went with learners.

    """

    def __init__(self, folder: Path) -> None:
        notes, logs = Notes.all(folder), Log.read(folder)
        items = np.concatenate([np.empty(0, next(iter(logs.values())).dtype), *map(_in_batches, logs.values())])
        early = {pair for log in logs.values() for pair in _in_hand(log)}
        self.steps: dict[int, np.ndarray] = {}
        self.missing: dict[int, list[set[int]]] = {}
        self.sent = self.confirmed = self.with_learners = 0
        for one in notes:
            mine = items[items["incarnation"] == one.number]
            sent, confirmed = one.sent, one.confirmed
            assert (mine["sequence"] < sent).all(), (
                f"incarnation {one.number}: {sent} sent, {mine['sequence'].max()} came"
            )
            moves = one.moves
            self.steps[one.number] = np.bincount(mine["sequence"], minlength=sent)
            missing = np.flatnonzero(self.steps[one.number][:confirmed] == 0).tolist()
            here = [step for step in missing if (one.number, step) not in early]
            self.with_learners += len(missing) - len(here)
            self.missing[one.number] = [_shards_of(step, moves) for step in here]
            self.sent, self.confirmed = self.sent + sent, self.confirmed + confirmed
        strangers = set(items["incarnation"].tolist()) - self.steps.keys()
        assert not strangers, f"steps of incarnations that there were not: {strangers}"
        self.came = sum(int((counts > 0).sum()) for counts in self.steps.values())
        self.twice = sum(int((counts - 1).clip(0).sum()) for counts in self.steps.values())
        self.items = items
        self.logs = logs

    def missing_of(self, shards: set[int]) -> int:
        """How many confirmed steps have not come that may have been in one of those shards."""
        return sum(bool(found & shards) for missing in self.missing.values() for found in missing)

    def missing_elsewhere(self, shards: set[int]) -> int:
        """How many that were in none of them."""
        return sum(map(len, self.missing.values())) - self.missing_of(shards)

    def missing_by_shards(self) -> str:
        """How many confirmed steps have not come, by the shards that they may be in."""
        counts = Counter(str(sorted(found)) for missing in self.missing.values() for found in missing)
        return f"missing by shards: {dict(counts)}"

    def settle(self, lost: set[int], learners: int, cut: int) -> dict[str, int]:
        """At the end: fails if a step is lost that may not be, or doubled.

        Args:
            lost: The shards that went with their nodes.
            learners: How many learners were killed.
            cut: How often learners lost a connection to a shard, at most.

        """
        missing = self.missing_elsewhere(lost)
        figures = {
            "sent": self.sent,
            "confirmed": self.confirmed,
            "came": self.came,
            "of them twice": self.twice,
            "went with nodes": self.missing_of(lost),
            "went with learners": self.with_learners,
            "missing elsewhere": missing,
        }
        print(figures, flush=True)
        assert missing == 0, f"{missing} steps are lost; {self.missing_by_shards()}"
        assert self.with_learners < QUEUED * (learners + 1), f"{self.with_learners} steps went with {learners} learners"
        # While a link is cut, a learner uses what has come, which is all that a shard has places for at most. The shard
        # hears of it too late, and gives it to others. So it does where its bridge ends before it has read of it.
        places = stock_of(QUEUED, 1, is_alone=False)
        assert self.twice <= places * (learners + cut), f"{self.twice} steps came twice, {learners}, {cut}"
        return figures


def _shards_of(step: int, moves: list[tuple[int, int]]) -> set[int]:
    """Which shards a step may be in: that of its block; and the one before, if the writer moved in that block."""
    before = [(first, shard) for first, shard in moves if first <= step]
    return {shard for _, shard in before[-1:]} | {shard for _, shard in before[-2:-1] if step < before[-1][0] + MANY}


def _in_batches(log: np.ndarray) -> np.ndarray:
    """The items of the batches that a learner has had."""
    return log[log["shard"] >= 0]


def _in_hand(log: np.ndarray) -> list[tuple[int, int]]:
    """What a learner had taken for its next batch when it was killed: items that it took early, after its last one."""
    last = np.flatnonzero(log["shard"] >= 0)
    rest = log[last[-1] + 1 :] if last.size else log
    return list(zip(rest["incarnation"].tolist(), rest["sequence"].tolist(), strict=True))
