"""Mutants of the end of a stream, of partial batches, and of changes to many slots."""

from mutant import Mutant

_BATCH_OF_SLOT = "atomic_load_explicit(&r->map.batches[q / r->map.batch_size].word, memory_order_acquire)"


def _drain(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_drain.c", function, bug, where, edits)


def _partial(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_partial.c", function, bug, where, edits)


def _slots(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_slots.c", function, bug, where, edits)


_CLOSED = "    atomic_store_explicit(&hdr->closed, 1, memory_order_release);\n"
_BUMP_LET_GO = "    atomic_fetch_add_explicit(&r->map.hdr->reopen_seq, 1, memory_order_release);\n"
_BUMP_REOPEN = "    atomic_fetch_add_explicit(&m->hdr->reopen_seq, 1, memory_order_release);\n"
_TURN_CAS = """atomic_compare_exchange_strong_explicit(&m->slots[q], &w, es_word(es_word_lap(w), owner, to),
                                                         memory_order_acq_rel, memory_order_relaxed);
"""

ENDING = (
    _drain(
        "close-no-wake",
        "es_drain_close",
        "SYNC closed",
        "sleeping processes are not woken when the ring is closed",
        ("    es_wake_all(r);\n", ""),
    ),
    _drain(
        "close-again",
        "es_drain_close",
        "SYNC closed",
        "a second close restarts the clock",
        ("memory_order_acquire) == 0)", "memory_order_acquire) <= 1)"),
    ),
    _drain(
        "close-clock-late",
        "es_drain_close",
        "SYNC closed",
        "the ring is closed before the clock is set: the first learner does not wait",
        (_CLOSED, ""),
        ("hdr = r->map.hdr;\n", f"hdr = r->map.hdr;\n    bool was = hdr->closed != 0;\n{_CLOSED}"),
        ("if (atomic_load_explicit(&hdr->closed, memory_order_acquire) == 0)", "if (!was)"),
    ),
    _drain(
        "end-reopened-open",
        "finish",
        "drain: seal",
        "re-opened slots are not sealed",
        ("es_slots_turn(r, ES_REOPEN, 0, ES_SEALED)", "0"),
    ),
    _drain(
        "end-free-open",
        "finish",
        "drain: seal",
        "unclaimed slots are not sealed",
        ("    sealed += es_slots_turn_free(r, UINT64_MAX, 0, ES_SEALED);\n", ""),
    ),
    _drain(
        "end-no-alarm",
        "finish",
        "drain: alarm",
        "an alarm that a concurrent release has zeroed is not set again",
        ("    es_wake_alarm(r);", "   "),
    ),
    _drain(
        "end-held-unseen",
        "claims_open",
        "SYNC slot-claim",
        "the end does not wait for slots that a partial take holds",
        (" || state == ES_HELD", ""),
    ),
    _drain(
        "end-no-grace",
        "finish",
        "drain: evict",
        "claims that are open at the close are evicted at once",
        ("if (open && !grace)", "if (open)"),
    ),
    _drain(
        "end-no-evict",
        "finish",
        "drain: evict",
        "a claim that never ends delays the end until the learner gives up on the words",
        ("if (open && !grace)", "if (open && !patient && sealed == UINT64_MAX)"),
    ),
    _drain(
        "end-evict-claims",
        "finish",
        "drain: evict",
        "slots that a stopped learner holds are not evicted",
        ("        sealed += es_slots_turn(r, ES_HELD, 0, ES_SEALED);", "       "),
    ),
    _drain(
        "end-seal-no-wake",
        "finish",
        "drain: seal",
        "a learner that went to sleep before a slot was sealed is not woken",
        ("        es_wake_learners(r);\n", "        (void)0;\n"),
    ),
    _drain(
        "end-by-head",
        "finish",
        "SYNC given-back-seq",
        "a batch that a dead reaper gave back is searched for only from head on",
        ("    r->seen_given_back = UINT64_MAX;\n", ""),
    ),
    _drain(
        "end-short-early",
        "finish",
        "drain: short",
        "a batch with gaps is handed out while claims are open",
        ("rc != ES_EMPTY || open)", "rc != ES_EMPTY)"),
    ),
    _drain(
        "end-with-samples",
        "nothing_left",
        "SYNC batch-take",
        "the stream ends although a batch that was given back holds samples",
        ("if (left || (", "if ((left && tail == 0) || ("),
    ),
    _drain(
        "end-others-lease",
        "nothing_left",
        "SYNC batch-take",
        "the stream ends although another learner may give its batch back",
        (" || (grace && others && !mine)", " || (grace && others && !mine && tail == UINT64_MAX)"),
    ),
    _drain(
        "end-mutual-wait",
        "nothing_left",
        "SYNC batch-take",
        "two learners that each keep a lease wait for each other",
        ("grace && others && !mine", "grace && others && (!mine || others)"),
    ),
    _drain(
        "end-before-release",
        "nothing_left",
        "SYNC batch-release",
        "space that a release opens during the close is not seen",
        ("    return es_word_round(b) < tail / m->capacity;", "    return es_word_round(b) < UINT64_MAX;"),
    ),
    _drain(
        "end-nonsense-clock",
        "within_grace",
        "drain: patience",
        "the time of the close is trusted although it may be corrupt",
        ("(closed < asked ? closed : asked)", "(asked == 0 ? asked : closed)"),
    ),
    _drain(
        "end-never-given-up",
        "es_drain_finish",
        "drain: given up",
        "corrupt words keep the stream from ending",
        ("        rc = ES_ENDED;\n", "        (void)0;\n"),
    ),
    _partial(
        "partial-of-others",
        "lease_partial",
        "partial: lease",
        "a batch is leased although another learner holds slots of it",
        (" && es_word_owner(w) == r->me", ""),
    ),
    _partial(
        "partial-of-nothing",
        "lease_partial",
        "partial: lease",
        "a batch without a sample is leased",
        ("held == m->batch_size || ", ""),
    ),
    _partial(
        "partial-no-gaps",
        "lease_partial",
        "partial: lease",
        "held slots are handed out as samples",
        (".gaps = held}", ".gaps = 0}"),
    ),
    _partial(
        "partial-no-reopened",
        "es_partial_take",
        "partial: hold",
        "a re-opened slot keeps the batch from being taken",
        ("    es_slots_turn(r, ES_REOPEN, r->me, ES_HELD);\n", ""),
    ),
    _partial(
        "partial-next-batch",
        "es_partial_take",
        "partial: hold",
        "at the end of a batch the whole next batch is held",
        ("into == 0 ? tail : tail", "into == m->batch_size ? tail : tail"),
    ),
    _partial(
        "partial-holds",
        "es_partial_take",
        "partial: let go",
        "slots that could not be leased stay held",
        ("    es_slots_let_go(r);\n", ""),
    ),
    _slots(
        "turn-no-cas",
        "es_slots_turn",
        "SYNC slot-reopen",
        "the slot word is compared and stored in two steps: a claim or commit in between is overwritten",
        (
            _TURN_CAS,
            "atomic_load_explicit(&m->slots[q], memory_order_acquire) == w &&\n"
            "                 (atomic_store_explicit(&m->slots[q], es_word(es_word_lap(w), owner, to),\n"
            "                                        memory_order_release),\n"
            "                  true);\n",
        ),
    ),
    _slots(
        "turn-others",
        "es_slots_turn",
        "let go: ours",
        "a learner lets go of slots that another learner holds",
        ("to == ES_SEALED || es_word_owner(w) == r->me", "to == ES_SEALED || es_word_owner(w) != ES_NOBODY"),
    ),
    _slots(
        "turn-leased",
        "es_slots_turn",
        "let go: leased",
        "slots of a leased batch are re-opened",
        (" && es_slots_filling(r, q, w))", ")"),
    ),
    _slots(
        "turn-past-lap",
        "es_slots_filling",
        "SYNC batch-release",
        "a held slot of the last lap is re-opened",
        ("es_word_lap(w) == es_word_round(b) + 1", "es_word_lap(w) >= es_word_round(b)"),
    ),
    _slots(
        "tail-not-helped",
        "es_slots_help_tail",
        "partial: hold",
        "the tail is trusted although it is only a hint",
        ("<= p / m->capacity)", "<= p / m->capacity + 1)"),
    ),
    _slots(
        "let-go-no-seq",
        "es_slots_let_go",
        "SYNC reopen-seq",
        "producers do not search for slots that were let go",
        (_BUMP_LET_GO, ""),
    ),
    _slots(
        "let-go-seq-first",
        "es_slots_let_go",
        "SYNC reopen-seq",
        "the number is raised before the words change",
        (_BUMP_LET_GO, ""),
        ("    if (es_slots_turn(", f"{_BUMP_LET_GO}    if (es_slots_turn("),
    ),
    _slots(
        "let-go-no-wake",
        "es_slots_let_go",
        "let go",
        "producers that sleep on the full ring are not woken for the re-opened slots",
        ("    es_wake_producer(r);\n", ""),
    ),
    _slots(
        "let-go-no-learner",
        "es_slots_let_go",
        "SYNC closed",
        "a learner that waits for held slots at the end is not woken",
        ("        es_wake_learners(r);\n", "        (void)0;\n"),
    ),
    _slots(
        "reopen-past-hold",
        "is_claim_of",
        "reap: held",
        "a held word of the last lap is mistaken for a hold of the dead learner",
        ("es_slots_filling(r, q, w)", f"es_word_state({_BATCH_OF_SLOT}) == ES_FILL"),
    ),
    _slots(
        "reopen-leased-hold",
        "is_claim_of",
        "reap: held",
        "held slots of a leased batch are re-opened",
        ("es_slots_filling(r, q, w)", f"es_word_lap(w) == es_word_round({_BATCH_OF_SLOT}) + 1"),
    ),
    _slots(
        "reopen-seq-first",
        "es_slots_reopen",
        "SYNC reopen-seq",
        "the number is raised before the words change",
        (_BUMP_REOPEN, ""),
        ("    int64_t n = 0;\n", f"    int64_t n = 0;\n{_BUMP_REOPEN}"),
    ),
    _slots(
        "reopen-no-seq",
        "es_slots_reopen",
        "SYNC reopen-seq",
        "producers do not search for the dead producer's slots",
        (_BUMP_REOPEN, ""),
    ),
)
