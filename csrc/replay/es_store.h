/* A store, as the process that has it open maps it. The words in it are the truth about a replay; all else is derived from
 * them when it is opened, in private memory.
 *
 * Who writes: the one process that has it open, and es_redo. At run time the words are written, and read
 * for their values, but nothing in them is used to find memory: somebody may scribble on them. */
#ifndef ES_STORE_H
#define ES_STORE_H

#include "base/es_base.h"
#include "base/es_prefetch.h"
#include "replay/es_record.h"
#include "replay/es_redo.h"
#include "replay/es_replay_types.h"
#include "replay/es_store_layout.h"

/* One process's map of a store. What it points to is in the store; the rest is private. */
typedef struct es_store {
    uint64_t size, capacity, step_slots, row_size, max_items;
    bool is_columns;      /* then row_size is only how many bytes a step has */
    uint64_t packed_size; /* of a row outside of the store, which is as one in a store of rows */
    uint32_t num_leaves, num_tables;
    uint32_t keep; /* so many of its last steps each stream keeps: the next items may refer to them */
    es_store_header *hdr;
    es_store_leaf *leaves;   /* private */
    es_store_leaf *packed;   /* private: in a row outside of the store */
    es_table_config *tables; /* private */
    es_output *outputs;      /* private: of all tables */
    uint32_t *first_output;  /* private: of each table; one more: how many there are */
    uint64_t *first_item;    /* private: of each table, among the numbers of all items; one more: of all */
    uint64_t *first_record;  /* the same among the records */
    uint64_t *first_mark;    /* the same among the words of marks */
    es_table_words *words;
    uint64_t *inbox, *updates; /* for each batch of that ring, the last round that was stored, plus 1 */
    uint32_t inbox_slots, update_slots;
    bool dated; /* some step has a version; otherwise nobody need look at its record for it */
    es_step_record *steps;
    uint64_t *marks; /* of implicit items */
    es_item_record *items;
    uint8_t *notes; /* es_notes.h */
    uint64_t notes_size;
    es_item_column *columns; /* of explicit items */
    uint64_t *first_column;  /* private: of each table */
    uint32_t max_columns;    /* the most that such an item has */
    uint8_t *rows;
    es_redo redo;
} es_store;

/* Bytes, or 0 when something is out of range. */
uint64_t es_store_size(const es_store_geometry *geo, const es_store_parts *parts);
int es_store_format(void *base, uint64_t size, const es_store_geometry *geo, const es_store_parts *parts,
                    const uint8_t *uuid, int64_t pid, int64_t created_ns);
/* ES_OK, or what is wrong with the header of a foreign store. Reads only inside it, and writes nothing. */
int es_store_check(const void *base, uint64_t size);
/* The same of what comes before a store's rows, as a checkpoint has it. */
int es_store_check_records(const void *base, uint64_t size);
/* Of a store, or of such a part, that passed its check; see es_replay_describe(). */
void es_store_describe(const void *base, uint64_t size, es_store_geometry *geo, uint8_t *uuid, int64_t *pid,
                       int64_t *created_ns, void *schema, uint64_t room, es_table_config *tables, uint32_t max_tables);
/* Fills *store from a store that passed the check. ES_OK, -ENOMEM, or that it was changed since. */
int es_store_map(es_store *store, void *base, uint64_t size);
/* The same without rows. Nothing may ask for one. */
int es_store_map_records(es_store *store, void *base, uint64_t size);
/* The same of a store that is being filled. */
int es_store_map_filling(es_store *store, void *base, uint64_t size);
/* A store that was formatted just now is being filled, or that is done. In between nobody can open it. */
void es_store_fill(es_store *store);
void es_store_filled(es_store *store);
void es_store_unmap(es_store *store);

/* Where a step's bytes of a leaf are. */
static inline uint8_t *es_store_at(const es_store *store, const es_store_leaf *leaf, uint32_t step)
{
    return store->rows + leaf->offset + step * leaf->stride;
}

/* Has the first lines come into the cache. The processor itself fetches what follows. */
static inline void es_store_fetch_bytes(const uint8_t *bytes, uint64_t size)
{
    uint64_t last = size - 1;
    es_prefetch(bytes);
    for (uint64_t at = ES_CACHE_LINE; at < last && at < 4 * ES_CACHE_LINE; at += ES_CACHE_LINE)
        es_prefetch(bytes + at);
    es_prefetch(bytes + last);
}

/* The same for each leaf of a step, in a store of columns. */
void es_store_fetch_leaves(const es_store *store, uint32_t step);

static inline void es_store_fetch_step(const es_store *store, uint32_t step)
{
    if (store->is_columns)
        es_store_fetch_leaves(store, step);
    else
        es_store_fetch_bytes(store->rows + step * store->row_size, store->row_size);
}

#endif
