/* The temperature at which softmax(priority / temperature) has a wanted effective sample size, 1 / the sum of the squared
 * probabilities. It never falls as the temperature rises.
 *
 * Only how far each priority lies below the greatest one counts. These depths are counted in bins whose width is a 32nd
 * of their depth, at any scale. So one pass over the priorities is enough, and then each temperature costs a pass over
 * the bins. A bin stands for its priorities by their mean: their weights at a temperature T differ from that in second
 * order only, by less than (depth / 32 T)^2 / 8. Where a bin counts, its depth is not many T. */
#ifndef ES_TEMPERATURE_H
#define ES_TEMPERATURE_H

#include <string.h>

#include "base/es_base.h"

#define ES_TEMPERATURE_BINS 2048 /* 64 octaves */

typedef struct es_temperature {
    uint64_t
        first; /* the number of the second bin, if bins were counted from depth 0. The first bin has what is below */
    uint64_t lowest, highest; /* of the bins that have some, without the first one */
    double widest, unit;      /* of the sums: where the depths' own unit could overflow, another one */
    uint64_t total, count[ES_TEMPERATURE_BINS];
    double sum[ES_TEMPERATURE_BINS]; /* of depths */
} es_temperature;

/* 32 bins an octave: the exponent, and 5 bits of the mantissa. */
static inline uint64_t es_temperature_bin(double depth)
{
    uint64_t bits;
    memcpy(&bits, &depth, sizeof bits);
    return bits >> 47;
}

/* widest: no depth is above it; at least 0. */
static inline void es_temperature_begin(es_temperature *h, double widest)
{
    uint64_t last = es_temperature_bin(widest);
    memset(h, 0, sizeof *h);
    h->widest = widest;
    h->unit = widest > 0x1p900 ? 0x1p-100 : 1;
    h->first = last < ES_TEMPERATURE_BINS - 2 ? 0 : last - (ES_TEMPERATURE_BINS - 2);
    h->lowest = ES_TEMPERATURE_BINS;
}

static inline void es_temperature_add(es_temperature *h, double depth)
{
    uint64_t bin = es_temperature_bin(depth), i = bin < h->first ? 0 : bin - h->first + 1;
    h->total++;
    h->lowest = i > 0 && i < h->lowest ? i : h->lowest;
    h->highest = i > h->highest ? i : h->highest;
    h->count[i]++;
    h->sum[i] += depth * h->unit;
}

/* The temperature for `share` of the members, above 0 and at most 1, or the nearest that there is. 0 if all priorities
 * are the same: then none makes a difference. */
double es_temperature_choose(es_temperature *h, double share);

#endif
