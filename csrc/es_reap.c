/* What a dead owner leaves behind, and the statements that must always hold.
 *
 * The reaper has seized the dead owner's lock byte, so there is one reaper at a time,
 * and if it dies half-way the entry is still LIVE and the byte free: the next
 * one does all of it again, to the same effect. The entry is freed last. A
 * successor in the entry before the sweep is over would have its own claims
 * re-opened; freed before the wake-ups, a reaper's death in between would leave
 * a complete batch with a sleeping learner and nobody to tell it.
 */
#include "es_ring.h"

int64_t es_return_leases(es_ring *r, uint32_t index)
{
    es_map *m = &r->map;
    int64_t n = 0;
    for (uint64_t j = 0; j < m->num_batches; j++) {
        /* SYNC batch-take: acquire. */
        uint64_t w = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        bool poisoning = es_state(w) == ES_POISONING;
        if (es_word_owner(w) != index || (es_state(w) != ES_LEASED && !poisoning))
            continue;
        uint64_t to = poisoning ? es_released_word(r, es_round(w)) : es_word(es_round(w), ES_GIVEN_BACK, ES_FILL);
        /* SYNC batch-take, batch-release: acq_rel. A CAS, although nobody else may write a dead
         * learner's lease: a segment that is scribbled on must not gain a second delivery here. */
        if (!atomic_compare_exchange_strong_explicit(&m->batches[j].word, &w, to, memory_order_acq_rel,
                                                     memory_order_relaxed))
            continue;
        n++;
        if (poisoning)
            es_add(&m->hdr->totals.batches_released, 1);
        else
            es_sub(&m->hdr->totals.batches_taken, 1);
    }
    /* SYNC returned-seq: release; after the words, and unconditionally: our
     * predecessor may have died between its words and this. */
    atomic_fetch_add_explicit(&m->hdr->returned_seq, 1, memory_order_release);
    return n;
}

/* What the owner claimed as a producer, or held as a learner. A held word of a past
 * lap is a leftover and no claim; of this lap, in a batch that is being filled, it
 * stays what it is until we change it, since nobody else may. */
static bool is_claim_of(es_map *m, uint64_t q, uint64_t w, uint32_t index)
{
    if (es_word_owner(w) != index || es_lap(w) == 0)
        return false;
    if (es_state(w) == ES_CLAIMED)
        return true;
    /* SYNC batch-release, batch-take: acquire. */
    uint64_t b = atomic_load_explicit(&m->batches[q / m->batch_size].word, memory_order_acquire);
    return es_state(w) == ES_HELD && es_state(b) == ES_FILL && es_lap(w) == es_round(b) + 1;
}

int64_t es_reopen_claims(es_ring *r, uint32_t index)
{
    es_map *m = &r->map;
    int64_t n = 0;
    for (uint64_t q = 0; q < m->capacity; q++) {
        /* SYNC slot-claim, slot-commit: acquire; the dead owner's last word. */
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
        /* SYNC slot-reopen: acq_rel; acquires the dead owner's last word, and pairs with claim_hole(). */
        if (is_claim_of(m, q, w, index))
            n += atomic_compare_exchange_strong_explicit(&m->slots[q], &w, es_word(es_lap(w), 0, ES_REOPEN),
                                                         memory_order_acq_rel, memory_order_relaxed);
    }
    /* SYNC reopen-seq: release; after the words. */
    atomic_fetch_add_explicit(&m->hdr->reopen_seq, 1, memory_order_release);
    es_add(&m->hdr->totals.reopened_slots, (uint64_t)n);
    return n;
}

void es_alarm_counts(es_ring *r)
{
    for (uint64_t j = 0; j < r->map.num_batches; j++)
        /* acq_rel: in the chain of the commits' increments, see es_commit_run(). */
        atomic_fetch_or_explicit(&r->map.batches[j].count, ES_COUNT_ALARM, memory_order_acq_rel);
}

int64_t es_leave_claims(es_ring *r)
{
    int64_t n = es_reopen_claims(r, r->me);
    es_wake_everybody(r);
    return n;
}

int64_t es_reap(es_ring *r, uint32_t index)
{
    es_map *m = &r->map;
    if (r->fork_generation != es_fork_generation())
        return ES_EFORK;
    es_settle_bridge(m, index);
    es_return_leases(r, index);
    int64_t n = es_reopen_claims(r, index);
    es_alarm_counts(r); /* it may have died between a commit and its count */
    es_wake_everybody(r); /* unconditionally: the dead may have cleared a sleep flag and not woken */
    if (atomic_load_explicit(&m->owners[index].role, memory_order_relaxed) == ES_ROLE_PRODUCER)
        es_add(&m->hdr->totals.dead_producers, 1);
    es_owner_free(m, index);
    es_locks_yield(r->locks, index);
    return n;
}

static bool live(es_map *m, uint32_t index)
{
    /* SYNC owner-live: acquire. */
    return index < m->num_owners &&
           atomic_load_explicit(&m->owners[index].state, memory_order_acquire) == ES_OWNER_LIVE;
}

const char *es_wrong_slot(uint64_t w, uint64_t b)
{
    uint64_t round = es_round(b), lap = es_lap(w);
    bool done = es_state(w) == ES_COMMITTED || es_state(w) == ES_SEALED || es_state(w) == ES_HELD;
    if (es_state(w) > ES_HELD || (es_state(w) == ES_FREE) != (lap == 0))
        return "a slot word has a state, and lap 0 is FREE";
    if (lap != round && lap != round + 1)
        return "a slot is in its batch's lap or the one before";
    if (lap == round && lap != 0 && !done)
        return "a slot of a released lap is COMMITTED, SEALED or HELD";
    if (es_state(b) != ES_FILL && (lap != round + 1 || !done))
        return "every slot of a leased or retired batch is COMMITTED, SEALED or HELD";
    return NULL;
}

static const char *valid_slot(es_map *m, uint64_t q, uint64_t tail)
{
    /* acquire, here and below: es_valid() reads a ring at rest, and pairs with whatever came last. */
    uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
    uint64_t b = atomic_load_explicit(&m->batches[q / m->batch_size].word, memory_order_acquire);
    uint64_t round = es_round(b), lap = es_lap(w);
    const char *wrong = es_wrong_slot(w, b);
    if (wrong != NULL)
        return wrong;
    if (es_state(w) == ES_HELD && es_state(b) == ES_FILL && lap == round + 1 && !live(m, es_word_owner(w)))
        return "no HELD word of this lap has a reaped owner";
    if (es_state(w) == ES_CLAIMED && !live(m, es_word_owner(w)))
        return "no CLAIMED word has a reaped owner";
    uint64_t claimed_laps = tail / m->capacity + (q < tail % m->capacity);
    if (lap < claimed_laps)
        return "p < tail implies S[p mod C].lap >= LAP(p)";
    return NULL;
}

const char *es_valid(es_ring *r)
{
    es_map *m = &r->map;
    uint64_t tail = atomic_load_explicit(&m->hdr->tail, memory_order_acquire);
    for (uint64_t j = 0; j < m->num_batches; j++) {
        uint64_t b = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        if (es_state(b) > ES_POISONING)
            return "a batch word has a state";
        if ((es_state(b) == ES_LEASED || es_state(b) == ES_POISONING) && !live(m, es_word_owner(b)))
            return "no LEASED word has a reaped owner";
    }
    for (uint64_t q = 0; q < m->capacity; q++) {
        const char *wrong = valid_slot(m, q, tail);
        if (wrong != NULL)
            return wrong;
    }
    return NULL;
}
