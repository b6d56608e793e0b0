#include "ring/es_repair.h"

#include "ring/es_invariant.h"
#include "ring/es_lease.h"
#include "ring/es_slots.h"
#include "ring/es_wake.h"
#include "ring/es_word.h"

/* If nobody has the entry, re-opens or gives back whatever names it: how many words. */
static uint64_t sweep_nobody(es_ring *r, uint32_t index)
{
    es_map *m = &r->map;
    uint64_t n = 0;
    if (es_locks_seize(r->locks, index) != ES_OK)
        return 0;
    /* SYNC owner-free: acquire; under the byte, so it stays so. */
    if (atomic_load_explicit(&m->owners[index].state, memory_order_acquire) == ES_OWNER_FREE)
        n = (uint64_t)(es_lease_give_back_all(r, index) + es_slots_reopen(r, index));
    es_locks_yield(r->locks, index);
    return n;
}

static bool names_nobody(es_map *m, uint32_t index)
{
    /* SYNC owner-free: acquire. */
    return index < m->num_owners &&
           atomic_load_explicit(&m->owners[index].state, memory_order_acquire) == ES_OWNER_FREE;
}

/* Any owner may claim. Only learners lease and hold. */
static bool cannot_own(es_map *m, uint32_t index, bool claim)
{
    return index >= m->num_owners || (!claim && index >= ES_MAX_LEARNERS);
}

static uint64_t repair_batch(es_ring *r, uint64_t j)
{
    es_map *m = &r->map;
    /* SYNC batch-release, batch-take, closed: acquire. The learner that retired a batch saw the
     * ring closed, and so does this one. */
    uint64_t b = atomic_load_explicit(&m->batches[j].word, memory_order_acquire), round = es_word_round(b);
    bool closed = atomic_load_explicit(&m->hdr->closed, memory_order_acquire) != 0;
    bool leased = es_word_state(b) == ES_LEASED || es_word_state(b) == ES_POISONING;
    if (leased && names_nobody(m, es_word_owner(b)))
        return sweep_nobody(r, es_word_owner(b));
    if (es_word_state(b) <= ES_POISONING && !(es_word_state(b) == ES_RETIRED && !closed) &&
        !(leased && cannot_own(m, es_word_owner(b), false)))
        return 0;
    bool done = es_word_state(b) == ES_RETIRED;
    uint64_t fresh = done ? es_word(round + 1, 0, ES_FILL) : es_word(round, ES_GIVEN_BACK, ES_FILL);
    /* SYNC batch-take, batch-release: acq_rel. */
    return atomic_compare_exchange_strong_explicit(&m->batches[j].word, &b, fresh, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

static uint64_t repair_slot(es_ring *r, uint64_t q)
{
    es_map *m = &r->map;
    _Atomic uint64_t *word = &m->batches[q / m->batch_size].word;
    /* SYNC batch-release, slot-claim, slot-commit: acquire; so the second load of the batch word
     * is no older than what the slot word depends on. */
    uint64_t b = atomic_load_explicit(word, memory_order_acquire);
    uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
    if (es_word_state(b) != ES_FILL)
        return 0;
    bool owned =
        (es_word_state(w) == ES_CLAIMED || es_word_state(w) == ES_HELD) && es_word_lap(w) == es_word_round(b) + 1;
    if (owned && names_nobody(m, es_word_owner(w)))
        return sweep_nobody(r, es_word_owner(w));
    /* SYNC closed: acquire; the learner that sealed the slot saw the ring closed, and so does this
     * one. */
    bool sealed = es_word_state(w) == ES_SEALED && es_word_lap(w) == es_word_round(b) + 1 &&
                  atomic_load_explicit(&m->hdr->closed, memory_order_acquire) == 0;
    bool nobodys = owned && cannot_own(m, es_word_owner(w), es_word_state(w) == ES_CLAIMED);
    if (es_invariant_slot(w, b) == NULL && !sealed && !nobodys)
        return 0;
    /* SYNC batch-release, batch-take: acquire; the word did not change meanwhile. */
    if (atomic_load_explicit(word, memory_order_acquire) != b)
        return 0;
    /* SYNC slot-reopen: acq_rel, as in a reap. */
    return atomic_compare_exchange_strong_explicit(&m->slots[q], &w, es_word(es_word_round(b) + 1, 0, ES_REOPEN),
                                                   memory_order_acq_rel, memory_order_relaxed);
}

/* A REOPEN word that was written without a new reopen_seq would never be found. If producers know
 * of it already, this costs them one more search. */
static void announce_reopened(es_ring *r)
{
    es_map *m = &r->map;
    for (uint64_t q = 0; q < m->capacity; q++)
        /* SYNC slot-reopen: acquire; producers are told to search after the word. */
        if (es_word_state(atomic_load_explicit(&m->slots[q], memory_order_acquire)) == ES_REOPEN) {
            /* SYNC reopen-seq: release. */
            atomic_fetch_add_explicit(&m->hdr->reopen_seq, 1, memory_order_release);
            return;
        }
}

/* The laps of slot q that are certainly claimed. A wrong word is repaired when its batch is being
 * filled. Until then it must not lower the tail. */
static uint64_t claimed_laps(es_map *m, uint64_t q, uint64_t w)
{
    /* SYNC batch-release: acquire; after w was loaded, so no older than what w depends on. */
    uint64_t b = atomic_load_explicit(&m->batches[q / m->batch_size].word, memory_order_acquire),
             round = es_word_round(b);
    if (es_word_state(b) != ES_FILL || es_word_lap(w) > round + 1)
        return round + 1;
    return es_word_lap(w) < round ? round : es_word_lap(w);
}

static void repair_tail(es_ring *r)
{
    es_map *m = &r->map;
    uint64_t tail = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed), unclaimed = UINT64_MAX;
    uint64_t last_lap = (uint64_t)INT64_MAX / m->capacity, word = 0;
    for (uint64_t q = 0; q < m->capacity; q++) {
        /* SYNC slot-claim, slot-commit: acquire; as in repair_slot(). */
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire), lap = claimed_laps(m, q, w);
        if (lap < last_lap && lap * m->capacity + q < unclaimed) {
            unclaimed = lap * m->capacity + q;
            word = w;
        }
    }
    /* The tail lags by less than a lap: a claimer moves it forward before it claims. */
    if (unclaimed == UINT64_MAX || (tail <= unclaimed && unclaimed - tail <= m->capacity))
        return;
    /* The tail is a hint that publishes nothing. It may be past a claim whose word this process
     * does not see yet. A CAS cannot miss the word. SYNC slot-claim: acq_rel. */
    if (atomic_compare_exchange_strong_explicit(&m->slots[unclaimed % m->capacity], &word, word, memory_order_acq_rel,
                                                memory_order_relaxed))
        atomic_compare_exchange_strong_explicit(&m->hdr->tail, &tail, unclaimed, memory_order_relaxed,
                                                memory_order_relaxed);
}

static void repair_head(es_ring *r)
{
    es_map *m = &r->map;
    /* SYNC head: acquire; pairs with look_from_head(): the words loaded below are no older than
     * those that moved it. */
    uint64_t head = atomic_load_explicit(&m->hdr->head, memory_order_acquire), oldest = UINT64_MAX;
    bool passed = false; /* a batch that was never leased */
    for (uint64_t j = 0; j < m->num_batches; j++) {
        /* SYNC batch-release, batch-take: acquire. */
        uint64_t b = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        uint64_t k = es_word_round(b) * m->num_batches + j;
        passed = passed || (es_word_state(b) == ES_FILL && es_word_owner(b) != ES_GIVEN_BACK && k < head);
        oldest = k < oldest ? k : oldest;
    }
    /* SYNC head: acq_rel, as a step of look_from_head(). */
    if (passed)
        atomic_compare_exchange_strong_explicit(&m->hdr->head, &head, oldest, memory_order_acq_rel,
                                                memory_order_relaxed);
}

/* Scans remember what they saw, and that may have been nonsense. */
static void forget_scans(es_ring *r)
{
    pthread_mutex_lock(&r->look_lock);
    for (uint64_t j = 0; j < r->map.num_batches; j++)
        if (r->held[j] == 0) /* the gaps of a leased batch are still needed */
            r->scan[j].lap = 0;
    pthread_mutex_unlock(&r->look_lock);
}

/* The table of owners: any state other than FREE becomes LIVE, and all LIVE entries lie below
 * owners_high. */
static void repair_owners(es_ring *r)
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
        /* SYNC owner-live: acquire, as in es_owner_high(). */
        uint32_t high = atomic_load_explicit(&m->hdr->owners_high, memory_order_acquire);
        /* SYNC owner-live: acq_rel. Never in a sound table: owners_high is raised before an entry
         * becomes LIVE. */
        if (high <= i)
            atomic_compare_exchange_strong_explicit(&m->hdr->owners_high, &high, i + 1, memory_order_acq_rel,
                                                    memory_order_relaxed);
    }
}

int64_t es_repair(es_ring *r)
{
    es_map *m = &r->map;
    uint64_t n = 0;
    repair_owners(r);
    for (uint64_t j = 0; j < m->num_batches; j++)
        n += repair_batch(r, j);
    for (uint64_t q = 0; q < m->capacity; q++)
        n += repair_slot(r, q);
    announce_reopened(r);
    repair_tail(r);
    repair_head(r);
    forget_scans(r);
    if (n == 0)
        return 0;
    /* SYNC reopen-seq, given-back-seq: release; after the words, as in a reap. */
    atomic_fetch_add_explicit(&m->hdr->reopen_seq, 1, memory_order_release);
    atomic_fetch_add_explicit(&m->hdr->given_back_seq, 1, memory_order_release);
    es_wake_alarm(r);
    es_wake_all(r);
    return (int64_t)n;
}
