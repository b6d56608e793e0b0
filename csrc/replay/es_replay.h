/* A replay as Python sees it. cffi reads this file without its preprocessor lines.
 *
 * A replay keeps steps in a store and refers to them from tables. One thread at a time uses it.
 * A store is a region of memory, formatted once; whoever opens it holds it alone. It may be
 * killed at any instruction: the next es_replay_open() finds every operation done or not done.
 */
#ifndef ES_REPLAY_H
#define ES_REPLAY_H

#include <stdint.h>

#include "api/es_api.h"
#include "base/es_types.h"
#include "replay/es_replay_types.h"

/* A process's hold of a store. */
typedef struct es_replay es_replay;

/* --- stores ------------------------------------------------------------------ */

/* Bytes of a store, or 0 when something is out of range. */
uint64_t es_replay_store_size(const es_store_geometry *geo, const es_store_parts *parts);
/* Lays out an empty store in zero-filled memory of at least es_replay_store_size() bytes. */
int es_replay_format(void *base, uint64_t size, const es_store_geometry *geo, const es_store_parts *parts,
                     const uint8_t *uuid, int64_t pid, int64_t created_ns);
/* ES_OK, or what is wrong with a foreign store of size bytes. Reads only inside it. */
int es_replay_check(const void *base, uint64_t size);
/* What a store that passed es_replay_check() says of itself. schema gets the first room bytes of its
 * schema, which has geo->schema_size bytes; tables the first max_tables tables. */
void es_replay_describe(const void *base, uint64_t size, es_store_geometry *geo, uint8_t *uuid, int64_t *pid,
                        int64_t *created_ns, void *schema, uint64_t room, es_table_config *tables, uint32_t max_tables);
/* Priorities of items of a table, of a store that another process may have open: of at most room of them, from all over
 * the table. Its cost depends on room, not on the table's size. base may also be what comes before the
 * rows alone. ES_OK, -EINVAL, -ENOMEM, or what es_replay_check() says. Writes nothing to the store. What changes
 * meanwhile can make a few of the priorities wrong; none is infinite, negative, or no number. */
int es_replay_peek(const void *base, uint64_t size, uint32_t table, double *priorities, uint64_t room, es_peeked *seen);
/* Opens a store, and finishes what a dead process had begun. stream: a random number that names the steps
 * that es_replay_add() stores. custom: for each table its sampler and its remover; what is not of the kind ES_CUSTOM is
 * not looked at, nor is what self is NULL of. num_custom: twice the tables, or fewer. They are copied. NULL and *error,
 * *why otherwise. */
es_replay *es_replay_open(void *base, uint64_t size, uint64_t stream, const es_custom_selector *custom,
                          uint32_t num_custom, int *error, es_trouble *why);
void es_replay_free(es_replay *r);

/* --- snapshots: of a store whose geometry says columns --------------------------------- */

/* How many bytes are before the columns; 0 when something is out of range. All words of the store are there. Then come
 * the columns, in the order of the leaves. Each starts at a multiple of 64 KiB, with 4096 bytes that the core leaves
 * alone, and has capacity + 2 + spare rows. */
uint64_t es_replay_records_size(const es_store_geometry *geo, const es_store_parts *parts);
/* Brings a copy of the records up to date: how many bytes were changed. Until the next snapshot is done no row is
 * changed that it refers to; ES_UNSYNCED is returned instead, when spare rows are used up. */
uint64_t es_replay_snapshot(es_replay *r, void *to);
/* The copy is on the disk, and no older one is of use any more. If it could not be written, this is not called. */
void es_replay_snapshot_done(es_replay *r);
/* The store was opened just now. snapshot: what the last es_replay_snapshot() wrote. NULL, at any time: none is of use
 * any more. */
void es_replay_hold(es_replay *r, const void *snapshot);
/* How many steps can be stored before that. */
uint64_t es_replay_room(es_replay *r);
/* How many steps were ever stored. */
uint64_t es_replay_arrivals(const es_replay *r);

/* How many tables and leaves the open store has, and bytes of a leaf: what the core goes by, whatever
 * es_replay_describe() has read before. */
void es_replay_shape(es_replay *r, uint32_t *num_tables, uint32_t *num_leaves);
uint64_t es_replay_leaf_size(es_replay *r, uint32_t leaf);
/* How many arrays a batch of that table has beside its columns, and bytes that an item has in one of them. */
uint32_t es_replay_num_outputs(es_replay *r, uint32_t table);
uint64_t es_replay_output_size(es_replay *r, uint32_t table, uint32_t output);

/* --- inserting ----------------------------------------------------------------- */

/* Stores one step of environment 0, and the items that it completes. leaves: one pointer for each leaf. priorities: one for each
 * table; negative: the table's highest so far; not a number: no item. flags: es_step_flag.
 * ES_OK, ES_REFUSED, ES_NO_ROOM or ES_UNSYNCED; then nothing is stored. ES_ESELECTOR: it may be. */
int es_replay_add(es_replay *r, const void *const *leaves, uint32_t flags, const double *priorities, es_trouble *why);
/* The same for n steps, one after the other. leaves: for each leaf n times its size. flags: n of them, or NULL.
 * priorities: n times one for each table, or NULL. Returns how many are in; fewer than n when *error says
 * why the next one is not. */
int64_t es_replay_extend(es_replay *r, const void *const *leaves, uint64_t n, const uint8_t *flags,
                         const double *priorities, int *error, es_trouble *why);
/* The last step of an episode, and the observations that it ends with: both or none. final: as leaves. flags:
 * ES_STEP_TERMINATED or ES_STEP_TRUNCATED. */
int es_replay_add_last(es_replay *r, const void *const *leaves, const void *const *final, uint32_t flags,
                       const double *priorities, es_trouble *why);
/* A step of each of several environments: the rows from `first` on. ES_EENVIRONMENT, ES_ERESET: nothing is stored. Returns how many of the n are done: stored, or
 * left out as resets; fewer than n when *error says why the next one is not. A row and what its episode ends with: both
 * or none. */
int64_t es_replay_add_vector(es_replay *r, const es_vector *v, uint64_t first, int *error, es_trouble *why);
/* The next step of each environment begins an episode. */
void es_replay_end_episode(es_replay *r);
/* The same of n of them, as of es_vector. */
void es_replay_end_episodes(es_replay *r, const int64_t *environments, uint64_t n);
/* All environments up to the last one that was used, at most room: how many there are. */
uint64_t es_replay_environments(es_replay *r, es_environment *to, uint64_t room);
/* The version of the weights that es_replay_add() and the others note with each step; as es_age_set_version(). Those beyond
 * 2^32 - 1 become that. */
void es_replay_set_version(es_replay *r, int64_t version, int by_hand);
int64_t es_replay_version(es_replay *r);

/* --- sampling -------------------------------------------------------------------- */

/* Draws n items, one at a time. beta: not a number for the sampler's own; negative: the weights are left to
 * es_replay_weigh(). ES_OK and all arrays filled, or
 * ES_SHORT, and the arrays hold nothing of use: what was drawn is kept for the next call of any size. -ENOMEM.
 * ES_ESELECTOR: the table's sampler has failed, and what it drew before is kept likewise. */
int es_replay_sample(es_replay *r, uint32_t table, uint64_t n, double beta, const es_batch_arrays *out);
/* Makes the weights of a batch that was drawn with a negative beta. */
void es_replay_weigh(es_replay *r, uint32_t table, double *weight, uint64_t n, double beta);
/* Takes back n items that were drawn with a negative beta, and that nobody has seen: they come first in the next
 * call of any size. ES_OK or -ENOMEM. */
int es_replay_put_back(es_replay *r, uint32_t table, uint64_t n, const es_batch_arrays *items);
/* The items with these keys, as they are: ES_OK, ES_ENOITEM or ES_ESELECTOR. Probability is that of a draw now. */
int es_replay_get(es_replay *r, uint32_t table, const uint64_t *keys, uint64_t n, double beta,
                  const es_batch_arrays *out, es_trouble *why);
/* Gives items new priorities: how many of them there were, or ES_EPRIORITY with nothing changed, or ES_ESELECTOR. */
int64_t es_replay_update(es_replay *r, uint32_t table, const uint64_t *keys, const double *priorities, uint64_t n,
                         es_trouble *why);
/* Removes items: how many of them there were, or ES_ESELECTOR. */
int64_t es_replay_delete(es_replay *r, uint32_t table, const uint64_t *keys, uint64_t n);
/* Removes all items, and counts from 0. ES_OK or ES_ESELECTOR. */
int es_replay_reset(es_replay *r, uint32_t table);

/* The table's limiter has other limits from now on, also for whoever opens the store next: after a kill both are those of
 * before, or both those of after. The next es_replay_turn() lets parked items in that they allow. ES_OK; -EINVAL: one of
 * them is no number, or the table's items have no records; ES_ESELECTOR. */
int es_replay_set_limits(es_replay *r, uint32_t table, double min_diff, double max_diff);
/* The learner has made an update: the items of a table whose sampler is of the kind ES_HOT_COLD are one older. Those that
 * are old enough become cold, or go; at most some thousand of them, and the others with the next updates. ES_OK, -EINVAL
 * for another table, or ES_ESELECTOR. */
int es_replay_learned(es_replay *r, uint32_t table);
/* The geo.notes bytes that whoever has the store keeps in it, all 0 at first: the first size of them. After a kill they are
 * those of before or of after. A checkpoint has them, too. */
void es_replay_notes(es_replay *r, void *bytes, uint64_t size);
void es_replay_set_notes(es_replay *r, const void *bytes, uint64_t size);

/* --- rings ------------------------------------------------------------------------- */

/* Connects a ring as whose learner this process is attached; segment: where its segment is mapped, uuid: 16 bytes.
 * The ring that brings steps has batches of 1 sample, geo.inbox_slots of them; its leaves are the store's, after one
 * of an es_inbox_head and a priority for each table. ES_OK, or ES_EGEOMETRY when it is another ring, or -ENOMEM. */
int es_replay_connect_inbox(es_replay *r, es_ring *ring, void *segment, const uint8_t *uuid);
/* The ring that brings updates has geo.update_slots batches of 1 sample, whose only leaf is an es_update_block. */
int es_replay_connect_updates(es_replay *r, es_ring *ring, void *segment, const uint8_t *uuid);
/* A ring that takes batches of a table's items to learners. This process is attached as a producer, the only one,
 * and nobody else will be. Rings that were used before come first. Its leaves are the store's, and then the columns
 * of es_batch_arrays in the order of a batch: key, probability, weight, priority, times_sampled, table_size, age, version.
 * rank, world_size: which of how many rings it is that take turns, batch by batch; one of each rank for a table, a
 * batch size and a world_size. 0, 0: a ring of its own.
 * Returns its number in es_turn. ES_EGEOMETRY when it is another ring; -ESTALE when another replay has used it;
 * -ENOSPC with ES_MAX_OUTBOXES connected; -ENOMEM; ES_UNSURE as long as a dead producer was not reaped. */
int es_replay_connect_batches(es_replay *r, uint32_t table, es_ring *ring, void *segment, const uint8_t *uuid,
                              uint32_t rank, uint32_t world_size);
/* Puts n items into the ring of batches of that number, before any is drawn for it: see es_outbox_put(). -EINVAL: there is
 * no such ring. */
int es_replay_put(es_replay *r, uint32_t number, uint64_t n, const void *const *leaves);
/* Gives back to the rings what was not used. It comes before they are detached. */
void es_replay_disconnect(es_replay *r);
/* Stores the steps and makes the updates that the rings have brought, lets parked items in, and draws items into the
 * rings of batches, but not more than most for each ring, or for each group of rings: how many there were. Never sleeps. */
uint64_t es_replay_turn(es_replay *r, uint64_t most, es_turn *turn);

/* --- looking --------------------------------------------------------------------- */

int es_replay_can_sample(es_replay *r, uint32_t table, uint64_t n);
int es_replay_can_insert(es_replay *r, uint32_t table, uint64_t n);
/* Whether that priority can be given to an item of the table, as sampler and remover see it: ES_OK or ES_EPRIORITY. */
int es_replay_check_priority(es_replay *r, uint32_t table, double priority);
void es_replay_info(es_replay *r, uint32_t table, es_table_info *info);
/* How many steps are stored. */
uint64_t es_replay_num_steps(es_replay *r);
/* All steps, in no order, but at most room: how many. */
uint64_t es_replay_list_steps(es_replay *r, es_stored_step *steps, uint64_t room);
/* Copies the leaves of n steps that were listed; leaves: one array for each leaf, of n times its size. Returns how many,
 * fewer than n if the next one is not stored any more. */
uint64_t es_replay_read_steps(es_replay *r, const es_stored_step *steps, uint64_t n, void *const *leaves);

#endif
