#include "replay/es_outputs.h"

#include <stdlib.h>
#include <string.h>

#include "replay/es_gather.h"
#include "replay/es_window.h"

/* Rows up to this size share lines with their neighbours, mostly (bytes). */
#define SMALL_ROW (2 * ES_CACHE_LINE)

/* Whether an output is one step's leaf, at a place that is there in each item. */
static bool is_plain(const es_output *o)
{
    return (o->kind == ES_OUTPUT_STEPS || o->kind == ES_OUTPUT_NEXT) && o->count == 1 && o->from == 0;
}

/* Of items of several steps. */
static int init_places(es_form *f)
{
    f->found = calloc(ES_OUTPUTS_AHEAD, sizeof *f->found);
    f->steps = calloc(ES_OUTPUTS_AHEAD * (f->span + UINT64_C(3)), sizeof *f->steps);
    f->discounts = malloc((f->span + UINT64_C(2)) * sizeof *f->discounts);
    if (f->found == NULL || f->steps == NULL || f->discounts == NULL)
        return -ENOMEM;
    f->first = f->steps + ES_OUTPUTS_AHEAD * (uint64_t)f->span;
    f->acts = f->first + ES_OUTPUTS_AHEAD;
    f->last = f->acts + ES_OUTPUTS_AHEAD;
    f->discounts[f->span + 1] = 0;
    f->discounts[0] = 1;
    for (uint32_t k = 0; k < f->span; k++)
        f->discounts[k + 1] = f->discounts[k] * f->config->gamma;
    return ES_OK;
}

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
        .span = es_store_layout_span(config),
    };
    uint64_t *leaf_sizes = malloc(store->num_leaves * sizeof *leaf_sizes);
    if (f->sizes == NULL || leaf_sizes == NULL || (config->kind != ES_ITEM_STEP && init_places(f) != ES_OK)) {
        free(leaf_sizes);
        return -ENOMEM;
    }
    f->is_small = !store->is_columns && store->row_size <= SMALL_ROW;
    f->is_near = f->is_small;
    for (uint32_t i = 0; i < n; i++)
        f->is_near &= is_plain(&f->outputs[i]) || f->outputs[i].kind == ES_OUTPUT_RETURN ||
                      f->outputs[i].kind == ES_OUTPUT_DISCOUNT || f->outputs[i].kind == ES_OUTPUT_LENGTH;
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
    free(f->discounts);
    f->sizes = NULL, f->steps = NULL, f->found = NULL, f->discounts = NULL;
}

static uint32_t *steps_at(const es_form *f, uint32_t place)
{
    return &f->steps[place * (uint64_t)f->span];
}

static void find_in_a_row(const es_form *f, uint32_t last, uint64_t n, uint32_t *found)
{
    uint32_t first = last - (uint32_t)(n - 1);
    for (uint64_t i = 0; i < n; i++)
        found[i] = first + (uint32_t)i;
    if (f->is_small)
        es_outputs_fetch_small(f, last, n);
    for (uint64_t i = 0; i < n && !f->is_small; i++)
        es_store_fetch_step(f->store, found[i]);
}

static void find_links(const es_form *f, const es_steps *steps, uint32_t last, uint64_t n, uint32_t *found)
{
    for (uint64_t i = n; i-- > 0;) {
        uint32_t older = es_steps_older(steps, last);
        found[i] = last;
        es_store_fetch_step(f->store, last);
        last = older != ES_STEPS_NONE ? older : last; /* none: somebody has scribbled on the item */
    }
}

void es_outputs_find_far(const es_form *f, const es_steps *steps, uint32_t place)
{
    es_found *item = &f->found[place];
    uint32_t *to = steps_at(f, place), length = item->span.length, all = length + item->span.before;
    item->in_a_row = item->in_a_row && item->last >= all - 1;
    if (item->in_a_row)
        find_in_a_row(f, item->last, all, to);
    else
        find_links(f, steps, item->last, all, to);
    f->first[place] = to[item->span.before];
    f->acts[place] = length - (item->flags & ES_WINDOW_NEXT && length > 1);
    f->last[place] = item->last;
}

/* --- copying ----------------------------------------------------------------------- */

/* count steps, the first of them at place first among the n that there are. */
static void write_steps(const es_form *f, const es_output *o, const uint32_t *steps, uint64_t n, int64_t first,
                        uint8_t *to, bool streams)
{
    const es_store_leaf *leaf = &f->store->leaves[o->leaf];
    uint64_t size = leaf->size, missing = first < 0 ? (uint64_t)-first : 0;
    missing = missing < o->count ? missing : o->count;
    for (uint64_t i = 0; i < missing && o->repeat; i++)
        es_gather_leaf(f->store, leaf, steps, 1, to + i * size, streams);
    if (!o->repeat)
        memset(to, 0, missing * size);
    uint64_t from = first < 0 ? 0 : (uint64_t)first, left = o->count - missing, there = from < n ? n - from : 0;
    there = there < left ? there : left;
    es_gather_leaf(f->store, leaf, steps + from, there, to + missing * size, streams);
    memset(to + (missing + there) * size, 0, (left - there) * size);
}

/* --- transitions over several steps ---------------------------------------------------- */

/* Sum of gamma**k * r_k over n steps (Sutton, Barto, "Reinforcement learning", 2018, section 7.1). In float64. Their
 * rewards are a distance apart, or where steps says. */
static inline __attribute__((always_inline)) void write_sum(const uint8_t *rewards, uint64_t distance,
                                                            const uint32_t *steps, uint32_t n, double gamma,
                                                            uint32_t width, uint8_t *to)
{
    double sum = 0;
    for (uint32_t k = n; k-- > 0;) {
        const uint8_t *from = rewards + (steps == NULL ? k : steps[k]) * distance;
        double reward = 0;
        float single = 0;
        memcpy(width == 4 ? (void *)&single : (void *)&reward, from, width);
        sum = (width == 4 ? (double)single : reward) + gamma * sum;
    }
    float single = (float)sum;
    memcpy(to, width == 4 ? (void *)&single : (void *)&sum, width);
}

static inline __attribute__((always_inline)) void
write_returns_of(const es_form *f, const es_store_leaf *leaf, uint32_t width, uint32_t first, uint64_t n, uint8_t *to)
{
    double gamma = f->config->gamma;
    uint64_t distance = leaf->stride, size = leaf->size;
    for (uint32_t place = first; place < first + n; place++)
        for (uint64_t at = 0; at < size; at += width, to += width) {
            const uint8_t *rewards = f->store->rows + leaf->offset + at;
            if (f->found[place].in_a_row)
                write_sum(rewards + f->first[place] * distance, distance, NULL, f->acts[place], gamma, width, to);
            else
                write_sum(rewards, distance, steps_at(f, place) + f->found[place].span.before, f->acts[place], gamma,
                          width, to);
        }
}

static void write_returns(const es_form *f, const es_output *o, uint32_t first, uint64_t n, uint8_t *to)
{
    const es_store_leaf *leaf = &f->store->leaves[o->leaf];
    if (o->width == 4)
        write_returns_of(f, leaf, 4, first, n, to);
    else
        write_returns_of(f, leaf, 8, first, n, to);
}

static inline double discount_of(const es_form *f, uint32_t place)
{
    return f->discounts[f->found[place].flags & ES_WINDOW_TERMINATED ? f->span + 1 : f->acts[place]];
}

static void write_discounts(const es_form *f, const es_output *o, uint32_t first, uint64_t n, uint8_t *to)
{
    for (uint64_t i = 0; i < n && o->width == 4; i++) {
        float discount = (float)discount_of(f, first + (uint32_t)i);
        memcpy(to + i * sizeof discount, &discount, sizeof discount);
    }
    for (uint64_t i = 0; i < n && o->width == 8; i++) {
        double discount = discount_of(f, first + (uint32_t)i);
        memcpy(to + i * sizeof discount, &discount, sizeof discount);
    }
}

static void write_lengths(const es_form *f, uint32_t first, uint64_t n, uint8_t *to)
{
    for (uint64_t i = 0; i < n; i++) {
        int64_t length = f->acts[first + i];
        memcpy(to + i * sizeof length, &length, sizeof length);
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
                         const es_item_column *column, uint8_t *to, bool streams)
{
    es_item_column c = *(const volatile es_item_column *)column;
    const es_store_leaf *leaf = &f->store->leaves[o->leaf];
    if (reach(o, c) >= length)
        c = (es_item_column){0, 0};
    const uint32_t *first = steps + (length - 1 - reach(o, c));
    if (c.stride == 1)
        es_gather_leaf(f->store, leaf, first, o->count, to, streams);
    for (uint64_t i = 0; c.stride != 1 && i < o->count; i++)
        es_gather_leaf(f->store, leaf, first + i * c.stride, 1, to + i * leaf->size, streams);
}

static void write_one(const es_form *f, const es_output *o, uint32_t j, uint32_t place, uint8_t *to, bool streams)
{
    const es_found *found = &f->found[place];
    const uint32_t *steps = steps_at(f, place), before = found->span.before;
    uint64_t all = (uint64_t)before + found->span.length;
    switch (o->kind) {
    case ES_OUTPUT_STEPS:
        write_steps(f, o, steps, all, (int64_t)before + o->from, to, streams);
        break;
    case ES_OUTPUT_NEXT:
        write_steps(f, o, steps, all, (int64_t)all - 1 + o->from, to, streams);
        break;
    case ES_OUTPUT_COLUMN:
        write_column(f, o, steps, found->span.length, &found->columns[j], to, streams);
        break;
    default: /* ES_OUTPUT_MASK */
        memset(to, 1, f->acts[place]);
        memset(to + f->acts[place], 0, o->count - f->acts[place]);
    }
}

void es_outputs_write(const es_form *f, uint32_t first, uint64_t n, void *const *leaves, uint64_t i, bool streams)
{
    for (uint32_t j = 0; j < f->num_outputs; j++) {
        const es_output *o = &f->outputs[j];
        uint8_t *to = (uint8_t *)leaves[j] + i * f->sizes[j];
        if (is_plain(o))
            es_gather_leaf(f->store, &f->store->leaves[o->leaf],
                           (o->kind == ES_OUTPUT_STEPS ? f->first : f->last) + first, n, to, streams);
        else if (o->kind == ES_OUTPUT_RETURN)
            write_returns(f, o, first, n, to);
        else if (o->kind == ES_OUTPUT_DISCOUNT)
            write_discounts(f, o, first, n, to);
        else if (o->kind == ES_OUTPUT_LENGTH)
            write_lengths(f, first, n, to);
        else
            for (uint32_t k = 0; k < n; k++)
                write_one(f, o, j, first + k, to + k * f->sizes[j], streams);
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
