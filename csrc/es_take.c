/* Learners: look for a complete batch, lease it, release it. es_end.c ends a stream.
 *
 * Who writes: batch words. FILL -> LEASED by any learner's CAS; from then on its
 * learner alone, or after its death the reaper. head: any learner, +1, a hint.
 *
 * Who dies, and what then:
 *   before the take's CAS       nothing happened
 *   holding a lease             the reaper turns it back into FILL: delivered again
 *   in release, before the store  the same; unless it had begun to overwrite the samples
 *                               (POISONING): then the reaper ends the release
 *   after the store, before the wake  the space is free; a parked producer notices at
 *                               its next try, at most one reap interval away, or
 *                               when somebody reaps us
 */
#include <string.h>

#include "es_ring.h"
#include "es_wait.h"

enum completeness { INCOMPLETE, COMPLETE, SHORT };

/* Loads a batch's slot words from where the last scan of this lap stopped: a
 * COMMITTED or SEALED word stays so until its batch is released, so B loads are
 * enough for a batch however often one looks. */
static enum completeness scan(es_ring *r, uint64_t j, uint64_t lap)
{
    uint64_t size = r->map.batch_size;
    es_scan *s = &r->scan[j];
    if (s->lap != lap)
        *s = (es_scan){.lap = lap};
    for (; s->next < size; s->next++) {
        /* SYNC slot-commit: acquire; the slot's bytes are visible. */
        uint64_t w = atomic_load_explicit(&r->map.slots[j * size + s->next], memory_order_acquire);
        if (es_lap(w) != lap || (es_state(w) != ES_COMMITTED && es_state(w) != ES_SEALED))
            return INCOMPLETE;
        s->gaps += es_state(w) == ES_SEALED;
    }
    return s->gaps == 0 ? COMPLETE : SHORT;
}

static bool takeable(es_ring *r, uint64_t j, uint64_t lap, uint32_t flags)
{
    enum completeness c = scan(r, j, lap);
    /* A batch of nothing but sealed slots is never handed out. */
    return c == COMPLETE || (c == SHORT && (flags & ES_TAKE_SHORT) && r->scan[j].gaps < r->map.batch_size);
}

int64_t es_lease(es_ring *r, uint64_t j, uint64_t seen)
{
    uint64_t round = es_round(seen);
    /* SYNC batch-take: acq_rel; one learner wins. Whoever sees the lease sees our owner entry, and so
     * can tell at the end of a stream whether we live. */
    if (!atomic_compare_exchange_strong_explicit(&r->map.batches[j].word, &seen, es_word(round, r->me, ES_LEASED),
                                                 memory_order_acq_rel, memory_order_relaxed))
        return ES_AGAIN;
    r->held[j] = round + 1;
    return (int64_t)j;
}

static bool any_order(const es_ring *r, uint32_t flags)
{
    return (flags & ES_TAKE_ANY_ORDER) || (r->map.flags & ES_FLAG_READY_ORDER);
}

/* Batches at head and above. A batch given back by a dead learner may lie below:
 * look_everywhere() finds that. */
static int64_t look_from_head(es_ring *r, uint32_t flags)
{
    es_map *m = &r->map;
    /* SYNC head: acquire; pairs with the CAS below, and with mend_head(). */
    uint64_t h = atomic_load_explicit(&m->hdr->head, memory_order_acquire);
    for (uint64_t t = 0; t < m->num_batches; t++) {
        uint64_t j = (h + t) % m->num_batches, round = (h + t) / m->num_batches;
        /* SYNC batch-release, batch-take: acquire. */
        uint64_t w = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        if (es_round(w) > round || (es_round(w) == round && es_state(w) != ES_FILL)) {
            if (t != 0)
                continue;
            /* Only past a batch seen leased or later, only by one, and nobody
             * lowers it: so it never passes an incomplete batch. SYNC head: acq_rel. */
            atomic_compare_exchange_strong_explicit(&m->hdr->head, &h, h + 1, memory_order_acq_rel,
                                                    memory_order_relaxed);
            return ES_AGAIN;
        }
        if (es_round(w) < round)
            continue;
        if (takeable(r, j, round + 1, flags))
            return es_lease(r, j, w);
        if (!any_order(r, flags))
            break;
    }
    return ES_EMPTY;
}

/* The smallest-numbered batch of those that are not leased, or, where any will do, of
 * those that can be taken. Its number is taken from its word.
 * *given_back: whether any of them was leased before and came back. */
static int64_t look_everywhere(es_ring *r, uint32_t flags, bool *given_back)
{
    es_map *m = &r->map;
    bool any = any_order(r, flags);
    uint64_t best = UINT64_MAX, best_j = 0, best_word = 0;
    *given_back = false;
    for (uint64_t j = 0; j < m->num_batches; j++) {
        /* SYNC batch-release, batch-take: acquire. */
        uint64_t w = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        uint64_t k = es_round(w) * m->num_batches + j;
        if (es_state(w) != ES_FILL)
            continue;
        *given_back = *given_back || es_word_owner(w) != 0;
        if (k < best && (!any || takeable(r, j, es_round(w) + 1, flags))) {
            best = k;
            best_j = j;
            best_word = w;
        }
    }
    if (best == UINT64_MAX || (!any && !takeable(r, best_j, es_round(best_word) + 1, flags)))
        return ES_EMPTY;
    return es_lease(r, best_j, best_word);
}

static int64_t look_locked(es_ring *r, uint32_t flags)
{
    for (int tries = 0; tries < ES_TRIES; tries++) {
        /* SYNC returned-seq: acquire; pairs with es_reap(): the FILL words are visible. */
        uint32_t seq = atomic_load_explicit(&r->map.hdr->returned_seq, memory_order_acquire);
        /* A head that is very far behind is brought up over several looks. */
        bool everywhere = seq != r->seen_returned || tries >= ES_TRIES / 2;
        bool given_back = false;
        int64_t rc = everywhere ? look_everywhere(r, flags, &given_back) : look_from_head(r, flags);
        if (rc == ES_AGAIN)
            continue;
        /* Looks from head will do again once no batch is there that came back: it may
         * lie below head, now or after the late step of a learner that saw its lease,
         * and stay there for a while: a partial lease of the dead is incomplete. */
        if (everywhere && !given_back)
            r->seen_returned = seq;
        return rc;
    }
    return ES_BUSY;
}

void es_account_take(es_ring *r, uint64_t j)
{
    es_map *m = &r->map;
    es_totals *totals = &m->hdr->totals;
    es_add(&totals->batches_taken, 1);
    uint64_t claimed = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed);
    uint64_t released = es_get(&totals->batches_released) * m->batch_size;
    if (claimed > released)
        es_raise_to(&totals->occupancy_max, claimed - released);
    if (es_detailed(m)) {
        uint64_t ready = atomic_load_explicit(&m->batches[j].ready_ns, memory_order_relaxed), now = es_now_ns();
        if (ready != 0 && ready < now)
            es_hist_record(m, ES_HIST_DWELL, now - ready);
    }
}

int64_t es_look(es_ring *r, uint32_t flags)
{
    uint64_t start = es_detailed(&r->map) ? es_now_ns() : 0;
    pthread_mutex_lock(&r->look_lock);
    int64_t rc = look_locked(r, flags);
    pthread_mutex_unlock(&r->look_lock);
    if (rc >= 0) {
        if (start != 0)
            es_hist_record(&r->map, ES_HIST_LOOK, es_now_ns() - start);
        es_account_take(r, (uint64_t)rc);
    }
    return rc;
}

bool es_end_lease(es_ring *r, uint64_t j, uint64_t round)
{
    pthread_mutex_lock(&r->look_lock);
    bool mine = j < r->map.num_batches && r->held[j] != 0 && r->held[j] == round + 1;
    if (mine)
        r->held[j] = 0;
    pthread_mutex_unlock(&r->look_lock);
    return mine;
}

static void poison(es_ring *r, uint64_t j, uint64_t round)
{
    /* First: should we die in here, the batch must not be given back. Before the bytes for everybody,
     * since only our death makes anybody look. */
    atomic_store_explicit(&r->map.batches[j].word, es_word(round, r->me, ES_POISONING), memory_order_relaxed);
    /* For the compiler alone: what the dead have stored is a prefix of their program. */
    atomic_signal_fence(memory_order_seq_cst);
    /* All ones: NaN as a float, -1 as a signed integer. */
    for (uint32_t l = 0; l < r->map.num_leaves; l++) {
        uint64_t bytes = r->map.batch_size * r->map.leaf_size[l];
        memset(r->map.leaf_data[l] + j * bytes, 0xff, bytes);
    }
}

uint64_t es_released_word(es_ring *r, uint64_t round)
{
    /* SYNC closed: acquire. A closed ring opens no new space: the writer of an evicted claim may still be at it. */
    bool closed = atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0;
    return closed ? es_word(round, 0, ES_RETIRED) : es_word(round + 1, 0, ES_FILL);
}

int es_release(es_ring *r, uint64_t j, uint64_t round)
{
    if (!es_end_lease(r, j, round))
        return ES_ESTALE;
    es_batch *b = &r->map.batches[j];
    if (r->poison)
        poison(r, j, round);
    /* Before the word: afterwards it would erase the next lap's commits. */
    atomic_store_explicit(&b->count, 0, memory_order_relaxed);
    es_add(&r->map.hdr->totals.batches_released, 1);
    /* SYNC batch-release: release; our reads of the slots, and the count above, come
     * before any claim of the next lap. */
    atomic_store_explicit(&b->word, es_released_word(r, round), memory_order_release);
    es_wake_producers(r);
    /* SYNC closed: acquire. Anew, after that one's fence: the close may have crossed us. */
    if (atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0)
        es_wake_learners(r); /* one that waits for this, the last lease */
    return ES_OK;
}

int64_t es_committed(es_ring *r, uint64_t j, uint64_t round, uint8_t *mask)
{
    es_map *m = &r->map;
    int64_t n = 0;
    pthread_mutex_lock(&r->look_lock);
    bool mine = j < m->num_batches && r->held[j] != 0 && r->held[j] == round + 1;
    pthread_mutex_unlock(&r->look_lock);
    if (!mine)
        return ES_ESTALE;
    for (uint64_t i = 0; i < m->batch_size; i++) {
        /* SYNC slot-commit: acquire. */
        uint64_t w = atomic_load_explicit(&m->slots[j * m->batch_size + i], memory_order_acquire);
        mask[i] = es_lap(w) == round + 1 && es_state(w) == ES_COMMITTED;
        n += mask[i];
    }
    return n;
}

static int64_t look_or_finish(es_ring *r, uint32_t flags)
{
    /* SYNC closed: acquire. Read before the look: a batch committed before the close is then seen by it. */
    bool closed = atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0;
    int64_t rc = es_look(r, closed ? flags | ES_TAKE_ANY_ORDER : flags);
    if (closed && rc >= 0)
        atomic_store_explicit(&r->finish_ns, 0, memory_order_relaxed);
    if (rc != ES_EMPTY)
        return rc;
    if (closed)
        return es_finish(r, flags | ES_TAKE_ANY_ORDER);
    return flags & ES_TAKE_SHORT ? es_take_partial(r) : ES_EMPTY;
}

/* Nobody woke us: nothing is there, or the words are not what they should be. */
static void mend_if_due(es_ring *r)
{
    uint64_t now = es_now_ns(), last = atomic_load_explicit(&r->last_mend_ns, memory_order_relaxed);
    if (now - last >= r->map.reap_interval_ns &&
        atomic_compare_exchange_strong_explicit(&r->last_mend_ns, &last, now, memory_order_relaxed,
                                                memory_order_relaxed))
        es_mend(r);
}

int64_t es_take_wait(es_ring *r, uint32_t flags, uint64_t timeout_ns)
{
    es_header *hdr = r->map.hdr;
    int64_t rc = look_or_finish(r, flags);
    if (rc != ES_EMPTY && rc != ES_BUSY)
        return rc;
    if (timeout_ns == 0)
        return rc == ES_BUSY ? ES_TIMEOUT : rc;
    uint64_t start = es_now_ns(), slept = 0;
    while (slept < timeout_ns) {
        /* SYNC ready-seq: acquire; read before the last look. */
        uint32_t seen = atomic_load_explicit(&hdr->ready_seq, memory_order_acquire);
        atomic_store_explicit(&hdr->learner_sleeps, 1, memory_order_relaxed);
        /* FENCE ready: pairs with es_wake_learners(). */
        atomic_thread_fence(memory_order_seq_cst);
        rc = look_or_finish(r, flags);
        if (rc != ES_EMPTY && rc != ES_BUSY)
            break;
        /* SYNC busy: acquire; pairs with es_detach(). */
        if (atomic_load_explicit(&r->detached, memory_order_acquire)) {
            rc = ES_EDETACHED;
            break;
        }
        uint64_t left = timeout_ns - slept;
        int w = es_wait(&hdr->ready_seq, seen, rc == ES_BUSY && left > ES_NAP_NS ? ES_NAP_NS : left);
        if (w == ES_TIMEOUT || w == -EINTR)
            mend_if_due(r);
        if (w == -EINTR) {
            rc = -EINTR;
            break;
        }
        /* Once without the flag: the batch that we were woken for is there, and a
         * flag left behind would cost the next committer a wake-up of nobody. */
        rc = look_or_finish(r, flags);
        if (rc != ES_EMPTY && rc != ES_BUSY)
            break;
        slept = es_now_ns() - start;
    }
    es_add(&r->wait_ns, es_now_ns() - start);
    return rc == ES_EMPTY || rc == ES_BUSY ? ES_TIMEOUT : rc;
}
