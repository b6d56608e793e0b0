#define _GNU_SOURCE /* clock_gettime */
#include "base/es_clock.h"

#include <time.h>

uint64_t es_clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
