/* Producers: claim, commit, abort.
 *
 * Who writes: slot words, by CAS: any producer to CLAIMED; then the claimant
 * alone to COMMITTED or REOPEN, unless it dies (es_reap.c) or the ring closes
 * (es_end.c). tail: anyone, +1, a hint.
 *
 * Who dies, and what then:
 *   before the claim's CAS      nothing happened
 *   after it, before tail+1     the next claimer finds the word taken and moves the tail
 *   before the commit's CAS     the reaper re-opens the slot
 *   after it, before count+1    the sample is committed; the learner reads words, not
 *                               counts, and finds it at its next look
 *   after count+1, before the wake  the same; that look is at most one reap interval away
 */
#include "es_ring.h"

#include "es_wait.h"

/* CAS tail p -> p+n with a copy of p: a failed compare-exchange overwrites what
 * it compared with, and p is still needed as the claimed position. */
static void help_tail(es_ring *r, uint64_t p, uint64_t n)
{
    uint64_t expected = p;
    /* relaxed: a hint; the slot words order everything. */
    atomic_compare_exchange_strong_explicit(&r->map.hdr->tail, &expected, p + n, memory_order_relaxed,
                                            memory_order_relaxed);
}

/* SYNC slot-claim: acq_rel; acquires what release() and reap() did, and is the
 * ownership record itself: there is no instant at which a claimed slot has no owner. */
static bool claim_word(es_ring *r, uint64_t index, uint64_t seen, uint64_t lap)
{
    bool won = atomic_compare_exchange_strong_explicit(&r->map.slots[index], &seen, es_word(lap, r->me, ES_CLAIMED),
                                                       memory_order_acq_rel, memory_order_relaxed);
    if (es_detailed(&r->map))
        es_add(won ? &r->map.owners[r->me].cas_success : &r->map.owners[r->me].cas_failure, 1);
    return won;
}

/* Searches that claim_hole() makes before it says that it is busy. */
#define HOLE_TRIES 16

/* Claims the oldest re-opened slot: 1, ES_EMPTY or ES_BUSY. */
static int64_t claim_hole(es_ring *r, uint32_t seq, uint64_t *pos)
{
    es_map *m = &r->map;
    /* A position is no larger than the callers' int64_t; a scribbled lap may be. */
    uint64_t last_lap = (uint64_t)INT64_MAX / m->capacity;
    for (int tries = 0; tries < HOLE_TRIES; tries++) {
        uint64_t best = UINT64_MAX, best_word = 0;
        for (uint64_t q = 0; q < m->capacity; q++) {
            /* SYNC slot-reopen: acquire. */
            uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
            if (es_state(w) == ES_REOPEN && es_lap(w) - 1 < last_lap && (es_lap(w) - 1) * m->capacity + q < best) {
                best = (es_lap(w) - 1) * m->capacity + q;
                best_word = w;
            }
        }
        if (best == UINT64_MAX) {
            /* Only now, and only up to what was current before the search: a hole made
             * during it carries a newer number. Another thread of this process may store
             * an older number here; that costs a search, not a hole. */
            atomic_store_explicit(&r->seen_reopen, seq, memory_order_relaxed);
            return ES_EMPTY;
        }
        if (claim_word(r, best % m->capacity, best_word, es_lap(best_word))) {
            *pos = best;
            return 1;
        }
    }
    return ES_BUSY;
}

enum try_result { TRY_OK, TRY_AGAIN, TRY_FULL };

/* Looks at position p, claims it if it is the next one. */
static enum try_result try_claim(es_ring *r, uint64_t p)
{
    es_map *m = &r->map;
    uint64_t q = p % m->capacity, round = p / m->capacity;
    /* relaxed: a stale word fails the CAS or sends us round the loop. */
    uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_relaxed);
    if (es_lap(w) > round) { /* somebody claimed p, and perhaps died before moving the tail */
        help_tail(r, p, 1);
        return TRY_AGAIN;
    }
    /* SYNC batch-release: acquire; pairs with es_release(): the learner's reads of
     * the slot are over before our writes to it. */
    uint64_t b = atomic_load_explicit(&m->batches[q / m->batch_size].word, memory_order_acquire);
    if (es_round(b) < round)
        return TRY_FULL;
    /* A later round, or p's own batch taken already: p was stale. To call this
     * full would put a producer to sleep with nobody to wake it. */
    if (es_round(b) > round || es_state(b) != ES_FILL)
        return TRY_AGAIN;
    if (es_lap(w) != round)
        return TRY_AGAIN;
    return claim_word(r, q, w, round + 1) ? TRY_OK : TRY_AGAIN;
}

/* SYNC closed: acquire; pairs with es_close_ring(). A claim that reads 0 just
 * before the close is found by the learners' seal of the ring. */
static bool is_closed(es_ring *r)
{
    return atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0;
}

int64_t es_claim_run(es_ring *r, uint64_t want, uint64_t *pos)
{
    es_header *hdr = r->map.hdr;
    if (is_closed(r))
        return ES_ECLOSED;
    /* SYNC reopen-seq: acquire; pairs with abort and reap: the REOPEN words are visible. */
    uint32_t seq = atomic_load_explicit(&hdr->reopen_seq, memory_order_acquire);
    if (seq != atomic_load_explicit(&r->seen_reopen, memory_order_relaxed)) {
        int64_t rc = claim_hole(r, seq, pos);
        if (rc != ES_EMPTY)
            return rc;
    }
    for (int tries = 0; tries < ES_TRIES; tries++) {
        uint64_t p = atomic_load_explicit(&hdr->tail, memory_order_relaxed);
        enum try_result t = try_claim(r, p);
        if (t == TRY_FULL)
            return ES_FULL;
        if (t == TRY_AGAIN) {
            if (es_detailed(&r->map))
                es_add(&r->map.owners[r->me].reservation_retries, 1);
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

int es_claim(es_ring *r, uint64_t *pos)
{
    int64_t n = es_claim_run(r, 1, pos);
    return n > 0 ? ES_OK : (int)n;
}

void es_wake_learners(es_ring *r)
{
    es_header *hdr = r->map.hdr;
    /* FENCE ready: pairs with the fence in es_take_wait(). Either the sleeper's
     * last look sees our slot word, or we see its flag. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&hdr->learner_sleeps, memory_order_relaxed) == 0)
        return;
    /* The waker clears the flag. A sleeper that cleared it on waking would erase
     * the flag of another one. */
    if (atomic_exchange_explicit(&hdr->learner_sleeps, 0, memory_order_acq_rel) == 0)
        return;
    /* SYNC ready-seq: acq_rel; pairs with the acquire before parking. */
    atomic_fetch_add_explicit(&hdr->ready_seq, 1, memory_order_acq_rel);
    es_add(&hdr->totals.notify_count, 1); /* before the woken reads it: one of the two would wait for the line */
    es_wake_all(&hdr->ready_seq);
}

void es_wake_producers(es_ring *r)
{
    es_header *hdr = r->map.hdr;
    /* FENCE space: pairs with the fence in es_claim_wait(). */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_exchange_explicit(&hdr->producers_sleep, 0, memory_order_acq_rel) == 0)
        return;
    /* SYNC space-seq: acq_rel; pairs with the acquire before parking. */
    atomic_fetch_add_explicit(&hdr->space_seq, 1, memory_order_acq_rel);
    es_wake_all(&hdr->space_seq);
}

void es_wake_everybody(es_ring *r)
{
    es_header *hdr = r->map.hdr;
    /* SYNC ready-seq, space-seq: acq_rel. */
    atomic_fetch_add_explicit(&hdr->ready_seq, 1, memory_order_acq_rel);
    es_wake_all(&hdr->ready_seq);
    atomic_fetch_add_explicit(&hdr->space_seq, 1, memory_order_acq_rel);
    es_wake_all(&hdr->space_seq);
}

uint64_t es_commit_run(es_ring *r, uint64_t pos, uint64_t n)
{
    es_map *m = &r->map;
    uint64_t q = pos % m->capacity, lap = pos / m->capacity + 1, done = 0;
    for (; done < n; done++) {
        uint64_t expected = es_word(lap, r->me, ES_CLAIMED);
        /* SYNC slot-commit: release; publishes the slot's bytes to the learner's
         * scan. A CAS and not a store: after the close a learner may have sealed it.
         * Then the rest is left for it to seal: what was sent of a run is its beginning. */
        if (!atomic_compare_exchange_strong_explicit(&m->slots[q + done], &expected,
                                                     es_word(lap, r->me, ES_COMMITTED), memory_order_release,
                                                     memory_order_relaxed))
            break;
    }
    es_add(&m->owners[r->me].samples, done);
    es_batch *b = &m->batches[q / m->batch_size];
    /* acq_rel: the increments form a chain, so whoever completes the count has
     * every other commit of the batch behind it when it wakes the learner. */
    uint64_t count = (uint64_t)atomic_fetch_add_explicit(&b->count, (uint32_t)n, memory_order_acq_rel) + n;
    if (count >= m->batch_size) { /* not ==: an increment may come a lap late */
        if (es_detailed(m))
            atomic_store_explicit(&b->ready_ns, es_now_ns(), memory_order_relaxed);
        es_wake_learners(r);
    }
    return done;
}

int es_commit(es_ring *r, uint64_t pos, uint64_t n)
{
    return es_commit_run(r, pos, n) == n ? ES_OK : ES_EEVICTED;
}

void es_abort(es_ring *r, uint64_t pos)
{
    es_map *m = &r->map;
    uint64_t lap = pos / m->capacity + 1, expected = es_word(lap, r->me, ES_CLAIMED);
    /* SYNC slot-reopen: release; pairs with claim_hole(). */
    if (!atomic_compare_exchange_strong_explicit(&m->slots[pos % m->capacity], &expected, es_word(lap, 0, ES_REOPEN),
                                                 memory_order_release, memory_order_relaxed))
        return;
    es_add(&m->hdr->totals.reopened_slots, 1);
    /* SYNC reopen-seq: release; after the word, or a claimer would search in vain
     * and not search again. */
    atomic_fetch_add_explicit(&m->hdr->reopen_seq, 1, memory_order_release);
    es_wake_producers(r);
    es_wake_learners(r); /* one that waits for the end of a closed ring */
}

int64_t es_claim_wait(es_ring *r, uint64_t want, uint64_t timeout_ns, uint64_t *pos)
{
    es_header *hdr = r->map.hdr;
    int64_t rc = es_claim_run(r, want, pos);
    if (rc != ES_FULL && rc != ES_BUSY)
        return rc;
    if (timeout_ns == 0)
        return rc == ES_BUSY ? ES_TIMEOUT : rc;
    es_owner *mine = &r->map.owners[r->me];
    uint64_t start = es_now_ns(), now = start;
    es_add(&mine->blocked, 1);
    es_add(&hdr->totals.push_blocked, 1);
    atomic_store_explicit(&mine->waiting, 1, memory_order_relaxed);
    do {
        /* SYNC space-seq: acquire; read before the last try, so that a release
         * between that try and the sleep makes the sleep return at once. */
        uint32_t seen = atomic_load_explicit(&hdr->space_seq, memory_order_acquire);
        atomic_store_explicit(&hdr->producers_sleep, 1, memory_order_relaxed);
        /* FENCE space: pairs with es_wake_producers(). */
        atomic_thread_fence(memory_order_seq_cst);
        rc = es_claim_run(r, want, pos);
        if (rc != ES_FULL && rc != ES_BUSY)
            break;
        /* SYNC busy: acquire; pairs with es_detach(). */
        if (atomic_load_explicit(&r->detached, memory_order_acquire)) {
            rc = ES_EDETACHED;
            break;
        }
        uint64_t left = timeout_ns - (now - start);
        int w = es_wait(&hdr->space_seq, seen, rc == ES_BUSY && left > ES_NAP_NS ? ES_NAP_NS : left);
        if (w == -EINTR) {
            rc = -EINTR;
            break;
        }
        now = es_now_ns();
    } while (now - start < timeout_ns);
    atomic_store_explicit(&mine->waiting, 0, memory_order_relaxed);
    es_add(&mine->blocked_ns, es_now_ns() - start);
    return rc == ES_FULL || rc == ES_BUSY ? ES_TIMEOUT : rc;
}
