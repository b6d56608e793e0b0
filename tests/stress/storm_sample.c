/* The sizes of the leaves of a sample, and random pauses. es_sample.h defines what the leaves contain. */
#include <math.h>
#include <time.h>

#include "storm.h"

uint64_t st_pause_ns(es_random *random, double mean_ns)
{
    double u = (es_random_below(random, UINT32_MAX) + 1.0) / 4294967296.0;
    return (uint64_t)(-log(u) * mean_ns);
}

void st_nap(uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&ts, NULL);
}

/* An id, two small leaves, and two leaves that share the rest unevenly. */
#define HEAD_BYTES 20u

void st_shape_init(st_shape *shape, uint64_t bytes)
{
    uint64_t rest = bytes - HEAD_BYTES, first = rest / 3 & ~UINT64_C(7);
    *shape = (st_shape){.num_leaves = rest > 0 ? ST_LEAVES : 3, .size = {8, 4, 8, first, rest - first}};
}
