/* Producers: claim, commit, abort.
 *
 * Who writes: slot words, by CAS: any producer to CLAIMED; then the claimant
 * alone to COMMITTED or REOPEN, unless it dies (es_reap.c) or the ring closes
 * (es_drain.c). tail: anyone, +1, a hint.
 *
 * Who dies, and what then:
 *   before the claim's CAS      nothing happened
 *   after it, before tail+1     the next claimer finds the word taken and moves the tail
 *   before the commit's CAS     the reaper re-opens the slot
 *   after it, before count+1    the sample is committed; the learner reads words, not
 *                               counts, and finds it at its next look
 *   after count+1, before the wake  the same; that look is at most one reap interval away. A
 *                               call that sends many samples wakes after several batches:
 *                               see es_api_send_many()
 */
#include "ring/es_producer.h"

#include "base/es_clock.h"
#include "base/es_counter.h"
#include "ring/es_stats.h"
#include "ring/es_wake.h"
#include "ring/es_word.h"

/* CAS tail p -> p+n with a copy of p: a compare-exchange that fails overwrites what it compared
 * with, and p is still needed as the claimed position. */
static void help_tail(es_ring *r, uint64_t p, uint64_t n)
{
    uint64_t expected = p;
    /* relaxed: a hint; the slot words order everything. */
    atomic_compare_exchange_strong_explicit(&r->map.hdr->tail, &expected, p + n, memory_order_relaxed,
                                            memory_order_relaxed);
}

/* SYNC slot-claim: acq_rel; acquires what a release and a reap have done. It is the ownership
 * record itself: a claimed slot has an owner at every instant. */
static bool claim_word(es_ring *r, uint64_t index, uint64_t seen, uint64_t lap)
{
    bool won = atomic_compare_exchange_strong_explicit(&r->map.slots[index], &seen, es_word(lap, r->me, ES_CLAIMED),
                                                       memory_order_acq_rel, memory_order_relaxed);
    if (es_stats_detailed(&r->map))
        es_counter_add(won ? &r->map.owners[r->me].cas_success : &r->map.owners[r->me].cas_failure, 1);
    return won;
}

/* Whether batch j may have a slot that was re-opened before this process loaded reopen_seq: producers
 * fill it, and it does not lie beyond the tail's batch. Whoever claimed that slot had seen both the
 * batch's word and a tail in the slot's batch, and reopen_seq carries what it saw. So relaxed loads
 * find neither word older. */
static bool may_have_reopened(es_map *m, uint64_t j)
{
    uint64_t b = atomic_load_explicit(&m->batches[j].word, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed);
    return es_word_state(b) == ES_FILL && es_word_round(b) * m->num_batches + j <= tail / m->batch_size;
}

/* The oldest re-opened slot: its position, and its word. UINT64_MAX if there is none. */
static uint64_t oldest_reopened(es_map *m, uint64_t *word)
{
    /* A position fits the callers' int64_t. A scribbled lap may not. */
    uint64_t last_lap = (uint64_t)INT64_MAX / m->capacity, best = UINT64_MAX;
    for (uint64_t j = 0; j < m->num_batches; j++) {
        if (!may_have_reopened(m, j))
            continue;
        for (uint64_t q = j * m->batch_size; q < (j + 1) * m->batch_size; q++) {
            /* SYNC slot-reopen: acquire; what led to the re-opening is visible. */
            uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
            if (es_word_state(w) == ES_REOPEN && es_word_lap(w) - 1 < last_lap &&
                (es_word_lap(w) - 1) * m->capacity + q < best) {
                best = (es_word_lap(w) - 1) * m->capacity + q;
                *word = w;
            }
        }
    }
    return best;
}

/* How often claim_reopened() searches before it returns ES_BUSY. */
#define REOPENED_TRIES 16

/* Claims the oldest re-opened slot: 1, ES_EMPTY or ES_BUSY. */
static int64_t claim_reopened(es_ring *r, uint32_t seq, uint64_t *pos)
{
    es_map *m = &r->map;
    for (int tries = 0; tries < REOPENED_TRIES; tries++) {
        uint64_t best_word = 0, best = oldest_reopened(m, &best_word);
        if (best == UINT64_MAX) {
            /* Only now, and only up to what was current before the search: a slot that is
             * re-opened during the search has a newer number. Another thread of this process may
             * store an older number here. That costs a search and misses no slot. */
            atomic_store_explicit(&r->seen_reopen, seq, memory_order_relaxed);
            return ES_EMPTY;
        }
        if (claim_word(r, best % m->capacity, best_word, es_word_lap(best_word))) {
            *pos = best;
            return 1;
        }
    }
    return ES_BUSY;
}

/* What reopen_seq never is. */
#define NEVER UINT64_MAX

enum try_result { TRY_OK, TRY_AGAIN, TRY_FULL };

/* Looks at position p, and claims it if it is the next one. */
static enum try_result try_claim(es_ring *r, uint64_t p)
{
    es_map *m = &r->map;
    uint64_t q = p % m->capacity, round = p / m->capacity;
    /* relaxed: with a stale word the CAS fails, or the caller tries again. */
    uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_relaxed);
    if (es_word_lap(w) > round) { /* somebody has claimed p, and may have died before it moved the tail */
        /* On a ring that somebody scribbled on, a re-opened slot may lie far beyond the tail, where
         * no search has looked. */
        if (es_word_state(w) == ES_REOPEN)
            atomic_store_explicit(&r->seen_reopen, NEVER, memory_order_relaxed);
        help_tail(r, p, 1);
        return TRY_AGAIN;
    }
    /* SYNC batch-release: acquire; pairs with es_lease_end(): the learner's reads of the slot
     * are over before this producer's writes to it. */
    uint64_t b = atomic_load_explicit(&m->batches[q / m->batch_size].word, memory_order_acquire);
    if (es_word_round(b) < round)
        return TRY_FULL;
    /* A later round, or p's own batch is taken already: p was stale. If this were called full, a
     * producer would sleep with nobody to wake it. */
    if (es_word_round(b) > round || es_word_state(b) != ES_FILL)
        return TRY_AGAIN;
    if (es_word_lap(w) != round)
        return TRY_AGAIN;
    return claim_word(r, q, w, round + 1) ? TRY_OK : TRY_AGAIN;
}

/* SYNC closed: acquire; pairs with es_drain_close(). The learners that seal the ring find every
 * claim that read 0. */
static bool is_closed(es_ring *r)
{
    return atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0;
}

int64_t es_producer_claim(es_ring *r, uint64_t want, uint64_t *pos)
{
    es_header *hdr = r->map.hdr;
    if (is_closed(r))
        return ES_ECLOSED;
    /* SYNC reopen-seq: acquire; pairs with abort, let go and reap: the REOPEN words are visible. */
    uint32_t seq = atomic_load_explicit(&hdr->reopen_seq, memory_order_acquire);
    if (seq != atomic_load_explicit(&r->seen_reopen, memory_order_relaxed)) {
        int64_t rc = claim_reopened(r, seq, pos);
        if (rc != ES_EMPTY)
            return rc;
    }
    for (int tries = 0; tries < ES_TRIES; tries++) {
        uint64_t p = atomic_load_explicit(&hdr->tail, memory_order_relaxed);
        enum try_result t = try_claim(r, p);
        if (t == TRY_FULL)
            return ES_FULL;
        if (t == TRY_AGAIN) {
            if (es_stats_detailed(&r->map))
                es_counter_add(&r->map.owners[r->me].reservation_retries, 1);
            continue;
        }
        uint64_t room = r->map.batch_size - p % r->map.batch_size;
        uint64_t n = 1, most = want < room ? want : room;
        while (n < most && try_claim(r, p + n) == TRY_OK)
            n++;
        help_tail(r, p, n);
        *pos = p;
        return (int64_t)n;
    }
    return ES_BUSY;
}

bool es_producer_has_room(es_ring *r)
{
    es_map *m = &r->map;
    /* relaxed, both: what this thread was told of it has acquired with space_seq, and nothing is
     * read behind these words. */
    uint32_t seq = atomic_load_explicit(&m->hdr->reopen_seq, memory_order_relaxed);
    if (seq != atomic_load_explicit(&r->seen_reopen, memory_order_relaxed))
        return true;
    uint64_t p = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed);
    uint64_t b = atomic_load_explicit(&m->batches[p % m->capacity / m->batch_size].word, memory_order_relaxed);
    return es_word_round(b) >= p / m->capacity;
}

uint64_t es_producer_commit_run(es_ring *r, uint64_t pos, uint64_t n, bool *complete)
{
    es_map *m = &r->map;
    uint64_t q = pos % m->capacity, lap = pos / m->capacity + 1, done = 0;
    for (; done < n; done++) {
        uint64_t expected = es_word(lap, r->me, ES_CLAIMED);
        /* SYNC slot-commit: release; publishes the slot's bytes to the learner's scan. A CAS and
         * not a store: after the close a learner may have sealed the slot. Then it seals the rest
         * of the run too, so what is committed of a run is its beginning. */
        if (!atomic_compare_exchange_strong_explicit(&m->slots[q + done], &expected, es_word(lap, r->me, ES_COMMITTED),
                                                     memory_order_release, memory_order_relaxed))
            break;
    }
    es_counter_add(&m->owners[r->me].samples, done);
    es_batch *b = &m->batches[q / m->batch_size];
    /* SYNC count: acq_rel; the increments form a chain. So the producer that completes the count
     * has acquired every other commit of the batch when it wakes the learner. */
    uint64_t count = (uint64_t)atomic_fetch_add_explicit(&b->count, (uint32_t)n, memory_order_acq_rel) + n;
    if (count >= m->batch_size) { /* not ==: an increment may arrive one lap late */
        if (es_stats_detailed(m))
            atomic_store_explicit(&b->ready_ns, es_clock_ns(), memory_order_relaxed);
        *complete = true;
    }
    return done;
}

uint64_t es_producer_commit(es_ring *r, uint64_t pos, uint64_t n)
{
    bool complete = false;
    uint64_t done = es_producer_commit_run(r, pos, n, &complete);
    if (complete)
        es_wake_learners(r);
    return done;
}

void es_producer_abort(es_ring *r, uint64_t pos)
{
    es_map *m = &r->map;
    uint64_t lap = pos / m->capacity + 1, expected = es_word(lap, r->me, ES_CLAIMED);
    /* SYNC slot-reopen: release; pairs with claim_reopened(). */
    if (!atomic_compare_exchange_strong_explicit(&m->slots[pos % m->capacity], &expected, es_word(lap, 0, ES_REOPEN),
                                                 memory_order_release, memory_order_relaxed))
        return;
    es_counter_add(&m->hdr->totals.reopened_slots, 1);
    /* SYNC reopen-seq: release; after the word, or a claimer would search in vain and not search
     * again. */
    atomic_fetch_add_explicit(&m->hdr->reopen_seq, 1, memory_order_release);
    es_wake_producer(r);
    es_wake_learners(r); /* one may wait for the end of a closed ring */
}

uint64_t es_producer_claimed(es_ring *r)
{
    es_map *m = &r->map;
    /* tail is a hint: the process that was to move it past this thread's claim may be stopped.
     * Claims leave no gaps. relaxed: any answer will do for what others have claimed, and a thread
     * sees its own stores. */
    uint64_t n = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed);
    for (uint64_t q = 0; q < m->capacity; q++, n++)
        if (es_word_lap(atomic_load_explicit(&m->slots[n % m->capacity], memory_order_relaxed)) <= n / m->capacity)
            break;
    return n;
}

int64_t es_producer_committed_from(es_ring *r, uint64_t position)
{
    es_map *m = &r->map;
    uint64_t q = position % m->capacity, lap = position / m->capacity + 1, end = q - q % m->batch_size + m->batch_size;
    int64_t n = 0;
    for (; q < end; q++, n++) {
        /* SYNC slot-commit: acquire; the slot's bytes are visible. */
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
        if (es_word_lap(w) != lap || es_word_state(w) != ES_COMMITTED)
            break;
    }
    return n;
}
