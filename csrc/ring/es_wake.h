/* Who wakes whom. Sleeping is in es_blocking.h. */
#ifndef ES_WAKE_H
#define ES_WAKE_H

#include "ring/es_ring.h"

/* Wakes the learners if any sleeps. */
void es_wake_learners(es_ring *r);
/* Wakes one producer if any sleeps: one that was woken in vain before, or the one that has slept
 * longest. It wakes the next one if it leaves room: see es_blocking_claim() and
 * es_blocking_wait_any(). If all were woken, most of them would find the ring full again. */
void es_wake_producer(es_ring *r);
/* Wakes everybody, whether or not a sleep flag is set: for callers that cannot trust the flags. */
void es_wake_all(es_ring *r);
/* From here on every commit of the laps under way wakes the learners. */
void es_wake_alarm(es_ring *r);

#endif
