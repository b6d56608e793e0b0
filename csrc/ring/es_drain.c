#include "ring/es_drain.h"

#include "base/es_clock.h"
#include "ring/es_consumer.h"
#include "ring/es_slots.h"
#include "ring/es_wake.h"
#include "ring/es_word.h"

/* This long after the close a claim that is still open is taken away, and nobody
 * waits for other learners' leases any more. */
#define ES_PATIENCE_NS UINT64_C(1000000000)
/* The words of a ring that was scribbled on may never say that nothing is left. They do within
 * the patience on any other: so this long after the last batch nothing is waited for. Whether
 * the dead are reaped is no matter of words: es_sweep_next_dead() starts this clock afresh. */
#define ES_LONGEST_END_NS (3 * ES_PATIENCE_NS)
#define ES_LEAST_ASKS 8 /* not just once, after staying away for that long */

void es_drain_close(es_ring *r)
{
    es_header *hdr = r->map.hdr;
    /* SYNC closed: acquire; a second close must not restart the clock. */
    if (atomic_load_explicit(&hdr->closed, memory_order_acquire) == 0)
        atomic_store_explicit(&hdr->closed_ns, es_clock_ns(), memory_order_relaxed);
    /* SYNC closed: release. */
    atomic_store_explicit(&hdr->closed, 1, memory_order_release);
    es_wake_alarm(r);
    es_wake_all(r);
}

/* Claims under way, and holes and held slots that came about since the seal:
 * they hold a short batch up just as well. */
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

/* Whether batch word w is leased through this attachment, and no thread of it is about to end that. */
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

/* Whether nothing can come any more. Retired, leased here and sealed throughout
 * are for ever on a closed ring, so one look at each batch is enough, whoever
 * takes, gives back or dies meanwhile. A batch that another learner leased comes
 * back if that is dead and not reaped yet; but two learners that each kept a
 * lease and waited for the other's would wait for ever, so who holds one does not. */
static bool nothing_left(es_ring *r, bool patient)
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
    if (left || (patient && others && !mine))
        return false;
    /* SYNC batch-release: acquire. Last: a release that crossed the close may have opened space at the tail. */
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
    return first || since > now ? now : since; /* another thread may have looked at the clock after us */
}

/* Since the close, or, should closed_ns be nonsense, since this attachment first asked. */
static bool still_patient(es_ring *r, uint64_t asked, uint64_t now)
{
    uint64_t closed = atomic_load_explicit(&r->map.hdr->closed_ns, memory_order_relaxed);
    return now - (closed < asked ? closed : asked) < ES_PATIENCE_NS;
}

static int64_t finish(es_ring *r, uint32_t flags, bool patient)
{
    uint64_t sealed = es_slots_turn(r, ES_REOPEN, 0, ES_SEALED);
    sealed += es_slots_turn_free(r, UINT64_MAX, 0, ES_SEALED);
    es_wake_alarm(r); /* again: a release that crossed the close has zeroed one */
    bool open = claims_open(r);
    if (open && !patient) {
        sealed += es_slots_turn(r, ES_CLAIMED, 0, ES_SEALED);
        sealed += es_slots_turn(r, ES_HELD, 0, ES_SEALED); /* whose learner stands still in a partial take */
        open = claims_open(r);
    }
    /* Another learner may have seen the tail past a slot, not yet its seal, and gone to sleep over it. */
    if (sealed > 0)
        es_wake_learners(r);
    /* Everywhere, whatever given_back_seq says: a reaper may have died between a batch and that. */
    pthread_mutex_lock(&r->look_lock);
    r->seen_given_back = UINT64_MAX;
    pthread_mutex_unlock(&r->look_lock);
    /* The claims that were open have been committed or sealed: perhaps a full batch now. */
    int64_t rc = es_consumer_look(r, flags);
    if (rc != ES_EMPTY || open)
        return rc;
    rc = es_consumer_look(r, flags | ES_TAKE_SHORT);
    if (rc != ES_EMPTY)
        return rc;
    return nothing_left(r, patient) ? ES_ENDED : ES_EMPTY;
}

int64_t es_drain_finish(es_ring *r, uint32_t flags)
{
    uint64_t now = es_clock_ns(), since = nothing_since(r, now);
    int64_t rc = finish(r, flags, still_patient(r, since, now));
    if (rc >= 0)
        atomic_store_explicit(&r->finish_ns, 0, memory_order_relaxed);
    else if (atomic_fetch_add_explicit(&r->finish_asks, 1, memory_order_relaxed) >= ES_LEAST_ASKS &&
             now - since >= ES_LONGEST_END_NS)
        rc = ES_ENDED;
    return rc;
}
