/* One process's attachment to a ring, and what may be done through it.
 *
 * Only slot words and batch words are truth (es_words.h). tail, head, count and
 * the sleep flags are hints: a crash may leave any of them wrong by a little,
 * and no hint may be able to lose a sample or to stop anybody for good.
 *
 * Files: es_ring.c  claim, commit, abort (producers), and waking
 *        es_take.c  look, take, release (learners)
 *        es_end.c   the end of a stream (learners)
 *        es_reap.c  what a dead owner leaves, and valid()
 *        es_bridge.c  clients on other hosts: each sample of theirs once, whoever dies
 *        es_mend.c  what only somebody who does not keep to any of this can have left
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
    _Atomic bool unsure;           /* whether the sweep under way passed over a learner that may be dead */
    _Atomic uint64_t last_mend_ns;
    _Atomic uint64_t finish_ns;    /* since when it found nothing on the closed ring, or 0 */
    _Atomic uint64_t finish_asks;  /* and how often it has asked since */

    pthread_mutex_t partial_lock; /* one partial take at a time: HELD names the attachment, not the thread */
    pthread_mutex_t look_lock;    /* guards the rest; never held while sleeping */
    uint64_t seen_returned;       /* returned_seq as of the last full scan that saw no batch given back */
    es_scan *scan;             /* one per physical batch */
    uint64_t *held;            /* lap of the lease held on each physical batch, or 0 */
    void **leaf_at;            /* a bridge's, whose one thread uses it: room for a pointer to each leaf */
} es_ring;

/* The words did not stand still for ES_TRIES looks: others were faster each time, or
 * somebody scribbles on them. Callers that may wait nap and try again, so that no
 * loop in here can keep a process from its signals. Never leaves es_api.h. */
#define ES_BUSY (-10006)
#define ES_TRIES 1000
#define ES_NAP_NS UINT64_C(1000000)

/* --- producers ------------------------------------------------------------ */

/* ES_OK and the position claimed, ES_FULL, ES_BUSY, or ES_ECLOSED. */
int es_claim(es_ring *r, uint64_t *pos);
/* Claims up to want consecutive positions of one batch: how many, ES_FULL, ES_BUSY or ES_ECLOSED. */
int64_t es_claim_run(es_ring *r, uint64_t want, uint64_t *pos);
/* ES_OK, or ES_EEVICTED when a learner sealed one of the slots after the ring closed. */
int es_commit(es_ring *r, uint64_t pos, uint64_t n);
/* How many of them were committed. */
uint64_t es_commit_run(es_ring *r, uint64_t pos, uint64_t n);
void es_abort(es_ring *r, uint64_t pos);
/* es_claim_run() that sleeps while the ring is full, at most timeout_ns: also ES_TIMEOUT. */
int64_t es_claim_wait(es_ring *r, uint64_t want, uint64_t timeout_ns, uint64_t *pos);

void es_wake_learners(es_ring *r);
/* Whether or not a sleep flag is set: for whoever cannot trust the flags. */
void es_wake_everybody(es_ring *r);
/* Wakes producers if any sleeps. */
void es_wake_producers(es_ring *r);

/* --- learners ------------------------------------------------------------- */

/* Leases a complete batch: its physical index, ES_EMPTY, or ES_BUSY. flags: es_take_flag. */
int64_t es_look(es_ring *r, uint32_t flags);
/* es_look() that sleeps at most timeout_ns: also ES_TIMEOUT, and ES_ENDED on a
 * closed ring with nothing left. There it takes in any order, and short batches
 * (some slots hold no sample) once no full one can come. With ES_TAKE_SHORT it
 * takes a short batch of an open ring, too, rather than sleep: es_take_partial(). */
int64_t es_take_wait(es_ring *r, uint32_t flags, uint64_t timeout_ns);
/* Gives the space of a leased batch back to producers. ES_ESTALE when it is not
 * leased here in that round. */
int es_release(es_ring *r, uint64_t batch, uint64_t round);
/* The committed slots of a leased batch as 0/1 bytes: how many, or ES_ESTALE. */
int64_t es_committed(es_ring *r, uint64_t batch, uint64_t round, uint8_t *mask);

/* For es_end.c and es_take.c. es_lease() is called under look_lock: the batch, or
 * ES_AGAIN when the word is not what was seen any more. */
#define ES_AGAIN (-1)
int64_t es_lease(es_ring *r, uint64_t batch, uint64_t seen);
void es_account_take(es_ring *r, uint64_t batch);
/* What a batch word becomes by a release in that round. */
uint64_t es_released_word(es_ring *r, uint64_t round);
/* Whether this thread is the one to end the lease. */
bool es_end_lease(es_ring *r, uint64_t batch, uint64_t round);

/* --- the end of a stream ---------------------------------------------------- */

/* Closes the ring to producers, for ever. */
void es_close_ring(es_ring *r);
/* On a closed ring with no full batch in sight: a batch, ES_EMPTY while claims are
 * under way or others hold leases, ES_BUSY, or ES_ENDED: as es_take() says, not the last word yet. */
int64_t es_finish(es_ring *r, uint32_t flags);
/* Undoes a take: ES_OK, or ES_ESTALE as es_release(). */
int es_give_back(es_ring *r, uint64_t batch, uint64_t round);
/* On an open ring: leases a batch that holds some samples and waits for nobody
 * but future claims, by keeping its other slots from producers. Or ES_EMPTY. */
int64_t es_take_partial(es_ring *r);

/* --- deaths --------------------------------------------------------------- */

/* Offers again what the owner claimed and gives back what it leased, wakes
 * everybody, frees its entry and yields its lock byte, which the caller has seized.
 * May be repeated after its own caller died in it. Returns the slots re-opened. */
int64_t es_reap(es_ring *r, uint32_t index);
/* Offers again what this attachment has claimed, as it leaves: how many slots. */
int64_t es_leave_claims(es_ring *r);
/* A bridge's part of that: what it has committed is put down to its clients. Before its claims are offered. */
void es_settle_bridge(es_map *map, uint32_t index);
/* From here on every commit of the laps under way wakes the learners. */
void es_alarm_counts(es_ring *r);
/* The parts of a reap, for es_mend.c: also under the owner's lock byte. */
int64_t es_return_leases(es_ring *r, uint32_t index);
int64_t es_reopen_claims(es_ring *r, uint32_t index);

/* Rewrites words that nobody can have written who keeps to the protocol, so that the
 * ring goes on: how many. Called by learners whose wait ended without a wake-up. */
int64_t es_mend(es_ring *r);
/* NULL, or why slot word w cannot be next to batch word b, both read while b stood still. */
const char *es_wrong_slot(uint64_t w, uint64_t b);

/* What must hold at any instant of a ring nobody scribbles on. Returns NULL, or
 * the statement that does not hold. Racy unless the ring is at rest: a caller
 * under load only learns that something was wrong for a moment. */
const char *es_valid(es_ring *r);

#endif
