/* Drawing items of a table, and what a batch says of them. */
#ifndef ES_DRAW_H
#define ES_DRAW_H

#include <math.h>

#include "base/es_base.h"
#include "replay/es_pow.h"
#include "replay/es_table.h"

/* What a batch says of an item, beside its leaves. ratio: its weight by the least positive one. */
typedef struct es_drawing {
    uint64_t *key;
    double *probability, *priority, *ratio;
    int64_t *times_sampled, *table_size, *age, *version;
} es_drawing;

/* Where draws go. They are there before the store says that they were made. */
typedef struct es_draw_into {
    void *const *leaves; /* one array for each output of the table, whose places are those of the columns */
    double beta;         /* the column of ratios gets weights, with this exponent; not a number: it keeps ratios */
    uint64_t *word;      /* of the store: becomes value + i + 1 together with the i-th draw; or NULL */
    uint64_t value;
    bool streams; /* the arrays outgrow the caches */
} es_draw_into;

/* How many of n draws the limiter allows now, one after the other, unless items go that may be drawn several times. */
uint64_t es_draw_allowed(const es_table *t, uint64_t n);
/* Whether fewer than n items might be drawn now, whatever the reason. */
bool es_draw_may_fall_short(const es_table *t, uint64_t n);
/* Draws as many items as the limiter allows, at most n, one at a time. Place at + i gets the i-th, and what is said of
 * it. -ENOMEM, or ES_ESELECTOR when a custom sampler fails, if nothing was drawn. */
int64_t es_draw(es_table *t, uint64_t n, const es_drawing *to, uint64_t at, const es_draw_into *into);
/* Writes what an item gives to each array, at place at. streams: the arrays outgrow the caches. */
void es_draw_write(const es_table *t, uint32_t item, void *const *leaves, uint64_t at, bool streams);
/* The same for an item that is not drawn now. */
void es_draw_describe(es_table *t, uint32_t item, const es_drawing *to, uint64_t at);

/* Ratios become importance weights (Schaul et al., "Prioritized experience replay", 2016, section 3.4).
 */
static inline void es_draw_weigh(double *ratios, uint64_t n, double beta)
{
    es_pow_many(es_lanes_best(), ratios, n, -beta);
}

#endif
