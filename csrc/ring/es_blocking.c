#include "ring/es_blocking.h"

#include "base/es_clock.h"
#include "base/es_counter.h"
#include "base/es_wait.h"
#include "ring/es_consumer.h"
#include "ring/es_drain.h"
#include "ring/es_partial.h"
#include "ring/es_producer.h"
#include "ring/es_repair.h"

int64_t es_blocking_claim(es_ring *r, uint64_t want, uint64_t timeout_ns, uint64_t *pos)
{
    es_header *hdr = r->map.hdr;
    int64_t rc = es_producer_claim(r, want, pos);
    if (rc != ES_FULL && rc != ES_BUSY)
        return rc;
    if (timeout_ns == 0)
        return rc == ES_BUSY ? ES_TIMEOUT : rc;
    es_owner *mine = &r->map.owners[r->me];
    uint64_t start = es_clock_ns(), now = start;
    bool counts = r->waited_ns == 0; /* otherwise this sleep is a part of a bridge's wait: see es_bridge.c */
    if (counts) {
        es_counter_add(&mine->blocked, 1);
        es_counter_add(&hdr->totals.push_blocked, 1);
        atomic_store_explicit(&mine->waiting, 1, memory_order_relaxed);
    }
    do {
        /* SYNC space-seq: acquire; read before the last try. If a release comes between that try
         * and the sleep, the sleep returns at once. */
        uint32_t seen = atomic_load_explicit(&hdr->space_seq, memory_order_acquire);
        atomic_store_explicit(&hdr->producers_sleep, 1, memory_order_relaxed);
        /* FENCE space: pairs with es_wake_producers(). */
        atomic_thread_fence(memory_order_seq_cst);
        rc = es_producer_claim(r, want, pos);
        if (rc != ES_FULL && rc != ES_BUSY)
            break;
        /* SYNC busy: acquire; pairs with es_api_detach(). */
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
        now = es_clock_ns();
    } while (now - start < timeout_ns);
    if (counts) {
        atomic_store_explicit(&mine->waiting, 0, memory_order_relaxed);
        es_counter_add(&mine->blocked_ns, es_clock_ns() - start);
    }
    return rc == ES_FULL || rc == ES_BUSY ? ES_TIMEOUT : rc;
}

static int64_t look_or_finish(es_ring *r, uint32_t flags)
{
    /* SYNC closed: acquire. Read before the look, so that the look sees every batch that was
     * committed before the close. */
    bool closed = atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0;
    int64_t rc = es_consumer_look(r, closed ? flags | ES_TAKE_ANY_ORDER : flags);
    if (closed && rc >= 0)
        atomic_store_explicit(&r->finish_ns, 0, memory_order_relaxed);
    if (rc != ES_EMPTY)
        return rc;
    if (closed)
        return es_drain_finish(r, flags | ES_TAKE_ANY_ORDER);
    return flags & ES_TAKE_SHORT ? es_partial_take(r) : ES_EMPTY;
}

/* Nobody has woken this learner: nothing is there, or some words are wrong. */
static void repair_if_due(es_ring *r)
{
    uint64_t now = es_clock_ns(), last = atomic_load_explicit(&r->last_repair_ns, memory_order_relaxed);
    if (now - last >= r->map.reap_interval_ns &&
        atomic_compare_exchange_strong_explicit(&r->last_repair_ns, &last, now, memory_order_relaxed,
                                                memory_order_relaxed))
        es_repair(r);
}

int64_t es_blocking_take(es_ring *r, uint32_t flags, uint64_t timeout_ns)
{
    es_header *hdr = r->map.hdr;
    int64_t rc = look_or_finish(r, flags);
    if (rc != ES_EMPTY && rc != ES_BUSY)
        return rc;
    if (timeout_ns == 0)
        return rc == ES_BUSY ? ES_TIMEOUT : rc;
    uint64_t start = es_clock_ns(), slept = 0;
    while (slept < timeout_ns) {
        /* SYNC ready-seq: acquire; read before the last look. */
        uint32_t seen = atomic_load_explicit(&hdr->ready_seq, memory_order_acquire);
        atomic_store_explicit(&hdr->learner_sleeps, 1, memory_order_relaxed);
        /* FENCE ready: pairs with es_wake_learners(). */
        atomic_thread_fence(memory_order_seq_cst);
        rc = look_or_finish(r, flags);
        if (rc != ES_EMPTY && rc != ES_BUSY)
            break;
        /* SYNC busy: acquire; pairs with es_api_detach(). */
        if (atomic_load_explicit(&r->detached, memory_order_acquire)) {
            rc = ES_EDETACHED;
            break;
        }
        uint64_t left = timeout_ns - slept;
        int w = es_wait(&hdr->ready_seq, seen, rc == ES_BUSY && left > ES_NAP_NS ? ES_NAP_NS : left);
        if (w == ES_TIMEOUT || w == -EINTR)
            repair_if_due(r);
        if (w == -EINTR) {
            rc = -EINTR;
            break;
        }
        /* One look without the flag: the batch that this learner was woken for is there. A flag
         * that is left set would cost the next committer a wake-up of nobody. */
        rc = look_or_finish(r, flags);
        if (rc != ES_EMPTY && rc != ES_BUSY)
            break;
        slept = es_clock_ns() - start;
    }
    es_counter_add(&r->wait_ns, es_clock_ns() - start);
    return rc == ES_EMPTY || rc == ES_BUSY ? ES_TIMEOUT : rc;
}
