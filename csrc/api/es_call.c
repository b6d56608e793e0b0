#define _GNU_SOURCE /* nanosleep */
#include "api/es_call.h"

#include <time.h>

#include "ring/es_locks.h"
#include "ring/es_wake.h"

static int enter_unless(es_ring *r, _Atomic uint32_t *gone)
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

int es_call_enter(es_ring *r)
{
    return enter_unless(r, &r->detached);
}

int es_call_enter_to_claim(es_ring *r)
{
    return r->map.versions == NULL ? -EINVAL : es_call_enter(r);
}

int es_call_enter_to_settle(es_ring *r)
{
    return enter_unless(r, &r->retired);
}

int es_call_enter_to_end(es_ring *r)
{
    return enter_unless(r, &r->left);
}

void es_call_leave(es_ring *r)
{
    /* SYNC busy: release; what the thread did in the ring is visible to es_api_detach(). */
    atomic_fetch_sub_explicit(&r->busy, 1, memory_order_release);
}

/* A thread that sleeps inside a call looks at detached when it is woken. */
void es_call_await(es_ring *r)
{
    const struct timespec nap = {.tv_nsec = 50000};
    while (atomic_load(&r->busy) != 0) {
        es_wake_all(r);
        nanosleep(&nap, NULL);
    }
}
