/* Calls under way. Threads of one process share an attachment, and one of them may stop, retire or detach it while
 * others are inside a call. `busy` counts those. Each of the three sets its word first and looks at `busy` then; a call
 * counts itself first and looks at the word then. So a thread either sees the word, or is counted. */
#ifndef ES_CALL_H
#define ES_CALL_H

#include "ring/es_locks.h"
#include "ring/es_ring.h"

static inline int es_call_enter_unless(es_ring *r, _Atomic uint32_t *gone)
{
    if (r->fork_generation != es_locks_fork_generation())
        return ES_EFORK;
    /* SYNC busy: seq_cst; pairs with es_api_stop(), es_api_retire() and es_api_detach(). */
    atomic_fetch_add(&r->busy, 1);
    if (atomic_load(gone) == 0)
        return ES_OK;
    atomic_fetch_sub_explicit(&r->busy, 1, memory_order_release);
    return ES_EDETACHED;
}

/* A call that may run beside es_api_detach() and writes to the ring begins with es_call_enter() and ends
 * with es_call_leave(). A bridge's one thread detaches itself. */
static inline int es_call_enter(es_ring *r)
{
    return es_call_enter_unless(r, &r->detached);
}

/* The same for the end of a claim, which a stopped attachment may still have. */
static inline int es_call_enter_to_settle(es_ring *r)
{
    return es_call_enter_unless(r, &r->retired);
}

/* The same for the end of a lease, which a retired attachment may still have. */
static inline int es_call_enter_to_end(es_ring *r)
{
    return es_call_enter_unless(r, &r->left);
}

static inline void es_call_leave(es_ring *r)
{
    /* SYNC busy: release; what the thread did in the ring is visible to es_api_detach(). */
    atomic_fetch_sub_explicit(&r->busy, 1, memory_order_release);
}

/* Waits until no thread is inside a call. */
void es_call_await(es_ring *r);

#endif
