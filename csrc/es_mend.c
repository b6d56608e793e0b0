/* Somebody scribbled on the ring: rewrite what nobody can have written who keeps to
 * the protocol. What it spoiled stays spoiled; the ring goes on.
 *
 * On a ring that nobody scribbles on, nothing here ever writes a word that matters:
 *   slot words   es_wrong_slot() names what cannot be beside a batch word that stood
 *                still meanwhile. FILL(round) cannot go and come back: rounds only grow.
 *   owners       a FREE entry whose lock byte we seized has no owner, and was swept
 *                before it became free: no word can name it.
 *   tail         is past p only if somebody claimed p, and a slot's lap only grows. Lowered
 *                by mistake it would keep the end of a stream from being seen.
 *   head         is past k only if somebody saw k leased, and rounds only grow.
 *
 * What cannot be told from the truth is left: a claim or a lease that names somebody
 * alive is his until he leaves or dies, a committed word is a sample, and a batch word's
 * round is taken for what it says.
 *
 * Who writes: learners whose wait ended without a wake-up, once a reap interval. Who dies: each word
 * is mended by one step, and the next learner goes on.
 */
#include "es_ring.h"

/* Whether the entry is nobody's. Then what names it is offered again. */
static uint64_t sweep_nobody(es_ring *r, uint32_t index)
{
    es_map *m = &r->map;
    uint64_t n = 0;
    if (es_locks_seize(r->locks, index) != ES_OK)
        return 0;
    /* SYNC owner-free: acquire; under the byte, so it stays so. */
    if (atomic_load_explicit(&m->owners[index].state, memory_order_acquire) == ES_OWNER_FREE)
        n = (uint64_t)(es_return_leases(r, index) + es_reopen_claims(r, index));
    es_locks_yield(r->locks, index);
    return n;
}

static bool names_nobody(es_map *m, uint32_t index)
{
    /* SYNC owner-free: acquire. */
    return index < m->num_owners &&
           atomic_load_explicit(&m->owners[index].state, memory_order_acquire) == ES_OWNER_FREE;
}

/* Anybody may claim, only learners lease and hold. */
static bool cannot_own(es_map *m, uint32_t index, bool claim)
{
    return index >= m->num_owners || (!claim && index >= ES_MAX_LEARNERS);
}

static uint64_t mend_batch(es_ring *r, uint64_t j)
{
    es_map *m = &r->map;
    /* SYNC batch-release, batch-take, closed: acquire. Who retired a batch saw the ring closed, and so do we. */
    uint64_t b = atomic_load_explicit(&m->batches[j].word, memory_order_acquire), round = es_round(b);
    bool closed = atomic_load_explicit(&m->hdr->closed, memory_order_acquire) != 0;
    bool leased = es_state(b) == ES_LEASED || es_state(b) == ES_POISONING;
    if (leased && names_nobody(m, es_word_owner(b)))
        return sweep_nobody(r, es_word_owner(b));
    if (es_state(b) <= ES_POISONING && !(es_state(b) == ES_RETIRED && !closed) &&
        !(leased && cannot_own(m, es_word_owner(b), false)))
        return 0;
    bool done = es_state(b) == ES_RETIRED;
    uint64_t fresh = done ? es_word(round + 1, 0, ES_FILL) : es_word(round, ES_GIVEN_BACK, ES_FILL);
    /* SYNC batch-take, batch-release: acq_rel. */
    return atomic_compare_exchange_strong_explicit(&m->batches[j].word, &b, fresh, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

static uint64_t mend_slot(es_ring *r, uint64_t q)
{
    es_map *m = &r->map;
    _Atomic uint64_t *word = &m->batches[q / m->batch_size].word;
    /* SYNC batch-release, slot-claim, slot-commit: acquire; the second load of the
     * batch's word is then no older than what the slot's word rests on. */
    uint64_t b = atomic_load_explicit(word, memory_order_acquire);
    uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
    if (es_state(b) != ES_FILL)
        return 0;
    bool owned = (es_state(w) == ES_CLAIMED || es_state(w) == ES_HELD) && es_lap(w) == es_round(b) + 1;
    if (owned && names_nobody(m, es_word_owner(w)))
        return sweep_nobody(r, es_word_owner(w));
    /* SYNC closed: acquire; who sealed the slot saw the ring closed, and so do we. */
    bool sealed = es_state(w) == ES_SEALED && es_lap(w) == es_round(b) + 1 &&
                  atomic_load_explicit(&m->hdr->closed, memory_order_acquire) == 0;
    bool nobodys = owned && cannot_own(m, es_word_owner(w), es_state(w) == ES_CLAIMED);
    if (es_wrong_slot(w, b) == NULL && !sealed && !nobodys)
        return 0;
    if (atomic_load_explicit(word, memory_order_acquire) != b)
        return 0;
    /* SYNC slot-reopen: acq_rel, as in a reap. */
    return atomic_compare_exchange_strong_explicit(&m->slots[q], &w, es_word(es_round(b) + 1, 0, ES_REOPEN),
                                                   memory_order_acq_rel, memory_order_relaxed);
}

/* A hole that was written without a new reopen_seq would never be searched for. One more
 * search for holes that producers know of is all that this costs them. */
static void offer_holes(es_ring *r)
{
    es_map *m = &r->map;
    for (uint64_t q = 0; q < m->capacity; q++)
        /* SYNC slot-reopen: acquire; who searches is told after the word. */
        if (es_state(atomic_load_explicit(&m->slots[q], memory_order_acquire)) == ES_REOPEN) {
            /* SYNC reopen-seq: release. */
            atomic_fetch_add_explicit(&m->hdr->reopen_seq, 1, memory_order_release);
            return;
        }
}

/* The laps of slot q that are claimed for sure. What is wrong with a word here will be mended
 * when its batch is being filled; until then it must not pull the tail down. */
static uint64_t claimed_laps(es_map *m, uint64_t q, uint64_t w)
{
    /* SYNC batch-release: acquire; after w was loaded, so no older than what w rests on. */
    uint64_t b = atomic_load_explicit(&m->batches[q / m->batch_size].word, memory_order_acquire), round = es_round(b);
    if (es_state(b) != ES_FILL || es_lap(w) > round + 1)
        return round + 1;
    return es_lap(w) < round ? round : es_lap(w);
}

static void mend_tail(es_ring *r)
{
    es_map *m = &r->map;
    uint64_t tail = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed), unclaimed = UINT64_MAX;
    uint64_t last_lap = (uint64_t)INT64_MAX / m->capacity, word = 0;
    for (uint64_t q = 0; q < m->capacity; q++) {
        /* SYNC slot-claim, slot-commit: acquire; as in mend_slot(). */
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire), lap = claimed_laps(m, q, w);
        if (lap < last_lap && lap * m->capacity + q < unclaimed) {
            unclaimed = lap * m->capacity + q;
            word = w;
        }
    }
    /* It lags by less than a lap: a claimer brings it up before it claims. */
    if (unclaimed == UINT64_MAX || (tail <= unclaimed && unclaimed - tail <= m->capacity))
        return;
    /* The tail is a hint that publishes nothing: we may have seen it past a claim whose word we
     * do not see yet. A CAS cannot miss it.
     * SYNC slot-claim: acq_rel. */
    if (atomic_compare_exchange_strong_explicit(&m->slots[unclaimed % m->capacity], &word, word, memory_order_acq_rel,
                                                memory_order_relaxed))
        atomic_compare_exchange_strong_explicit(&m->hdr->tail, &tail, unclaimed, memory_order_relaxed,
                                                memory_order_relaxed);
}

static void mend_head(es_ring *r)
{
    es_map *m = &r->map;
    /* SYNC head: acquire; pairs with look_from_head(): the words that it went by are no older below. */
    uint64_t head = atomic_load_explicit(&m->hdr->head, memory_order_acquire), oldest = UINT64_MAX;
    bool passed = false; /* a batch that was never leased */
    for (uint64_t j = 0; j < m->num_batches; j++) {
        /* SYNC batch-release, batch-take: acquire. */
        uint64_t b = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        uint64_t k = es_round(b) * m->num_batches + j;
        passed = passed || (es_state(b) == ES_FILL && es_word_owner(b) != ES_GIVEN_BACK && k < head);
        oldest = k < oldest ? k : oldest;
    }
    /* SYNC head: acq_rel, as a step of look_from_head(). */
    if (passed)
        atomic_compare_exchange_strong_explicit(&m->hdr->head, &head, oldest, memory_order_acq_rel,
                                                memory_order_relaxed);
}

/* Scans remember what they saw, which may have been nonsense. */
static void forget_scans(es_ring *r)
{
    pthread_mutex_lock(&r->look_lock);
    for (uint64_t j = 0; j < r->map.num_batches; j++)
        if (r->held[j] == 0) /* a leased batch's gaps are still asked for */
            r->scan[j].lap = 0;
    pthread_mutex_unlock(&r->look_lock);
}

/* The owners' table: a state that is not FREE is taken, and all that are taken are below the mark. */
static void mend_owners(es_ring *r)
{
    es_map *m = &r->map;
    for (uint32_t i = 0; i < m->num_owners; i++) {
        /* SYNC owner-live, owner-free: acquire. */
        uint32_t state = atomic_load_explicit(&m->owners[i].state, memory_order_acquire);
        if (state == ES_OWNER_FREE)
            continue;
        /* SYNC owner-live: acq_rel. */
        if (state != ES_OWNER_LIVE)
            atomic_compare_exchange_strong_explicit(&m->owners[i].state, &state, ES_OWNER_LIVE, memory_order_acq_rel,
                                                    memory_order_relaxed);
        /* SYNC owner-live: acquire, as in es_owners_high(). */
        uint32_t high = atomic_load_explicit(&m->hdr->owners_high, memory_order_acquire);
        /* SYNC owner-live: acq_rel. Never on a sound table: it is raised before an entry becomes LIVE. */
        if (high <= i)
            atomic_compare_exchange_strong_explicit(&m->hdr->owners_high, &high, i + 1, memory_order_acq_rel,
                                                    memory_order_relaxed);
    }
}

int64_t es_mend(es_ring *r)
{
    es_map *m = &r->map;
    uint64_t n = 0;
    mend_owners(r);
    for (uint64_t j = 0; j < m->num_batches; j++)
        n += mend_batch(r, j);
    for (uint64_t q = 0; q < m->capacity; q++)
        n += mend_slot(r, q);
    offer_holes(r);
    mend_tail(r);
    mend_head(r);
    forget_scans(r);
    if (n == 0)
        return 0;
    /* SYNC reopen-seq, returned-seq: release; after the words, as in a reap. */
    atomic_fetch_add_explicit(&m->hdr->reopen_seq, 1, memory_order_release);
    atomic_fetch_add_explicit(&m->hdr->returned_seq, 1, memory_order_release);
    es_alarm_counts(r);
    es_wake_everybody(r);
    return (int64_t)n;
}
