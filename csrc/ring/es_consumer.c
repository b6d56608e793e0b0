#include "ring/es_consumer.h"

#include "base/es_clock.h"
#include "ring/es_lease.h"
#include "ring/es_stats.h"
#include "ring/es_word.h"

enum completeness { INCOMPLETE, COMPLETE, SHORT };

/* Loads a batch's slot words from where the last scan of this lap stopped. A COMMITTED or SEALED
 * word stays so until its batch is released, so each word of a batch is loaded once after it is
 * COMMITTED, however often a learner looks. */
static enum completeness scan(es_ring *r, uint64_t j, uint64_t lap)
{
    uint64_t size = r->map.batch_size;
    es_scan *s = &r->scan[j];
    if (s->lap != lap)
        *s = (es_scan){.lap = lap};
    for (; s->next < size; s->next++) {
        /* SYNC slot-commit: acquire; the slot's bytes are visible, also to another thread of this
         * process that goes on with this scan under look_lock. */
        uint64_t w = atomic_load_explicit(&r->map.slots[j * size + s->next], memory_order_acquire);
        if (es_word_lap(w) != lap || (es_word_state(w) != ES_COMMITTED && es_word_state(w) != ES_SEALED))
            return INCOMPLETE;
        s->gaps += es_word_state(w) == ES_SEALED;
    }
    return s->gaps == 0 ? COMPLETE : SHORT;
}

static bool takeable(es_ring *r, uint64_t j, uint64_t lap, uint32_t flags)
{
    if (!(flags & ES_TAKE_LAST) && es_lease_left_to_others(r, j, lap - 1))
        return false;
    enum completeness c = scan(r, j, lap);
    /* A batch whose slots are all sealed is never handed out. */
    return c == COMPLETE || (c == SHORT && (flags & ES_TAKE_SHORT) && r->scan[j].gaps < r->map.batch_size);
}

static bool any_order(const es_ring *r, uint32_t flags)
{
    return (flags & ES_TAKE_ANY_ORDER) || (r->map.flags & ES_FLAG_READY_ORDER);
}

/* What a look does with a batch that can be taken. */
typedef enum aim { ONLY_LOOK, LEASE } aim;

static int64_t found(es_ring *r, uint64_t j, uint64_t word, aim aim)
{
    return aim == LEASE ? es_lease_take(r, j, word) : (int64_t)j;
}

/* Looks at batches at head and above. A batch that was given back may lie below: look_everywhere()
 * finds it.
 *
 * Where any order will do, a batch may be passed over that is complete a moment later, and then one that the
 * same producer has completed after it is found. That one's commits have made the earlier ones visible. So
 * what was passed over is looked at once more before a later batch is leased: with one sample a batch, the
 * samples of a producer come in the order in which it has sent them. */
static int64_t look_from_head(es_ring *r, uint32_t flags, aim aim)
{
    es_map *m = &r->map;
    uint64_t most = m->num_batches, passed_over = most, best_word = 0;
    /* SYNC head: acquire; pairs with the CAS below, and with repair_head(). */
    uint64_t h = atomic_load_explicit(&m->hdr->head, memory_order_acquire);
    for (uint64_t t = 0; t < most; t++) {
        uint64_t j = (h + t) % m->num_batches, round = (h + t) / m->num_batches;
        /* SYNC batch-release, batch-take: acquire. */
        uint64_t w = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        if (es_word_round(w) > round || (es_word_round(w) == round && es_word_state(w) != ES_FILL)) {
            if (t != 0)
                continue;
            /* It moves only past a batch that was seen leased or later, and only by one, and
             * nobody lowers it. So it never passes an incomplete batch. SYNC head: acq_rel. */
            atomic_compare_exchange_strong_explicit(&m->hdr->head, &h, h + 1, memory_order_acq_rel,
                                                    memory_order_relaxed);
            return ES_AGAIN;
        }
        if (es_word_round(w) < round)
            continue;
        if (takeable(r, j, round + 1, flags)) {
            if (passed_over == m->num_batches)
                return found(r, j, w, aim);
            most = t, best_word = w;
            t = passed_over - 1;
            passed_over = m->num_batches;
        } else if (!any_order(r, flags)) {
            break;
        } else if (passed_over == m->num_batches) {
            passed_over = t;
        }
    }
    return most < m->num_batches ? found(r, (h + most) % m->num_batches, best_word, aim) : ES_EMPTY;
}

/* A batch that a look has found. */
typedef struct find {
    uint64_t number;      /* UINT64_MAX: none */
    uint64_t word;        /* with which it was found */
    uint64_t passed_over; /* the smallest number of those that could not be taken */
} find;

/* Finds the batch with the smallest number below the limit among those that are not leased, or, where any order
 * will do, among those that can be taken. The number comes from the word. *given_back: whether any of them was
 * given back. */
static find smallest_below(es_ring *r, uint64_t limit, uint32_t flags, bool *given_back)
{
    es_map *m = &r->map;
    find best = {.number = UINT64_MAX, .passed_over = UINT64_MAX};
    for (uint64_t j = 0; j < m->num_batches; j++) {
        /* SYNC batch-release, batch-take: acquire. */
        uint64_t w = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        uint64_t k = es_word_round(w) * m->num_batches + j;
        if (es_word_state(w) != ES_FILL)
            continue;
        *given_back = *given_back || es_word_owner(w) != 0;
        if (k >= limit || k >= best.number)
            continue;
        if (!any_order(r, flags) || takeable(r, j, es_word_round(w) + 1, flags))
            best.number = k, best.word = w;
        else if (k < best.passed_over)
            best.passed_over = k;
    }
    return best;
}

/* Looks at all batches. Where any order will do, it looks for a smaller number again and again: see
 * look_from_head(). */
static int64_t look_everywhere(es_ring *r, uint32_t flags, aim aim, bool *given_back)
{
    es_map *m = &r->map;
    bool any = any_order(r, flags);
    *given_back = false;
    find best = smallest_below(r, UINT64_MAX, flags, given_back), next = best;
    while (any && next.number != UINT64_MAX) {
        best = next;
        next.number = UINT64_MAX;
        if (best.passed_over < best.number)
            next = smallest_below(r, best.number, flags, given_back);
    }
    uint64_t j = best.number % m->num_batches;
    if (best.number == UINT64_MAX || (!any && !takeable(r, j, es_word_round(best.word) + 1, flags)))
        return ES_EMPTY;
    return found(r, j, best.word, aim);
}

static int64_t look_locked(es_ring *r, uint32_t flags, aim aim)
{
    for (int tries = 0; tries < ES_TRIES; tries++) {
        /* SYNC given-back-seq: acquire; pairs with give back and reap: the FILL words are visible. */
        uint32_t seq = atomic_load_explicit(&r->map.hdr->given_back_seq, memory_order_acquire);
        /* A head that is very far behind catches up over several looks. */
        bool everywhere = seq != r->seen_given_back || tries >= ES_TRIES / 2;
        bool given_back = false;
        int64_t rc = everywhere ? look_everywhere(r, flags, aim, &given_back) : look_from_head(r, flags, aim);
        if (rc == ES_AGAIN)
            continue;
        /* Looks from head are enough again once no given-back batch is there. Such a batch may lie
         * below head, now or after the late step of a learner that saw its lease. It may stay
         * there for a while: a partial batch of a dead learner is incomplete. */
        if (everywhere && !given_back)
            r->seen_given_back = seq;
        return rc;
    }
    return ES_BUSY;
}

int64_t es_consumer_look(es_ring *r, uint32_t flags)
{
    uint64_t start = es_stats_detailed(&r->map) ? es_clock_ns() : 0;
    pthread_mutex_lock(&r->look_lock);
    int64_t rc = look_locked(r, flags, LEASE);
    pthread_mutex_unlock(&r->look_lock);
    if (rc >= 0) {
        if (start != 0)
            es_stats_record(&r->map, ES_STATS_LOOK, es_clock_ns() - start);
        es_stats_count_take(&r->map, (uint64_t)rc);
    }
    return rc;
}

uint64_t es_consumer_look_on(es_ring *r, uint32_t flags, uint64_t most, uint64_t *batches)
{
    uint64_t n = 0;
    int64_t rc = 0;
    pthread_mutex_lock(&r->look_lock);
    while (n < most && (rc = look_locked(r, flags, LEASE)) >= 0) {
        es_stats_count_take(&r->map, (uint64_t)rc); /* each at once: a reaper takes back one for each lease */
        batches[n++] = (uint64_t)rc;
    }
    pthread_mutex_unlock(&r->look_lock);
    return n;
}

bool es_consumer_has_batch(es_ring *r)
{
    pthread_mutex_lock(&r->look_lock);
    int64_t rc = look_locked(r, 0, ONLY_LOOK); /* never ES_BUSY: one look everywhere is the last */
    pthread_mutex_unlock(&r->look_lock);
    return rc >= 0;
}
