/* Counters that any process may change. Relaxed throughout: they inform people and
 * decide nothing, so a crash between an event and its count costs a wrong figure only. */
#ifndef ES_COUNTER_H
#define ES_COUNTER_H

#include "base/es_base.h"

static inline void es_counter_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline void es_counter_sub(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_sub_explicit(counter, n, memory_order_relaxed);
}

static inline uint64_t es_counter_get(_Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* counter = max(counter, value) */
static inline void es_counter_raise(_Atomic uint64_t *counter, uint64_t value)
{
    uint64_t seen = es_counter_get(counter);
    while (seen < value &&
           !atomic_compare_exchange_weak_explicit(counter, &seen, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

#endif
