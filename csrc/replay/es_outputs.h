/* What the items of a table give to a batch: for each output an array, with the same number of bytes for each item. */
#ifndef ES_OUTPUTS_H
#define ES_OUTPUTS_H

#include "base/es_base.h"
#include "base/es_prefetch.h"
#include "replay/es_steps.h"
#include "replay/es_store.h"
#include "replay/es_window.h"

/* How many steps an item has, and how many before its first one it refers to. */
typedef struct es_span {
    uint32_t length, before;
} es_span;

/* Items whose steps are found ahead. */
#define ES_OUTPUTS_AHEAD 32

/* An item whose steps are looked for, or found. */
typedef struct es_found {
    uint32_t last;                 /* its last step */
    uint32_t flags;                /* es_window_flag */
    es_span span;                  /* together no more than the form's */
    const es_item_column *columns; /* of an explicit item */
    bool in_a_row;                 /* the records of its steps are one after the other: no link is read */
} es_found;

typedef struct es_form {
    const es_store *store;
    const es_item_config *config;
    const es_output *outputs;
    uint64_t *sizes, *offsets;  /* of each output: its bytes, and where it is when they lie one after the other */
    uint64_t size;              /* of all together */
    uint32_t num_outputs, span; /* span: the most steps that an item refers to */
    bool is_small;              /* rows share lines with their neighbours, mostly */
    bool is_near;               /* that, and what is written needs no list of steps in a row */
    es_found *found;            /* ES_OUTPUTS_AHEAD places for items; what follows has as many */
    uint32_t *steps;            /* span for each: those that the item refers to */
    uint32_t *first, *acts;     /* the first step in which it acts, and in how many it does */
    uint32_t *last;             /* the last step */
    double *discounts;          /* gamma to the power of 0, 1, ... span; then 0 */
} es_form;

int es_outputs_init(es_form *f, const es_store *store, uint32_t table);
void es_outputs_free(es_form *f);

/* The general case of es_outputs_find(). */
void es_outputs_find_far(const es_form *f, const es_steps *steps, uint32_t place);

/* Has each line come that has a part of these small rows: n in a row, up to the last one. There are as many lines for
 * most items, wherever they begin, so that branches are foreseen. */
static inline void es_outputs_fetch_small(const es_form *f, uint32_t last, uint64_t n)
{
    uint64_t size = f->store->row_size;
    const uint8_t *end = f->store->rows + (last + UINT64_C(1)) * size;
    for (const uint8_t *at = end - n * size; at < end; at += ES_CACHE_LINE)
        es_prefetch(at);
    es_prefetch(end - 1);
}

/* Finds the steps of the item in a place, and has their rows come into the cache. Not for items of one step. */
static inline void es_outputs_find(const es_form *f, const es_steps *steps, uint32_t place)
{
    const es_found *item = &f->found[place];
    uint32_t length = item->span.length, all = length + item->span.before, last = item->last;
    if (!f->is_near || !item->in_a_row || last < all - 1) {
        es_outputs_find_far(f, steps, place);
        return;
    }
    f->first[place] = last - (length - 1);
    f->acts[place] = length - (item->flags & ES_WINDOW_NEXT && length > 1);
    f->last[place] = last;
    es_outputs_fetch_small(f, last, all);
}

/* Writes what n items, found in the places from first on, give to each array, from place i on. streams: the arrays
 * outgrow the caches. */
void es_outputs_write(const es_form *f, uint32_t first, uint64_t n, void *const *leaves, uint64_t i, bool streams);

/* Whether an explicit item of so many steps can have these columns. */
bool es_outputs_can_have(const es_form *f, const es_item_column *columns, uint32_t length);

/* Copies the i-th items of arrays to one place after the other, and back. */
void es_outputs_pack(const es_form *f, void *const *leaves, uint64_t i, uint8_t *to);
void es_outputs_unpack(const es_form *f, const uint8_t *from, void *const *leaves, uint64_t i);

#endif
