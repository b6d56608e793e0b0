#include "ring/es_partial.h"

#include "ring/es_lease.h"
#include "ring/es_slots.h"
#include "ring/es_stats.h"
#include "ring/es_word.h"

/* Leases batch j if all its slots are committed or held here, and some are committed. */
static int64_t lease_partial(es_ring *r, uint64_t j)
{
    es_map *m = &r->map;
    /* SYNC batch-release: acquire. */
    uint64_t b = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
    uint64_t lap = es_word_round(b) + 1, held = 0;
    if (es_word_state(b) != ES_FILL)
        return ES_EMPTY;
    for (uint64_t i = 0; i < m->batch_size; i++) {
        /* SYNC slot-commit: acquire. */
        uint64_t w = atomic_load_explicit(&m->slots[j * m->batch_size + i], memory_order_acquire);
        bool mine = es_word_state(w) == ES_HELD && es_word_owner(w) == r->me;
        if (es_word_lap(w) != lap || (es_word_state(w) != ES_COMMITTED && !mine))
            return ES_EMPTY;
        held += mine;
    }
    if (held == m->batch_size || es_lease_take(r, j, b) < 0)
        return ES_EMPTY;
    r->scan[j] = (es_scan){.lap = lap, .next = m->batch_size, .gaps = held};
    return (int64_t)j;
}

/* Leases the first such batch from head on. Two learners that do this at once may each hold slots
 * of the same batch. Then neither gets it, and its samples stay in it. */
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

int64_t es_partial_take(es_ring *r)
{
    es_map *m = &r->map;
    pthread_mutex_lock(&r->partial_lock);
    uint64_t tail = es_slots_help_tail(r), into = tail % m->batch_size;
    es_slots_turn(r, ES_REOPEN, r->me, ES_HELD);
    es_slots_turn_free(r, into == 0 ? tail : tail - into + m->batch_size, r->me, ES_HELD);
    int64_t rc = lease_some_partial(r);
    es_slots_let_go(r);
    pthread_mutex_unlock(&r->partial_lock);
    if (rc >= 0)
        es_stats_count_take(&r->map, (uint64_t)rc);
    return rc;
}
