/* A bridge's journal: which samples of which client it is about to commit. * A client numbers its
 * samples. remote.committed says how many of them are in the ring, so that after any accident the
 * client sends what is missing, and nothing twice. The number must stay true if the bridge dies
 * between a slot's commit and the count. So the bridge first writes into its own owner entry which
 * numbers it is about to commit and into which slots; then it commits; then it counts; then it
 * clears the entry. * Whoever finds the bridge dead reads the journal before it re-opens the
 * bridge's claims. A slot that says COMMITTED by the bridge, or is of a later lap, was committed.
 * One that still says CLAIMED, or that a learner has SEALED, was not. Slots are committed in
 * order, so the first that was not committed gives the number. If the reaper dies, the next one
 * reads the same: no claim is re-opened before the journal is cleared. */
#ifndef ES_JOURNAL_H
#define ES_JOURNAL_H

#include "ring/es_ring.h"

/* This bridge is about to commit n samples of the client at pos. */
void es_journal_write(es_ring *r, uint32_t remote, uint64_t pos, uint64_t n);
/* It has committed done of them. */
void es_journal_clear(es_ring *r, uint32_t remote, uint64_t done);
/* Counts what a dead or leaving bridge has committed for its clients, and frees them for other
 * bridges. Does nothing for other owners. It comes before the bridge's claims are re-opened. */
void es_journal_settle(es_map *map, uint32_t bridge);

#endif
