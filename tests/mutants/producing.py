"""Mutants of claim, commit and abort, and of the waits around them."""

from mutant import Mutant


def _producer(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_producer.c", function, bug, where, edits)


def _blocking(name: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_blocking.c", "claim_or_sleep", bug, where, edits)


_BUMP_REOPEN = "atomic_fetch_add_explicit(&m->hdr->reopen_seq, 1, memory_order_release);\n"
_FLAG = "        atomic_store_explicit(&hdr->producers_sleep, 1, memory_order_relaxed);\n"
_SEEN = "        uint32_t seen = atomic_load_explicit(&hdr->space_seq, memory_order_acquire);\n"
_COUNT = "(uint64_t)atomic_fetch_add_explicit(&b->count, (uint32_t)n, memory_order_acq_rel) + n"
_COMMIT_CAS = (
    "        if (!atomic_compare_exchange_strong_explicit("
    "&m->slots[q + done], &expected, es_word(lap, r->me, ES_COMMITTED),\n"
    "                                                     memory_order_release, memory_order_relaxed))\n"
    "            break;\n"
)
_CLAIM_CAS = (
    "atomic_compare_exchange_strong_explicit(&r->map.slots[index], &seen, es_word(lap, r->me, ES_CLAIMED),\n"
    "                                                       memory_order_acq_rel, memory_order_relaxed);\n"
)
_ABORT_CAS = (
    "    if (!atomic_compare_exchange_strong_explicit("
    "&m->slots[pos % m->capacity], &expected, es_word(lap, 0, ES_REOPEN),\n"
    "                                                 memory_order_release, memory_order_relaxed))\n"
    "        return;\n"
)

PRODUCING = (
    _producer(
        "claim-tail-left",
        "try_claim",
        "claim: p is taken",
        "if a claimer dies before it moves the tail, no other process moves it",
        ("        help_tail(r, p, 1);\n", ""),
    ),
    _producer(
        "claim-stale-full",
        "try_claim",
        "claim: full",
        "a stale position of an earlier round is reported as full",
        ("es_word_round(b) < round", "es_word_round(b) != round"),
    ),
    _producer(
        "claim-leased-full",
        "try_claim",
        "claim: stale",
        "a stale position in a batch that was taken is reported as full",
        (
            "es_word_state(b) != ES_FILL)\n        return TRY_AGAIN;",
            "es_word_state(b) != ES_FILL)\n        return TRY_FULL;",
        ),
    ),
    _producer(
        "claim-no-acquire",
        "try_claim",
        "SYNC batch-release",
        "the batch word is loaded relaxed",
        ("memory_order_acquire", "memory_order_relaxed"),
    ),
    _producer(
        "claim-no-cas",
        "claim_word",
        "SYNC slot-claim",
        "the slot word is compared and stored in two steps",
        (
            _CLAIM_CAS,
            "atomic_load_explicit(&r->map.slots[index], memory_order_acquire) == seen;\n"
            "    if (won)\n"
            "        atomic_store_explicit(&r->map.slots[index], es_word(lap, r->me, ES_CLAIMED),\n"
            "                              memory_order_release);\n",
        ),
    ),
    _producer(
        "claim-relaxed",
        "claim_word",
        "SYNC slot-claim",
        "the claim neither acquires nor releases",
        ("memory_order_acq_rel", "memory_order_relaxed"),
    ),
    _producer(
        "claim-no-reopened",
        "es_producer_claim",
        "SYNC reopen-seq",
        "producers do not search for re-opened slots",
        ("if (seq != atomic", "if (seq == UINT32_MAX && seq != atomic"),
    ),
    _producer(
        "reopened-seen-late",
        "claim_reopened",
        "SYNC reopen-seq",
        "the remembered number is read after the search",
        (
            "            atomic_store_explicit(&r->seen_reopen",
            "            seq = atomic_load_explicit(&m->hdr->reopen_seq, memory_order_acquire);\n"
            "            atomic_store_explicit(&r->seen_reopen",
        ),
    ),
    _producer(
        "reopened-one-only",
        "claim_reopened",
        "claim: re-opened",
        "a producer stops its search after one re-opened slot",
        (
            "            *pos = best;\n",
            "            *pos = best;\n"
            "            atomic_store_explicit(&r->seen_reopen, seq, memory_order_relaxed);\n",
        ),
    ),
    _producer(
        "reopened-not-oldest",
        "oldest_reopened",
        "claim: re-opened",
        "the newest re-opened slot is claimed before the oldest",
        ("m->capacity + q < best)", "m->capacity + q != best)"),
    ),
    _producer(
        "reopened-any-lap",
        "oldest_reopened",
        "claim: re-opened",
        "a corrupt lap gives a position that callers mistake for an error",
        ("(uint64_t)INT64_MAX / m->capacity", "UINT64_MAX"),
    ),
    _producer(
        "claim-on-closed",
        "is_closed",
        "SYNC closed",
        "producers do not see that the ring is closed",
        ("!= 0", "> 1"),
    ),
    _producer(
        "run-past-batch",
        "es_producer_claim",
        "claim: run",
        "a run continues into the next batch",
        ("want < room ? want : room", "room > 0 ? want : room"),
    ),
    _producer(
        "commit-no-cas",
        "es_producer_commit_run",
        "SYNC slot-commit",
        "the slot word is compared and stored in two steps: a seal in between is overwritten",
        (
            _COMMIT_CAS,
            "        if (atomic_load_explicit(&m->slots[q + done], memory_order_relaxed) != expected)\n"
            "            break;\n"
            "        atomic_store_explicit(&m->slots[q + done], es_word(lap, r->me, ES_COMMITTED),\n"
            "                              memory_order_release);\n",
        ),
    ),
    _producer(
        "commit-relaxed",
        "es_producer_commit_run",
        "SYNC slot-commit",
        "the commit does not release the sample's bytes",
        ("memory_order_release", "memory_order_relaxed"),
    ),
    _producer(
        "commit-past-sealed",
        "es_producer_commit_run",
        "commit: sealed",
        "a sealed slot counts as committed",
        ("            break;\n", "            continue;\n"),
    ),
    _producer(
        "commit-count-equal",
        "es_producer_commit_run",
        "commit: complete",
        "the learner is woken only if the count matches exactly",
        ("count >= m->batch_size", "count == m->batch_size"),
    ),
    _producer(
        "commit-no-wake",
        "es_producer_commit_run",
        "commit: complete",
        "the producer that completes a batch does not wake the learner",
        ("        *complete = true;\n", "        (void)complete;\n"),
    ),
    Mutant(
        "send-many-no-wake",
        "api/es_api.c",
        "es_api_send_many",
        "a producer that sends many samples at once does not wake the learner at the end",
        "commit: complete",
        (("    if (complete)\n        es_wake_learners(r);\n", ""),),
    ),
    Mutant(
        "send-many-late-wake",
        "api/es_api.c",
        "es_api_send_many",
        "it wakes the learner at the end only, however much it sends",
        "commit: complete",
        (("since > most", "since > INT64_MAX"),),
    ),
    _producer(
        "commit-count-first",
        "es_producer_commit_run",
        "SYNC count",
        "the count is raised before the words are stored",
        ("    es_batch *b = &m->batches[q / m->batch_size];\n", ""),
        (
            "    for (; done < n; done++) {\n",
            f"    es_batch *b = &m->batches[q / m->batch_size];\n    uint64_t count = {_COUNT};\n"
            "    for (; done < n; done++) {\n",
        ),
        (f"    uint64_t count = {_COUNT};\n    if", "    if"),
    ),
    _producer(
        "abort-no-cas",
        "es_producer_abort",
        "SYNC slot-reopen",
        "the slot word is compared and stored in two steps: a seal in between is overwritten",
        (
            _ABORT_CAS,
            "    if (atomic_load_explicit(&m->slots[pos % m->capacity], memory_order_relaxed) != expected)\n"
            "        return;\n"
            "    atomic_store_explicit(&m->slots[pos % m->capacity], es_word(lap, 0, ES_REOPEN),\n"
            "                          memory_order_release);\n",
        ),
    ),
    _producer(
        "abort-anything",
        "es_producer_abort",
        "abort",
        "a claim that has already ended is aborted again",
        ("relaxed))\n        return;\n", "relaxed))\n        (void)expected;\n"),
    ),
    _producer(
        "abort-seq-first",
        "es_producer_abort",
        "SYNC reopen-seq",
        "the number is raised before the word is stored",
        (f"    {_BUMP_REOPEN}", ""),
        ("    uint64_t lap =", f"    {_BUMP_REOPEN}    uint64_t lap ="),
    ),
    _producer(
        "abort-no-wake",
        "es_producer_abort",
        "abort",
        "a producer that sleeps on the full ring is not woken for the re-opened slot",
        ("    es_wake_producer(r);\n", ""),
    ),
    _producer(
        "abort-no-learner",
        "es_producer_abort",
        "abort",
        "a learner that waits for the claim at the end of a stream is not woken",
        ("    es_wake_learners(r);", "   "),
    ),
    _producer(
        "claimed-by-tail",
        "es_producer_claimed",
        "claimed",
        "the tail is trusted although it is only a hint",
        ("<= n / m->capacity)", "<= n / m->capacity + 1)"),
    ),
    _producer(
        "committed-any-state",
        "es_producer_committed_from",
        "committed",
        "claimed slots count as committed",
        (" || es_word_state(w) != ES_COMMITTED", ""),
    ),
    _blocking(
        "space-flag-late",
        "FENCE space",
        "the sleep flag is set after the last try",
        (_FLAG, ""),
        (
            "        uint64_t left =",
            f"{_FLAG}        uint64_t left =",
        ),
    ),
    _blocking(
        "space-seq-late",
        "SYNC space-seq",
        "the number to sleep on is read after the last try",
        (_SEEN, ""),
        ("        uint64_t left =", f"{_SEEN}        uint64_t left ="),
    ),
    _blocking(
        "space-no-fence",
        "FENCE space",
        "nothing orders the flag's store before the last try",
        ("        atomic_thread_fence(memory_order_seq_cst);\n", ""),
    ),
    _blocking(
        "space-detached",
        "SYNC busy",
        "a sleeping producer does not notice that its attachment was closed",
        ("if (atomic_load_explicit(&r->detached, memory_order_acquire))", "if (rc == ES_EDETACHED)"),
    ),
    Mutant(
        "space-not-passed-on",
        "ring/es_blocking.c",
        "es_blocking_claim",
        "a producer that was woken and leaves room wakes nobody",
        "wake: next",
        (("    if (es_producer_has_room(r))\n        es_wake_producer(r);\n", ""),),
    ),
    Mutant(
        "space-last-again",
        "ring/es_blocking.c",
        "sleep_for_space",
        "a producer that was woken in vain is the last to be woken again",
        "wake: next",
        (("first ? ES_WAIT_FIRST : ES_WAIT_IN_TURN", "ES_WAIT_IN_TURN"),),
    ),
    _producer(
        "reopened-not-at-tail",
        "may_have_reopened",
        "claim: re-opened",
        "the search for re-opened slots leaves out the batch of the tail",
        ("+ j <= tail", "+ j < tail"),
    ),
    _producer(
        "reopened-passed-by",
        "try_claim",
        "claim: re-opened",
        "a re-opened slot beyond a lowered tail is never found",
        ("es_word_state(w) == ES_REOPEN", "es_word_state(w) == ES_REOPEN && round == NEVER"),
    ),
    _producer(
        "room-not-at-tail",
        "es_producer_has_room",
        "wake: next",
        "the room that is left in the batch at the tail is not seen",
        (">= p / m->capacity;", "> p / m->capacity;"),
    ),
    _producer(
        "room-not-reopened",
        "es_producer_has_room",
        "wake: next",
        "re-opened slots do not count as room",
        ("return true;", "return false;"),
    ),
)
