/* The C core as Python sees it. cffi reads this file without its preprocessor lines.
 *
 * Times are nanoseconds. A batch is named by its physical index and its round. Functions return
 * what enum es_result says. Prefixes name files: es_segment.c, es_api.c, es_bridge.c, es_weights.c, es_age.c,
 * es_sweep.c, es_monitor.c.
 */
#ifndef ES_API_H
#define ES_API_H

#include <stdint.h>

#include "base/es_types.h"

/* One process's attachment to a segment, and one process's hold on its lock file. */
typedef struct es_ring es_ring;
typedef struct es_locks es_locks;

/* "futex" or "poll": how this build sleeps. */
const char *es_api_wait_kind(void);
/* Changes in the child of every fork: what was inherited belongs to the parent. */
uint32_t es_api_fork_generation(void);

/* --- segments, and their lock files: es_segment.c ----------------------------- */

/* Bytes of a segment, or 0 when the geometry is out of range. */
uint64_t es_segment_size(const es_geometry *geo, const uint64_t *leaf_sizes);
/* Lays out an empty ring in zero-filled memory of at least es_segment_size() bytes. */
int es_segment_format(void *base, uint64_t size, const es_geometry *geo, const uint64_t *leaf_sizes, const void *schema,
                      const uint8_t *uuid, int64_t pid, int64_t created_ns);
/* ES_OK, or what is wrong with a foreign segment of size bytes. Reads only inside it. */
int es_segment_check(const void *base, uint64_t size);
/* What a segment that passed es_segment_check() says of itself. schema gets the first room
 * bytes of its schema, which has geo->schema_size bytes. */
void es_segment_describe(const void *base, uint64_t size, es_geometry *geo, uint8_t *uuid, int64_t *pid,
                         int64_t *created_ns, void *schema, uint64_t room);

/* The byte of the lock file that a segment's creator holds. Owners' bytes lie below it, learners' second ones above. */
uint32_t es_segment_creator_byte(void);
/* Takes over fd, open for reading and writing; bytes [0, count) can be locked. NULL without memory.
 * fd -1: locks for a ring in private memory. A process has one es_locks for a file. */
es_locks *es_segment_locks_new(int fd, uint32_t count);
/* Closes fd, which drops every lock. Only when no attachment uses it any more. */
void es_segment_locks_free(es_locks *locks);
/* ES_OK, or -EAGAIN when somebody (this process included) holds the byte. */
int es_segment_locks_try(es_locks *locks, uint32_t index);
void es_segment_locks_drop(es_locks *locks, uint32_t index);
/* 1 held by somebody (this process included), 0 free, or -errno. Takes nothing. */
int es_segment_locks_held(es_locks *locks, uint32_t index);
/* The same for any byte of the file. */
int es_segment_locks_any(es_locks *locks);

/* --- attaching ------------------------------------------------------------- */

/* An attachment over a segment, not registered yet. locks NULL: to observe
 * only. poison: overwrite batches on release. NULL and *error otherwise. */
es_ring *es_api_open(void *base, uint64_t size, es_locks *locks, int poison, int *error);
/* Frees an attachment that no thread uses. Does not detach. */
void es_api_free(es_ring *r);
/* Takes an owner entry: its index, or ES_ENOOWNER. */
int64_t es_api_attach(es_ring *r, const es_identity *id);
/* Leaves. What was claimed is re-opened, what was leased is released, the
 * entry is freed. Waits for this process's threads that are inside a call, not for
 * open reservations. Every later call that sends, takes, releases or gives back returns
 * ES_EDETACHED. */
int es_api_detach(es_ring *r);
/* No claim and no take begins any more: they return ES_EDETACHED, those that sleep too. What was claimed can still
 * be committed or aborted, what was leased can be released or given back. Waits for nobody. */
int es_api_stop(es_ring *r);
/* The first half of es_api_detach(): leases stay, and can still be released or given back. What was claimed is
 * re-opened. Every other call returns ES_EDETACHED from then on. es_api_detach() does the rest. */
int es_api_retire(es_ring *r);
/* The shape that this attachment uses. In a hostile segment es_segment_describe() may say something else.
 * es_api_leaf_offset() and es_api_leaf_size() take leaves below *num_leaves only. */
void es_api_shape(const es_ring *r, uint64_t *batch_size, uint64_t *num_batches, uint32_t *num_leaves);
/* Where leaf l's data starts, from the segment's start (bytes). */
uint64_t es_api_leaf_offset(const es_ring *r, uint32_t leaf);
/* Bytes of one sample of leaf l. */
uint64_t es_api_leaf_size(const es_ring *r, uint32_t leaf);

/* --- producing ------------------------------------------------------------- */

/* A segment of weights takes no samples: all calls that claim return -EINVAL. */

/* One sample; leaves[l] points at leaf l, or is NULL if nobody reads that leaf of it. ES_OK, ES_FULL, or an error. */
int es_api_send(es_ring *r, void **leaves);
/* The same, sleeping at most timeout_ns: also ES_TIMEOUT and -EINTR. */
int es_api_send_wait(es_ring *r, void **leaves, uint64_t timeout_ns);
/* Samples first .. n-1, stacked along each leaf: how many were committed, or an
 * error when none was. Sleeps at most timeout_ns, and only before the first. */
int64_t es_api_send_many(es_ring *r, void **leaves, uint64_t first, uint64_t n, uint64_t timeout_ns);
/* Claims one slot and stores its position before it returns. So an exception
 * right after the call finds what to undo. */
int es_api_reserve(es_ring *r, uint64_t timeout_ns, int64_t *position);
/* The same for several slots of one batch, from *position on: how many, from 1 to want. Does not sleep: also
 * ES_FULL, and ES_TIMEOUT when other claimants were always faster. */
int64_t es_api_reserve_many(es_ring *r, uint64_t want, int64_t *position);
/* ES_OK, or ES_EEVICTED when a learner sealed the slot after the ring closed. */
int es_api_commit(es_ring *r, int64_t position);
/* Commits n slots of one batch: how many, which are the first ones. */
int64_t es_api_commit_many(es_ring *r, int64_t position, uint64_t n);
/* Does nothing when the claim was committed, aborted or evicted already. */
int es_api_abort(es_ring *r, int64_t position);
/* How many samples are committed from that position on, without a gap, up to the end of its batch.
 * They stay as they are until a learner takes and releases the batch. */
int64_t es_api_committed_from(es_ring *r, uint64_t position);
/* How many positions were claimed so far: at least what the calling thread has claimed. */
int64_t es_api_claimed(es_ring *r);
/* Whether any learner is attached and alive: 1 or 0. */
int es_api_learner_alive(es_ring *r);

/* --- learning -------------------------------------------------------------- */

/* Leases a batch: its physical index and *snap, or ES_EMPTY, ES_TIMEOUT,
 * ES_ENDED, -EINTR, or an error. flags: es_take_flag. snap->length is less than the
 * batch size for a short batch; es_api_committed_mask() tells its samples.
 *
 * ES_ENDED comes a second after the close even if other learners hold leases, because a
 * living learner may keep a lease forever. But the leases of dead learners are given back. So the
 * stream is over when a later sweep has found nobody dead and was not ES_UNSURE, and
 * the next es_api_take() returns ES_ENDED again. */
int64_t es_api_take(es_ring *r, uint32_t flags, uint64_t timeout_ns, es_snapshot *snap);
/* Releases the batch: producers may use its space again. ES_ESTALE when it is not leased here in that round. */
int es_api_release(es_ring *r, uint64_t batch, uint64_t round);
/* Undoes the take: the batch is delivered again, here or to another learner. */
int es_api_give_back(es_ring *r, uint64_t batch, uint64_t round);
/* The committed slots of a leased batch as 0/1 bytes: how many, or ES_ESTALE. */
int64_t es_api_committed_mask(es_ring *r, uint64_t batch, uint64_t round, uint8_t *mask);
/* Closes the ring to producers, forever. */
int es_api_close(es_ring *r);
int es_api_reset_histograms(es_ring *r);

/* --- waiting for several rings ---------------------------------------------- */

/* Sleeps until one of n watches is ready, or until *word is no longer seen (word may be NULL), at most
 * timeout_ns. Returns the index of the first watch that is ready; n for the word; ES_TIMEOUT; -EINTR
 * after a signal whose handler does not restart system calls; ES_EDETACHED once an attachment is stopped
 * or detached, also during the sleep; ES_EFORK; -E2BIG for more than ES_WATCH_MOST causes, the word
 * included; -EINVAL for none, for an unknown es_watch_cause, and for a word that is not aligned.
 *
 * Takes and claims nothing, and reaps nobody. Ready means that es_api_take() without flags, or a claim, is
 * worth a try without a wait: another process may be faster. A closed ring is always ready, so a
 * caller that gets nothing from one leaves it out, or waits in es_api_take() for its end.
 *
 * A release wakes one of the processes that wait for room. A call that was woken wakes the next one
 * before it returns, wherever room is left, so the caller need not claim. */
int es_api_wait_any(const es_watch *watches, uint32_t n, uint32_t *word, uint32_t seen, uint64_t timeout_ns);
/* Adds 1 to a word, and wakes whoever watches it in any process that maps it. */
void es_api_change_word(uint32_t *word);

/* --- bridges: on behalf of clients on other hosts -------------------------- */

/* From here on the attachment, a producer, may serve remotes. One thread does so. */
int es_bridge_begin(es_ring *r);
/* From here on the attachment, a learner, takes batches for learners on other hosts. It must never keep one while it
 * needs another: give it to whoever waits. To be called before its first take. */
int es_bridge_learn(es_ring *r);
/* The entry of the client with that id (16 bytes) as it was left, or a new one that starts from
 * number: its index. ES_UNSURE while another bridge has it, even a dead one that is not reaped yet;
 * ES_ENOOWNER when all are in use. id NULL: for a client that will not come again. peer: for people. */
int64_t es_bridge_open(es_ring *r, const uint8_t *id, uint64_t number, const char *peer);
/* The same, but never a new one: ES_EMPTY when the client has none. */
int64_t es_bridge_find(es_ring *r, const uint8_t *id, const char *peer);
/* Whether it was found, and is not new. */
int es_bridge_known(es_ring *r, uint32_t remote);
/* Whether the client has connected to another bridge meanwhile, which waits until this one leaves it. */
int es_bridge_wanted(es_ring *r, uint32_t remote);
/* The client is gone. keep: its number is remembered until the entry is needed. */
int es_bridge_leave(es_ring *r, uint32_t remote, int keep);
/* The number of its next sample. */
int64_t es_bridge_committed(es_ring *r, uint32_t remote);
/* es_api_send_many() of the client's next samples: first .. n-1 of a block of n. Counts them for the client.
 * The block is leaf after leaf, each n times; with rows, sample after sample. All of them carry the version. */
int64_t es_bridge_send(es_ring *r, uint32_t remote, const void *data, uint64_t first, uint64_t n, int rows,
                       int64_t version, uint64_t timeout_ns);
/* Counts what was received. */
int es_bridge_count(es_ring *r, uint32_t remote, uint64_t bytes, uint64_t frames);
/* One more connection was ended because something was wrong with it. */
int es_bridge_count_refused(es_ring *r);

/* --- weights: es_weights.c --------------------------------------------------- */

/* Of a segment with ES_FLAG_WEIGHTS. Its slots are versions of weights, which one process publishes and others read. */

/* Publishes a version: leaves[l] points at leaf l. Its number, from 1 on; ES_ECLOSED. Waits for no reader. One thread of
 * one process at a time. */
int64_t es_weights_publish(es_ring *r, void **leaves);
/* The same with a number of the caller's, which is more than the latest one's: -EINVAL if it is not. 0: the next one. */
int64_t es_weights_publish_as(es_ring *r, uint64_t number, void **leaves);
/* The number of the latest version, or 0. */
int64_t es_weights_latest(const es_ring *r);
/* Copies the latest version to leaves: its number; ES_NOTHING; ES_LAPPED: newer ones came meanwhile, and leaves has parts
 * of several. Then the caller tries again. */
int64_t es_weights_copy(es_ring *r, void **leaves);
/* Leases the latest version: the index of the lease, the version's number and its slot, whose leaf l is at
 * es_api_leaf_offset() + slot * es_api_leaf_size(). Nobody overwrites it until it is released. ES_NOTHING, ES_FULL when
 * all leases are in use, ES_LAPPED: the caller tries again. */
int64_t es_weights_lease(es_ring *r, uint64_t *number, uint64_t *slot);
/* ES_ESTALE when it is not leased here. */
int es_weights_release(es_ring *r, int64_t lease);
/* Sleeps until the latest version is at least that one, at most timeout_ns: ES_OK, also for no reason; ES_TIMEOUT;
 * -EINTR; ES_ECLOSED when it never will be. */
int es_weights_wait(es_ring *r, uint64_t number, uint64_t timeout_ns);
/* Whose the lease is: an owner index; ES_EMPTY when nobody has it; -EINVAL from the number of leases on. */
int64_t es_weights_holder(const es_ring *r, uint32_t lease);
/* Where the word is whose upper 48 bits are the latest version, from the segment's start (bytes). For a quick look, which
 * says nothing of the version's bytes. */
uint64_t es_weights_word(const es_ring *r);

/* --- ages: es_age.c ------------------------------------------------------------ */

/* Each slot has the version of the weights that its sample was made with; 0: none. The age of a sample is the latest
 * version less its own. */

/* What this attachment claims from now on carries that version, from 0 to 2^62. by_hand 0: unless a version was set by
 * hand. -EINVAL. */
int es_age_set_version(es_ring *r, int64_t version, int by_hand);
int64_t es_age_version(const es_ring *r);
/* Says which version is the latest; and es_age_set_version(), not by hand. */
int es_age_set_latest(es_ring *r, int64_t version);
/* Where the slots' versions are, an int64_t each, from the segment's start (bytes). 0: it has weights, not samples. */
uint64_t es_age_offset(const es_ring *r);
/* Fills age_mean and age_max of samples of these versions, against snap->latest_version. */
void es_age_measure(const int64_t *versions, uint64_t n, es_snapshot *snap);
/* A learner has left out n samples for their age. */
int es_age_count_too_old(es_ring *r, uint64_t n);

/* --- sweeping up after the dead -------------------------------------------- */

/* The next owner at or above start that is dead by its lock byte. The byte is seized now, as
 * id->index says: finish with es_sweep_settle(). A sweep starts from 0, one at a time for an
 * attachment. ES_EMPTY ends it: every other LIVE learner that was not found dead held its own lock.
 * ES_UNSURE ends it: another process is looking after some of them. */
int64_t es_sweep_next_dead(es_ring *r, uint32_t start, es_identity *id);
/* Reaps the owner that es_sweep_next_dead() found: how many slots were re-opened. Without reap
 * it only yields the byte. ES_EMPTY when that was done already. */
int64_t es_sweep_settle(es_ring *r, es_identity *dead, int reap);
/* How many producers are stalled: a gauge for people. */
void es_sweep_set_stalled(es_ring *r, uint64_t n);

/* --- monitoring ------------------------------------------------------------ */

/* The next owner at or above start that is registered, even if it is dead and not reaped yet: its
 * index, or ES_EMPTY. */
int64_t es_monitor_next_owner(es_ring *r, uint32_t start, es_owner_info *info);
/* The next remote at or above start that is not free: its index, or ES_EMPTY. */
int64_t es_monitor_next_remote(es_ring *r, uint32_t start, es_remote_info *info);
/* The next slot at or above start that an owner has claimed, or holds: its index
 * and word, or ES_EMPTY. The word names the owner, and changes with every claim. */
int64_t es_monitor_next_claim(es_ring *r, uint64_t start, uint64_t *word);
uint32_t es_monitor_claim_owner(uint64_t word);
/* Adds what each owner has claimed or leased to held[0 .. count). */
void es_monitor_count_held(es_ring *r, uint32_t *held, uint32_t count);
/* How long each owner has had its oldest lease, in ages_ns[0 .. count). Owners without a lease keep their value. */
void es_monitor_lease_ages(es_ring *r, uint64_t *ages_ns, uint32_t count);
/* How many samples are committed and not released. *full: how many batches are full of them. */
uint64_t es_monitor_count_committed(es_ring *r, uint64_t *full);
/* How many samples at positions below that one are committed and not released. */
uint64_t es_monitor_committed_before(es_ring *r, uint64_t position);
/* How many entries the table of owners has. */
uint32_t es_monitor_owner_entries(const es_ring *r);
/* Where its words are. */
void es_monitor_places(const es_ring *r, es_places *at);
/* The counters and gauges of this moment. */
void es_monitor_observe(es_ring *r, es_snapshot *snap);

#endif
