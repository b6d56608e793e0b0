/* Learners: the end of a stream, of a closed ring for good or of an open one for now.
 *
 * Closed: producers claim no more. What they could still claim is SEALED, claims
 * under way are waited for, then batches with gaps are handed out. SEALED is for
 * ever: on a closed ring release opens no new lap.
 *
 * Open: a learner wants what is there, and the ring must go on. It HOLDs the free
 * slots of the unfinished batch, as a producer would claim them, which keeps every
 * other learner from it; leases it; and lets go of what it could not take.
 *
 * Who dies, and what then:
 *   holding slots               the reaper re-opens them: the batch fills as if nothing had been
 *   with a partial batch leased the same, after the lease was given back
 *   in between seals            sealed slots stay so, the next learner goes on
 */
#include "es_ring.h"

/* This long after the close a claim that is still open is taken away, and nobody
 * waits for other learners' leases any more. */
#define ES_PATIENCE_NS UINT64_C(1000000000)
/* The words of a ring that was scribbled on may never say that nothing is left. They do within
 * the patience on any other: so this long after the last batch nothing is waited for. Whether
 * the dead are reaped is no matter of words: es_next_dead() starts this clock afresh. */
#define ES_LONGEST_END_NS (3 * ES_PATIENCE_NS)
#define ES_LEAST_ASKS 8 /* not just once, after staying away for that long */

/* Whether w is the word of a slot in a batch that is being filled, of this lap. */
static bool filling(es_ring *r, uint64_t q, uint64_t w)
{
    /* SYNC batch-release: acquire. */
    uint64_t b = atomic_load_explicit(&r->map.batches[q / r->map.batch_size].word, memory_order_acquire);
    return es_state(b) == ES_FILL && es_lap(w) == es_round(b) + 1;
}

/* Turns slot words of one state (ES_HELD: ours, unless to seal them) in batches being
 * filled into another: how many. */
static uint64_t turn_words(es_ring *r, uint32_t from, uint32_t owner, uint32_t to)
{
    es_map *m = &r->map;
    uint64_t n = 0;
    for (uint64_t q = 0; q < m->capacity; q++) {
        /* SYNC slot-claim, slot-commit: acquire; what led to the word is visible to whoever gets it from us. */
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
        bool ours = from != ES_HELD || to == ES_SEALED || es_word_owner(w) == r->me;
        if (es_state(w) == from && ours && filling(r, q, w))
            /* SYNC slot-claim, slot-reopen: acq_rel; a producer's claim of the hole, or its
             * commit, wins or loses here; what was held becomes a hole. */
            n += atomic_compare_exchange_strong_explicit(&m->slots[q], &w, es_word(es_lap(w), owner, to),
                                                         memory_order_acq_rel, memory_order_relaxed);
    }
    return n;
}

/* Steps of the tail to the end of what is claimed (it lags by less than a lap), and
 * over what is still free; the rest is for steps that others spoil. */
static uint64_t most_steps(const es_map *m)
{
    return 2 * m->capacity + ES_TRIES;
}

/* Turns free positions into {owner, state} as a claim would take them, up to limit or
 * until the ring is full: how many. */
static uint64_t turn_positions(es_ring *r, uint64_t limit, uint32_t owner, uint32_t state)
{
    es_map *m = &r->map;
    uint64_t turned = 0;
    for (uint64_t n = most_steps(m); n > 0; n--) {
        uint64_t p = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed), seen = p;
        if (p >= limit)
            break;
        uint64_t q = p % m->capacity, round = p / m->capacity;
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_relaxed);
        if (es_lap(w) <= round) {
            /* SYNC batch-release: acquire; the same three cases as in a claim. */
            uint64_t b = atomic_load_explicit(&m->batches[q / m->batch_size].word, memory_order_acquire);
            if (es_round(b) < round)
                break;
            /* SYNC slot-claim: acq_rel, as a claim. */
            if (es_round(b) > round || es_state(b) != ES_FILL || es_lap(w) != round ||
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

/* --- closed ---------------------------------------------------------------- */

void es_close_ring(es_ring *r)
{
    es_header *hdr = r->map.hdr;
    /* SYNC closed: acquire; a second close must not restart the clock. */
    if (atomic_load_explicit(&hdr->closed, memory_order_acquire) == 0)
        atomic_store_explicit(&hdr->closed_ns, es_now_ns(), memory_order_relaxed);
    /* SYNC closed: release. */
    atomic_store_explicit(&hdr->closed, 1, memory_order_release);
    es_alarm_counts(r);
    es_wake_everybody(r);
}

/* Claims under way, and holes and held slots that came about since the seal:
 * they hold a short batch up just as well. */
static bool claims_open(es_ring *r)
{
    for (uint64_t q = 0; q < r->map.capacity; q++) {
        /* SYNC slot-claim, slot-commit: acquire. */
        uint64_t w = atomic_load_explicit(&r->map.slots[q], memory_order_acquire);
        uint32_t state = es_state(w);
        if ((state == ES_CLAIMED || state == ES_REOPEN || state == ES_HELD) && filling(r, q, w))
            return true;
    }
    return false;
}

/* Whether batch word w is leased through this attachment, and no thread of it is about to end that. */
static bool leased_here(es_ring *r, uint64_t j, uint64_t w)
{
    return es_state(w) == ES_LEASED && es_word_owner(w) == r->me && r->held[j] == es_round(w) + 1;
}

/* Whether all slots of a batch that is being filled are sealed, or beyond the tail. */
static bool holds_nothing(es_ring *r, uint64_t j, uint64_t round, uint64_t tail)
{
    es_map *m = &r->map;
    for (uint64_t q = j * m->batch_size; q < (j + 1) * m->batch_size; q++) {
        /* SYNC slot-commit: acquire. */
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
        if (es_lap(w) > round ? es_state(w) != ES_SEALED : round * m->capacity + q < tail)
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
        bool kept = es_state(w) == ES_LEASED || es_state(w) == ES_POISONING;
        others = others || (kept && !leased_here(r, j, w));
        left = es_state(w) == ES_FILL && !holds_nothing(r, j, es_round(w), tail);
    }
    pthread_mutex_unlock(&r->look_lock);
    if (left || (patient && others && !mine))
        return false;
    /* SYNC batch-release: acquire. Last: a release that crossed the close may have opened space at the tail. */
    uint64_t b = atomic_load_explicit(&m->batches[tail / m->batch_size % m->num_batches].word, memory_order_acquire);
    return es_round(b) < tail / m->capacity;
}

/* When this attachment began to find nothing on the closed ring. */
static uint64_t nothing_since(es_ring *r, uint64_t now)
{
    uint64_t since = 0;
    bool first = atomic_compare_exchange_strong_explicit(&r->finish_ns, &since, now, memory_order_relaxed,
                                                         memory_order_relaxed);
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
    uint64_t sealed = turn_words(r, ES_REOPEN, 0, ES_SEALED);
    sealed += turn_positions(r, UINT64_MAX, 0, ES_SEALED);
    es_alarm_counts(r); /* again: a release that crossed the close has zeroed one */
    bool open = claims_open(r);
    if (open && !patient) {
        sealed += turn_words(r, ES_CLAIMED, 0, ES_SEALED);
        sealed += turn_words(r, ES_HELD, 0, ES_SEALED); /* whose learner stands still in a partial take */
        open = claims_open(r);
    }
    /* Another learner may have seen the tail past a slot, not yet its seal, and gone to sleep over it. */
    if (sealed > 0)
        es_wake_learners(r);
    /* Everywhere, whatever returned_seq says: a reaper may have died between a batch and that. */
    pthread_mutex_lock(&r->look_lock);
    r->seen_returned = UINT64_MAX;
    pthread_mutex_unlock(&r->look_lock);
    /* The claims that were open have been committed or sealed: perhaps a full batch now. */
    int64_t rc = es_look(r, flags);
    if (rc != ES_EMPTY || open)
        return rc;
    rc = es_look(r, flags | ES_TAKE_SHORT);
    if (rc != ES_EMPTY)
        return rc;
    return nothing_left(r, patient) ? ES_ENDED : ES_EMPTY;
}

int64_t es_finish(es_ring *r, uint32_t flags)
{
    uint64_t now = es_now_ns(), since = nothing_since(r, now);
    int64_t rc = finish(r, flags, still_patient(r, since, now));
    if (rc >= 0)
        atomic_store_explicit(&r->finish_ns, 0, memory_order_relaxed);
    else if (atomic_fetch_add_explicit(&r->finish_asks, 1, memory_order_relaxed) >= ES_LEAST_ASKS &&
             now - since >= ES_LONGEST_END_NS)
        rc = ES_ENDED;
    return rc;
}

/* --- open ------------------------------------------------------------------ */

/* The first position that nobody has claimed: where the tail would be without delays and deaths. */
static uint64_t help_tail_to_the_end(es_ring *r)
{
    es_map *m = &r->map;
    uint64_t p = 0;
    for (uint64_t n = most_steps(m); n > 0; n--) {
        uint64_t seen = p = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed);
        if (es_lap(atomic_load_explicit(&m->slots[p % m->capacity], memory_order_relaxed)) <= p / m->capacity)
            break;
        atomic_compare_exchange_strong_explicit(&m->hdr->tail, &seen, p + 1, memory_order_relaxed,
                                                memory_order_relaxed);
    }
    return p;
}

/* Leases batch j if all its slots are committed or held by us, and some are committed. */
static int64_t lease_partial(es_ring *r, uint64_t j)
{
    es_map *m = &r->map;
    /* SYNC batch-release: acquire. */
    uint64_t b = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
    uint64_t lap = es_round(b) + 1, held = 0;
    if (es_state(b) != ES_FILL)
        return ES_EMPTY;
    for (uint64_t i = 0; i < m->batch_size; i++) {
        /* SYNC slot-commit: acquire. */
        uint64_t w = atomic_load_explicit(&m->slots[j * m->batch_size + i], memory_order_acquire);
        bool mine = es_state(w) == ES_HELD && es_word_owner(w) == r->me;
        if (es_lap(w) != lap || (es_state(w) != ES_COMMITTED && !mine))
            return ES_EMPTY;
        held += mine;
    }
    if (held == m->batch_size || es_lease(r, j, b) < 0)
        return ES_EMPTY;
    r->scan[j] = (es_scan){.lap = lap, .next = m->batch_size, .gaps = held};
    return (int64_t)j;
}

/* The smallest such batch. Two learners that do this at once may each hold slots of
 * the same batch and both come away with nothing; what is in it stays in it. */
static int64_t lease_some_partial(es_ring *r)
{
    es_map *m = &r->map;
    int64_t rc = ES_EMPTY;
    pthread_mutex_lock(&r->look_lock);
    uint64_t head = atomic_load_explicit(&m->hdr->head, memory_order_relaxed);
    for (uint64_t t = 0; t < m->num_batches && rc < 0; t++)
        rc = lease_partial(r, (head + t) % m->num_batches);
    pthread_mutex_unlock(&r->look_lock);
    return rc;
}

/* Of every slot that we hold and have not leased. */
static void let_go(es_ring *r)
{
    if (turn_words(r, ES_HELD, 0, ES_REOPEN) == 0)
        return;
    /* SYNC reopen-seq: release; after the words. */
    atomic_fetch_add_explicit(&r->map.hdr->reopen_seq, 1, memory_order_release);
    es_wake_producers(r);
    /* SYNC closed: acquire. On a closed ring a learner may wait for these slots, to seal them. */
    if (atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0)
        es_wake_learners(r);
}

int es_give_back(es_ring *r, uint64_t j, uint64_t round)
{
    if (!es_end_lease(r, j, round))
        return ES_ESTALE;
    pthread_mutex_lock(&r->partial_lock);
    pthread_mutex_lock(&r->look_lock);
    r->scan[j].lap = 0; /* of a partial batch, the held slots that it counts are let go of */
    pthread_mutex_unlock(&r->look_lock);
    es_sub(&r->map.hdr->totals.batches_taken, 1);
    /* SYNC batch-take: release; whoever takes it next sees what we saw. */
    atomic_store_explicit(&r->map.batches[j].word, es_word(round, ES_GIVEN_BACK, ES_FILL), memory_order_release);
    /* SYNC returned-seq: release; after the word: it may lie below head. */
    atomic_fetch_add_explicit(&r->map.hdr->returned_seq, 1, memory_order_release);
    let_go(r);
    pthread_mutex_unlock(&r->partial_lock);
    es_wake_learners(r);
    return ES_OK;
}

int64_t es_take_partial(es_ring *r)
{
    es_map *m = &r->map;
    pthread_mutex_lock(&r->partial_lock);
    uint64_t tail = help_tail_to_the_end(r), into = tail % m->batch_size;
    turn_words(r, ES_REOPEN, r->me, ES_HELD);
    turn_positions(r, into == 0 ? tail : tail - into + m->batch_size, r->me, ES_HELD);
    int64_t rc = lease_some_partial(r);
    let_go(r);
    pthread_mutex_unlock(&r->partial_lock);
    if (rc >= 0)
        es_account_take(r, (uint64_t)rc);
    return rc;
}
