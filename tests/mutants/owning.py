"""Mutants of the reaper, the owners' table, their lock bytes and the wake-ups."""

from mutant import Mutant


def _reap(name: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_reap.c", "es_reap", bug, where, edits)


def _lease(name: str, bug: str, *edits: tuple[str, str], where: str = "SYNC given-back-seq") -> Mutant:
    return Mutant(name, "ring/es_lease.c", "es_lease_give_back_all", bug, where, edits)


def _owner(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_owner.c", function, bug, where, edits)


def _locks(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_locks.c", function, bug, where, edits)


def _wake(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_wake.c", function, bug, where, edits)


_FREE = "    es_owner_free(m, index);\n"
_YIELD = "    es_locks_yield(r->locks, index);\n"
_SETTLE = "    es_journal_settle(m, index);\n"
_BUMP_BACK = "    atomic_fetch_add_explicit(&m->hdr->given_back_seq, 1, memory_order_release);\n"
_LIVE = "        atomic_store_explicit(&owner->state, ES_OWNER_LIVE, memory_order_release);\n"
_HIGH = "        raise_high(map, i);\n"
_RELEASE_HELD = "    atomic_store_explicit(&locks->held[at], 0, memory_order_release);\n"
_BUMP_READY = "    atomic_fetch_add_explicit(&hdr->ready_seq, 1, memory_order_acq_rel);\n"
_BUMP_SPACE = "    atomic_fetch_add_explicit(&hdr->space_seq, 1, memory_order_acq_rel);\n"
_FENCE = "    atomic_thread_fence(memory_order_seq_cst);\n"

OWNING = (
    _reap(
        "reap-settle-late",
        "SYNC slot-reopen",
        "the journal is read after the bridge's claims were re-opened",
        (_SETTLE, ""),
        ("    es_wake_alarm(r);", f"{_SETTLE}    es_wake_alarm(r);"),
    ),
    _reap(
        "reap-no-settle",
        "reap: journal",
        "samples that a dead bridge has committed are not counted",
        (_SETTLE, ""),
    ),
    _reap(
        "reap-no-back",
        "reap: leases",
        "batches that a dead learner has leased are lost",
        ("    es_lease_give_back_all(r, index);\n", ""),
    ),
    _reap(
        "reap-free-first",
        "SYNC owner-free",
        "the entry is freed before the sweep",
        (_FREE, ""),
        (_YIELD, ""),
        (_SETTLE, f"{_FREE}{_YIELD}{_SETTLE}"),
    ),
    _reap(
        "reap-free-early",
        "SYNC owner-free",
        "the entry is freed before the wake-ups",
        (_FREE, ""),
        ("    es_wake_alarm(r);", f"{_FREE}    es_wake_alarm(r);"),
    ),
    _reap(
        "reap-no-alarm",
        "reap: alarm",
        "a commit that the dead producer did not count stays uncounted",
        ("    es_wake_alarm(r);", "   "),
    ),
    _reap(
        "reap-no-wake",
        "reap: wake",
        "processes that the dead process should have woken are not woken",
        ("    es_wake_all(r);", "   "),
    ),
    _reap(
        "reap-no-yield",
        "reap: byte",
        "the reaper keeps the dead owner's lock byte",
        (_YIELD, ""),
    ),
    _reap(
        "reap-counts-all",
        "statistics",
        "dead learners are counted as producers",
        ("== ES_ROLE_PRODUCER)", "!= 0)"),
    ),
    _lease(
        "reap-back-unmarked",
        "the batch word does not say that the batch was given back",
        ("es_word(es_word_round(w), ES_GIVEN_BACK, ES_FILL)", "es_word(es_word_round(w), 0, ES_FILL)"),
    ),
    _lease(
        "reap-back-no-seq",
        "learners are not told to look below head",
        (_BUMP_BACK, ""),
    ),
    _lease(
        "reap-back-seq-if",
        "a reaper that finds nothing to give back does not announce what a dead reaper gave back",
        (_BUMP_BACK, f"    if (n > 0)\n    {_BUMP_BACK}"),
    ),
    _lease(
        "reap-poisoned",
        "a half overwritten batch is delivered again",
        ("            poisoning ? released", "            poisoning && j > m->num_batches ? released"),
        where="reap: poison",
    ),
    _owner(
        "live-before-high",
        "es_owner_register",
        "SYNC owner-live",
        "the entry is LIVE before the mark is raised",
        (_HIGH, ""),
        (_LIVE, f"{_LIVE}{_HIGH}"),
    ),
    _owner(
        "live-before-filled",
        "es_owner_register",
        "SYNC owner-live",
        "the entry is LIVE before it names its owner",
        ("        fill(owner, id);\n", ""),
        (_LIVE, f"{_LIVE}        fill(owner, id);\n"),
    ),
    _owner(
        "register-no-recheck",
        "es_owner_register",
        "SYNC owner-free",
        "an entry is taken although another process took it and died in between",
        (
            "if (atomic_load_explicit(&owner->state, memory_order_acquire) != ES_OWNER_FREE) {",
            "if (rc != ES_OK) {",
        ),
    ),
    _owner(
        "register-keeps-byte",
        "es_owner_register",
        "register: second byte",
        "a learner keeps its second byte: other processes cannot tell whether it lives",
        ("        es_locks_keep(locks, i);\n", ""),
    ),
    _owner(
        "register-old-bridge",
        "fill",
        "register",
        "a process that takes over a bridge's old entry counts as a bridge",
        ("    atomic_store_explicit(&owner->is_bridge, 0, memory_order_relaxed);\n", ""),
    ),
    _owner(
        "dead-no-recheck",
        "es_owner_next_dead",
        "SYNC owner-live",
        "an owner that has just left is reaped",
        ("memory_order_acquire) == ES_OWNER_LIVE)", "memory_order_acquire) <= ES_OWNER_LIVE)"),
    ),
    _owner(
        "dead-unsure-lost",
        "es_owner_next_dead",
        "reap: unsure",
        "a learner that another reaper is checking is mistaken for a living one",
        ("*unsure || rc == -EBUSY", "*unsure && rc == -EBUSY"),
    ),
    _owner(
        "count-bridges",
        "es_owner_count_producers",
        "statistics",
        "bridges are counted as producers",
        ("memory_order_relaxed) == 0;", "memory_order_relaxed) <= 1;"),
    ),
    _owner(
        "high-unbounded",
        "es_owner_high",
        "owners: scribbled",
        "the mark is trusted although it may be corrupt",
        ("high < map->num_owners ? high : map->num_owners", "map->num_owners > 0 ? high : 0"),
    ),
    _owner(
        "alive-all",
        "es_owner_learner_alive",
        "SYNC owner-live",
        "a dead learner counts as alive until it is reaped",
        ("es_locks_held(locks, i) != 0)", "es_locks_held(locks, i) >= 0)"),
    ),
    _locks(
        "seize-one-byte",
        "es_locks_seize",
        "locks: second byte",
        "a reaper does not take the learner's second byte",
        ("index < ES_MAX_LEARNERS ? take_byte(locks, SECOND(locks, index), SECOND_BYTE(index)) : ES_OK", "ES_OK"),
    ),
    _locks(
        "seize-leaks",
        "es_locks_seize",
        "locks: second byte",
        "a process that cannot seize the first byte keeps the second",
        ("        es_locks_keep(locks, index);\n", "        (void)0;\n"),
    ),
    _locks(
        "drop-too-early",
        "drop_byte",
        "SYNC held",
        "threads may take the byte before the kernel has dropped it",
        (_RELEASE_HELD, ""),
        ("    if (locks->fd >= 0)\n", f"{_RELEASE_HELD}    if (locks->fd >= 0)\n"),
    ),
    _locks(
        "take-not-held",
        "take_byte",
        "SYNC held",
        "threads of one process do not exclude each other",
        ("        return -EAGAIN;\n", "        (void)no;\n"),
    ),
    _locks(
        "free-shared-file",
        "es_locks_free",
        "locks: free",
        "closing one descriptor of the file drops the locks held through another",
        ("locks->fd >= 0 && !shared)", "locks->fd >= 0 && (!shared || shared))"),
    ),
    _locks(
        "fork-unseen",
        "in_child",
        "fork",
        "a forked child uses the attachment that it inherited",
        ("(&fork_generation, 1,", "(&fork_generation, 0,"),
    ),
    _wake(
        "wake-no-fence",
        "es_wake_learners",
        "FENCE ready",
        "the waker may read the flag before its word is stored",
        (_FENCE, ""),
    ),
    _wake(
        "wake-space-no-fence",
        "es_wake_producer",
        "FENCE space",
        "the releaser may read the flag before its word is stored",
        (_FENCE, ""),
    ),
    _wake(
        "wake-flag-kept",
        "es_wake_learners",
        "wake: flag",
        "the waker does not clear the flag: every later batch causes a wake-up, needed or not",
        (
            "atomic_exchange_explicit(&hdr->learner_sleeps, 0, memory_order_acq_rel)",
            "atomic_load_explicit(&hdr->learner_sleeps, memory_order_acquire)",
        ),
    ),
    _wake(
        "wake-no-number",
        "es_wake_learners",
        "SYNC ready-seq",
        "the number that learners sleep on does not change: a learner about to sleep is missed",
        (_BUMP_READY, ""),
    ),
    _wake(
        "wake-too-early",
        "es_wake_learners",
        "SYNC ready-seq",
        "learners are woken before the number has changed",
        ("    es_wait_wake(&hdr->ready_seq);\n", ""),
        (_BUMP_READY, f"    es_wait_wake(&hdr->ready_seq);\n{_BUMP_READY}"),
    ),
    _wake(
        "wake-space-number",
        "es_wake_producer",
        "SYNC space-seq",
        "the number that producers sleep on does not change: a producer about to sleep is missed",
        (f"{_BUMP_SPACE}    es_wait_wake(", "    es_wait_wake("),
        (_BUMP_SPACE, ""),
    ),
    _wake(
        "wake-space-cleared",
        "es_wake_producer",
        "wake: flag",
        "the flag is cleared although a producer has set it and sleeps, or is about to",
        (f"{_BUMP_SPACE}    es_wait_wake(&hdr->space_seq);\n", ""),
    ),
    _wake(
        "wake-all-learners",
        "es_wake_all",
        "SYNC space-seq",
        "a wake-up of all processes leaves out the producers",
        (f"{_BUMP_SPACE}    es_wait_wake(&hdr->space_seq);\n", ""),
    ),
    _wake(
        "wake-all-by-flag",
        "es_wake_all",
        "wake: all",
        "a flag that a dead process cleared keeps others asleep",
        (
            f"{_BUMP_READY}    es_wait_wake(&hdr->ready_seq);\n{_BUMP_SPACE}    es_wait_wake(&hdr->space_seq);\n",
            "    (void)hdr;\n    es_wake_learners(r);\n    es_wake_producer(r);\n",
        ),
    ),
    _wake(
        "alarm-added",
        "es_wake_alarm",
        "reap: alarm",
        "a second alarm cancels the first",
        ("atomic_fetch_or_explicit", "atomic_fetch_add_explicit"),
    ),
)
