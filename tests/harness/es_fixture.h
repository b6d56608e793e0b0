/* The fixture (its functions begin with fix_): a segment in memory with attachments, whose words a test can write by
 * hand.
 *
 *   private   One process stands in for many: all attachments share one es_locks. fix_die() drops an owner's lock byte
 *             and nothing else, which is what the kernel does when a process is killed.
 *   shared    For processes that are forked: the segment is shared memory, and the lock bytes are the kernel's, on a
 *             file that each process opens for itself.
 */
#ifndef ES_FIXTURE_H
#define ES_FIXTURE_H

#include "es_core.h"
#include "es_sample.h"

#define FIX_MAX_RINGS 32
#define FIX_PRODUCERS 8
#define FIX_REMOTES 3
#define FIX_MAX_BATCH 64
/* A result: a batch was not what its take said, or a sample in it was torn. */
#define FIX_TORN INT64_MIN

typedef struct es_fix {
    uint8_t *base;
    uint64_t size;
    es_geometry geo;
    uint64_t *leaf_sizes;
    es_locks *locks; /* of the process that made the fixture */
    int lock_fd;     /* shared: the file of the lock bytes; else -1 */
    es_ring *rings[FIX_MAX_RINGS];
    int num_rings;
} es_fix;

/* B, K, es_flag; the leaves hold what fix_sample() writes. */
es_fix *fix_new(uint64_t batch_size, uint64_t num_batches, uint32_t flags);
es_fix *fix_new_leaves(const es_geometry *geo, const uint64_t *leaf_sizes);
/* leaf_sizes NULL: those of fix_sample(). */
es_fix *fix_new_shared(const es_geometry *geo, const uint64_t *leaf_sizes);
/* Formats the segment again and makes new locks. Attachments from before must not be used again. */
void fix_again(es_fix *f);
void fix_free(es_fix *f);

es_geometry fix_geometry(uint64_t batch_size, uint64_t num_batches, uint32_t flags);

/* Locks of the calling process, which frees them. Private: no other process sees them. */
es_locks *fix_own_locks(const es_fix *f);
/* An attachment that the caller frees. Waits while the dead have all owner entries. role 0: not registered. */
es_ring *fix_join(const es_fix *f, es_locks *locks, uint32_t role, int poison);

/* Attachments; freed with the fixture. */
es_ring *fix_open(es_fix *f, int poison);
es_ring *fix_attach(es_fix *f, uint32_t role);
es_ring *fix_producer(es_fix *f);
es_ring *fix_learner(es_fix *f);

/* To everybody else its process has died. r must not be used again. */
void fix_die(es_fix *f, es_ring *r);
/* Reaps all the dead: how many, or ES_UNSURE. */
int fix_sweep(es_ring *by);

/* Words, written as a crash or an interleaving would have left them. */
void fix_slot(es_ring *r, uint64_t index, uint64_t lap, uint32_t owner, uint32_t state);
void fix_batch(es_ring *r, uint64_t j, uint64_t round, uint32_t owner, uint32_t state);
uint64_t fix_slot_word(es_ring *r, uint64_t index);
uint64_t fix_batch_word(es_ring *r, uint64_t j);
uint32_t fix_count(es_ring *r, uint64_t j);
uint64_t fix_tail(es_ring *r);
uint64_t fix_head(es_ring *r);

/* A sample (es_sample.h): its id, and 40 bytes that follow from it. */
#define FIX_LEAVES 2
#define FIX_PATTERN 40
typedef struct fix_sample_t {
    uint64_t id;
    uint8_t pattern[FIX_PATTERN];
} fix_sample_t;
void fix_sample(uint64_t id, fix_sample_t *out);
int fix_send(es_ring *r, uint64_t id);
int fix_send_wait(es_ring *r, uint64_t id, uint64_t timeout_ns);
/* first_id .. first_id + n - 1 by es_api_send_many(). */
int64_t fix_send_many(es_ring *r, uint64_t first_id, uint64_t n, uint64_t timeout_ns);
/* es_api_reserve(): the position, or a negative result. */
int64_t fix_reserve(es_ring *r, uint64_t timeout_ns);
/* Writes a reserved slot in place. */
void fix_write(es_ring *r, uint64_t pos, uint64_t id);
/* The id at an index; false when its leaves disagree. */
bool fix_read(es_ring *r, uint64_t index, uint64_t *id);
/* The ids of a leased batch, in order: how many, or FIX_TORN. */
int64_t fix_read_batch(es_ring *r, int64_t j, const es_snapshot *snap, uint64_t *ids);

/* Takes without waiting: the physical batch and its round, or a negative result. */
int64_t fix_take(es_ring *r, uint32_t flags, uint64_t *round);
/* Takes and releases: the batch's number k, or a negative result. */
int64_t fix_take_k(es_ring *r, uint32_t flags);
/* Takes a batch that may be short, and releases it: how many samples, their ids in order; a negative result, or
 * FIX_TORN. */
int64_t fix_take_short(es_ring *l, uint32_t flags, uint64_t *ids);
/* Sends and takes whole batches until every slot has been through n laps. */
void fix_spin_laps(es_ring *producer, es_ring *learner, uint64_t laps);

#endif
