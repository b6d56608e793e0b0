/* The generator of a table: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
 * generators", 2014). Its state is one word, so a draw changes one word of the store. */
#ifndef ES_RANDOM_H
#define ES_RANDOM_H

#include "base/es_base.h"

/* The state after n more numbers. */
static inline uint64_t es_random_after(uint64_t state, uint64_t n)
{
    return state + n * UINT64_C(0x9e3779b97f4a7c15);
}

static inline uint64_t es_random_next(uint64_t *state)
{
    uint64_t z = *state = es_random_after(*state, 1);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* 0 <= u < 1, in steps of 2^-53. */
static inline double es_random_unit(uint64_t *state)
{
    return (double)(es_random_next(state) >> 11) * 0x1p-53;
}

/* 0 <= k < n, for n from 1 to 2^32. No number is more likely than another by more than one part in 2^31. */
static inline uint64_t es_random_below(uint64_t *state, uint64_t n)
{
    return ((es_random_next(state) >> 32) * n) >> 32;
}

#endif
