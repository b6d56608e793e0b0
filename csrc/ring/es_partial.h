/* A part of a batch from an open ring: a learner wants what is there, and the ring must go on.
 *
 * The learner HOLDs the free slots of the unfinished batch, as a producer would claim
 * them. That keeps every other learner from the batch. It leases the batch, and lets go of
 * what it could not take.
 *
 * Who dies, and what then:
 *   with slots held               the reaper re-opens them: the batch fills as if nothing had happened
 *   with a partial batch leased   the same, after the lease is given back
 */
#ifndef ES_PARTIAL_H
#define ES_PARTIAL_H

#include "ring/es_ring.h"

/* Leases a batch that holds some samples and waits for nobody but future claims, by
 * keeping its other slots from producers. Or ES_EMPTY. */
int64_t es_partial_take(es_ring *r);

#endif
