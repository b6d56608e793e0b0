/* Sweeping: a learner finds the dead and reaps them. So does a process that wants a place in a
 * full table. */
#include "api/es_api.h"
#include "base/es_clock.h"
#include "ring/es_owner.h"
#include "ring/es_reap.h"

int64_t es_sweep_next_dead(es_ring *r, uint32_t start, es_identity *id)
{
    /* Without es_call_enter(): a process that sweeps a full table has no entry yet. */
    if (r->fork_generation != es_locks_fork_generation())
        return ES_EFORK;
    if (r->locks == NULL)
        return ES_EREADONLY;
    id->index = ES_NOBODY;
    if (start == 0) {
        atomic_store_explicit(&r->last_sweep_ns, es_clock_ns(), memory_order_relaxed);
        atomic_store_explicit(&r->unsure, false, memory_order_relaxed);
    }
    bool unsure = false;
    bool attached = atomic_load_explicit(&r->left, memory_order_relaxed) == 0;
    int64_t index = es_owner_next_dead(&r->map, r->locks, start, attached ? r->me : ES_NOBODY, &unsure);
    if (unsure) {
        atomic_store_explicit(&r->unsure, true, memory_order_relaxed);
        /* The end of the stream waits for a reaper here, not for words of the ring. So its clock
         * restarts: see es_drain.c. */
        atomic_store_explicit(&r->finish_ns, 0, memory_order_relaxed);
    }
    if (index == ES_EMPTY && atomic_load_explicit(&r->unsure, memory_order_relaxed))
        return ES_UNSURE;
    if (index >= 0) {
        es_owner_identity(&r->map.owners[index], id);
        id->index = (uint32_t)index;
    }
    return index;
}

int64_t es_sweep_settle(es_ring *r, es_identity *dead, int reap)
{
    uint32_t index = dead->index;
    if (r->fork_generation != es_locks_fork_generation())
        return ES_EFORK;
    if (index == ES_NOBODY)
        return ES_EMPTY;
    dead->index = ES_NOBODY;
    if (reap)
        return es_reap(r, index);
    es_locks_yield(r->locks, index);
    return ES_OK;
}

void es_sweep_set_stalled(es_ring *r, uint64_t n)
{
    atomic_store_explicit(&r->map.hdr->totals.stalled_producers, n, memory_order_relaxed);
}
