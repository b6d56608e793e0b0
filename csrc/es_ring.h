/* One process's attachment to a ring, and what may be done through it.
 *
 * Only slot words and batch words are truth (es_words.h). tail, head, count and
 * the sleep flags are hints: a crash may leave any of them wrong by a little,
 * and no hint may be able to lose a sample or to stop anybody for good.
 *
 * Files: es_ring.c  claim, commit, abort (producers), and waking
 *        es_take.c  look, take, release, the end of a stream (learners)
 *        es_reap.c  what a dead owner leaves, and valid()
 */
#ifndef ES_RING_H
#define ES_RING_H

#include <pthread.h>

#include "es_layout.h"
#include "es_owner.h"
#include "es_stats.h"
#include "es_words.h"

/* Where this learner's last scan of a physical batch stopped. */
typedef struct es_scan {
    uint64_t lap; /* of the scan; another lap starts it afresh */
    uint64_t next, gaps;
} es_scan;

typedef struct es_ring {
    es_map map;
    es_locks *locks; /* NULL: observes only */
    uint32_t me, role;
    uint32_t fork_generation;
    bool poison;

    /* Private to the process, shared by its threads. */
    _Atomic uint32_t detached;
    _Atomic uint32_t busy;         /* threads inside a call that touches slots */
    _Atomic uint64_t seen_reopen;  /* reopen_seq as of the last full search for holes */
    _Atomic uint64_t wait_ns;      /* slept since the last batch taken */
    _Atomic uint64_t last_sweep_ns;

    pthread_mutex_t look_lock; /* guards the rest; never held while sleeping */
    uint64_t seen_returned;    /* returned_seq as of the last full scan that took nothing */
    es_scan *scan;             /* one per physical batch */
    uint64_t *held;            /* lap of the lease held on each physical batch, or 0 */
} es_ring;

/* --- producers ------------------------------------------------------------ */

/* ES_OK and the position claimed, ES_FULL, or ES_ECLOSED. */
int es_claim(es_ring *r, uint64_t *pos);
/* Claims up to want consecutive positions of one batch: how many, ES_FULL or ES_ECLOSED. */
int64_t es_claim_run(es_ring *r, uint64_t want, uint64_t *pos);
/* ES_OK, or ES_EEVICTED when a learner sealed one of the slots after the ring closed. */
int es_commit(es_ring *r, uint64_t pos, uint64_t n);
void es_abort(es_ring *r, uint64_t pos);
/* es_claim_run() that sleeps while the ring is full, at most timeout_ns: also ES_TIMEOUT. */
int64_t es_claim_wait(es_ring *r, uint64_t want, uint64_t timeout_ns, uint64_t *pos);

void es_wake_learners(es_ring *r);
/* Whether or not a sleep flag is set: for whoever cannot trust the flags. */
void es_wake_everybody(es_ring *r);
/* Wakes producers if any sleeps. */
void es_wake_producers(es_ring *r);

/* --- learners ------------------------------------------------------------- */

/* Leases a complete batch: its physical index, or ES_EMPTY. flags: es_take_flag. */
int64_t es_look(es_ring *r, uint32_t flags);
/* es_look() that sleeps at most timeout_ns: also ES_TIMEOUT, and ES_ENDED on a
 * closed ring with nothing left. After the close it takes in any order, and
 * short batches (some slots hold no sample) once no full one can come. */
int64_t es_take_wait(es_ring *r, uint32_t flags, uint64_t timeout_ns);
/* Gives the space of a leased batch back to producers. ES_ESTALE when it is not
 * leased here in that round. */
int es_release(es_ring *r, uint64_t batch, uint64_t round);
/* Ends the stream for now: the rest of the batch that is being filled, and
 * every re-opened slot, is marked as holding no sample. */
void es_flush(es_ring *r);
void es_close_ring(es_ring *r);
/* The committed slots of a leased batch as 0/1 bytes: how many, or ES_ESTALE. */
int64_t es_committed(es_ring *r, uint64_t batch, uint64_t round, uint8_t *mask);

/* --- deaths --------------------------------------------------------------- */

/* Offers again what the owner claimed and gives back what it leased, wakes
 * everybody, frees its entry and drops its lock byte, which the caller holds.
 * May be repeated after its own caller died in it. Returns the slots re-opened. */
int64_t es_reap(es_ring *r, uint32_t index);
/* Offers again what this attachment has claimed, as it leaves: how many slots. */
int64_t es_leave_claims(es_ring *r);

/* What must hold at any instant of a ring nobody scribbles on. Returns NULL, or
 * the statement that does not hold. Racy unless the ring is at rest: a caller
 * under load only learns that something was wrong for a moment. */
const char *es_valid(es_ring *r);

#endif
