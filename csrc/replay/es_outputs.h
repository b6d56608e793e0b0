/* What the items of a table give to a batch: for each output an array, with the same number of bytes for each item. */
#ifndef ES_OUTPUTS_H
#define ES_OUTPUTS_H

#include "base/es_base.h"
#include "replay/es_steps.h"
#include "replay/es_store.h"

/* How many steps an item has, and how many before its first one it refers to. */
typedef struct es_span {
    uint32_t length, before;
} es_span;

/* Items whose steps are found ahead. */
#define ES_OUTPUTS_AHEAD 32

/* An item whose steps are found. */
typedef struct es_found {
    es_span span;
    uint32_t acts, flags;          /* in so many steps it acts; es_window_flag */
    const es_item_column *columns; /* of an explicit one */
} es_found;

typedef struct es_form {
    const es_store *store;
    const es_item_config *config;
    const es_output *outputs;
    uint64_t *sizes, *offsets;  /* of each output: its bytes, and where it is when they lie one after the other */
    uint64_t size;              /* of all together */
    uint32_t num_outputs, span; /* span: the most steps that an item refers to */
    uint32_t *steps;            /* of ES_OUTPUTS_AHEAD items, span each */
    es_found *found;
} es_form;

int es_outputs_init(es_form *f, const es_store *store, uint32_t table);
void es_outputs_free(es_form *f);

/* Finds the steps of an item, from the first that it refers to up to its last one, and has their rows come into the
 * cache. in_a_row: their records are one after the other, so no link is read. columns: of an explicit item. place: below
 * ES_OUTPUTS_AHEAD. Not for items of one step. */
void es_outputs_find(const es_form *f, const es_steps *steps, uint32_t last, es_span span, bool in_a_row,
                     uint32_t flags, const es_item_column *columns, uint32_t place);
/* Writes what n items give to each array, from place i on. They were found in the places from first on, which begin
 * anew after the last one. */
void es_outputs_write(const es_form *f, uint32_t first, uint64_t n, void *const *leaves, uint64_t i);

/* Whether an explicit item of so many steps can have these columns. */
bool es_outputs_can_have(const es_form *f, const es_item_column *columns, uint32_t length);

/* Copies the i-th items of arrays to one place after the other, and back. */
void es_outputs_pack(const es_form *f, void *const *leaves, uint64_t i, uint8_t *to);
void es_outputs_unpack(const es_form *f, const uint8_t *from, void *const *leaves, uint64_t i);

#endif
