/* What is in a store, and where. The words in it are the truth about a replay; all else is derived from
 * them when it is opened, in private memory.
 *
 * Who writes: the one process that has it open, and es_redo. At run time the words are written, and read
 * for their values, but nothing in them is used to find memory: somebody may scribble on them. */
#ifndef ES_STORE_H
#define ES_STORE_H

#include "base/es_base.h"
#include "base/es_prefetch.h"
#include "replay/es_known.h"
#include "replay/es_record.h"
#include "replay/es_redo.h"
#include "replay/es_replay_types.h"

#define ES_STORE_MAX_LEAVES 65536u
#define ES_STORE_MAX_STEPS (UINT64_C(1) << 31)
#define ES_STORE_MAX_ITEMS (UINT64_C(1) << 31)
#define ES_STORE_MAX_ROW (UINT64_C(1) << 40)
#define ES_STORE_MAX_SCHEMA (1u << 26)
#define ES_STORE_MAX_SOURCE (1u << 24)

/* Draws that one redo list has at most. */
#define ES_STORE_DRAWS 8

/* A table's counters. */
typedef struct es_table_words {
    uint64_t inserted, sampled, evicted;
    uint64_t clock;
    double highest;
    uint64_t random; /* es_random.h */
    uint64_t round;  /* from 1 */
    uint64_t resetting;
    uint64_t parkings; /* items that were ever parked */
} es_table_words;

/* What went to a ring of batches. */
typedef struct es_outbox_words {
    es_known_ring ring;
    uint64_t drawn; /* for all positions below it, draws were made */
} es_outbox_words;

/* Where the parts are, from the start of the store. Derived from geometry, leaves and tables alone. */
typedef struct es_store_offsets {
    uint64_t leaves, schema, tables, words, inbox, updates, redo, steps, items, rows, size;
    uint64_t row_size, redo_room;
} es_store_offsets;

typedef struct es_store_header {
    uint64_t magic;
    uint32_t version, zero;
    es_store_geometry geo;
    es_store_offsets at;
    uint8_t uuid[16];
    int64_t pid, created_ns;
    uint64_t hash;                             /* of all above, the leaves, the schema and the tables */
    _Alignas(ES_CACHE_LINE) uint64_t arrivals; /* steps stored so far */
    es_known_ring inbox, updates;              /* of which the rounds are, below */
    es_outbox_words outboxes[ES_MAX_OUTBOXES];
} es_store_header;

/* A leaf of a step: where it is in a row. */
typedef struct es_store_leaf {
    uint64_t offset, size;
} es_store_leaf;

/* One process's map of a store. What it points to is in the store; the rest is private. */
typedef struct es_store {
    uint64_t size, capacity, step_slots, row_size, max_items;
    uint32_t num_leaves, num_tables;
    es_store_header *hdr;
    es_store_leaf *leaves;   /* private */
    es_table_config *tables; /* private */
    uint64_t *first_item;    /* private: of each table; one more: of all */
    es_table_words *words;
    uint64_t *inbox, *updates; /* for each batch of that ring, the last round that was stored, plus 1 */
    uint32_t inbox_slots, update_slots;
    es_step_record *steps;
    es_item_record *items;
    uint8_t *rows;
    es_redo redo;
} es_store;

/* Bytes, or 0 when something is out of range. */
uint64_t es_store_size(const es_store_geometry *geo, const uint64_t *leaf_sizes, const es_table_config *tables);
int es_store_format(void *base, uint64_t size, const es_store_geometry *geo, const uint64_t *leaf_sizes,
                    const es_table_config *tables, const void *schema, const uint8_t *uuid, int64_t pid,
                    int64_t created_ns);
/* ES_OK, or what is wrong with the header of a foreign store. Reads only inside it, and writes nothing. */
int es_store_check(const void *base, uint64_t size);
/* Of a store that passed the check; see es_replay_describe(). */
void es_store_describe(const void *base, uint64_t size, es_store_geometry *geo, uint8_t *uuid, int64_t *pid,
                       int64_t *created_ns, void *schema, uint64_t room, es_table_config *tables, uint32_t max_tables);
/* Fills *store from a store that passed the check. ES_OK, -ENOMEM, or that it was changed since. */
int es_store_map(es_store *store, void *base, uint64_t size);
void es_store_unmap(es_store *store);

static inline uint8_t *es_store_row(const es_store *store, uint32_t step)
{
    return store->rows + step * store->row_size;
}

/* Has the first lines of a row come into the cache. The processor itself fetches what follows. */
static inline void es_store_fetch_row(const es_store *store, const uint8_t *row)
{
    uint64_t last = store->row_size - 1;
    es_prefetch(row);
    for (uint64_t at = ES_CACHE_LINE; at < last && at < 4 * ES_CACHE_LINE; at += ES_CACHE_LINE)
        es_prefetch(row + at);
    es_prefetch(row + last);
}

#endif
