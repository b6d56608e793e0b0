#include "ring/es_slots.h"

#include "base/es_counter.h"
#include "ring/es_wake.h"
#include "ring/es_word.h"

bool es_slots_filling(es_ring *r, uint64_t q, uint64_t w)
{
    /* SYNC batch-release: acquire. */
    uint64_t b = atomic_load_explicit(&r->map.batches[q / r->map.batch_size].word, memory_order_acquire);
    return es_word_state(b) == ES_FILL && es_word_lap(w) == es_word_round(b) + 1;
}

uint64_t es_slots_turn(es_ring *r, uint32_t from, uint32_t owner, uint32_t to)
{
    es_map *m = &r->map;
    uint64_t n = 0;
    for (uint64_t q = 0; q < m->capacity; q++) {
        /* SYNC slot-claim, slot-reopen: acquire; what led to the word is visible to the process
         * that gets the slot next. */
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
        bool ours = from != ES_HELD || to == ES_SEALED || es_word_owner(w) == r->me;
        if (es_word_state(w) == from && ours && es_slots_filling(r, q, w))
            /* SYNC slot-claim, slot-reopen: acq_rel; it wins or loses against a producer's claim
             * or commit. A slot that was held is re-opened. */
            n += atomic_compare_exchange_strong_explicit(&m->slots[q], &w, es_word(es_word_lap(w), owner, to),
                                                         memory_order_acq_rel, memory_order_relaxed);
    }
    return n;
}

/* How many steps of the tail are enough: to the end of what is claimed (it lags by less than a
 * lap), over what is still free, and for steps in which others are faster. */
static uint64_t most_steps(const es_map *m)
{
    return 2 * m->capacity + ES_TRIES;
}

uint64_t es_slots_turn_free(es_ring *r, uint64_t limit, uint32_t owner, uint32_t state)
{
    es_map *m = &r->map;
    uint64_t turned = 0;
    for (uint64_t n = most_steps(m); n > 0; n--) {
        uint64_t p = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed), seen = p;
        if (p >= limit)
            break;
        uint64_t q = p % m->capacity, round = p / m->capacity;
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_relaxed);
        if (es_word_lap(w) <= round) {
            /* SYNC batch-release: acquire; the same three cases as in a claim. */
            uint64_t b = atomic_load_explicit(&m->batches[q / m->batch_size].word, memory_order_acquire);
            if (es_word_round(b) < round)
                break;
            /* SYNC slot-claim: acq_rel, as a claim. */
            if (es_word_round(b) > round || es_word_state(b) != ES_FILL || es_word_lap(w) != round ||
                !atomic_compare_exchange_strong_explicit(&m->slots[q], &w, es_word(round + 1, owner, state),
                                                         memory_order_acq_rel, memory_order_relaxed))
                continue;
            turned++;
        }
        atomic_compare_exchange_strong_explicit(&m->hdr->tail, &seen, p + 1, memory_order_relaxed,
                                                memory_order_relaxed);
    }
    return turned;
}

uint64_t es_slots_help_tail(es_ring *r)
{
    es_map *m = &r->map;
    uint64_t p = 0;
    for (uint64_t n = most_steps(m); n > 0; n--) {
        uint64_t seen = p = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed);
        if (es_word_lap(atomic_load_explicit(&m->slots[p % m->capacity], memory_order_relaxed)) <= p / m->capacity)
            break;
        atomic_compare_exchange_strong_explicit(&m->hdr->tail, &seen, p + 1, memory_order_relaxed,
                                                memory_order_relaxed);
    }
    return p;
}

void es_slots_let_go(es_ring *r)
{
    if (es_slots_turn(r, ES_HELD, 0, ES_REOPEN) == 0)
        return;
    /* SYNC reopen-seq: release; after the words. */
    atomic_fetch_add_explicit(&r->map.hdr->reopen_seq, 1, memory_order_release);
    es_wake_producer(r);
    /* SYNC closed: acquire. On a closed ring a learner may wait for these slots to seal them. */
    if (atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0)
        es_wake_learners(r);
}

/* Whether the owner has claimed the slot as a producer, or holds it as a learner. A HELD word of a
 * past lap means nothing. One of this lap, in a batch that is being filled, stays as it is until
 * the caller changes it, because nobody else may. */
static bool is_claim_of(es_ring *r, uint64_t q, uint64_t w, uint32_t index)
{
    if (es_word_owner(w) != index || es_word_lap(w) == 0)
        return false;
    return es_word_state(w) == ES_CLAIMED || (es_word_state(w) == ES_HELD && es_slots_filling(r, q, w));
}

int64_t es_slots_reopen(es_ring *r, uint32_t index)
{
    es_map *m = &r->map;
    int64_t n = 0;
    for (uint64_t q = 0; q < m->capacity; q++) {
        /* SYNC slot-claim, slot-commit: acquire; the dead owner's last word. */
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
        /* SYNC slot-reopen: acq_rel; acquires the dead owner's last word, and releases it to
         * claim_reopened(). */
        if (is_claim_of(r, q, w, index))
            n += atomic_compare_exchange_strong_explicit(&m->slots[q], &w, es_word(es_word_lap(w), 0, ES_REOPEN),
                                                         memory_order_acq_rel, memory_order_relaxed);
    }
    /* SYNC reopen-seq: release; after the words. */
    atomic_fetch_add_explicit(&m->hdr->reopen_seq, 1, memory_order_release);
    es_counter_add(&m->hdr->totals.reopened_slots, (uint64_t)n);
    return n;
}
