"""Mutants of bridges, attachments, the layout, repair and monitoring."""

from mutant import Mutant


def _journal(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_journal.c", function, bug, where, edits)


def _bridge(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "api/es_bridge.c", function, bug, where, edits)


def _api(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "api/es_api.c", function, bug, where, edits)


def _call(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "api/es_call.c", function, bug, where, edits)


def _group(name: str, function: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "api/es_group.c", function, bug, "several batches", edits)


def _layout(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_layout.c", function, bug, where, edits)


def _repair(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_repair.c", function, bug, where, edits)


_PENDING = "    atomic_store_explicit(&mine->journal_remote, remote + 1, memory_order_relaxed);\n"
_CLEAR = "    atomic_store_explicit(&r->map.owners[r->me].journal_remote, 0, memory_order_relaxed);\n"
_HERE = "        atomic_store_explicit(&it->word, es_word_remote(r->me, ES_REMOTE_HERE), memory_order_release);\n"
_KEY = "        atomic_store_explicit(&it->id[0], key[0], memory_order_relaxed);\n"
_MAGIC = "    atomic_store_explicit(&hdr->magic, ES_MAGIC, memory_order_release);\n"
_FREE = "    es_owner_free(&r->map, r->me);\n"

SERVING = (
    _journal(
        "journal-name-first",
        "es_journal_write",
        "journal",
        "the journal is marked as pending before its content is written",
        (_PENDING, ""),
        ("    uint64_t number =", f"{_PENDING}    ES_COMPILER_BARRIER();\n    uint64_t number ="),
    ),
    _journal(
        "journal-clear-early",
        "es_journal_clear",
        "journal",
        "the journal is cleared before the samples are counted",
        (_CLEAR, ""),
        (
            "    es_remote *it = &r->map.remotes[remote];\n",
            f"    es_remote *it = &r->map.remotes[remote];\n    ES_COMPILER_BARRIER();\n{_CLEAR}",
        ),
    ),
    _journal(
        "settle-no-count",
        "settle_journal",
        "journal",
        "samples that a dead bridge committed of its last block are not counted",
        ("es_counter_get(&o->journal_number) + done", "es_counter_get(&o->journal_number) + done * 0"),
    ),
    _journal(
        "settle-this-lap",
        "was_committed",
        "SYNC slot-commit",
        "a committed slot that learners have since released counts as not committed",
        ("es_word_lap(w) > lap || ", ""),
    ),
    _journal(
        "settle-scribbled",
        "settle_journal",
        "journal: scribbled",
        "the journal is trusted although it may name an entry that does not exist",
        (" || remote > m->num_remotes", ""),
    ),
    _journal(
        "settle-forgets",
        "es_journal_settle",
        "SYNC remote",
        "the entry of a dead bridge's client is freed: its number is lost",
        ("== ES_REMOTE_HERE ? ES_REMOTE_AWAY : ES_REMOTE_FREE", "!= ES_REMOTE_HERE ? ES_REMOTE_AWAY : ES_REMOTE_FREE"),
    ),
    _journal(
        "settle-late",
        "es_journal_settle",
        "SYNC remote",
        "clients are free for other bridges before their numbers are correct",
        ("    settle_journal(m, index);\n    ES_COMPILER_BARRIER();\n", ""),
        ("    es_stats_count_remotes(m);\n", "    settle_journal(m, index);\n    es_stats_count_remotes(m);\n"),
    ),
    _bridge(
        "remote-no-cas",
        "turn",
        "SYNC remote",
        "the entry's word is compared and stored in two steps: two bridges take one entry",
        (
            "return atomic_compare_exchange_strong_explicit("
            "&it->word, &from, to, memory_order_acq_rel, memory_order_relaxed);",
            "bool free = atomic_load_explicit(&it->word, memory_order_acquire) == from;\n"
            "    if (free)\n"
            "        atomic_store_explicit(&it->word, to, memory_order_release);\n"
            "    return free;",
        ),
    ),
    _bridge(
        "remote-here-early",
        "es_bridge_open",
        "SYNC remote",
        "an entry names its bridge before it names its client",
        (_HERE, ""),
        (_KEY, f"{_HERE}{_KEY}"),
    ),
    _bridge(
        "remote-new-twice",
        "take_new",
        "FENCE remote-new",
        "two bridges each give the same client an entry",
        ("if (!its_own && !may_be_elsewhere(&r->map, index, id))", "if (its_own || !its_own)"),
    ),
    _bridge(
        "remote-no-fence",
        "take_new",
        "FENCE remote-new",
        "nothing orders the take of an entry before the look at the other entries",
        ("    atomic_thread_fence(memory_order_seq_cst);\n", ""),
    ),
    _bridge(
        "remote-not-oldest",
        "take_entry",
        "bridge: full table",
        "the entry that is reused is not that of the client that left first",
        ("since < oldest) {", "since != oldest) {"),
    ),
    _bridge(
        "send-no-journal",
        "send_block",
        "journal",
        "the journal is not written before the commit",
        ("        es_journal_write(r, remote, pos, (uint64_t)run);\n", ""),
    ),
    _bridge(
        "send-counts-run",
        "send_block",
        "journal",
        "samples of a run that was sealed count as sent",
        ("es_journal_clear(r, remote, done)", "es_journal_clear(r, remote, (uint64_t)run)"),
    ),
    _call(
        "detach-no-wait",
        "es_call_await",
        "SYNC busy",
        "detach does not wait for threads that are inside a call",
        ("while (atomic_load(&r->busy) != 0) {", "while (atomic_load(&r->busy) == UINT32_MAX) {"),
    ),
    _api(
        "detach-keeps-leases",
        "es_api_detach",
        "detach",
        "batches that the process leased stay leased",
        ("    es_lease_release_all(r);\n", ""),
    ),
    _api(
        "detach-keeps-claims",
        "es_api_detach",
        "detach",
        "slots that the process claimed stay claimed",
        ("    es_slots_reopen(r, r->me);\n", ""),
    ),
    _api(
        "detach-no-settle",
        "es_api_detach",
        "journal",
        "a bridge that leaves keeps its clients' entries",
        ("    es_journal_settle(&r->map, r->me);\n", ""),
    ),
    _api(
        "detach-byte-first",
        "es_api_detach",
        "SYNC owner-free",
        "the lock byte is dropped before the entry is freed: a process that leaves is reaped",
        (_FREE, ""),
        ("    es_locks_drop(r->locks, r->me);\n", f"    es_locks_drop(r->locks, r->me);\n{_FREE}"),
    ),
    _api(
        "share-untold",
        "share",
        "FENCE shared",
        "learners are not told that another one has come, and keep a batch while they wait",
        ("    atomic_store_explicit(&r->map.hdr->shared, 1, memory_order_relaxed);\n", ""),
    ),
    _api(
        "share-no-fence",
        "share",
        "FENCE shared",
        "nothing orders the news of a second learner before its look at the leases",
        (
            "    /* FENCE shared: pairs with es_api_take(). */\n    atomic_thread_fence(memory_order_seq_cst);\n",
            "",
        ),
    ),
    _api(
        "share-take-no-fence",
        "es_api_take",
        "FENCE shared",
        "nothing orders a lease before the look whether the ring is shared",
        ("        atomic_thread_fence(memory_order_seq_cst);\n", ""),
    ),
    _bridge(
        "learn-unflagged",
        "es_bridge_learn",
        "attach",
        "a bridge's learner counts as one that waits for batches",
        ("    atomic_store_explicit(&r->map.owners[r->me].is_bridge, 1, memory_order_relaxed);\n", ""),
    ),
    _api(
        "share-not-noted",
        "share",
        "attach",
        "a second learner takes the batch that the first one waits for",
        ("    es_lease_note_older(r);\n", ""),
    ),
    _api(
        "retire-keeps-claims",
        "es_api_retire",
        "detach",
        "slots that a retired process claimed stay claimed until its last lease ends",
        ("        es_slots_reopen(r, r->me);\n", ""),
    ),
    _api(
        "retire-uncounted",
        "es_api_retire",
        "SYNC busy",
        "a detach does not wait for the retirement under way: it re-opens the claims of the entry's next owner",
        ("    if (es_call_enter_to_end(r) == ES_OK) {\n", "    {\n        atomic_fetch_add(&r->busy, 0);\n"),
        ("        es_call_leave(r);\n", ""),
    ),
    _api(
        "retire-no-release",
        "es_api_release",
        "detach",
        "a retired attachment cannot release",
        ("es_call_enter_to_end(r)", "es_call_enter(r)"),
    ),
    _api(
        "stop-no-wake",
        "es_api_stop",
        "SYNC busy",
        "a producer that sleeps in a send is not woken when it is stopped",
        ("    if (atomic_load(&r->busy) != 0)\n        es_wake_all(r);\n", ""),
    ),
    _api(
        "stop-looks-first",
        "es_api_stop",
        "SYNC busy",
        "whether a thread is inside a call is looked at before it is told: one that enters in between sleeps on",
        (
            "        return ES_EFORK;\n",
            "        return ES_EFORK;\n    uint32_t inside = atomic_load(&r->busy);\n",
        ),
        ("    if (atomic_load(&r->busy) != 0)\n", "    if (inside != 0)\n"),
    ),
    _call(
        "stop-no-commit",
        "es_call_enter_to_settle",
        "detach",
        "what a stopped producer has claimed can be neither committed nor aborted",
        ("&r->retired)", "&r->detached)"),
    ),
    _call(
        "stop-settles-late",
        "es_call_enter_to_settle",
        "SYNC busy",
        "a retired attachment still commits and aborts",
        ("&r->retired)", "&r->left)"),
    ),
    _api(
        "detach-settles",
        "es_api_detach",
        "SYNC busy",
        "a detached attachment still commits, in an entry that may be another's by then",
        ("    atomic_exchange(&r->retired, 1);\n", ""),
    ),
    _call(
        "enter-looks-first",
        "enter_unless",
        "SYNC busy",
        "a thread is counted after it has seen that the attachment is open",
        (
            "    atomic_fetch_add(&r->busy, 1);\n    if (atomic_load(gone) == 0)\n        return ES_OK;\n",
            "    if (atomic_load(gone) == 0) {\n"
            "        atomic_fetch_add(&r->busy, 1);\n        return ES_OK;\n    }\n"
            "    atomic_fetch_add(&r->busy, 1);\n",
        ),
    ),
    _api(
        "take-length-full",
        "es_api_take",
        "take: length",
        "the length of a batch with gaps counts the gaps",
        (" - r->scan[batch].gaps", ""),
    ),
    _group(
        "group-tell-first",
        "es_group_release",
        "sleepers are woken before the space is there",
        ("    es_lease_tell(r);\n", ""),
        ("    for (uint32_t i = 0; i < n; i++)\n", "    es_lease_tell(r);\n    for (uint32_t i = 0; i < n; i++)\n"),
    ),
    _group(
        "group-no-tell",
        "es_group_release",
        "nobody is told that there is space",
        ("    es_lease_tell(r);\n", ""),
    ),
    _group(
        "group-one-short",
        "es_group_release",
        "the last batch is not released",
        ("i < n; i++", "i + 1 < n; i++"),
    ),
    _group(
        "group-no-sweep",
        "es_group_take",
        "a replay is never told to look for the dead",
        ("*sweep_due = now - last >= r->map.reap_interval_ns;", "(void)last;"),
    ),
    _layout(
        "format-magic-first",
        "es_layout_format",
        "SYNC magic",
        "the segment is marked as finished before it is",
        (_MAGIC, ""),
        ("    hdr->version = ES_VERSION;\n", f"{_MAGIC}    hdr->version = ES_VERSION;\n"),
    ),
    _layout(
        "check-no-size",
        "es_layout_check",
        "layout: size",
        "a segment that is smaller than it claims is accepted",
        ("if (claimed.total != size)", "if (claimed.total < size)"),
    ),
    _layout(
        "check-no-offsets",
        "es_layout_check",
        "layout: offsets",
        "the segment's offsets are not checked",
        ("memcmp(&o, &claimed, sizeof o) != 0", "o.total != claimed.total"),
    ),
    _layout(
        "check-no-hash",
        "es_layout_check",
        "layout: hash",
        "the format hash is not compared",
        ("hdr->format_hash != format_hash", "hdr->format_hash != 0 && 0 == format_hash"),
    ),
    _layout(
        "map-trusts",
        "es_layout_map",
        "layout: changed since",
        "a value may change between its check and its use",
        (
            "!offsets_of(&geo, map->leaf_size, &again) || memcmp(&o, &again, sizeof o) != 0 || o.total != size",
            "!offsets_of(&geo, map->leaf_size, &again)",
        ),
    ),
    _repair(
        "repair-no-seize",
        "sweep_nobody",
        "SYNC owner-free",
        "words that name a FREE entry are re-opened although a process may be registering in it",
        ("    if (es_locks_seize(r->locks, index) != ES_OK)\n        return 0;\n", ""),
        ("    es_locks_yield(r->locks, index);\n", ""),
    ),
    _repair(
        "repair-no-recheck",
        "repair_slot",
        "SYNC batch-release",
        "a slot is judged by an outdated batch word",
        ("if (atomic_load_explicit(word, memory_order_acquire) != b)", "if (b == UINT64_MAX)"),
    ),
    _repair(
        "repair-no-offer",
        "es_repair",
        "SYNC reopen-seq",
        "a slot that corruption has re-opened is never found",
        ("    announce_reopened(r);\n", "    (void)&announce_reopened;\n"),
    ),
    _repair(
        "repair-tail-by-eye",
        "repair_tail",
        "SYNC slot-claim",
        "the tail is lowered past a claim that repair has not seen",
        (
            "    if (atomic_compare_exchange_strong_explicit("
            "&m->slots[unclaimed % m->capacity], &word, word, memory_order_acq_rel,\n"
            "                                                memory_order_relaxed))\n",
            "    if (word <= UINT64_MAX)\n",
        ),
    ),
    _repair(
        "repair-no-head",
        "repair_head",
        "SYNC head",
        "a head that was raised past a batch is not lowered",
        ("    if (passed)\n", "    if (passed && oldest > head)\n"),
    ),
    _repair(
        "repair-no-mark",
        "repair_owners",
        "SYNC owner-live",
        "an owner above a lowered mark is never reaped",
        ("if (high <= i)", "if (high < i)"),
    ),
    Mutant(
        "snapshot-underflow",
        "ring/es_stats.c",
        "es_stats_snapshot",
        "a count that lags makes a gauge underflow to a huge value",
        "statistics",
        (("out->samples_inserted > taken ? out->samples_inserted - taken : 0", "out->samples_inserted - taken"),),
    ),
    Mutant(
        "leaves-run-first",
        "ring/es_leaves.c",
        "es_leaves_write_run",
        "each run of a block starts from the block's first sample",
        "claim: run",
        (("(const uint8_t *)leaves[l] + first * size", "(const uint8_t *)leaves[l] + first * 0"),),
    ),
    Mutant(
        "sweep-unsure-once",
        "api/es_sweep.c",
        "es_sweep_next_dead",
        "a sweep that skips a possibly dead learner does not report it",
        "reap: unsure",
        (("atomic_store_explicit(&r->unsure, true, memory_order_relaxed);", "(void)0;"),),
    ),
    Mutant(
        "observe-any-hold",
        "api/es_monitor.c",
        "keeps_slot",
        "a held word of the last lap is shown as a claim",
        "monitor",
        (
            (
                "es_slots_filling(r, q, w)",
                "es_word_state(atomic_load_explicit(&r->map.batches[q / r->map.batch_size].word,"
                " memory_order_acquire)) == ES_FILL",
            ),
        ),
    ),
    Mutant(
        "percentile-rank",
        "base/es_histogram.c",
        "percentile",
        "a percentile's rank is rounded down",
        "statistics",
        (("(count * percent + 99) / 100", "count * percent / 100"),),
    ),
)
