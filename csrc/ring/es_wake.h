/* Who wakes whom. Sleeping is in es_blocking.h. */
#ifndef ES_WAKE_H
#define ES_WAKE_H

#include "ring/es_ring.h"

/* Wakes the learners if any sleeps. */
void es_wake_learners(es_ring *r);
/* Wakes the producers if any sleeps. */
void es_wake_producers(es_ring *r);
/* Wakes everybody, whether or not a sleep flag is set: for callers that cannot trust the flags. */
void es_wake_all(es_ring *r);
/* From here on every commit of the laps under way wakes the learners. */
void es_wake_alarm(es_ring *r);

#endif
