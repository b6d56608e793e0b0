"""The account of a stream of stamped samples: each was delivered once and whole, and none was lost."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness import stamped


class Account:
    """What was delivered, entered batch by batch. Its size does not grow with the stream.

    Attributes:
        samples: How many were delivered.
        descents: How many came directly after a younger one of the same incarnation.
        next: By incarnation, the number below which every sample has come.

    """

    def __init__(self) -> None:
        self.samples = self.descents = 0
        self.next: dict[int, int] = {}
        self._early: dict[int, set[int]] = {}  # what came before an elder sample
        self._last: dict[int, int] = {}

    def enter(self, batch: dict[str, Any], versions: Any = None) -> None:
        """Enters a batch; fails if a sample in it is torn or came before, or has the version of another one."""
        wrong = stamped.torn(batch)
        assert not wrong.size, f"torn: {[{k: v[i] for k, v in batch.items()} for i in wrong[:3]]}"
        wrong = wrong if versions is None else stamped.misdated(batch, versions)
        assert not wrong.size, f"versions of others: {[(stamped.stamps(batch)[i], versions[i]) for i in wrong[:3]]}"
        self.enter_stamps(batch["incarnation"], batch["sequence"])

    def enter_stamps(self, incarnations: Any, sequences: Any) -> None:
        """The same for samples that are known to be whole."""
        for incarnation in np.unique(incarnations).tolist():
            self._enter(incarnation, sequences[incarnations == incarnation])
        self.samples += len(incarnations)

    def _enter(self, incarnation: int, sequences: Any) -> None:
        ordered = np.concatenate(([self._last.get(incarnation, -1)], sequences))
        self.descents += int((np.diff(ordered) < 0).sum())
        self._last[incarnation] = int(sequences[-1])
        expected, early = self.next.get(incarnation, 0), self._early.get(incarnation)
        if early is None and sequences[0] == expected and (np.diff(sequences) == 1).all():
            self.next[incarnation] = expected + len(sequences)
            return
        early = self._early.pop(incarnation, set())
        for sequence in sequences.tolist():
            assert sequence >= expected, f"{incarnation}:{sequence} was delivered twice"
            assert sequence not in early, f"{incarnation}:{sequence} was delivered twice"
            early.add(sequence)
        while expected in early:
            early.remove(expected)
            expected += 1
        self.next[incarnation] = expected
        if early:
            self._early[incarnation] = early

    def settle(self, sent: Mapping[int, int], beyond: Callable[[int], int] = lambda incarnation: 0) -> None:
        """Compares with what was sent; fails if anything was lost, or came from nowhere.

        Args:
            sent: By incarnation, how many sends have returned: samples 0 to that number less 1.
            beyond: By incarnation, how many samples more may have been delivered, of a send that did not return.

        """
        assert not self._early, f"lost: what came after each gap is {self._early}"
        strangers = self.next.keys() - sent.keys()
        assert not strangers, f"samples of incarnations that there were not: {strangers}"
        for incarnation, count in sent.items():
            came, most = self.next.get(incarnation, 0), count + beyond(incarnation)
            assert count <= came <= most, f"incarnation {incarnation}: {count} sent, {came} delivered, at most {most}"
        assert self.samples == sum(self.next.values())
