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

typedef struct es_form {
    const es_store *store;
    const es_item_config *config;
    const es_output *outputs;
    uint64_t *sizes, *offsets;  /* of each output: its bytes, and where it is when they lie one after the other */
    uint64_t size;              /* of all together */
    uint32_t num_outputs, span; /* span: the most steps that an item refers to */
    uint32_t *steps;            /* room for those of some items, see es_outputs_find() */
} es_form;

/* Items whose steps are found ahead. */
#define ES_OUTPUTS_AHEAD 32

int es_form_init(es_form *f, const es_store *store, uint32_t table);
void es_form_free(es_form *f);

/* Finds the steps of an item, from the first that it refers to up to its last one, and has their rows come into the
 * cache. place: below ES_OUTPUTS_AHEAD. Not for items of one step. */
void es_outputs_find(const es_form *f, const es_steps *steps, uint32_t last, es_span span, uint32_t place);
/* What the store says of an item; somebody may have scribbled on it. columns: of an explicit one. */
typedef struct es_item_words {
    uint32_t flags; /* es_window_flag */
    const es_item_column *columns;
} es_item_words;

/* Writes what the item whose steps are at that place gives to each array, as its i-th item. */
void es_outputs_write(const es_form *f, uint32_t place, es_span span, es_item_words words, void *const *leaves,
                      uint64_t i);
/* Whether an explicit item of so many steps can have these columns. */
bool es_outputs_can_have(const es_form *f, const es_item_column *columns, uint32_t length);

/* Copies the i-th items of arrays to one place after the other, and back. */
void es_outputs_pack(const es_form *f, void *const *leaves, uint64_t i, uint8_t *to);
void es_outputs_unpack(const es_form *f, const uint8_t *from, void *const *leaves, uint64_t i);

#endif
