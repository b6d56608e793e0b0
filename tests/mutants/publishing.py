"""Mutants of the versions of weights."""

from mutant import Mutant


def _version(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ring/es_version.c", function, bug, where, edits)


def _weights(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "api/es_weights.c", function, bug, where, edits)


_FENCE = "    atomic_thread_fence(memory_order_seq_cst);\n"
_FILLING = "    atomic_store_explicit(&map->sequences[slot], number * 2 + 1, memory_order_release);\n"
_WRITE = "    es_leaves_write(map, slot, leaves);\n"
_WHOLE = "    atomic_store_explicit(&map->sequences[slot], number * 2, memory_order_release);\n"
_LATEST = """\
    atomic_store_explicit(&map->weights->latest, number << ES_VERSION_SLOT_BITS | slot, memory_order_release);
"""
_NAME = """\
        atomic_store_explicit(&map->leases[i], lease_word(owner, es_version_slot(*latest) + 1), memory_order_release);
"""
_FLAG = "    atomic_store_explicit(&w->reader_sleeps, 1, memory_order_relaxed);\n"
_LOOK = "        rc = look(map, *latest);\n"
_DETACHED = "    if (atomic_load_explicit(&r->detached, memory_order_acquire) != 0)\n        return ES_EDETACHED;\n"

PUBLISHING = (
    _version(
        "latest-first",
        "es_version_publish",
        "SYNC weights-latest",
        "readers come for a version before its bytes are there",
        (_LATEST, ""),
        (_WRITE, _LATEST + _WRITE),
    ),
    _version(
        "latest-reused",
        "es_version_publish",
        "the slot of latest",
        "the publisher may fill the slot that readers come for",
        ("(latest != 0 && slot == es_version_slot(latest)) || ", ""),
    ),
    _version(
        "version-acquire-none",
        "es_version_latest",
        "SYNC weights-latest",
        "a reader of latest does not see the slot",
        ("memory_order_acquire", "memory_order_relaxed"),
    ),
    _version(
        "version-never-whole",
        "es_version_publish",
        "SYNC weights-whole",
        "the sequence word stays odd",
        (_WHOLE, ""),
    ),
    _version(
        "version-not-marked",
        "seize",
        "SYNC weights-fill",
        "the sequence word does not say that the slot is being filled",
        (_FILLING, "    (void)number;\n"),
    ),
    _version(
        "version-copy-once",
        "es_version_copy",
        "SYNC weights-fill",
        "a copy does not look at the sequence word again",
        ("    return look(map, latest);\n", "    return ES_OK;\n"),
    ),
    _version(
        "version-copy-no-fence",
        "es_version_copy",
        "SYNC weights-fill",
        "the second look may come before the bytes",
        ("    atomic_thread_fence(memory_order_acquire);\n", ""),
    ),
    _version(
        "version-look-no-slot",
        "look",
        "a scribbled latest",
        "a slot that does not exist is read",
        ("es_version_slot(latest) >= map->num_batches || ", ""),
    ),
    _version(
        "version-publish-no-slot",
        "es_version_publish",
        "a scribbled latest",
        "the publisher believes a slot that does not exist",
        ("slot >= slots || ", ""),
    ),
    _version(
        "version-number-over",
        "es_version_publish",
        "a scribbled latest",
        "the number grows into nothing",
        (" || next >= limit", ""),
    ),
    _version(
        "version-zero",
        "look",
        "a scribbled latest",
        "version 0 counts as whole",
        (" || es_version_number(latest) == 0", ""),
    ),
    _version(
        "version-endless",
        "es_version_publish",
        "scribbled leases",
        "the publisher looks for a slot forever",
        ("++tries > 1000 * slots", "++tries == 0"),
    ),
    _version(
        "lease-ignored",
        "seize",
        "FENCE weights",
        "a lease that is made meanwhile is not seen",
        ("    return !is_leased(map, slot);\n", "    return true;\n"),
    ),
    _version(
        "lease-unseen",
        "is_leased",
        "SYNC weights-lease",
        "the publisher sees no lease",
        ("== slot + 1)", "== slot + 1 && map->num_batches == 0)"),
    ),
    _version(
        "lease-last-unseen",
        "is_leased",
        "SYNC weights-lease",
        "the publisher does not look at the last lease",
        ("i < map->num_leases", "i + 1 < map->num_leases"),
    ),
    _version(
        "seize-no-fence",
        "seize",
        "FENCE weights",
        "the look at the leases may overtake the sequence word",
        (_FENCE, ""),
    ),
    _version(
        "lease-no-fence",
        "es_version_lease",
        "FENCE weights",
        "the look at the sequence word may overtake the lease",
        ("    " + _FENCE, ""),
    ),
    _version(
        "lease-named-late",
        "es_version_lease",
        "FENCE weights",
        "a lease names its slot after the look",
        (_NAME, ""),
        (_LOOK, _LOOK + _NAME),
    ),
    _version(
        "lease-not-looked",
        "es_version_lease",
        "SYNC weights-whole",
        "a lease does not look at the sequence word",
        (_LOOK, "        rc = ES_OK;\n"),
    ),
    _version(
        "lease-kept",
        "es_version_lease",
        "a lease that fails",
        "it stays claimed",
        ("    (void)es_version_release(map, owner, i);\n", ""),
    ),
    _version(
        "lease-of-others",
        "es_version_release",
        "SYNC weights-lease",
        "anybody may end a lease",
        ("(map, (uint32_t)lease) != owner", "(map, (uint32_t)lease) < (int64_t)owner - ES_MAX_PRODUCERS"),
    ),
    _version(
        "lease-out-of-range",
        "es_version_release",
        "a lease's index",
        "the word behind the leases counts as one",
        ("lease >= map->num_leases", "lease > map->num_leases"),
    ),
    _version(
        "lease-release-relaxed",
        "es_version_release",
        "SYNC weights-lease",
        "the end of a lease may come before the last read",
        ("memory_order_release", "memory_order_relaxed"),
    ),
    _version(
        "reap-one-lease",
        "es_version_release_all",
        "SYNC weights-lease",
        "only the first lease of a dead reader ends",
        ("i < map->num_leases", "i < 1"),
    ),
    _version(
        "news-untold",
        "tell",
        "FENCE news",
        "nobody is woken",
        ("memory_order_relaxed) != 0 &&", "memory_order_relaxed) > 1 &&"),
    ),
    _version(
        "news-no-fence",
        "tell",
        "FENCE news",
        "the publisher's look at the flag may overtake latest",
        (_FENCE, ""),
    ),
    _version(
        "news-wait-no-fence",
        "es_version_wait",
        "FENCE news",
        "a reader's last look may overtake its flag",
        (_FENCE, ""),
    ),
    _version(
        "news-no-flag",
        "es_version_wait",
        "FENCE news",
        "nobody learns that a reader sleeps",
        (_FLAG, ""),
    ),
    _version(
        "news-no-seq",
        "es_version_wake_all",
        "SYNC news-seq",
        "the sequence stays, so who is about to sleep does",
        ("&map->weights->news_seq, 1, ", "&map->weights->news_seq, 0, "),
    ),
    _version(
        "news-stopped",
        "es_version_wait",
        "SYNC busy",
        "a reader that was stopped sleeps",
        (_DETACHED, ""),
    ),
    _weights(
        "closed-after-latest",
        "es_weights_wait",
        "SYNC closed",
        "a version that comes just before the close never came",
        (
            "closed(r) && es_version_number(es_version_latest(&r->map)) < number",
            "es_version_number(es_version_latest(&r->map)) < number && closed(r)",
        ),
    ),
    _weights(
        "publish-closed",
        "es_weights_publish_as",
        "SYNC closed",
        "a closed segment takes another version",
        ("closed(r) ? ES_ECLOSED : ", ""),
    ),
    _weights(
        "weights-of-a-ring",
        "enter",
        "a segment without weights",
        "a ring is used as if it had weights",
        ("r->map.weights == NULL ? -EINVAL : ", ""),
    ),
    Mutant(
        "reap-no-versions",
        "ring/es_reap.c",
        "es_reap",
        "the leases of a dead reader stay",
        "SYNC weights-lease",
        (("        es_version_release_all(m, index);\n", "        (void)index;\n"),),
    ),
    Mutant(
        "detach-no-versions",
        "api/es_api.c",
        "es_api_detach",
        "the leases of a reader that leaves stay",
        "SYNC weights-lease",
        (("        es_version_release_all(&r->map, r->me);\n", "        (void)r;\n"),),
    ),
)
