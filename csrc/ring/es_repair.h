/* Somebody scribbled on the ring: rewrites words that no correct process can have written.
 * What was spoiled stays spoiled. The ring goes on.
 *
 * On a ring that nobody scribbles on, nothing here ever writes a word that matters:
 *   slot words   es_invariant_slot() names what cannot be beside a batch word that did
 *                not change meanwhile. FILL(round) cannot go and come back: rounds only grow.
 *   owners       a FREE entry whose lock byte is seized has no owner, and was swept
 *                before it became free: no word can name it.
 *   tail         is past p only if somebody claimed p, and a slot's lap only grows. Lowered
 *                by mistake, it would keep the end of a stream from being seen.
 *   head         is past k only if somebody saw k leased, and rounds only grow.
 *
 * What looks true is left: a claim or a lease that names a living owner is that owner's until it
 * leaves or dies, a committed word is a sample, and a batch word's round is taken for what it says.
 *
 * Who writes: learners whose wait ended without a wake-up, once a reap interval.
 * Who dies: one step repairs each word, and the next learner goes on.
 */
#ifndef ES_REPAIR_H
#define ES_REPAIR_H

#include "ring/es_ring.h"

/* How many words were rewritten. */
int64_t es_repair(es_ring *r);

#endif
