/* Counters and histograms that live in the segment. Everything is relaxed: see es_totals. */
#ifndef ES_STATS_H
#define ES_STATS_H

#include "es_layout.h"

static inline void es_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline void es_sub(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_sub_explicit(counter, n, memory_order_relaxed);
}

static inline uint64_t es_get(_Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void es_raise_to(_Atomic uint64_t *counter, uint64_t value);

/* The three below do nothing when the segment was made without detailed metrics. */
static inline bool es_detailed(const es_map *map)
{
    return (map->flags & ES_FLAG_DETAILED) != 0;
}
void es_hist_record(es_map *map, int which, uint64_t ns);
void es_hist_summarise(es_map *map, int which, es_hist_summary *out);
void es_hist_reset(es_map *map);

/* Fills everything but what only a take knows (round, length, learner_wait_ns, sweep_due). */
void es_snapshot_fill(es_map *map, es_snapshot *out);

#endif
