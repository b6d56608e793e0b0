/* Leases: a batch is taken by one learner, then released or given back.
 *
 * Who writes: batch words. Any learner's CAS turns FILL into LEASED. From then on only its
 * learner writes the word, or after its death the reaper.
 *
 * Who dies, and what then:
 *   before the take's CAS          nothing has happened
 *   with a lease                   the reaper turns it back into FILL: delivered again
 *   in release, before the store   the same, unless it had begun to overwrite the samples
 *                                  (POISONING): then the reaper ends the release
 *   after the store, before the wake  the space is free; a parked producer notices at its
 *                                  next try, at most one reap interval away, or when
 *                                  somebody reaps the learner
 *
 * Producers fill batches in the order of their numbers, so a lease stops the ring num_batches - 1
 * batches later. A learner that waits for a batch may still refer to its last one. If it is the
 * only learner, it gets one of these num_batches - 1. Beside other learners it might get none of
 * them, and would wait forever. So learners that share a ring keep no batch while they wait
 * (snap->shared tells them), and a learner that attaches leaves to others the last batch before
 * each that they leased when they did not know of it. A bridge's learner keeps batches for
 * learners on other hosts, and none while one of these waits: nothing is left to it. A
 * learner that takes with ES_TAKE_LAST leaves nothing to others either: it moves what is in the ring elsewhere.
 */
#ifndef ES_LEASE_H
#define ES_LEASE_H

#include "ring/es_ring.h"

/* Leases batch j if its word is still what was seen: j, or ES_AGAIN. Called under look_lock. */
int64_t es_lease_take(es_ring *r, uint64_t j, uint64_t seen);
/* Notes when batch j was leased, for people. Only by the learner that has leased it. Until then, and if the learner is
 * killed before, the time is that of an earlier lease. */
void es_lease_note_time(es_ring *r, uint64_t j, uint64_t now_ns);
/* Releases a leased batch: producers may use its space again. ES_ESTALE when it is not leased here
 * in that round. */
int es_lease_release(es_ring *r, uint64_t j, uint64_t round);
/* The two parts of a release: its store, and the news of it. Several stores may come before the news, but no sleep, and
 * no return to whoever calls: until then it is as if this process had died after the store. */
int es_lease_end(es_ring *r, uint64_t j, uint64_t round);
void es_lease_tell(es_ring *r);
/* Releases everything that is leased here. */
void es_lease_release_all(es_ring *r);
/* Undoes a take: ES_OK, or ES_ESTALE as es_lease_release(). */
int es_lease_give_back(es_ring *r, uint64_t j, uint64_t round);
/* Gives back everything that a dead owner has leased: how many batches. Its byte is seized. */
int64_t es_lease_give_back_all(es_ring *r, uint32_t owner);
/* Notes the batches that other learners lease now. */
void es_lease_note_older(es_ring *r);
/* Whether batch j of that round is the last one before a batch that was noted and is still leased. Called under
 * look_lock. */
bool es_lease_left_to_others(es_ring *r, uint64_t j, uint64_t round);
/* The committed slots of a leased batch as 0/1 bytes: how many, or ES_ESTALE. */
int64_t es_lease_committed(es_ring *r, uint64_t j, uint64_t round, uint8_t *mask);

#endif
