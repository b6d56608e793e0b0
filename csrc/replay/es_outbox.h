/* Rings that take batches to learners in other processes. The replay is their only producer, so it claims their
 * positions one after the other.
 *
 * A slot is claimed, the item's row and columns are written into it, the draw and "drawn up to here" change in the
 * store at once, and then the slot is committed. If the replay is killed before the draw is noted, the slot is drawn
 * for anew. If it is killed after, whoever opens the store next gets the slot again, once the claim of the dead was
 * re-opened, and commits it as it is. So each draw is delivered once, in a batch that was cut short, too. */
#ifndef ES_OUTBOX_H
#define ES_OUTBOX_H

#include "api/es_api.h"
#include "base/es_base.h"
#include "replay/es_draw.h"

typedef struct es_outbox {
    es_ring *ring; /* NULL: there is none */
    es_table *table;
    uint8_t *segment;
    uint64_t capacity; /* slots of the ring */
    uint64_t batch_size;
    uint32_t rank, world_size; /* which of how many rings of a group it is; 0, 0: of none */
    es_outbox_words *words;
    void **leaves; /* one array for each output of the table, with a place for each slot */
    bool streams;  /* they outgrow the caches */
} es_outbox;

/* Connects to a ring whose leaves are the table's outputs, and then the columns of a batch: key, probability, weight, priority,
 * times_sampled, table_size, age. others: so many that are connected already, with words of their own in the store.
 * uuid: 16 bytes, of the ring's segment. rank, world_size: see es_outbox. ES_OK, -ENOMEM; ES_EGEOMETRY when it is not
 * such a ring, or its group has one of that rank already; -ESTALE
 * when the store does not know it, but somebody has written to it; ES_UNSURE as long as
 * somebody else has claimed a slot: a dead replay, which must be reaped first. */
int es_outbox_open(es_outbox *o, es_table *t, es_ring *ring, void *segment, const uint8_t *uuid, uint32_t rank,
                   uint32_t world_size, const es_outbox *others, uint32_t num_others);
/* Does not detach. */
void es_outbox_close(es_outbox *o);

/* Draws at most that many items into the ring: how many. *code: ES_OK if there may be more; ES_FULL; ES_SHORT when the
 * table's limiter forbids it, or the table is empty; -ENOMEM; ES_ECLOSED, or another error of the ring. */
uint64_t es_outbox_fill(es_outbox *o, uint64_t most, int *code);
/* Puts n items into a ring that is in no group: those that come before all draws for it, in a ring that was made for them.
 * Item i belongs at position i. leaves: for each leaf of the ring n items of it, one behind the other. Those that are there
 * already, because a process was killed while it did this, are not put again. ES_OK; ES_FULL when the ring has fewer slots;
 * -EINVAL for a ring of a group; ES_ECLOSED, or another error of the ring. */
int es_outbox_put(es_outbox *o, uint64_t n, const void *const *leaves);
/* The same as es_outbox_fill() for the group of rings that a ring of rank 0 belongs to. They take turns: the n-th batch drawn goes to rank
 * n % world_size, and no other ring gets an item before that batch is complete. So while one ring is full, all wait.
 * Whose turn it is follows from "drawn up to here" of each, so it needs no word of its own. Draws nothing before all
 * rings of the group are connected. codes: one for each of the num rings; written for those of the group, ES_OK where
 * it is not the ring's turn. */
uint64_t es_outbox_fill_group(es_outbox *outboxes, uint32_t num, uint32_t first, uint64_t most, int32_t *codes);

#endif
