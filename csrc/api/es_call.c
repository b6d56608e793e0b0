#define _GNU_SOURCE /* nanosleep */
#include "api/es_call.h"

#include <time.h>

#include "ring/es_wake.h"

/* A thread that sleeps inside a call looks at detached when it is woken. */
void es_call_await(es_ring *r)
{
    const struct timespec nap = {.tv_nsec = 50000};
    while (atomic_load(&r->busy) != 0) {
        es_wake_all(r);
        nanosleep(&nap, NULL);
    }
}
