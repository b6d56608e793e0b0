/* One process's attachment to a ring: its private state, shared by its threads.
 *
 * Only slot words and batch words are truth (es_word.h). tail, head, count and
 * the sleep flags are hints: a crash may leave any of them wrong by a little.
 * No hint may be able to lose a sample or to stop anybody for good.
 *
 * README.md in csrc/ says which file does what.
 */
#ifndef ES_RING_H
#define ES_RING_H

#include <pthread.h>

#include "ring/es_layout.h"
#include "ring/es_locks.h"

/* Where this learner's last scan of a physical batch stopped. */
typedef struct es_scan {
    uint64_t lap;  /* of the scan; another lap starts it afresh */
    uint64_t next; /* slot of the batch to look at next */
    uint64_t gaps; /* slots below it that hold no sample */
} es_scan;

typedef struct es_ring {
    es_map map;
    es_locks *locks; /* NULL: observes only */
    uint32_t me, role;
    uint32_t fork_generation;
    bool poison; /* overwrite batches on release */

    _Atomic uint64_t
        version; /* of the weights that this process's samples are made with, and who said so: es_ring_version() */

    _Atomic uint32_t detached;    /* no call begins any more, but for the end of a claim or a lease */
    _Atomic uint32_t retired;     /* nor the end of a claim */
    _Atomic uint32_t left;        /* nor that of a lease: the owner entry is another's by now */
    _Atomic uint32_t busy;        /* threads inside a call that touches slots */
    _Atomic uint64_t seen_reopen; /* reopen_seq as of the last full search for re-opened slots */
    _Atomic bool passed_over;     /* woken since its last claim, and the ring was full again */
    _Atomic uint64_t wait_ns;     /* slept since the last batch taken */
    _Atomic uint64_t last_sweep_ns;
    _Atomic bool unsure; /* whether the sweep under way passed over a learner that may be dead */
    _Atomic uint64_t last_repair_ns;
    _Atomic uint64_t finish_ns;   /* since when it found nothing on the closed ring, or 0 */
    _Atomic uint64_t finish_asks; /* and how often it has asked since */

    pthread_mutex_t partial_lock; /* one partial take at a time: HELD names the attachment, not the thread */
    pthread_mutex_t look_lock;    /* guards the rest; never held while sleeping */
    uint64_t seen_given_back;     /* given_back_seq as of the last full scan that saw no batch given back */
    es_scan *scan;                /* one per physical batch */
    uint64_t *held;               /* lap of the lease held on each physical batch, or 0 */
    uint64_t *older;              /* the word of each batch that another learner leased before this one came, or 0 */
    void **leaf_at;               /* a bridge's, used by its one thread: room for a pointer to each leaf */
    uint64_t waited_ns;           /* a bridge's: up to when its wait is counted, or 0; see es_bridge.c */
    uint32_t waiting_remote;      /* whose samples wait then */
} es_ring;

/* The words changed during each of ES_TRIES looks: others were faster each time, or somebody
 * scribbles on them. Callers that may wait nap and try again, so that no loop of the core keeps a
 * process from its signals. No function of es_api.h returns it. */
#define ES_BUSY (-10006)
#define ES_TRIES 1000
#define ES_NAP_NS UINT64_C(1000000)

/* Another thread or process changed the word that was looked at: look again. Never leaves the
 * core. */
#define ES_AGAIN (-1)

/* An attachment over a segment, not registered yet. locks NULL: to observe only. NULL and *error otherwise. */
es_ring *es_ring_open(void *base, uint64_t size, es_locks *locks, int poison, int *error);
/* Frees an attachment that no thread uses. Does not detach. */
void es_ring_free(es_ring *r);

/* The word `version` is [version:63 | by hand:1]. One word, so that a thread that sets the version by hand and one that
 * gets a new version of the weights agree on who was last. */
static inline int64_t es_ring_version(const es_ring *r)
{
    /* relaxed: a number that goes with a sample. Nothing is read behind it. */
    return (int64_t)(atomic_load_explicit(&r->version, memory_order_relaxed) >> 1);
}
/* What this attachment's samples carry from now on. A version that was set by hand stays until it is set by hand again. */
void es_ring_set_version(es_ring *r, int64_t version, bool by_hand);

#endif
