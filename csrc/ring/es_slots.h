/* Changes to many slot words at once: a learner keeps slots from producers, or re-opens them. */
#ifndef ES_SLOTS_H
#define ES_SLOTS_H

#include "ring/es_ring.h"

/* Whether word w of slot q is of this lap, in a batch that is being filled. */
bool es_slots_filling(es_ring *r, uint64_t q, uint64_t w);
/* Turns slot words of one state, in batches that are being filled, into another: how many.
 * From ES_HELD only this attachment's, unless they become ES_SEALED. */
uint64_t es_slots_turn(es_ring *r, uint32_t from, uint32_t owner, uint32_t to);
/* Turns free positions into {owner, state} as a claim would take them, up to limit or
 * until the ring is full: how many. */
uint64_t es_slots_turn_free(es_ring *r, uint64_t limit, uint32_t owner, uint32_t state);
/* The first position that nobody has claimed. The tail is moved there. */
uint64_t es_slots_help_tail(es_ring *r);
/* Re-opens the slots that this attachment holds and has not leased. */
void es_slots_let_go(es_ring *r);
/* Re-opens what the owner has claimed as a producer, or holds as a learner: how many slots.
 * The owner is dead and its byte seized, or it is this attachment. */
int64_t es_slots_reopen(es_ring *r, uint32_t owner);

#endif
