"""Mutants of the wait for several rings at once."""

from mutant import Mutant


def _blocking(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_blocking.c", function, bug, where, edits)


def _api(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "api/es_api.c", function, bug, where, edits)


_FENCE = "    atomic_thread_fence(memory_order_seq_cst);\n"
_FLAG = "        atomic_store_explicit(room ? &hdr->producers_sleep : &hdr->learner_sleeps, 1, memory_order_relaxed);\n"
_LAST_LOOK = "        int rc = first_ready(c);\n        if (rc >= 0)\n            return rc;\n"
_PASS_ON = "    if (woken)\n        pass_on(&c);\n"

WAITING = (
    _blocking(
        "any-no-last-look",
        "sleep_until_ready",
        "FENCE ready, space",
        "a process sleeps without a look after it has said so",
        (_LAST_LOOK, "        int rc = ES_EMPTY;\n"),
    ),
    _blocking(
        "any-seq-late",
        "sleep_until_ready",
        "SYNC ready-seq",
        "the sequences are read after the last look",
        ("        if (any_detached(c))\n", "        arm(c, words);\n        if (any_detached(c))\n"),
    ),
    _blocking(
        "any-no-batch-flag",
        "arm",
        "FENCE ready",
        "nobody learns that a process sleeps for a batch",
        (_FLAG, "        if (room)\n    " + _FLAG),
    ),
    _blocking(
        "any-no-room-flag",
        "arm",
        "FENCE space",
        "nobody learns that a process sleeps for room",
        (_FLAG, "        if (!room)\n    " + _FLAG),
    ),
    _blocking(
        "any-one-flag",
        "arm",
        "FENCE ready, space",
        "only the first ring learns that a process sleeps",
        (_FLAG, "        if (i == 0)\n    " + _FLAG),
    ),
    _blocking(
        "any-no-fence",
        "arm",
        "FENCE ready, space",
        "the last look may overtake the flags",
        (_FENCE, ""),
    ),
    _blocking(
        "any-one-word",
        "sleep_until_ready",
        "wait: words",
        "only the first ring can end the sleep",
        ("es_wait_several(words, n,", "es_wait_several(words, n > 0,"),
    ),
    _blocking(
        "any-keeps-room",
        "es_blocking_wait_any",
        "wait: pass on",
        "a process that was woken for room wakes nobody",
        (_PASS_ON, "    (void)pass_on;\n"),
    ),
    _blocking(
        "any-passes-failures",
        "es_blocking_wait_any",
        "wait: pass on",
        "a process that finds something wakes nobody, although its caller may leave the room",
        ("if (woken)", "if (woken && rc < 0)"),
    ),
    _blocking(
        "any-passes-one",
        "pass_on",
        "wait: pass on",
        "a process that two rings have woken wakes the next one in the first ring only",
        ("i < c->n;", "i < 1 && i < c->n;"),
    ),
    _blocking(
        "any-passes-stale",
        "pass_on",
        "FENCE space",
        "a process decides by an old look whether a ring has room",
        (_FENCE, ""),
    ),
    _blocking(
        "any-no-stop",
        "sleep_until_ready",
        "SYNC busy",
        "a process goes on to sleep although it was stopped",
        ("if (any_detached(c))", "if (false && any_detached(c))"),
    ),
    _blocking(
        "any-stop-first",
        "any_detached",
        "SYNC busy",
        "a process notices only in the first ring that it was stopped",
        ("i < c->n;", "i < 1 && i < c->n;"),
    ),
    _blocking(
        "any-close-unseen",
        "is_ready",
        "SYNC closed",
        "a process sleeps on beside a ring that was closed",
        ("memory_order_relaxed) != 0)", "memory_order_relaxed) > 1)"),
    ),
    _blocking(
        "any-word-unseen",
        "first_ready",
        "SYNC watched-word",
        "a word that has changed does not end the wait",
        ("if (c->word != NULL && ", "if (c->word == NULL && "),
    ),
    _blocking(
        "any-no-repair",
        "sleep_until_ready",
        "wait: repair",
        "a process that waits in vain never repairs a ring",
        ("w == ES_TIMEOUT || w == -EINTR", "w == ES_FULL"),
    ),
    _blocking(
        "any-not-blocked",
        "count_sleep",
        "statistics",
        "a process that waits for room is not counted as blocked",
        ("else if (begins)\n            count_blocked(r);\n        else\n", "else if (!begins)\n"),
    ),
    _api(
        "any-stays-inside",
        "es_api_wait_any",
        "SYNC busy",
        "a process counts as inside the first ring forever",
        ("while (inside > 0)", "while (inside > 1)"),
    ),
    _api(
        "any-not-inside",
        "es_api_wait_any",
        "SYNC busy",
        "an attachment may be freed under a process that waits",
        ("(rc = es_call_enter(watches[inside].ring)) == ES_OK", "(rc = es_call_enter(watches[0].ring)) == ES_OK"),
    ),
    _api(
        "any-too-many",
        "check_causes",
        "wait: causes",
        "the word is not counted, and a full list overflows",
        ("word == NULL ? ES_WATCH_MOST : ES_WATCH_MOST - 1", "ES_WATCH_MOST"),
    ),
    _api(
        "word-no-wake",
        "es_api_change_word",
        "SYNC watched-word",
        "whoever watches a word is not woken",
        ("    es_wait_wake((_Atomic uint32_t *)word);\n", ""),
    ),
    _api(
        "word-relaxed",
        "es_api_change_word",
        "SYNC watched-word",
        "whoever watches a word may not see what led to the change",
        ("memory_order_release", "memory_order_relaxed"),
    ),
    Mutant(
        "look-takes",
        "ring/es_consumer.c",
        "found",
        "a look whether a batch is there takes it",
        "look: only",
        (("aim == LEASE ?", "aim <= LEASE ?"),),
    ),
    Mutant(
        "several-private",
        "base/es_wait.c",
        "wait_in_kernel",
        "a process that waits for several rings is not woken by other processes",
        "wait: words",
        (("WORD_OF_32_BITS, 0}", "WORD_OF_32_BITS | 128u, 0}"),),
    ),
    Mutant(
        "several-no-naps",
        "base/es_wait.c",
        "es_wait_several",
        "a system without futex_waitv() cannot wait for several rings",
        "wait: words",
        (("rc == -ENOSYS || rc == -EPERM", "rc == -EPERM"),),
    ),
)
