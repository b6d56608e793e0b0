/* Everything in the ring that sleeps. */
#ifndef ES_BLOCKING_H
#define ES_BLOCKING_H

#include "ring/es_ring.h"

/* es_producer_claim() that sleeps while the ring is full, at most timeout_ns: also ES_TIMEOUT. */
int64_t es_blocking_claim(es_ring *r, uint64_t want, uint64_t timeout_ns, uint64_t *pos);
/* es_consumer_look() that sleeps at most timeout_ns: also ES_TIMEOUT, and ES_ENDED on a
 * closed ring with nothing left. There it takes in any order, and short batches
 * (some slots hold no sample) once no full one can come. With ES_TAKE_SHORT it also
 * takes a short batch of an open ring rather than sleep: es_partial_take(). */
int64_t es_blocking_take(es_ring *r, uint32_t flags, uint64_t timeout_ns);

#endif
