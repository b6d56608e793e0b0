/* Claim and commit with a single result, for tests. */
#ifndef ES_ONE_H
#define ES_ONE_H

#include "ring/es_producer.h"

/* ES_OK and the position claimed, ES_FULL, ES_BUSY, or ES_ECLOSED. */
static inline int es_one_claim(es_ring *r, uint64_t *pos)
{
    int64_t n = es_producer_claim(r, 1, pos);
    return n > 0 ? ES_OK : (int)n;
}

/* ES_OK, or ES_EEVICTED if a learner sealed one of the n slots after the ring closed. */
static inline int es_one_commit(es_ring *r, uint64_t pos, uint64_t n)
{
    return es_producer_commit(r, pos, n) == n ? ES_OK : ES_EEVICTED;
}

#endif
