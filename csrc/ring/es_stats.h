/* Statistics that live in the segment: totals, and histograms where the segment was made with detailed metrics. */
#ifndef ES_STATS_H
#define ES_STATS_H

#include "ring/es_layout.h"

static inline bool es_stats_detailed(const es_map *map)
{
    return (map->flags & ES_FLAG_DETAILED) != 0;
}

/* Both do nothing without detailed metrics. which: ES_STATS_LOOK, _COPY or _DWELL. */
void es_stats_record(es_map *map, int which, uint64_t ns);
void es_stats_reset(es_map *map);

/* One more batch was taken. */
void es_stats_count_take(es_map *map, uint64_t batch);
/* Counts the remotes that are connected again. */
void es_stats_count_remotes(es_map *map);

/* The ages of n samples of these versions, against snap->latest_version: age_mean and age_max. */
void es_stats_ages(const _Atomic int64_t *versions, uint64_t n, es_snapshot *snap);

/* Fills everything but producers_waiting, and what only a take knows (batch, round, length,
 * learner_wait_ns, sweep_due, the ages). */
void es_stats_snapshot(es_map *map, es_snapshot *out);

#endif
