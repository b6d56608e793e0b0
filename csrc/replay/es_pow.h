/* Powers of many numbers, the same on every machine and with every C library. */
#ifndef ES_POW_H
#define ES_POW_H

#include "base/es_base.h"

/* x[i] becomes x[i] to the power of y, for x[i] >= 0 and finite y, within |y| + 2 ulp. 0 stays 0 whatever y is, and
 * infinity counts as 2^1024. */
void es_pow_many(double *x, uint64_t n, double y);

static inline double es_pow(double x, double y)
{
    es_pow_many(&x, 1, y);
    return x;
}

/* The same with the instructions of a kind (es_lanes_kind) that the processor has. */
void es_pow_many_with(uint32_t kind, double *x, uint64_t n, double y);

#endif
