/* The table of owners: who is attached, and which of them is dead. */
#ifndef ES_OWNER_H
#define ES_OWNER_H

#include "ring/es_layout.h"
#include "ring/es_locks.h"

/* Takes a FREE entry of the identity's role: its index, or ES_ENOOWNER. */
int64_t es_owner_register(es_map *map, es_locks *locks, const es_identity *id);
/* LIVE -> FREE, while the caller holds the byte. The entry's words were swept before. */
void es_owner_free(es_map *map, uint32_t index);
/* The next LIVE entry at or above index start, except me, whose bytes could be seized, and now are;
 * ES_EMPTY when there is none. *unsure becomes true when there is a learner's entry on the
 * way that somebody else looks after: it may be dead, and not reaped yet. */
int64_t es_owner_next_dead(es_map *map, es_locks *locks, uint32_t start, uint32_t me, bool *unsure);
/* 1 when some learner's lock byte is held, 0 when all learners are gone. */
int es_owner_learner_alive(es_map *map, es_locks *locks, uint32_t except);

/* Counts the producers again, without bridges. */
void es_owner_count_producers(es_map *map);
void es_owner_identity(const es_owner *owner, es_identity *out);
/* One past the highest entry ever used. */
uint32_t es_owner_high(const es_map *map);

#endif
