/* Powers of many numbers, the same on every machine and with every C library. */
#ifndef ES_POW_H
#define ES_POW_H

#include "base/es_base.h"
#include "replay/es_lanes.h"

/* x[i] becomes x[i] to the power of y, for x[i] >= 0 and finite y, within |y| + 2 ulp. 0 stays 0 whatever y is, and
 * infinity counts as 2^1024. With the instructions of that kind, which the processor must have. */
void es_pow_many(es_lanes_kind kind, double *x, uint64_t n, double y);

static inline double es_pow(double x, double y)
{
    es_pow_many(ES_LANES_PLAIN, &x, 1, y);
    return x;
}

#endif
