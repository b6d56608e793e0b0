"""The account of a storm on a replay: what its tables hold, against what was sent, flushed, drawn and deleted."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from harness.account import Account

from stress.replay_actors import (
    BATCH,
    BY_CLIENT,
    BY_REPLAY,
    MANY,
    SIZE,
    Notes,
    first_priority,
    goes_into_each,
    goes_into_taken,
    read_log,
)

_Stamp = tuple[int, int]


class Ledger:
    """What was found in the tables, look by look. A look that contradicts it fails.

    Attributes:
        account: The stamps that came into table ``all``, each once.
        each: How many of them have an item in table ``each``.
        in_flight: How many items a killed process may have been drawing from it.

    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.account = Account()
        self.each = self.in_flight = 0
        self._each: set[_Stamp] = set()
        self._taken: set[_Stamp] = set()
        self._keys: dict[str, dict[int, _Stamp]] = {"all": {}, "some": {}}

    def bury(self) -> None:
        """A life of the replay has ended. What it was drawing is gone with it."""
        self.in_flight += int(self._notes.drawing[0])
        self._notes.drawing[0] = 0

    def enter(self, tables: Mapping[str, Any], infos: Mapping[str, Any], confirmed: Any, sent: Any) -> None:
        """Enters what a look has found.

        Args:
            tables: Of ``all`` and ``some`` the keys, stamps and priorities, the oldest item first.
            infos: Of all tables.
            confirmed: By incarnation, how many steps ``flush`` had confirmed before the look.
            sent: The same for ``add``, after it.

        """
        keys, stamps, _ = tables["all"]
        new = self._enter_keys("all", keys, stamps)
        assert new.sum() <= SIZE, f"{new.sum()} steps came between two looks: some may have gone unseen"
        # In one piece: what comes late within it is in order then.
        order = np.lexsort((stamps[new][:, 1], stamps[new][:, 0]))
        arrived = stamps[new][order]
        self.account.enter_stamps(arrived[:, 0], arrived[:, 1])
        self.each += int(goes_into_each(arrived[:, 1]).sum())
        self._each.update(map(tuple, arrived[goes_into_each(arrived[:, 1])].tolist()))
        self._taken.update(map(tuple, arrived[goes_into_taken(arrived[:, 1])].tolist()))
        inserted = infos["all"].inserted  # more may have come since
        assert inserted >= self.account.samples, f"{inserted} inserted, {self.account.samples} different steps found"
        self._check_confirmed(confirmed, sent)
        self._check_some(tables, sent)

    def _enter_keys(self, table: str, keys: Any, stamps: Any) -> Any:
        """Which items were not there before. A key names the same step for ever."""
        before, now = self._keys[table], dict(zip(keys.tolist(), map(tuple, stamps.tolist()), strict=True))
        assert len(set(now.values())) == len(now), f"a step has two items in table {table}"
        for key, stamp in now.items():
            assert before.get(key, stamp) == stamp, f"key {key:#x} of table {table} was {before[key]}, and is {stamp}"
        self._keys[table] = now
        return np.array([key not in before for key in now], bool)

    def _check_confirmed(self, confirmed: Any, sent: Any) -> None:
        for incarnation in np.flatnonzero(confirmed).tolist():
            came = self.account.next.get(incarnation, 0)
            assert came >= confirmed[incarnation], f"{incarnation}: {confirmed[incarnation]} confirmed, {came} stored"
        for incarnation, came in self.account.next.items():
            assert came <= sent[incarnation] + MANY, f"{incarnation}: {sent[incarnation]} sent, {came} stored"

    def _check_some(self, tables: Mapping[str, Any], sent: Any) -> None:
        """Table ``some`` was read later. It has the newest steps of ``all``, but not those that were deleted."""
        keys, stamps, priorities = tables["some"]
        self._enter_keys("some", keys, stamps)
        given = np.stack([first_priority(stamps[:, 1]), BY_CLIENT + keys % 97, BY_REPLAY + keys % 97])
        assert (given == priorities).any(axis=0).all(), "a priority that nobody gave"
        assert (stamps[:, 1] < sent[stamps[:, 0]] + MANY).all(), "a step that nobody sent"
        there = set(map(tuple, stamps.tolist()))
        of_all = list(map(tuple, tables["all"][1].tolist()))
        # If it is empty, nothing of the newest steps had to make room for others. One turn brings at most so many.
        newest = max(0, len(of_all) - (SIZE // 2 - 300))
        first = next((i for i, stamp in enumerate(of_all) if stamp in there), newest)
        missing = set(of_all[first:]) - there
        assert missing <= set(read_log(self._notes.deleted)), f"lost from table some: {sorted(missing)[:5]}"

    def settle(self, sent: Mapping[int, int], infos: Mapping[str, Any], batches_twice: int) -> dict[str, int]:
        """At the end, when everything that was sent is stored, and tables ``each`` and ``taken`` are drawn empty.

        ``batches_twice``: how many batches may have come twice.
        """
        self.account.settle(sent, lambda _: MANY)
        assert infos["all"].inserted == self.account.samples, infos["all"]
        drawn = read_log(self._notes.each)
        assert len(set(drawn)) == len(drawn), "table each gave an item twice"
        assert set(drawn) <= self._each, "table each gave what nobody put in"
        missing = self.each - len(drawn)
        assert missing <= self.in_flight, f"{missing} items of table each are lost, {self.in_flight} were in flight"
        assert infos["each"].inserted == self.each, infos["each"]
        assert infos["each"].size == 0, infos["each"]
        twice = self._settle_taken(infos["taken"], batches_twice)
        came = self.account.next
        return {
            "drawn once": len(drawn),
            "in flight at a death": missing,
            "in batches": len(self._taken),
            "of them twice, taken by learners that were killed": twice,
            "lost": sum(max(0, count - came.get(incarnation, 0)) for incarnation, count in sent.items()),
            "doubled": infos["all"].inserted - sum(came.values()),
        }

    def _settle_taken(self, info: Any, batches_twice: int) -> int:
        """Each item was drawn once, and each full batch was delivered. Only what a dead learner had came again."""
        drawn = read_log(self._notes.taken)
        assert info.inserted == info.sampled == len(self._taken), info
        assert set(drawn) <= self._taken, "a batch has what nobody put into table taken"
        missing = len(self._taken) - len(set(drawn))
        assert missing == info.sampled % BATCH, f"{missing} items of {info.sampled} are in no batch"
        twice = len(drawn) - len(set(drawn))
        assert twice <= batches_twice * BATCH, f"{twice} items came twice, expected at most {batches_twice} batches"
        return twice
