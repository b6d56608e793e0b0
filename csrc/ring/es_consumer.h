/* Learners: look for a batch that can be taken.
 *
 * Who writes: head, any learner, +1, a hint. Only es_repair.c ever lowers it.
 */
#ifndef ES_CONSUMER_H
#define ES_CONSUMER_H

#include "ring/es_ring.h"

/* Leases a complete batch, or with ES_TAKE_SHORT one whose other slots are sealed: its physical index,
 * ES_EMPTY, or ES_BUSY. flags: es_take_flag. */
int64_t es_consumer_look(es_ring *r, uint32_t flags);
/* Leases more batches, at most that many, with one look after another: how many; fewer for whatever reason. How long
 * these looks take is not recorded. */
uint64_t es_consumer_look_on(es_ring *r, uint32_t flags, uint64_t most, uint64_t *batches);
/* Whether es_consumer_look() without flags would find a batch. Leases nothing. */
bool es_consumer_has_batch(es_ring *r);

#endif
