/* What is in a store, where it is, and which settings it can have. */
#ifndef ES_STORE_LAYOUT_H
#define ES_STORE_LAYOUT_H

#include "base/es_base.h"
#include "replay/es_known.h"
#include "replay/es_record.h"
#include "replay/es_replay_types.h"

#define ES_STORE_MAX_LEAVES 65536u
#define ES_STORE_MAX_STEPS (UINT64_C(1) << 31)
#define ES_STORE_MAX_ITEMS (UINT64_C(1) << 31)
#define ES_STORE_MAX_ROW (UINT64_C(1) << 40)
#define ES_STORE_MAX_SCHEMA (1u << 26)
#define ES_STORE_MAX_SOURCE (1u << 24)
#define ES_STORE_MAX_NOTES (1u << 26)
/* Steps that an item may refer to. */
#define ES_STORE_MAX_SPAN (1u << 20)

/* Draws that one redo list has at most, and new priorities. */
#define ES_STORE_DRAWS 8
#define ES_STORE_UPDATES 7

/* A table's counters. */
typedef struct es_table_words {
    uint64_t inserted, sampled, evicted;
    uint64_t clock;
    double highest;
    uint64_t random; /* es_random.h */
    uint64_t round;  /* from 1. Where items age: one more with each update of the learner */
    uint64_t resetting;
    uint64_t parkings; /* items that were ever parked */
    /* Of a sampler of two parts. The items that were inserted before the cold-th are the cold part; those before the
     * gone-th are too old: whoever opens the store removes them. */
    uint64_t cold, gone;
    uint64_t moved, aged;      /* how many items became cold, and how many went because of their age */
    uint64_t marked;           /* as inserted was at the learner's last update */
    uint64_t tune_at;          /* temperatures are chosen again once so many changes have come: es_table_tune() */
    double temperature[2];     /* 0: the sampler's own */
    double min_diff, max_diff; /* of the limiter; at first those of the config, which does not change */
} es_table_words;

/* What went to a ring of batches. */
typedef struct es_outbox_words {
    es_known_ring ring;
    uint64_t drawn; /* for all positions below it, draws were made */
} es_outbox_words;

/* A step whose items are being made, in tables whose items have several steps: one after the other, because one step
 * can complete many. Whoever opens the store makes those that are missing. */
typedef struct es_making_words {
    uint64_t step; /* its record, plus 1; 0: nothing is being made */
    uint64_t made; /* so many of its items are */
    uint64_t park; /* 1: an item that its table's limiter forbids is parked */
    double priorities[ES_MAX_TABLES];
} es_making_words;

/* Where the parts are, from the start of the store. Derived from geometry, leaves and tables alone. */
typedef struct es_store_offsets {
    uint64_t leaves, schema, tables, outputs, words, inbox, updates, redo, notes, steps, marks, items, columns, rows,
        size;
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
    uint64_t notes;                            /* odd: the second copy of the notes is the newest */
    es_making_words making;
    es_known_ring inbox, updates; /* of which the rounds are, below */
    es_outbox_words outboxes[ES_MAX_OUTBOXES];
} es_store_header;

/* A leaf of the steps: where that of the first one is, from the start of the rows, and how far apart they are. In a
 * store of rows, stride is the size of a row; in one of columns, the leaf's own. */
typedef struct es_store_leaf {
    uint64_t offset, size, stride;
} es_store_leaf;

/* In a store of columns, whoever maps it has a file for what is before the rows, and one for each column: they start at
 * multiples of ES_STORE_FILE, which every system can map. A column's file begins with ES_STORE_HEADER bytes that the core
 * leaves alone. */
#define ES_STORE_FILE 65536u
#define ES_STORE_HEADER 4096u

bool es_store_layout_geometry_in_range(const es_store_geometry *geo);
/* Of a geometry that is in range. */
bool es_store_layout_tables_in_range(const es_store_geometry *geo, const es_table_config *tables);
/* Checks all of it, and says where everything is. */
bool es_store_layout(const es_store_geometry *geo, const es_store_parts *parts, es_store_offsets *at);

/* Whether a table's items are implicit: they have no records. A step completes at most one, which follows from the step:
 * all that the store says of it is one bit. So it is where all windows of a length are drawn uniformly, and go the oldest
 * first. */
bool es_store_layout_is_implicit(const es_table_config *table);
/* How many numbers a table's items have: what it may hold, one more while the remover has not picked yet, and what is
 * parked. Of implicit items as many as steps: the number of one is that of its last step. */
uint64_t es_store_layout_item_slots(const es_store_geometry *geo, const es_table_config *table);
/* The same of its records. */
uint64_t es_store_layout_record_slots(const es_store_geometry *geo, const es_table_config *table);
/* How many words of marks it has: a bit for each step, 1 where an implicit item ends with it. */
uint64_t es_store_layout_mark_words(const es_store_geometry *geo, const es_table_config *table);
/* How many records of steps there are, and rows: a new step comes before an old one goes, and with it what its episode
 * ends with. */
uint64_t es_store_layout_step_slots(const es_store_geometry *geo);
/* Bytes that one copy of the notes takes. */
static inline uint64_t es_store_layout_notes_size(const es_store_geometry *geo)
{
    return (geo->notes + 7) / 8 * 8;
}
/* How many outputs all tables have. */
uint64_t es_store_layout_count_outputs(const es_store_geometry *geo, const es_table_config *tables);
/* How many columns all items of a table have. */
uint64_t es_store_layout_count_columns(const es_store_geometry *geo, const es_table_config *table);
/* How many of its last steps a stream keeps: of tables of single steps the last one, whose episode goes on. Otherwise
 * so many that the next step can complete any item: one that ends before it, too. */
uint64_t es_store_layout_steps_kept(const es_store_geometry *geo, const es_table_config *tables);
/* Where each leaf is. In rows: those of large alignment first; *row_size is a multiple of the largest. In columns: one
 * after the other, each from ES_STORE_HEADER bytes after the start of a file on. *rows_size: of all together. */
bool es_store_layout_place_leaves(const es_store_geometry *geo, const uint64_t *sizes, es_store_leaf *leaves,
                                  uint64_t *row_size, uint64_t *rows_size);

/* The most steps that an item of such a table refers to. */
static inline uint32_t es_store_layout_span(const es_item_config *item)
{
    return item->kind == ES_ITEM_N_STEP ? item->before + item->length + 1 : item->length;
}

/* Bytes that one item gives to an array of a batch. leaf_sizes: of a step's leaves. */
uint64_t es_store_layout_output_size(const es_output *output, const uint64_t *leaf_sizes);

#endif
