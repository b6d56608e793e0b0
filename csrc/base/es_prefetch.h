/* Lines that come into the cache before they are needed. */
#ifndef ES_PREFETCH_H
#define ES_PREFETCH_H

#include "base/es_base.h"

/* Has the line at an address come into the second cache. There are few buffers for lines on their way to the first one,
 * so that random lines come faster without it, and the last step takes little. GCC 12 drops calls of a function that
 * only prefetches: it takes it for one without effect. The empty statement is an effect. */
static inline void es_prefetch(const void *at)
{
    __builtin_prefetch(at, 0, 2);
    __asm__ volatile("");
}

#endif
