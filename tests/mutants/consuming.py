"""Mutants of look, take, release and give back, and of the waits around them."""

from mutant import Mutant


def _consumer(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_consumer.c", function, bug, where, edits)


def _lease(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_lease.c", function, bug, where, edits)


def _blocking(name: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_blocking.c", "es_blocking_take", bug, where, edits)


_FLAG = "        atomic_store_explicit(&hdr->learner_sleeps, 1, memory_order_relaxed);\n"
_SEEN = "        uint32_t seen = atomic_load_explicit(&hdr->ready_seq, memory_order_acquire);\n"
_LEFT = "        uint64_t left = timeout_ns - slept;\n"
_ZERO = "    atomic_store_explicit(&b->count, 0, memory_order_relaxed);\n"
_RELEASED = "    atomic_store_explicit(&b->word, released_word(r, round), memory_order_release);\n"
_BUMP_BACK = "    atomic_fetch_add_explicit(&r->map.hdr->given_back_seq, 1, memory_order_release);\n"
_TAKE_CAS = (
    "    if (!atomic_compare_exchange_strong_explicit("
    "&r->map.batches[j].word, &seen, es_word(round, r->me, ES_LEASED),\n"
    "                                                 memory_order_acq_rel, memory_order_relaxed))\n"
)

CONSUMING = (
    _consumer(
        "scan-any-lap",
        "scan",
        "look: scan",
        "samples of the last lap are mistaken for new ones",
        ("es_word_lap(w) != lap || ", ""),
    ),
    _consumer(
        "scan-not-afresh",
        "scan",
        "look: scan",
        "a scan continues where the scan of another lap stopped",
        ("*s = (es_scan){.lap = lap}", "s->lap = lap"),
    ),
    _consumer(
        "scan-relaxed",
        "scan",
        "SYNC slot-commit",
        "a thread that goes on with another thread's scan does not acquire the samples' bytes",
        ("memory_order_acquire", "memory_order_relaxed"),
    ),
    _consumer(
        "scan-no-gaps",
        "scan",
        "look: scan",
        "sealed slots are handed out as samples",
        ("es_word_state(w) == ES_SEALED;\n    }", "es_word_lap(w) != lap;\n    }"),
    ),
    _consumer(
        "take-nothing",
        "takeable",
        "look: nothing in it",
        "a batch that has only sealed slots is handed out",
        (" && r->scan[j].gaps < r->map.batch_size", ""),
    ),
    _consumer(
        "take-short-early",
        "takeable",
        "look: short",
        "a batch with gaps is handed out although full batches may follow",
        (" && (flags & ES_TAKE_SHORT)", " && (flags | ES_TAKE_SHORT)"),
    ),
    _consumer(
        "head-past-open",
        "look_from_head",
        "SYNC head",
        "head is moved past a batch that is still being filled",
        ("            if (t != 0)\n                continue;\n", ""),
    ),
    _consumer(
        "look-out-of-order",
        "look_from_head",
        "look: order",
        "a later batch is taken before the oldest",
        ("} else if (!any_order(r, flags)) {", "} else if (t == UINT64_MAX) {"),
    ),
    _consumer(
        "look-once",
        "look_from_head",
        "look: order",
        "a batch that was passed over is not looked at again before a later one is leased",
        (
            "if (passed_over == m->num_batches)\n                return",
            "if (passed_over <= m->num_batches)\n                return",
        ),
    ),
    _consumer(
        "look-once-everywhere",
        "look_everywhere",
        "look: order",
        "the same where a batch may have been given back",
        ("while (any && next.number != UINT64_MAX)", "while (any && next.number > UINT64_MAX)"),
    ),
    _consumer(
        "look-ready-order",
        "any_order",
        "look: order",
        "a ring that delivers in order of readiness waits for its oldest batch",
        ("(r->map.flags & ES_FLAG_READY_ORDER)", "(r->map.flags & ES_FLAG_DETAILED) > 2"),
    ),
    _consumer(
        "look-not-smallest",
        "smallest_below",
        "look: everywhere",
        "of the batches that were given back, the last is taken and not the oldest",
        ("k >= limit || k >= best.number", "k >= limit || k == best.number"),
    ),
    _consumer(
        "look-back-unseen",
        "smallest_below",
        "SYNC given-back-seq",
        "looks start from head again although a batch below it may have been given back",
        ("= *given_back || es_word_owner(w) != 0", "= *given_back && es_word_owner(w) != 0"),
    ),
    _consumer(
        "look-back-late",
        "look_locked",
        "SYNC given-back-seq",
        "the remembered number is read after the look",
        (
            "            r->seen_given_back = seq;",
            "            r->seen_given_back = atomic_load_explicit(&r->map.hdr->given_back_seq, memory_order_acquire);",
        ),
    ),
    _consumer(
        "look-never-back",
        "look_locked",
        "SYNC given-back-seq",
        "learners do not look below head after a batch was given back",
        ("seq != r->seen_given_back ||", "seq == UINT32_MAX ||"),
    ),
    _consumer(
        "look-head-only",
        "look_locked",
        "look: everywhere",
        "a head that is far behind advances by one batch per look only",
        (" || tries >= ES_TRIES / 2", ""),
    ),
    _consumer(
        "look-not-counted",
        "es_consumer_look",
        "statistics",
        "batches that are taken are not counted",
        ("        es_stats_count_take(&r->map, (uint64_t)rc);\n", ""),
    ),
    _lease(
        "take-no-cas",
        "es_lease_take",
        "SYNC batch-take",
        "the batch word is compared and stored in two steps: two learners take one batch",
        (
            _TAKE_CAS + "        return ES_AGAIN;\n",
            "    if (atomic_load_explicit(&r->map.batches[j].word, memory_order_acquire) != seen)\n"
            "        return ES_AGAIN;\n"
            "    atomic_store_explicit(&r->map.batches[j].word, es_word(round, r->me, ES_LEASED),\n"
            "                          memory_order_release);\n",
        ),
    ),
    _lease(
        "release-twice",
        "end_lease",
        "release: stale",
        "a lease can be ended more than once",
        ("        r->held[j] = 0;\n", "        r->held[j] = round + 1;\n"),
    ),
    _lease(
        "release-any-round",
        "end_lease",
        "release: stale",
        "the lease of an earlier round ends a later one",
        ("r->held[j] == round + 1", "r->held[j] >= round + 1"),
    ),
    _lease(
        "poison-unmarked",
        "poison",
        "release: poison",
        "samples are overwritten while the batch is still LEASED",
        ("ES_POISONING", "ES_LEASED"),
    ),
    _lease(
        "release-count-late",
        "es_lease_end",
        "SYNC batch-release",
        "the count is zeroed after the word is stored: this erases commits of the next lap",
        (_ZERO, ""),
        (_RELEASED, f"{_RELEASED}{_ZERO}"),
    ),
    _lease(
        "release-count-kept",
        "es_lease_end",
        "release",
        "the count is never zeroed: every later commit wakes the learners",
        (_ZERO, ""),
    ),
    _lease(
        "release-relaxed",
        "es_lease_end",
        "SYNC batch-release",
        "nothing orders the release after the learner's reads",
        ("released_word(r, round), memory_order_release", "released_word(r, round), memory_order_relaxed"),
    ),
    _lease(
        "release-on-closed",
        "released_word",
        "SYNC closed",
        "a release on a closed ring opens a new lap",
        ("!= 0;", "> 1;"),
    ),
    _lease(
        "release-no-wake",
        "es_lease_tell",
        "release",
        "producers that sleep on the full ring are not woken",
        ("    es_wake_producer(r);\n", ""),
    ),
    _lease(
        "release-no-learner",
        "es_lease_tell",
        "release: closed",
        "a learner that waits for another learner's last lease is not woken",
        ("        es_wake_learners(r);", "        r->map.hdr = r->map.hdr;"),
    ),
    _lease(
        "release-no-news",
        "es_lease_tell",
        "FENCE shared",
        "a learner that left a batch to an older lease is not woken when that ends",
        ("atomic_load_explicit(&r->map.hdr->shared, memory_order_relaxed) != 0)", "false)"),
    ),
    _lease(
        "older-of-a-bridge",
        "es_lease_note_older",
        "attach",
        "a learner leaves a batch to a bridge's learner, which waits for none",
        (" && !is_bridges(&r->map, es_word_owner(w))", " && (is_bridges(&r->map, es_word_owner(w)) || true)"),
    ),
    _lease(
        "back-unmarked",
        "es_lease_give_back",
        "give back",
        "the batch word does not say that the batch was given back",
        ("es_word(round, ES_GIVEN_BACK, ES_FILL)", "es_word(round, 0, ES_FILL)"),
    ),
    _lease(
        "back-no-seq",
        "es_lease_give_back",
        "SYNC given-back-seq",
        "learners are not told to look below head",
        (_BUMP_BACK, ""),
    ),
    _lease(
        "back-seq-first",
        "es_lease_give_back",
        "SYNC given-back-seq",
        "the number is raised before the word is stored",
        (_BUMP_BACK, ""),
        ("    es_counter_sub(", f"{_BUMP_BACK}    es_counter_sub("),
    ),
    _lease(
        "back-old-scan",
        "es_lease_give_back",
        "give back",
        "the scan remembers slots that are no longer held",
        ("    r->scan[j].lap = 0;", "   "),
    ),
    _lease(
        "back-holds",
        "es_lease_give_back",
        "give back",
        "the held slots of a partial batch stay held",
        ("    es_slots_let_go(r);\n", ""),
    ),
    _lease(
        "back-no-wake",
        "es_lease_give_back",
        "give back",
        "sleeping learners are not woken when a batch is given back",
        ("    es_wake_learners(r);\n", ""),
    ),
    _lease(
        "mask-sealed",
        "es_lease_committed",
        "SYNC slot-commit",
        "sealed slots are marked as samples",
        ("es_word_state(w) == ES_COMMITTED", "es_word_state(w) >= ES_COMMITTED"),
    ),
    _blocking(
        "ready-flag-late",
        "FENCE ready",
        "the sleep flag is set after the last look",
        (_FLAG, ""),
        (_LEFT, f"{_FLAG}{_LEFT}"),
    ),
    _blocking(
        "ready-seq-late",
        "SYNC ready-seq",
        "the number to sleep on is read after the last look",
        (_SEEN, ""),
        (_LEFT, f"{_SEEN}{_LEFT}"),
    ),
    _blocking(
        "ready-no-fence",
        "FENCE ready",
        "nothing orders the flag's store before the last look",
        ("        atomic_thread_fence(memory_order_seq_cst);\n", ""),
    ),
    _blocking(
        "ready-flag-cleared",
        "take: sleep",
        "a sleeper that wakes clears the flag although another learner still sleeps",
        (
            "        if (w == ES_TIMEOUT ||",
            "        atomic_store_explicit(&hdr->learner_sleeps, 0, memory_order_relaxed);\n"
            "        if (w == ES_TIMEOUT ||",
        ),
    ),
    _blocking(
        "ready-detached",
        "SYNC busy",
        "a sleeping learner does not notice that its attachment was closed",
        ("if (atomic_load_explicit(&r->detached, memory_order_acquire))", "if (rc == ES_EDETACHED)"),
    ),
    Mutant(
        "take-no-repair",
        "ring/es_blocking.c",
        "repair_if_due",
        "a learner that is never woken does not look for corrupt words",
        "take: repair",
        (("        es_repair(r);\n", "        (void)&es_repair;\n"),),
    ),
    Mutant(
        "end-clock-runs",
        "ring/es_blocking.c",
        "look_or_finish",
        "finding a batch does not restart the clock for the end of the stream",
        "SYNC closed",
        (("if (closed && rc >= 0)", "if (closed && rc == ES_ENDED)"),),
    ),
)
