/* Producers: claim, commit, abort. */
#ifndef ES_PRODUCER_H
#define ES_PRODUCER_H

#include "ring/es_ring.h"

/* Claims up to want consecutive positions of one batch: how many, ES_FULL, ES_BUSY or ES_ECLOSED. */
int64_t es_producer_claim(es_ring *r, uint64_t want, uint64_t *pos);
/* Commits n claimed positions: how many. Fewer when a learner has sealed the others after the ring closed. */
uint64_t es_producer_commit(es_ring *r, uint64_t pos, uint64_t n);
/* The same, but sets *complete if it would wake the learners, and never clears it. The caller calls es_wake_learners()
 * then, and soon: before it sleeps, and before it returns to its own caller. */
uint64_t es_producer_commit_run(es_ring *r, uint64_t pos, uint64_t n, bool *complete);
/* Re-opens a claimed slot. Does nothing when the claim was committed, aborted or evicted already. */
void es_producer_abort(es_ring *r, uint64_t pos);

/* How many positions were claimed so far: at least what the calling thread has claimed. */
uint64_t es_producer_claimed(es_ring *r);
/* How many samples are committed from that position on, without a gap, up to the end of its batch.
 * They stay as they are until somebody takes and releases the batch. */
int64_t es_producer_committed_from(es_ring *r, uint64_t position);

/* Whether a claim may succeed now. It may say yes of a full ring, if the tail lags behind or if
 * this attachment has not searched for re-opened slots; it never says no of a ring with room that
 * this thread has been told of. */
bool es_producer_has_room(es_ring *r);

#endif
