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
/* Sleeps for n causes at once, and for a word that may be NULL: see es_api_wait_any(). The caller counts as inside
 * every ring. It has at most ES_WATCH_MOST causes, the word included, and at least one. */
int es_blocking_wait_any(const es_watch *watches, uint32_t n, _Atomic uint32_t *word, uint32_t seen,
                         uint64_t timeout_ns);

#endif
