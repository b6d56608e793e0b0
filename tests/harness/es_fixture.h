/* The fixture (its functions begin with fix_): a segment in memory with attachments. A test can write its words by
 * hand.
 *
 *   private   One process plays many: all attachments share one es_locks. fix_die() drops an owner's lock byte and
 *             changes nothing else. The kernel does the same when a process is killed.
 *   shared    For forked processes: the segment is shared memory. The lock bytes are the kernel's, on a file that each
 *             process opens for itself.
 */
#ifndef ES_FIXTURE_H
#define ES_FIXTURE_H

#include "es_core.h"
#include "es_sample.h"

#define FIX_MAX_RINGS 32
#define FIX_PRODUCERS 8
#define FIX_REMOTES 3
#define FIX_MAX_BATCH 64
/* A result: a batch differs from what its take reported, or a sample in it is torn. */
#define FIX_TORN INT64_MIN

typedef struct es_fix {
    uint8_t *base;
    uint64_t size;
    es_geometry geo;
    uint64_t *leaf_sizes;
    es_locks *locks; /* of the process that made the fixture */
    int lock_fd;     /* the file of the lock bytes; -1 if private */
    es_ring *rings[FIX_MAX_RINGS];
    int num_rings;
} es_fix;

/* B, K and es_flag. The leaves are those of fix_sample(). */
es_fix *fix_new(uint64_t batch_size, uint64_t num_batches, uint32_t flags);
es_fix *fix_new_leaves(const es_geometry *geo, const uint64_t *leaf_sizes);
/* leaf_sizes NULL: those of fix_sample(). */
es_fix *fix_new_shared(const es_geometry *geo, const uint64_t *leaf_sizes);
/* Formats the segment again and makes new locks. Attachments from before must not be used again. */
void fix_again(es_fix *f);
void fix_free(es_fix *f);

es_geometry fix_geometry(uint64_t batch_size, uint64_t num_batches, uint32_t flags);

/* New locks for the calling process, which frees them. In a private fixture no other process sees them. */
es_locks *fix_own_locks(const es_fix *f);
/* An attachment that the caller frees. Waits while dead owners fill the table. role 0: not registered. */
es_ring *fix_join(const es_fix *f, es_locks *locks, uint32_t role, int poison);

/* Attachments that are freed with the fixture. */
es_ring *fix_open(es_fix *f, int poison);
es_ring *fix_attach(es_fix *f, uint32_t role);
es_ring *fix_producer(es_fix *f);
es_ring *fix_learner(es_fix *f);

/* Makes r look to all others as if its process had died. r must not be used again. */
void fix_die(es_fix *f, es_ring *r);
/* Reaps all dead owners. Returns how many, or ES_UNSURE. */
int fix_sweep(es_ring *by);

/* Write words by hand, as a crash or an interleaving would leave them, and read them. */
void fix_slot(es_ring *r, uint64_t index, uint64_t lap, uint32_t owner, uint32_t state);
void fix_batch(es_ring *r, uint64_t j, uint64_t round, uint32_t owner, uint32_t state);
uint64_t fix_slot_word(es_ring *r, uint64_t index);
uint64_t fix_batch_word(es_ring *r, uint64_t j);
uint32_t fix_count(es_ring *r, uint64_t j);
uint64_t fix_tail(es_ring *r);
uint64_t fix_head(es_ring *r);

/* A sample (es_sample.h): its id, and 40 bytes that are computed from the id. */
#define FIX_LEAVES 2
#define FIX_PATTERN 40
typedef struct fix_sample_t {
    uint64_t id;
    uint8_t pattern[FIX_PATTERN];
} fix_sample_t;
void fix_sample(uint64_t id, fix_sample_t *out);
/* Each send first sets the version of its samples (es_sample.h); not after fix_share(), where threads share the
 * attachment. */
void fix_set_version(es_ring *r, uint64_t first_id, uint64_t n);
void fix_share(es_ring *r);
int fix_send(es_ring *r, uint64_t id);
int fix_send_wait(es_ring *r, uint64_t id, uint64_t timeout_ns);
/* Sends first_id .. first_id + n - 1 with one es_api_send_many(). Sends at most 16. */
int64_t fix_send_many(es_ring *r, uint64_t first_id, uint64_t n, uint64_t timeout_ns);
/* Calls es_api_reserve(). Returns the position, or a negative result. */
int64_t fix_reserve(es_ring *r, uint64_t timeout_ns);
/* Writes a reserved slot in place, and its version, which its claim did not know. */
void fix_write(es_ring *r, uint64_t pos, uint64_t id);
/* Reads the id at an index. Returns false if the leaves disagree. */
bool fix_read(es_ring *r, uint64_t index, uint64_t *id);
/* Reads the ids of a leased batch, in order. Returns how many, or FIX_TORN. */
int64_t fix_read_batch(es_ring *r, int64_t j, const es_snapshot *snap, uint64_t *ids);

/* Takes without waiting. Returns the physical batch, or a negative result. Sets its round. */
int64_t fix_take(es_ring *r, uint32_t flags, uint64_t *round);
/* Takes and releases. Returns the batch's number k, or a negative result. */
int64_t fix_take_k(es_ring *r, uint32_t flags);
/* Takes a batch that may be short, reads its ids in order and releases it. Returns the number of samples, a negative
 * result, or FIX_TORN. */
int64_t fix_take_short(es_ring *l, uint32_t flags, uint64_t *ids);
/* Sends and takes whole batches until every slot has completed this many laps. */
void fix_spin_laps(es_ring *producer, es_ring *learner, uint64_t laps);

#endif
