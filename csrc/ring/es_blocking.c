#include "ring/es_blocking.h"

#include "base/es_clock.h"
#include "base/es_counter.h"
#include "base/es_wait.h"
#include "ring/es_consumer.h"
#include "ring/es_drain.h"
#include "ring/es_partial.h"
#include "ring/es_producer.h"
#include "ring/es_repair.h"
#include "ring/es_wake.h"

/* Sleeps until space_seq is no longer seen. */
static int sleep_for_space(es_ring *r, uint32_t seen, uint64_t timeout_ns)
{
    es_header *hdr = r->map.hdr;
    bool first = atomic_load_explicit(&r->passed_over, memory_order_relaxed);
    if (first)
        atomic_store_explicit(&hdr->passed_over, 1, memory_order_relaxed);
    int w = es_wait(&hdr->space_seq, seen, timeout_ns, first ? ES_WAIT_FIRST : ES_WAIT_IN_TURN);
    if (w == ES_OK) {
        atomic_store_explicit(&r->passed_over, true, memory_order_relaxed);
        /* Whoever is awake may fill all the room. Then it sends many samples for one wake-up, and
         * this process comes first next time. */
        es_wait_yield();
    }
    return w;
}

/* Claims, and sleeps while the ring is full. */
static int64_t claim_or_sleep(es_ring *r, uint64_t want, uint64_t timeout_ns, uint64_t start, uint64_t *pos)
{
    es_header *hdr = r->map.hdr;
    uint64_t slept = 0;
    for (;;) {
        /* SYNC space-seq: acquire; read before the last try. If a release comes between that try
         * and the sleep, the sleep returns at once. A process that was woken sees what it was woken
         * for. */
        uint32_t seen = atomic_load_explicit(&hdr->space_seq, memory_order_acquire);
        atomic_store_explicit(&hdr->producers_sleep, 1, memory_order_relaxed);
        /* FENCE space: pairs with es_wake_producer(). */
        atomic_thread_fence(memory_order_seq_cst);
        int64_t rc = es_producer_claim(r, want, pos);
        if (rc != ES_FULL && rc != ES_BUSY)
            return rc;
        /* SYNC busy: acquire; pairs with es_api_detach(). */
        if (atomic_load_explicit(&r->detached, memory_order_acquire))
            return ES_EDETACHED;
        if (slept >= timeout_ns) /* only after a try: the last sleep may have used up a wake-up */
            return ES_TIMEOUT;
        uint64_t left = timeout_ns - slept;
        if (sleep_for_space(r, seen, rc == ES_BUSY && left > ES_NAP_NS ? ES_NAP_NS : left) == -EINTR)
            return -EINTR;
        slept = es_clock_ns() - start;
    }
}

static void count_blocked(es_ring *r)
{
    es_owner *mine = &r->map.owners[r->me];
    es_counter_add(&mine->blocked, 1);
    es_counter_add(&r->map.hdr->totals.push_blocked, 1);
    atomic_store_explicit(&mine->waiting, 1, memory_order_relaxed);
}

static void count_unblocked(es_ring *r, uint64_t slept_ns)
{
    es_owner *mine = &r->map.owners[r->me];
    atomic_store_explicit(&mine->waiting, 0, memory_order_relaxed);
    es_counter_add(&mine->blocked_ns, slept_ns);
}

int64_t es_blocking_claim(es_ring *r, uint64_t want, uint64_t timeout_ns, uint64_t *pos)
{
    int64_t rc = es_producer_claim(r, want, pos);
    if (rc != ES_FULL && rc != ES_BUSY)
        return rc;
    if (timeout_ns == 0)
        return rc == ES_BUSY ? ES_TIMEOUT : rc;
    uint64_t start = es_clock_ns();
    bool counts = r->waited_ns == 0; /* otherwise this sleep is a part of a bridge's wait: see es_bridge.c */
    if (counts)
        count_blocked(r);
    rc = claim_or_sleep(r, want, timeout_ns, start, pos);
    if (counts)
        count_unblocked(r, es_clock_ns() - start);
    if (rc > 0)
        atomic_store_explicit(&r->passed_over, false, memory_order_relaxed);
    /* However this ends: it may have used up a wake-up, and others may sleep beside the room that
     * is left. If this process dies before, its reaper wakes all. */
    if (es_producer_has_room(r))
        es_wake_producer(r);
    return rc;
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
        int w = es_wait(&hdr->ready_seq, seen, rc == ES_BUSY && left > ES_NAP_NS ? ES_NAP_NS : left, ES_WAIT_IN_TURN);
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

/* --- several causes at once ------------------------------------------------ */

typedef struct causes {
    const es_watch *watches;
    uint32_t n;
    _Atomic uint32_t *word; /* or NULL */
    uint32_t seen;
} causes;

/* Whether it would pay to take or to claim. A closed ring is ready: es_api_take() and the claim say
 * what is left of it. */
static bool is_ready(const es_watch *w)
{
    es_ring *r = w->ring;
    /* relaxed: the call that acts on it looks again. es_wake_all() follows the close. */
    if (atomic_load_explicit(&r->map.hdr->closed, memory_order_relaxed) != 0)
        return true;
    return w->what == ES_WATCH_BATCH ? es_consumer_has_batch(r) : es_producer_has_room(r);
}

/* The first cause that is ready; n: the word. Or ES_EMPTY. */
static int first_ready(const causes *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (is_ready(&c->watches[i]))
            return (int)i;
    /* SYNC watched-word: acquire; what led to the change is visible. */
    if (c->word != NULL && atomic_load_explicit(c->word, memory_order_acquire) != c->seen)
        return (int)c->n;
    return ES_EMPTY;
}

/* Announces a sleep to every ring: the words to sleep on, and how many. Only then may the last look
 * begin. */
static uint32_t arm(const causes *c, es_wait_word *words)
{
    for (uint32_t i = 0; i < c->n; i++) {
        es_header *hdr = c->watches[i].ring->map.hdr;
        bool room = c->watches[i].what == ES_WATCH_ROOM;
        _Atomic uint32_t *seq = room ? &hdr->space_seq : &hdr->ready_seq;
        /* SYNC ready-seq, space-seq: acquire; read before the last look. */
        words[i] = (es_wait_word){seq, atomic_load_explicit(seq, memory_order_acquire)};
        atomic_store_explicit(room ? &hdr->producers_sleep : &hdr->learner_sleeps, 1, memory_order_relaxed);
    }
    if (c->word != NULL)
        words[c->n] = (es_wait_word){c->word, c->seen};
    /* FENCE ready, space: one for all rings; pairs with es_wake_learners() and es_wake_producer(). */
    atomic_thread_fence(memory_order_seq_cst);
    return c->n + (c->word != NULL);
}

static bool any_detached(const causes *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        /* SYNC busy: acquire; pairs with es_api_detach(). */
        if (atomic_load_explicit(&c->watches[i].ring->detached, memory_order_acquire))
            return true;
    return false;
}

/* *woken: whether a sleep may have used up wake-ups. */
static int sleep_until_ready(const causes *c, uint64_t timeout_ns, uint64_t start, bool *woken)
{
    es_wait_word words[ES_WATCH_MOST];
    for (uint64_t slept = 0; slept < timeout_ns; slept = es_clock_ns() - start) {
        uint32_t n = arm(c, words);
        int rc = first_ready(c);
        if (rc >= 0)
            return rc;
        if (any_detached(c))
            return ES_EDETACHED;
        int w = es_wait_several(words, n, timeout_ns - slept);
        *woken = *woken || w == ES_OK;
        for (uint32_t i = 0; i < c->n && (w == ES_TIMEOUT || w == -EINTR); i++)
            if (c->watches[i].what == ES_WATCH_BATCH)
                repair_if_due(c->watches[i].ring);
        if (w != ES_OK && w != -EAGAIN && w != ES_TIMEOUT)
            return w;
        /* One look without the flags, as in es_blocking_take(). */
        rc = first_ready(c);
        if (rc >= 0)
            return rc;
    }
    return ES_TIMEOUT;
}

/* A wake-up for room wakes one process. This one may have been woken by several rings at once, and its
 * caller may claim nothing. So whatever woke it, it wakes the next one wherever it leaves room. */
static void pass_on(const causes *c)
{
    /* FENCE space: pairs with es_wake_producer(). This process may have been woken for room that it has not seen yet:
     * its last look ended at another ring. */
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t i = 0; i < c->n; i++)
        if (c->watches[i].what == ES_WATCH_ROOM && es_producer_has_room(c->watches[i].ring))
            es_wake_producer(c->watches[i].ring);
}

/* A ring whose room is watched was full, or nobody would sleep. */
static void count_sleep(const causes *c, bool begins, uint64_t slept_ns)
{
    for (uint32_t i = 0; i < c->n; i++) {
        es_ring *r = c->watches[i].ring;
        if (c->watches[i].what == ES_WATCH_BATCH)
            es_counter_add(&r->wait_ns, slept_ns);
        else if (begins)
            count_blocked(r);
        else
            count_unblocked(r, slept_ns);
    }
}

int es_blocking_wait_any(const es_watch *watches, uint32_t n, _Atomic uint32_t *word, uint32_t seen,
                         uint64_t timeout_ns)
{
    causes c = {watches, n, word, seen};
    int rc = first_ready(&c);
    if (rc >= 0)
        return rc;
    if (timeout_ns == 0)
        return ES_TIMEOUT;
    uint64_t start = es_clock_ns();
    bool woken = false;
    count_sleep(&c, true, 0);
    rc = sleep_until_ready(&c, timeout_ns, start, &woken);
    count_sleep(&c, false, es_clock_ns() - start);
    /* However this ends. If this process dies before, the reaper of its attachment to each ring wakes all. */
    if (woken)
        pass_on(&c);
    return rc;
}
