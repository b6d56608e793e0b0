#include "ring/es_drain.h"

#include "base/es_clock.h"
#include "ring/es_consumer.h"
#include "ring/es_slots.h"
#include "ring/es_wake.h"
#include "ring/es_word.h"

/* The grace period. This long after the close, claims that are still open are evicted, and nobody
 * waits for other learners' leases any more. */
#define GRACE_NS UINT64_C(1000000000)
/* The words of a ring that somebody scribbled on may never say that nothing is left. On any other
 * ring they say so within the grace period. So this long after the last batch the learner stops
 * waiting. Words do not tell whether the dead are reaped: es_sweep_next_dead() restarts this
 * clock. */
#define LONGEST_DRAIN_NS (3 * GRACE_NS)
#define LEAST_ASKS 8 /* a learner that stayed away for that long asks more than once */

void es_drain_close(es_ring *r)
{
    es_header *hdr = r->map.hdr;
    /* SYNC closed: acquire; a second close must not restart the grace period. */
    if (atomic_load_explicit(&hdr->closed, memory_order_acquire) == 0)
        atomic_store_explicit(&hdr->closed_ns, es_clock_ns(), memory_order_relaxed);
    /* SYNC closed: release. */
    atomic_store_explicit(&hdr->closed, 1, memory_order_release);
    es_wake_alarm(r);
    es_wake_all(r);
}

/* Whether claims are under way, or slots were re-opened or held since the seal: these delay a
 * short batch as well. */
static bool claims_open(es_ring *r)
{
    for (uint64_t q = 0; q < r->map.capacity; q++) {
        /* SYNC slot-claim, slot-commit: acquire. */
        uint64_t w = atomic_load_explicit(&r->map.slots[q], memory_order_acquire);
        uint32_t state = es_word_state(w);
        if ((state == ES_CLAIMED || state == ES_REOPEN || state == ES_HELD) && es_slots_filling(r, q, w))
            return true;
    }
    return false;
}

/* Whether batch word w is a lease of this attachment that no thread is about to end. */
static bool leased_here(es_ring *r, uint64_t j, uint64_t w)
{
    return es_word_state(w) == ES_LEASED && es_word_owner(w) == r->me && r->held[j] == es_word_round(w) + 1;
}

/* Whether all slots of a batch that is being filled are sealed, or beyond the tail. */
static bool holds_nothing(es_ring *r, uint64_t j, uint64_t round, uint64_t tail)
{
    es_map *m = &r->map;
    for (uint64_t q = j * m->batch_size; q < (j + 1) * m->batch_size; q++) {
        /* SYNC slot-commit: acquire. */
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
        if (es_word_lap(w) > round ? es_word_state(w) != ES_SEALED : round * m->capacity + q < tail)
            return false;
    }
    return true;
}

/* Whether no batch can come any more. On a closed ring, a batch that is retired, leased here or
 * sealed throughout stays so. One look at each is enough, whatever others do. A batch that another
 * learner leased is given back if that learner is dead and not reaped yet. But two learners that
 * each keep a lease and wait for the other's would wait forever, so a learner that holds a lease
 * does not wait. */
static bool nothing_left(es_ring *r, bool grace)
{
    es_map *m = &r->map;
    bool mine = false, others = false, left = false;
    uint64_t tail = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed);
    pthread_mutex_lock(&r->look_lock);
    for (uint64_t j = 0; j < m->num_batches && !left; j++) {
        /* SYNC batch-release, batch-take: acquire. */
        uint64_t w = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        mine = mine || leased_here(r, j, w);
        bool kept = es_word_state(w) == ES_LEASED || es_word_state(w) == ES_POISONING;
        others = others || (kept && !leased_here(r, j, w));
        left = es_word_state(w) == ES_FILL && !holds_nothing(r, j, es_word_round(w), tail);
    }
    pthread_mutex_unlock(&r->look_lock);
    if (left || (grace && others && !mine))
        return false;
    /* SYNC batch-release: acquire. Last: a release during the close may have opened space at the
     * tail. */
    uint64_t b = atomic_load_explicit(&m->batches[tail / m->batch_size % m->num_batches].word, memory_order_acquire);
    return es_word_round(b) < tail / m->capacity;
}

/* When this attachment began to find nothing on the closed ring. */
static uint64_t nothing_since(es_ring *r, uint64_t now)
{
    uint64_t since = 0;
    bool first =
        atomic_compare_exchange_strong_explicit(&r->finish_ns, &since, now, memory_order_relaxed, memory_order_relaxed);
    if (first)
        atomic_store_explicit(&r->finish_asks, 0, memory_order_relaxed);
    return first || since > now ? now : since; /* another thread may have read the clock later */
}

/* Whether the grace period still runs: since the close, or since this attachment first asked if
 * closed_ns is nonsense. */
static bool within_grace(es_ring *r, uint64_t asked, uint64_t now)
{
    uint64_t closed = atomic_load_explicit(&r->map.hdr->closed_ns, memory_order_relaxed);
    return now - (closed < asked ? closed : asked) < GRACE_NS;
}

static int64_t finish(es_ring *r, uint32_t flags, bool grace)
{
    uint64_t sealed = es_slots_turn(r, ES_REOPEN, 0, ES_SEALED);
    sealed += es_slots_turn_free(r, UINT64_MAX, 0, ES_SEALED);
    es_wake_alarm(r); /* again: a release during the close has zeroed a count */
    bool open = claims_open(r);
    if (open && !grace) {
        sealed += es_slots_turn(r, ES_CLAIMED, 0, ES_SEALED);
        sealed += es_slots_turn(r, ES_HELD, 0, ES_SEALED); /* their learner is stopped in a partial take */
        open = claims_open(r);
    }
    /* Another learner may have seen the tail past a slot, but not its seal yet, and may have gone
     * to sleep. */
    if (sealed > 0)
        es_wake_learners(r);
    /* Look everywhere, whatever given_back_seq says: a reaper may have died between a batch word
     * and the sequence. */
    pthread_mutex_lock(&r->look_lock);
    r->seen_given_back = UINT64_MAX;
    pthread_mutex_unlock(&r->look_lock);
    /* The claims that were open are committed or sealed now: there may be a full batch. */
    int64_t rc = es_consumer_look(r, flags);
    if (rc != ES_EMPTY || open)
        return rc;
    rc = es_consumer_look(r, flags | ES_TAKE_SHORT);
    if (rc != ES_EMPTY)
        return rc;
    return nothing_left(r, grace) ? ES_ENDED : ES_EMPTY;
}

int64_t es_drain_finish(es_ring *r, uint32_t flags)
{
    uint64_t now = es_clock_ns(), since = nothing_since(r, now);
    int64_t rc = finish(r, flags, within_grace(r, since, now));
    if (rc >= 0)
        atomic_store_explicit(&r->finish_ns, 0, memory_order_relaxed);
    else if (atomic_fetch_add_explicit(&r->finish_asks, 1, memory_order_relaxed) >= LEAST_ASKS &&
             now - since >= LONGEST_DRAIN_NS)
        rc = ES_ENDED;
    return rc;
}
