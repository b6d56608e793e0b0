"""The cases of run.py: configurations that must hold, and mutants that must not."""

from dataclasses import dataclass, field, replace
from typing import Literal

Mode = Literal["all", "bits", "cycles"]


@dataclass(frozen=True)
class Case:
    """One search: a configuration, or a mutant in the smallest configuration that shows its fault."""

    name: str
    about: str
    flags: dict[str, int] = field(default_factory=dict)
    mode: Mode = "all"  # all: every state; bits: bitstate hashing; cycles: every state, looking for endless runs
    quick: bool = False
    breaks: frozenset[int] = frozenset()  # a mutant breaks one of these statements first
    source: str = "ring.pml"

    @property
    def mutant(self) -> bool:
        """Whether the search must find an error."""
        return bool(self.breaks)


def _words(text: str) -> dict[str, int]:
    pairs = (word.partition("=") for word in text.split())
    return {name: int(value or 1) for name, _, value in pairs}


def _holds(name: str, flags: str, about: str, mode: Mode = "all", quick: bool = False) -> Case:
    return Case(name, about, _words(flags), mode, quick)


def _mutant(name: str, flags: str, breaks: set[int], about: str, mode: Mode = "all") -> Case:
    return Case(name, about, {**_words(flags), f"M_{name}": 1}, mode, True, frozenset(breaks))


def _weights(*cases: Case) -> list[Case]:
    return [replace(case, source="weights.pml") for case in cases]


CONFIGURATIONS = [
    _holds("quiet-22", "B=2 K=2", "no crash", quick=True),
    _holds("quiet-11", "B=1 K=1", "no crash", quick=True),
    _holds("quiet-21", "B=2 K=1", "no crash", quick=True),
    _holds("producer-22", "B=2 K=2 KP=1", "a producer killed", quick=True),
    _holds("learner-22", "B=2 K=2 KL=1", "a learner killed and replaced"),
    _holds("both-22", "B=2 K=2 KP=1 KL=1", "one producer and one learner killed, reapers too"),
    _holds("both-11", "B=1 K=1 KP=1 KL=1", "one producer and one learner killed, reapers too"),
    _holds("both-21", "B=2 K=1 KP=1 KL=1", "one producer and one learner killed, reapers too"),
    _holds("producers-22", "B=2 K=2 KP=2", "both producers killed"),
    _holds("producers-21", "B=2 K=1 KP=2", "both producers killed"),
    _holds(
        "replaced", "B=1 K=1 M=1 KP=2 RESTART=1", "a new producer reaps the old one for its index, or dies doing so"
    ),
    _holds("reuse", "NP=1 B=2 K=1 KL=2 SPARE_L=0", "a new learner must reap the old one to get its index", quick=True),
    _holds("late", "B=2 K=1 M=1 KP=1 LATE", "producers attach to a live ring; one is killed"),
    _holds("abort-11", "B=1 K=1 ABORTS=2", "claims aborted"),
    _holds("abort-21", "B=2 K=1 KP=1 ABORTS=1", "a claim aborted, a producer killed"),
    _holds("bulk-22", "B=2 K=2 RUN=2 KP=1 KL=1", "bulk claims, one of each killed"),
    _holds("bulk-21", "B=2 K=1 M=3 RUN=2 KP=1", "bulk claims over three laps"),
    _holds("early-21", "B=2 K=1 EARLY=2", "sleeps that end early"),
    _holds("learners-12", "NP=1 B=1 K=2 NL=2 KL=1", "two learners, one killed"),
    _holds("learners-12-ready", "NP=1 B=1 K=2 NL=2 KL=1 READY", "the same, batches in any order"),
    _holds("learners-12-back", "NP=1 B=1 K=2 M=1 NL=2 BACK=1", "two learners, a batch given back", quick=True),
    _holds("learners-11-back", "NP=1 B=1 K=1 NL=2 BACK=1", "the same over two laps"),
    _holds("waiter-21", "B=2 K=1 M=1 NW=1 WAITS=2", "a process that waits for a batch and for room", quick=True),
    _holds("waiter-11", "NP=1 B=1 K=1 NW=1 WAITS=2", "the same", quick=True),
    _holds("waiter-kills", "NP=1 B=1 K=1 KP=1 KL=1 NW=1", "the same, one of each other role killed"),
    _holds("waiter-abort", "NP=1 B=2 K=1 ABORTS=1 NW=1", "the same, a claim aborted"),
    _holds("waiters-11", "NP=1 B=1 K=1 NW=2", "two such processes"),
    _holds("closed-11", "B=1 K=1 M=1 CLOSE", "the ring closes at any moment"),
    _holds(
        "closed-abort", "NP=1 B=1 K=1 ABORTS=1 CLOSE", "the ring closes; a claim aborted, perhaps after its eviction"
    ),
    _holds("closed-21", "NP=1 B=2 K=1 M=3 CLOSE", "the ring closes at any moment", quick=True),
    _holds("closed-bulk", "NP=1 B=2 K=1 RUN=2 CLOSE", "the ring closes; part of a bulk claim evicted", quick=True),
    _holds("closed-21-kills", "NP=1 B=2 K=1 KP=1 KL=1 CLOSE", "the ring closes; one of each killed"),
    _holds("closed-learners", "NP=1 B=1 K=1 M=1 NL=2 CLOSE", "the ring closes; two learners"),
    _holds(
        "closed-replaced", "NP=1 B=2 K=1 KP=1 KL=1 RESTART=1 CLOSE", "the ring closes; one of each killed and replaced"
    ),
    _holds("cycles-11-one", "B=1 K=1 M=1 CYCLES", "no endless run", "cycles", quick=True),
    _holds("cycles-11", "B=1 K=1 CYCLES", "no endless run", "cycles"),
    _holds("cycles-21", "B=2 K=1 KP=1 CYCLES", "no endless run, a producer killed", "cycles"),
    _holds("cycles-12", "NP=1 B=1 K=2 NL=2 CYCLES", "no endless run, two learners", "cycles"),
    _holds(
        "closed-learners-kill",
        "NP=1 B=1 K=1 M=1 NL=2 KL=1 CLOSE",
        "the ring closes; two learners, one replaced",
        "bits",
    ),
    _holds("three-22", "NP=3 B=2 K=2 KP=1 KL=1", "three producers, one of each killed", "bits"),
    _holds("three-21", "NP=3 B=2 K=1 KP=1 KL=1", "three producers, one of each killed", "bits"),
    _holds("three-bulk", "NP=3 B=2 K=2 RUN=2 KP=2 ABORTS=1", "three producers, bulk, abort, two killed", "bits"),
    *_weights(
        _holds("weights-copy", "NC=2 WARM KP=1", "two readers copy, a publisher killed", quick=True),
        _holds("weights-lease", "NR=2 WARM KP=1", "two readers share a lease, a publisher killed", quick=True),
        _holds("weights-leases", "NR=2 L=2 WARM KP=1", "two readers with a lease each, a publisher killed", quick=True),
        _holds("weights-dead", "NR=1 V=2 KP=2 KL=2 KR=2", "first versions; two of each kind killed", quick=True),
        _holds("weights-first", "NC=1 NR=1 V=4 KP=1 KL=1", "first versions; one reader of each kind, one killed"),
        _holds("weights-both", "NC=1 NR=1 WARM KP=1 KL=1 KR=1", "a reader of each kind; one of each kind killed"),
        _holds("weights-all", "NC=1 COPIES=1 NR=2 WARM", "a reader that copies, two that share a lease"),
        _holds("weights-killed", "NR=2 WARM KP=1 KL=1", "two readers share a lease, one killed"),
        _holds("weights-reap", "NR=2 WARM KL=2 KR=1 SPARE=1", "both killed, and their reaper; new ones come at once"),
        _holds("weights-reuse", "NR=2 L=2 WARM V=2 KL=2 KR=1", "both killed; their entries are used again"),
        _holds("weights-wait", "NW=2 NR=1 KL=1 KP=1", "two processes wait, a publisher and a reader killed"),
        _holds("weights-calm", "NW=2 NC=1", "two processes wait, and nobody is killed", quick=True),
    ),
]

MUTANTS = [
    _mutant("cursor_first", "B=2 K=1 M=1 KP=1", {5, 7, 8}, "claim moves the tail before the slot has an owner"),
    _mutant("death_by_timeout", "B=1 K=1 EARLY=1", {6}, "a slow owner is reaped although it holds its lock byte"),
    _mutant("death_unasserted", "B=1 K=1 EARLY=1", {1, 2, 3, 4}, "the same, with no assertion about owner entries"),
    _mutant("bump_if_found", "B=1 K=1 M=1 KP=1 KL=1", {8}, "reopen_seq stays when a reap re-opens nothing"),
    _mutant("free_first", "B=1 K=1 M=1 KP=1 KL=1", {4}, "reap frees the entry before it sweeps"),
    _mutant(
        "free_before_reopen_seq", "B=1 K=1 M=1 KP=2 RESTART=1", {8}, "reap frees the entry before it changes reopen_seq"
    ),
    _mutant("free_before_wake", "B=1 K=1 M=1 KP=2 RESTART=1", {8}, "reap frees the entry before it wakes everybody"),
    _mutant("no_alarm", "B=2 K=1 M=1 KP=1", {8}, "reap does not set the counts' alarm bit"),
    _mutant("no_second_look", "B=1 K=1 M=1 KP=1 LATE", {10}, "registration does not check again under the lock"),
    _mutant("seen_reopen_late", "B=2 K=1 KP=1", {8}, "a search remembers reopen_seq as of its end"),
    _mutant("reopen_early", "B=2 K=1 KP=1", {8}, "reopen_seq changes before the words"),
    _mutant("reopen_without_lap", "B=1 K=1 ABORTS=2", {1, 5}, "a claim of a re-opened slot ignores its lap"),
    _mutant("tail_fetch_add", "B=1 K=1", {5}, "helpers move the tail by fetch_add, not CAS"),
    _mutant("tail_not_helped", "B=1 K=1 M=1 KP=1 CYCLES", {7}, "nobody helps the tail past a dead claimant", "cycles"),
    _mutant("position_overwritten", "B=1 K=1", {1, 4}, "a failed CAS of tail overwrites the claimed position"),
    _mutant("full_on_stale", "B=1 K=1", {7}, "claim says FULL at a position that others have passed"),
    _mutant("seq_after_look", "B=1 K=1", {8}, "space_seq is read after the last try, not before it"),
    _mutant("count_equals", "B=2 K=1 KP=1", {8}, "the committer wakes only at count == B"),
    _mutant("abort_wakes_nobody", "B=1 K=1 ABORTS=1", {8}, "abort wakes no producer"),
    _mutant("counter_trusted", "B=2 K=1 M=1 KP=1", {2, 8}, "the learner trusts the count"),
    _mutant("release_early", "B=1 K=1", {2}, "release comes before the last read"),
    _mutant("count_after_word", "B=2 K=1", {8}, "release zeroes the count after the batch word"),
    _mutant("wake_if_was_full", "B=1 K=1", {8}, "release wakes if producers slept before it, not after it"),
    _mutant("wake_one", "B=2 K=1", {8}, "a producer that was woken and leaves room wakes nobody"),
    _mutant("waiter_keeps_room", "NP=1 B=1 K=1 NW=1", {8}, "a process that was woken and leaves room wakes nobody"),
    _mutant("waiter_no_look", "NP=1 B=1 K=1 NW=1", {8}, "a process that waits for both does not look again"),
    _mutant("waiter_no_flag", "NP=1 B=1 K=1 NW=1", {8}, "a process that waits for both does not say so to producers"),
    _mutant("waiter_seq_late", "NP=1 B=1 K=1 NW=1", {8}, "it reads both sequences after its last look"),
    _mutant("flag_cleared", "B=1 K=1", {8}, "the flag is cleared, and who is about to sleep is not told"),
    _mutant("head_fetch_add", "B=1 K=2 M=1 NL=2", {8}, "head is moved by fetch_add, not CAS"),
    _mutant("head_lowered", "B=1 K=2 M=1 NL=2 BACK=1", {8}, "give back lowers head and leaves given_back_seq"),
    _mutant("no_given_back_seq", "B=1 K=2 M=1 NL=2 KL=1", {8}, "reap does not change given_back_seq"),
    _mutant("plain_store", "B=1 K=1 M=1 CLOSE", {2, 3}, "commit is a plain store, after close and eviction"),
    _mutant(
        "given_back_early",
        "NP=1 B=1 K=2 M=1 NL=2 KL=1 KP=1 RESTART=1 NO_HEIR",
        {8},
        "given_back_seq changes before the words; a producer reaps",
    ),
    _mutant(
        "unsure_ignored",
        "NP=1 B=1 K=1 M=1 KP=1 KL=1 RESTART=1 CLOSE",
        {3},
        "a learner ends while another may be reaping",
    ),
    _mutant(
        "asks_once", "NP=1 B=1 K=1 M=1 KP=1 KL=1 RESTART=1 CLOSE", {3}, "a learner ends after one look and one sweep"
    ),
    _mutant("closed_opens_space", "B=2 K=1 CLOSE", {1, 2, 3, 6}, "release opens a new lap on a closed ring"),
    _mutant("lease_by_store", "B=1 K=2 M=1 NL=2", {2}, "a batch is leased without a CAS"),
    *_weights(
        _mutant("latest_first", "NC=1 WARM", {11}, "latest moves before the bytes"),
        _mutant("latest_reused", "NC=1 WARM", {11}, "the slot of the latest is filled"),
        _mutant("not_looked_again", "NC=1 WARM", {13}, "a copy does not look at the sequence word again"),
        _mutant("marked_late", "NC=1 WARM", {13}, "the sequence word is odd only after the bytes"),
        _mutant("not_asked_again", "NR=1 WARM", {12}, "leases are not looked at after the odd word"),
        _mutant("lease_not_checked", "NR=1 WARM", {12}, "a lease does not look at the sequence word"),
        _mutant("named_late", "NR=1 WARM", {12}, "a lease looks first and names the slot then"),
        _mutant("released_early", "NR=1 WARM", {12}, "a lease ends before the last read"),
        _mutant("claimed_by_store", "NR=2 WARM", {12, 16}, "a lease is claimed without a CAS"),
        _mutant("dead_keep", "NR=1 WARM KL=1", {15}, "a dead reader's lease is never freed: no reader finds one"),
        _mutant("reaps_all", "NR=2 WARM KL=1", {12, 16}, "a reap frees the leases of the living, too"),
        _mutant("entry_freed_first", "NR=1 WARM KL=1", {12, 16}, "a reap frees the entry before the leases"),
        _mutant("no_flag_seen", "NW=1", {17}, "the publisher wakes nobody"),
        _mutant("flag_after_look", "NW=1", {17}, "a reader says that it sleeps after its last look"),
        _mutant("news_seq_late", "NW=1", {17}, "a reader reads news_seq after its last look"),
    ),
]
