/* How often a table is sampled for each item inserted: four numbers, as in Reverb (Cassirer et al.,
 * "Reverb: a framework for experience replay", 2021, section 2.3). */
#ifndef ES_RATE_LIMITER_H
#define ES_RATE_LIMITER_H

#include "base/es_base.h"
#include "replay/es_replay_types.h"

/* Between these `inserted * ratio - sampled` is kept: at first those of the table's config. es_table_limits_set() changes
 * them. */
typedef struct es_rate_limits {
    double min_diff, max_diff;
} es_rate_limits;

/* Since the table was made or reset. */
typedef struct es_rate_counts {
    uint64_t inserted, sampled, size;
} es_rate_counts;

/* Whether n more items may be drawn. */
static inline bool es_rate_limiter_can_sample(const es_table_config *c, const es_rate_limits *l,
                                              const es_rate_counts *k, uint64_t n)
{
    return k->size >= (uint64_t)c->min_size && k->size > 0 &&
           (double)k->inserted * c->ratio - (double)k->sampled - (double)n >= l->min_diff;
}

/* Whether n more items may be inserted. */
static inline bool es_rate_limiter_can_insert(const es_table_config *c, const es_rate_limits *l,
                                              const es_rate_counts *k, uint64_t n)
{
    return k->size + n <= (uint64_t)c->min_size ||
           ((double)k->inserted + (double)n) * c->ratio - (double)k->sampled <= l->max_diff;
}

#endif
