#include "replay/es_outputs.h"

#include <stdlib.h>
#include <string.h>

#include "replay/es_gather.h"
#include "replay/es_window.h"

/* Rows up to this size share lines with their neighbours, mostly (bytes). */
#define SMALL_ROW (2 * ES_CACHE_LINE)

int es_outputs_init(es_form *f, const es_store *store, uint32_t table)
{
    const es_item_config *config = &store->tables[table].item;
    uint32_t n = config->num_outputs;
    *f = (es_form){
        .store = store,
        .config = config,
        .outputs = &store->outputs[store->first_output[table]],
        .sizes = calloc(2 * (uint64_t)n, sizeof *f->sizes),
        .num_outputs = n,
        .span = es_store_span(config),
    };
    if (config->kind != ES_ITEM_STEP)
        f->steps = calloc(ES_OUTPUTS_AHEAD * (uint64_t)f->span, sizeof *f->steps);
    f->found = calloc(ES_OUTPUTS_AHEAD, sizeof *f->found);
    uint64_t *leaf_sizes = malloc(store->num_leaves * sizeof *leaf_sizes);
    if (f->sizes == NULL || leaf_sizes == NULL || f->found == NULL ||
        (config->kind != ES_ITEM_STEP && f->steps == NULL)) {
        free(leaf_sizes);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < store->num_leaves; i++)
        leaf_sizes[i] = store->leaves[i].size;
    f->offsets = f->sizes + n;
    for (uint32_t i = 0; i < n; i++) {
        f->sizes[i] = es_store_layout_output_size(&f->outputs[i], leaf_sizes);
        f->offsets[i] = f->size;
        f->size += f->sizes[i];
    }
    free(leaf_sizes);
    return ES_OK;
}

void es_outputs_free(es_form *f)
{
    free(f->sizes);
    free(f->steps);
    free(f->found);
    f->sizes = NULL, f->steps = NULL, f->found = NULL;
}

static uint32_t *steps_at(const es_form *f, uint64_t place)
{
    return &f->steps[place % ES_OUTPUTS_AHEAD * f->span];
}

static const es_found *found_at(const es_form *f, uint64_t place)
{
    return &f->found[place % ES_OUTPUTS_AHEAD];
}

/* The rows of steps in a row. Of small ones each line that has a part of one comes once. */
static void fetch_rows(const es_store *store, uint32_t first, uint64_t n)
{
    if (store->is_columns || store->row_size > SMALL_ROW) {
        for (uint64_t i = 0; i < n; i++)
            es_store_fetch_step(store, first + (uint32_t)i);
        return;
    }
    const uint8_t *rows = store->rows + first * store->row_size, *end = rows + n * store->row_size;
    for (const uint8_t *at = rows - (uintptr_t)rows % ES_CACHE_LINE; at < end; at += ES_CACHE_LINE)
        es_prefetch(at);
}

static void find_in_a_row(const es_form *f, uint32_t last, uint64_t n, uint32_t *found)
{
    uint32_t first = last - (uint32_t)(n - 1);
    for (uint64_t i = 0; i < n; i++)
        found[i] = first + (uint32_t)i;
    fetch_rows(f->store, first, n);
}

void es_outputs_find(const es_form *f, const es_steps *steps, uint32_t last, es_span span, bool in_a_row,
                     uint32_t flags, const es_item_column *columns, uint32_t place)
{
    uint32_t *found = steps_at(f, place), next = flags & ES_WINDOW_NEXT && span.length > 1;
    uint64_t n = (uint64_t)span.length + span.before;
    if (in_a_row && last >= n - 1)
        find_in_a_row(f, last, n, found);
    else
        for (uint64_t i = n; i-- > 0;) {
            uint32_t older = es_steps_older(steps, last);
            found[i] = last;
            es_store_fetch_step(f->store, last);
            last = older != ES_STEPS_NONE ? older : last; /* none: somebody has scribbled on the item */
        }
    f->found[place] = (es_found){span, span.length - next, flags, columns};
}

/* --- copying ----------------------------------------------------------------------- */

/* count steps, the first of them at place first among the n that there are. */
static void write_steps(const es_form *f, const es_output *o, const uint32_t *steps, uint64_t n, int64_t first,
                        uint8_t *to)
{
    const es_store_leaf *leaf = &f->store->leaves[o->leaf];
    uint64_t size = leaf->size, missing = first < 0 ? (uint64_t)-first : 0;
    missing = missing < o->count ? missing : o->count;
    for (uint64_t i = 0; i < missing && o->repeat; i++)
        es_gather_leaf(f->store, leaf, steps, 1, to + i * size);
    if (!o->repeat)
        memset(to, 0, missing * size);
    uint64_t from = first < 0 ? 0 : (uint64_t)first, left = o->count - missing, there = from < n ? n - from : 0;
    there = there < left ? there : left;
    es_gather_leaf(f->store, leaf, steps + from, there, to + missing * size);
    memset(to + (missing + there) * size, 0, (left - there) * size);
}

/* --- transitions over several steps ---------------------------------------------------- */

/* Sum of gamma**k * r_k over n steps (Sutton, Barto, "Reinforcement learning", 2018, section 7.1). In float64. */
static inline __attribute__((always_inline)) void write_sum(const es_form *f, const es_store_leaf *leaf, uint64_t at,
                                                            uint32_t width, const uint32_t *steps, uint32_t n,
                                                            uint8_t *to)
{
    const uint8_t *rewards = f->store->rows + leaf->offset + at;
    double sum = 0, reward = 0;
    float single = 0;
    for (uint32_t k = n; k-- > 0;) {
        const uint8_t *from = rewards + steps[k] * leaf->stride;
        memcpy(width == 4 ? (void *)&single : (void *)&reward, from, width);
        sum = (width == 4 ? (double)single : reward) + f->config->gamma * sum;
    }
    single = (float)sum;
    memcpy(to + at, width == 4 ? (void *)&single : (void *)&sum, width);
}

static void write_return(const es_form *f, const es_output *o, const uint32_t *steps, uint32_t n, uint8_t *to)
{
    const es_store_leaf *leaf = &f->store->leaves[o->leaf];
    for (uint64_t at = 0; at < leaf->size; at += o->width)
        if (o->width == 4)
            write_sum(f, leaf, at, 4, steps, n, to);
        else
            write_sum(f, leaf, at, 8, steps, n, to);
}

static double discount_after(const es_form *f, uint32_t n)
{
    double discount = 1;
    for (uint32_t k = 0; k < n; k++)
        discount *= f->config->gamma;
    return discount;
}

/* Of n items. Most act in as many steps as the one before. */
static void write_discount(const es_form *f, const es_output *o, uint32_t first, uint64_t n, uint8_t *to)
{
    uint32_t acts = 0;
    double after = 1;
    for (uint64_t i = 0; i < n; i++) {
        const es_found *found = found_at(f, first + i);
        if (found->acts != acts) {
            acts = found->acts;
            after = discount_after(f, acts);
        }
        double discount = found->flags & ES_WINDOW_TERMINATED ? 0 : after;
        float single = (float)discount;
        memcpy(to + i * o->width, o->width == 4 ? (void *)&single : (void *)&discount, o->width);
    }
}

/* --- items --------------------------------------------------------------------------- */

/* How many steps a column reaches back from the item's last one. */
static uint64_t reach(const es_output *o, es_item_column c)
{
    return c.back + (o->count - UINT64_C(1)) * c.stride;
}

bool es_outputs_can_have(const es_form *f, const es_item_column *columns, uint32_t length)
{
    for (uint32_t j = 0; j < f->num_outputs; j++)
        if (columns[j].stride == 0 || reach(&f->outputs[j], columns[j]) >= length)
            return false;
    return true;
}

/* steps: length of them. */
static void write_column(const es_form *f, const es_output *o, const uint32_t *steps, uint32_t length,
                         const es_item_column *column, uint8_t *to)
{
    es_item_column c = *(const volatile es_item_column *)column;
    const es_store_leaf *leaf = &f->store->leaves[o->leaf];
    if (reach(o, c) >= length)
        c = (es_item_column){0, 0};
    const uint32_t *first = steps + (length - 1 - reach(o, c));
    if (c.stride == 1)
        es_gather_leaf(f->store, leaf, first, o->count, to);
    for (uint64_t i = 0; c.stride != 1 && i < o->count; i++)
        es_gather_leaf(f->store, leaf, first + i * c.stride, 1, to + i * leaf->size);
}

static void write_one(const es_form *f, const es_output *o, uint32_t j, uint64_t place, uint8_t *to)
{
    const es_found *found = found_at(f, place);
    const uint32_t *steps = steps_at(f, place), before = found->span.before, n = found->acts;
    uint64_t all = (uint64_t)before + found->span.length;
    int64_t length = n;
    switch (o->kind) {
    case ES_OUTPUT_STEPS:
        write_steps(f, o, steps, all, (int64_t)before + o->from, to);
        break;
    case ES_OUTPUT_NEXT:
        write_steps(f, o, steps, all, (int64_t)all - 1 + o->from, to);
        break;
    case ES_OUTPUT_RETURN:
        write_return(f, o, steps + before, n, to);
        break;
    case ES_OUTPUT_COLUMN:
        write_column(f, o, steps, found->span.length, &found->columns[j], to);
        break;
    case ES_OUTPUT_MASK:
        memset(to, 1, n);
        memset(to + n, 0, o->count - n);
        break;
    default:
        memcpy(to, &length, sizeof length);
    }
}

/* Whether an output is one step's leaf, at a place that is there in each item. */
static bool is_plain(const es_output *o)
{
    return (o->kind == ES_OUTPUT_STEPS || o->kind == ES_OUTPUT_NEXT) && o->count == 1 && o->from == 0;
}

/* Of some items at once: no call for each. */
static void write_plain(const es_form *f, const es_output *o, uint32_t first, uint64_t n, uint8_t *to)
{
    uint32_t steps[ES_OUTPUTS_AHEAD];
    for (uint64_t i = 0; i < n; i++) {
        es_span span = found_at(f, first + i)->span;
        const uint32_t *mine = steps_at(f, first + i);
        steps[i] = mine[o->kind == ES_OUTPUT_STEPS ? span.before : span.before + span.length - 1];
    }
    es_gather_leaf(f->store, &f->store->leaves[o->leaf], steps, n, to);
}

void es_outputs_write(const es_form *f, uint32_t first, uint64_t n, void *const *leaves, uint64_t i)
{
    for (uint32_t j = 0; j < f->num_outputs; j++) {
        const es_output *o = &f->outputs[j];
        uint8_t *to = (uint8_t *)leaves[j] + i * f->sizes[j];
        if (is_plain(o))
            write_plain(f, o, first, n, to);
        else if (o->kind == ES_OUTPUT_DISCOUNT)
            write_discount(f, o, first, n, to);
        else
            for (uint64_t k = 0; k < n; k++)
                write_one(f, o, j, first + k, to + k * f->sizes[j]);
    }
}

void es_outputs_pack(const es_form *f, void *const *leaves, uint64_t i, uint8_t *to)
{
    for (uint32_t j = 0; j < f->num_outputs; j++)
        memcpy(to + f->offsets[j], (const uint8_t *)leaves[j] + i * f->sizes[j], f->sizes[j]);
}

void es_outputs_unpack(const es_form *f, const uint8_t *from, void *const *leaves, uint64_t i)
{
    for (uint32_t j = 0; j < f->num_outputs; j++)
        memcpy((uint8_t *)leaves[j] + i * f->sizes[j], from + f->offsets[j], f->sizes[j]);
}
