/* Random numbers. The same seed gives the same numbers. */
#ifndef ES_RANDOM_H
#define ES_RANDOM_H

#include <stdint.h>

typedef struct es_random {
    uint64_t state;
} es_random;

/* Splitmix64: neighbouring seeds give unrelated values. */
static inline uint64_t es_random_mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* A separate stream for each seed and salt. */
static inline es_random es_random_of(uint64_t seed, uint64_t salt)
{
    return (es_random){es_random_mix(seed ^ es_random_mix(salt)) | 1};
}

/* 0 .. n-1. */
static inline uint32_t es_random_below(es_random *random, uint32_t n)
{
    uint64_t x = random->state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    random->state = x;
    return (uint32_t)((x >> 32) * n >> 32);
}

#endif
