#include "ring/es_version.h"

#include "base/es_wait.h"
#include "ring/es_leaves.h"

#define TRIES 64 /* of a lease: the publisher was faster each time */

static uint64_t lease_word(uint32_t owner, uint64_t slot_and_1)
{
    return (uint64_t)(owner + 1) << 32 | slot_and_1;
}

uint64_t es_version_latest(const es_map *map)
{
    /* SYNC weights-latest: acquire; the slot that it names is whole. */
    return atomic_load_explicit(&map->weights->latest, memory_order_acquire);
}

/* --- waking ------------------------------------------------------------------ */

void es_version_wake_all(es_map *map)
{
    /* SYNC news-seq: acq_rel. */
    atomic_fetch_add_explicit(&map->weights->news_seq, 1, memory_order_acq_rel);
    es_wait_wake(&map->weights->news_seq);
}

static void tell(es_map *map)
{
    es_weights *w = map->weights;
    /* FENCE news: pairs with es_version_wait(). */
    atomic_thread_fence(memory_order_seq_cst);
    /* The waker clears the flag, as es_wake_learners() does. */
    if (atomic_load_explicit(&w->reader_sleeps, memory_order_relaxed) != 0 &&
        atomic_exchange_explicit(&w->reader_sleeps, 0, memory_order_acq_rel) != 0)
        es_version_wake_all(map);
}

/* --- publishing ------------------------------------------------------------ */

static bool is_leased(const es_map *map, uint64_t slot)
{
    for (uint32_t i = 0; i < map->num_leases; i++)
        /* SYNC weights-lease: acquire; if the lease is over, what its reader has read was read before. */
        if ((uint32_t)atomic_load_explicit(&map->leases[i], memory_order_acquire) == slot + 1)
            return true;
    return false;
}

/* Marks a slot as being filled, unless somebody leases it. A slot that was leased meanwhile stays marked: its bytes are
 * those of before, but no reader comes for them, because another slot is the latest. */
static bool seize(es_map *map, uint64_t slot, uint64_t number)
{
    if (is_leased(map, slot))
        return false;
    /* SYNC weights-fill: release; whoever sees it, sees the latest that has made this slot an old one. */
    atomic_store_explicit(&map->sequences[slot], number * 2 + 1, memory_order_release);
    /* FENCE weights: pairs with es_version_lease(). Either the reader that has just named the slot sees this word, or its
     * lease is seen here. It also keeps the bytes behind the word, for es_version_copy(). */
    atomic_thread_fence(memory_order_seq_cst);
    return !is_leased(map, slot);
}

int64_t es_version_publish(es_map *map, uint64_t number, void *const *leaves)
{
    const uint64_t limit = UINT64_C(1) << (64 - ES_VERSION_SLOT_BITS);
    uint64_t latest = es_version_latest(map), slots = map->num_batches, slot = es_version_slot(latest);
    uint64_t next = es_version_number(latest) + 1;
    if (slot >= slots || next >= limit)
        return ES_ESCRIBBLED;
    if (number == 0)
        number = next;
    if (number < next || number >= limit)
        return -EINVAL;
    /* The oldest version first, so that a reader that copies has the most time. Some slot is free at each moment. A lease
     * may name a slot just as it is tried, but a reader does that once for each latest, which stays as it is. So this
     * ends: after a round, unless readers that loaded an older latest name their slots just now. */
    uint64_t tries = 0;
    do {
        slot = slot + 1 < slots ? slot + 1 : 0;
        if (++tries > 1000 * slots) /* leases that no correct process has made */
            return ES_ESCRIBBLED;
    } while ((latest != 0 && slot == es_version_slot(latest)) || !seize(map, slot, number));
    es_leaves_write(map, slot, leaves);
    /* SYNC weights-whole: release; the bytes come first. */
    atomic_store_explicit(&map->sequences[slot], number * 2, memory_order_release);
    /* SYNC weights-latest: release; the sequence word and the bytes come first. */
    atomic_store_explicit(&map->weights->latest, number << ES_VERSION_SLOT_BITS | slot, memory_order_release);
    tell(map);
    return (int64_t)number;
}

/* --- reading --------------------------------------------------------------- */

/* ES_OK while the slot has that version; ES_LAPPED when it is being overwritten. */
static int look(const es_map *map, uint64_t latest)
{
    if (es_version_slot(latest) >= map->num_batches || es_version_number(latest) == 0)
        return ES_ESCRIBBLED;
    /* SYNC weights-whole, weights-fill: acquire. */
    uint64_t sequence = atomic_load_explicit(&map->sequences[es_version_slot(latest)], memory_order_acquire);
    if (sequence == es_version_number(latest) * 2)
        return ES_OK;
    /* The publisher has overwritten it, so another version was the latest before: see seize(). */
    return es_version_latest(map) != latest ? ES_LAPPED : ES_ESCRIBBLED;
}

int es_version_copy(const es_map *map, uint64_t latest, void *const *leaves)
{
    int rc = look(map, latest);
    if (rc != ES_OK)
        return rc;
    es_leaves_read(map, es_version_slot(latest), leaves);
    /* SYNC weights-fill: acquire, as a fence: the bytes were read before. If any was of a later version, this sees the
     * word that was stored before it. */
    atomic_thread_fence(memory_order_acquire);
    return look(map, latest);
}

int64_t es_version_lease(es_map *map, uint32_t owner, uint64_t *latest)
{
    uint32_t i = 0;
    if (es_version_latest(map) == 0)
        return ES_NOTHING;
    for (uint64_t no = 0; i < map->num_leases; i++, no = 0)
        /* SYNC weights-lease: acq_rel; the one before it has read what it wanted. */
        if (atomic_compare_exchange_strong_explicit(&map->leases[i], &no, lease_word(owner, 0), memory_order_acq_rel,
                                                    memory_order_relaxed))
            break;
    if (i == map->num_leases)
        return ES_FULL;
    int rc = ES_LAPPED;
    for (uint32_t tries = 0; rc == ES_LAPPED && tries < TRIES; tries++) {
        *latest = es_version_latest(map);
        /* SYNC weights-lease: release; pairs with is_leased(): a slot named before was not read. */
        atomic_store_explicit(&map->leases[i], lease_word(owner, es_version_slot(*latest) + 1), memory_order_release);
        /* FENCE weights: pairs with seize(). */
        atomic_thread_fence(memory_order_seq_cst);
        rc = look(map, *latest);
    }
    if (rc == ES_OK)
        return i;
    (void)es_version_release(map, owner, i);
    return rc;
}

int es_version_release(es_map *map, uint32_t owner, int64_t lease)
{
    if (lease < 0 || lease >= map->num_leases || es_version_holder(map, (uint32_t)lease) != owner)
        return ES_ESTALE;
    /* SYNC weights-lease: release; what was read was read before. */
    atomic_store_explicit(&map->leases[lease], 0, memory_order_release);
    return ES_OK;
}

void es_version_release_all(es_map *map, uint32_t owner)
{
    for (uint32_t i = 0; i < map->num_leases; i++)
        (void)es_version_release(map, owner, i);
}

int64_t es_version_holder(const es_map *map, uint32_t lease)
{
    uint64_t word = atomic_load_explicit(&map->leases[lease], memory_order_relaxed);
    return word == 0 ? ES_EMPTY : (int64_t)(word >> 32) - 1;
}

/* --- sleeping -------------------------------------------------------------- */

int es_version_wait(es_ring *r, uint64_t number, uint64_t timeout_ns)
{
    es_weights *w = r->map.weights;
    /* SYNC news-seq: acquire; pairs with es_version_wake_all(). */
    uint32_t seen = atomic_load_explicit(&w->news_seq, memory_order_acquire);
    atomic_store_explicit(&w->reader_sleeps, 1, memory_order_relaxed);
    /* FENCE news: pairs with tell(). Either this look sees the version, or the publisher sees the flag. */
    atomic_thread_fence(memory_order_seq_cst);
    /* SYNC closed: acquire. */
    if (es_version_number(es_version_latest(&r->map)) >= number ||
        atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0)
        return ES_OK;
    /* SYNC busy: acquire; pairs with es_api_stop() and es_api_detach(). */
    if (atomic_load_explicit(&r->detached, memory_order_acquire) != 0)
        return ES_EDETACHED;
    int rc = es_wait(&w->news_seq, seen, timeout_ns, ES_WAIT_IN_TURN);
    return rc == -EAGAIN ? ES_OK : rc;
}
