#include "replay/es_store_layout.h"

#include <math.h>
#include <string.h>

#include "replay/es_redo.h"

/* Words that one step may change: its own, the counter of arrivals, the round of the ring that brought it, what is being
 * made, and for each table an item's word and orders, and counters. */
#define STEP_ROOM(tables) (8 + 8 * (uint64_t)(tables))
/* Words that ES_STORE_DRAWS draws change: an item's each, the table's counters, and the position that they went to. */
#define DRAW_ROOM (ES_STORE_DRAWS + 8)
/* ES_STORE_UPDATES change two words of an item each, and the table's clock. */
_Static_assert(2 * ES_STORE_UPDATES + 1 <= DRAW_ROOM, "new priorities have room");
#define REDO_ROOM(tables) (STEP_ROOM(tables) > DRAW_ROOM ? STEP_ROOM(tables) : DRAW_ROOM)

static bool finite_at_least(double value, double least)
{
    return isfinite(value) && value >= least;
}

static bool selector_in_range(const es_selector_config *s)
{
    bool softmax = s->kind == ES_SOFTMAX || s->kind == ES_HOT_COLD, weights = s->kind == ES_PRIORITIZED || softmax;
    return s->kind >= ES_UNIFORM && s->kind <= ES_HOT_COLD && s->zero == 0 &&
           (!weights || (finite_at_least(s->parameter, 0) && finite_at_least(s->beta, 0))) && s->target >= 0 &&
           s->target <= softmax && (!softmax || s->parameter > 0) &&
           (s->kind != ES_HOT_COLD || (s->share >= 0 && s->share <= 1 && s->hot_size >= 1));
}

/* Only a sampler can have what changes with time: temperatures, parts. */
static bool selectors_in_range(const es_table_config *t)
{
    const es_selector_config *sampler = &t->sampler, *remover = &t->remover;
    return selector_in_range(sampler) && selector_in_range(remover) && remover->kind != ES_HOT_COLD &&
           (remover->kind != ES_SOFTMAX || remover->target == 0) &&
           (sampler->kind != ES_HOT_COLD || t->replacement == 1);
}

static bool item_in_range(const es_item_config *item)
{
    bool many = item->kind >= ES_ITEM_N_STEP && item->kind <= ES_ITEM_EXPLICIT;
    return (many || (item->kind == ES_ITEM_STEP && item->length == 1)) && item->length >= 1 &&
           item->length < ES_STORE_MAX_SPAN && item->period >= 1 && item->period <= item->length &&
           (item->period == 1 || item->kind == ES_ITEM_SEQUENCE) && item->before < ES_STORE_MAX_SPAN &&
           (item->before == 0 || item->kind == ES_ITEM_N_STEP) && item->padded <= (item->kind == ES_ITEM_SEQUENCE) &&
           item->num_outputs >= 1 && item->num_outputs <= 2 * ES_STORE_MAX_LEAVES && item->gamma >= 0 &&
           item->gamma <= 1;
}

static bool table_in_range(const es_table_config *t)
{
    return memchr(t->name, 0, sizeof t->name) != NULL && t->name[0] != 0 && selectors_in_range(t) && t->max_size >= 1 &&
           t->min_size >= 1 && isfinite(t->ratio) && t->ratio > 0 && !isnan(t->min_diff) && !isnan(t->max_diff) &&
           t->max_parked <= ES_STORE_MAX_ITEMS && item_in_range(&t->item) && t->replacement <= 1 &&
           t->is_protected <= 1;
}

uint64_t es_store_layout_output_size(const es_output *output, const uint64_t *leaf_sizes)
{
    switch (output->kind) {
    case ES_OUTPUT_RETURN:
        return leaf_sizes[output->leaf];
    case ES_OUTPUT_DISCOUNT:
        return output->width;
    case ES_OUTPUT_MASK:
        return output->count;
    case ES_OUTPUT_LENGTH:
        return sizeof(int64_t);
    default:
        return output->count * leaf_sizes[output->leaf];
    }
}

/* Whether a table with such items can have that output. It reads only steps that the item refers to. */
static bool output_in_range(const es_output *o, const es_item_config *item, const es_store_geometry *geo,
                            const uint64_t *leaf_sizes)
{
    bool n_step = item->kind == ES_ITEM_N_STEP, wide = o->width == 4 || o->width == 8;
    int64_t steps = n_step ? 1 : item->length;
    if (o->leaf >= geo->num_leaves || o->repeat > 1 || o->from > 0 || -(int64_t)o->from > item->before)
        return false;
    switch (o->kind) {
    case ES_OUTPUT_STEPS:
    case ES_OUTPUT_NEXT:
        return (o->kind == ES_OUTPUT_STEPS || n_step) && item->kind != ES_ITEM_EXPLICIT && o->width == 0 &&
               o->count >= 1 && o->from + (int64_t)o->count <= steps &&
               leaf_sizes[o->leaf] <= ES_STORE_MAX_ROW / o->count;
    case ES_OUTPUT_RETURN:
        return n_step && wide && leaf_sizes[o->leaf] % o->width == 0;
    case ES_OUTPUT_DISCOUNT:
        return n_step && wide;
    case ES_OUTPUT_MASK:
        return item->kind == ES_ITEM_SEQUENCE && o->count == item->length;
    case ES_OUTPUT_LENGTH:
        return item->kind != ES_ITEM_EXPLICIT;
    default:
        return o->kind == ES_OUTPUT_COLUMN && item->kind == ES_ITEM_EXPLICIT && o->count >= 1 &&
               o->count <= item->length && leaf_sizes[o->leaf] <= ES_STORE_MAX_ROW / o->count;
    }
}

/* The outputs of a table of single steps are its leaves, in their order. */
static bool outputs_in_range(const es_output *outputs, const es_item_config *item, const es_store_geometry *geo,
                             const uint64_t *leaf_sizes)
{
    for (uint32_t i = 0; i < item->num_outputs; i++) {
        bool same = outputs[i].kind == ES_OUTPUT_STEPS && outputs[i].leaf == i;
        if (!output_in_range(&outputs[i], item, geo, leaf_sizes) || (item->kind == ES_ITEM_STEP && !same))
            return false;
    }
    return item->kind != ES_ITEM_STEP || item->num_outputs == geo->num_leaves;
}

bool es_store_layout_geometry_in_range(const es_store_geometry *geo)
{
    return geo->capacity >= 1 && geo->capacity <= ES_STORE_MAX_STEPS && geo->max_items >= 1 &&
           geo->max_items <= ES_STORE_MAX_ITEMS && geo->num_leaves >= 1 && geo->num_leaves <= ES_STORE_MAX_LEAVES &&
           geo->num_tables >= 1 && geo->num_tables <= ES_MAX_TABLES && geo->schema_size <= ES_STORE_MAX_SCHEMA &&
           geo->inbox_slots <= ES_STORE_MAX_SOURCE && geo->update_slots <= ES_STORE_MAX_SOURCE && geo->columns <= 1 &&
           geo->spare <= (geo->columns ? ES_STORE_MAX_STEPS - geo->capacity : 0) && geo->notes <= ES_STORE_MAX_NOTES;
}

bool es_store_layout_is_implicit(const es_table_config *t)
{
    return t->item.kind == ES_ITEM_SEQUENCE && t->item.period == 1 && t->sampler.kind == ES_UNIFORM &&
           t->remover.kind == ES_FIFO && t->max_times_sampled == 0 && t->replacement && !t->is_protected &&
           isinf(t->max_diff) && t->max_diff > 0;
}

uint64_t es_store_layout_item_slots(const es_store_geometry *geo, const es_table_config *table)
{
    if (es_store_layout_is_implicit(table))
        return es_store_layout_step_slots(geo);
    uint64_t most = table->max_size < geo->max_items ? table->max_size : geo->max_items;
    return most + 1 + table->max_parked;
}

uint64_t es_store_layout_record_slots(const es_store_geometry *geo, const es_table_config *table)
{
    return es_store_layout_is_implicit(table) ? 0 : es_store_layout_item_slots(geo, table);
}

uint64_t es_store_layout_mark_words(const es_store_geometry *geo, const es_table_config *table)
{
    return es_store_layout_is_implicit(table) ? (es_store_layout_step_slots(geo) + 63) / 64 : 0;
}

uint64_t es_store_layout_step_slots(const es_store_geometry *geo)
{
    return geo->capacity + 2 + geo->spare;
}

/* --- layout -------------------------------------------------------------------- */

/* Appends count things of the given size at *end, aligned; *at is where they start. */
static bool place(uint64_t *end, uint64_t align, uint64_t count, uint64_t size, uint64_t *at)
{
    uint64_t bytes, start;
    if (__builtin_add_overflow(*end, align - 1, &start) || __builtin_mul_overflow(count, size, &bytes))
        return false;
    *at = start &= ~(align - 1);
    return !__builtin_add_overflow(start, bytes, end);
}

/* A leaf is aligned as its size is, so that rows of small leaves have no gaps, up to a cache line. */
static uint64_t leaf_alignment(uint64_t size)
{
    uint64_t align = size & -size;
    return size == 0 ? 1 : align < 16 && size < ES_CACHE_LINE ? align : size < ES_CACHE_LINE ? 16 : ES_CACHE_LINE;
}

static bool place_in_rows(const es_store_geometry *geo, const uint64_t *sizes, es_store_leaf *leaves,
                          uint64_t *row_size, uint64_t *rows_size)
{
    uint64_t end = 0, widest = 1, at;
    for (uint64_t align = ES_CACHE_LINE; align >= 1; align /= 2)
        for (uint32_t i = 0; i < geo->num_leaves; i++) {
            if (leaf_alignment(sizes[i]) != align)
                continue;
            if (!place(&end, align, 1, sizes[i], &at) || end > ES_STORE_MAX_ROW)
                return false;
            widest = align > widest ? align : widest;
            if (leaves != NULL)
                leaves[i] = (es_store_leaf){.offset = at, .size = sizes[i]};
        }
    if (!place(&end, widest, 0, 1, row_size))
        return false;
    for (uint32_t i = 0; i < geo->num_leaves && leaves != NULL; i++)
        leaves[i].stride = *row_size;
    return !__builtin_mul_overflow(es_store_layout_step_slots(geo), *row_size, rows_size);
}

static bool place_in_columns(const es_store_geometry *geo, const uint64_t *sizes, es_store_leaf *leaves,
                             uint64_t *row_size, uint64_t *rows_size)
{
    uint64_t end = 0, at;
    if (!place_in_rows(geo, sizes, NULL, row_size, rows_size)) /* a checkpoint has rows */
        return false;
    *row_size = 0;
    for (uint32_t i = 0; i < geo->num_leaves; i++) {
        if (!place(&end, ES_STORE_FILE, ES_STORE_HEADER, 1, &at) ||
            !place(&end, 1, es_store_layout_step_slots(geo), sizes[i], &at))
            return false;
        *row_size += sizes[i];
        if (leaves != NULL)
            leaves[i] = (es_store_leaf){.offset = at, .size = sizes[i], .stride = sizes[i]};
    }
    return place(&end, ES_STORE_FILE, 0, 1, rows_size);
}

bool es_store_layout_place_leaves(const es_store_geometry *geo, const uint64_t *sizes, es_store_leaf *leaves,
                                  uint64_t *row_size, uint64_t *rows_size)
{
    return (geo->columns ? place_in_columns : place_in_rows)(geo, sizes, leaves, row_size, rows_size);
}

uint64_t es_store_layout_count_outputs(const es_store_geometry *geo, const es_table_config *tables)
{
    uint64_t count = 0;
    for (uint32_t t = 0; t < geo->num_tables; t++)
        count += tables[t].item.num_outputs;
    return count;
}

uint64_t es_store_layout_count_columns(const es_store_geometry *geo, const es_table_config *table)
{
    return table->item.kind == ES_ITEM_EXPLICIT ? es_store_layout_item_slots(geo, table) * table->item.num_outputs : 0;
}

uint64_t es_store_layout_steps_kept(const es_store_geometry *geo, const es_table_config *tables)
{
    uint64_t keep = 1;
    for (uint32_t t = 0; t < geo->num_tables; t++) {
        uint64_t mine = tables[t].item.kind == ES_ITEM_STEP ? 1 : es_store_layout_span(&tables[t].item) + UINT64_C(1);
        keep = mine > keep ? mine : keep;
    }
    return keep;
}

bool es_store_layout_tables_in_range(const es_store_geometry *geo, const es_table_config *tables)
{
    bool fits = true;
    for (uint32_t t = 0; t < geo->num_tables; t++)
        fits &= table_in_range(&tables[t]);
    return fits && es_store_layout_steps_kept(geo, tables) <= geo->capacity;
}

/* Of tables that are in range: where everything is. */
static bool offsets_of(const es_store_geometry *geo, const uint64_t *leaf_sizes, const es_table_config *tables,
                       es_store_offsets *o)
{
    uint64_t end = sizeof(es_store_header), items = 0, records = 0, marks = 0, columns = 0, rows = 0;
    for (uint32_t t = 0; t < geo->num_tables; t++) {
        items += es_store_layout_item_slots(geo, &tables[t]);
        records += es_store_layout_record_slots(geo, &tables[t]);
        marks += es_store_layout_mark_words(geo, &tables[t]);
        columns += es_store_layout_count_columns(geo, &tables[t]);
    }
    o->redo_room = REDO_ROOM(geo->num_tables);
    return items < UINT32_MAX && es_store_layout_place_leaves(geo, leaf_sizes, NULL, &o->row_size, &rows) &&
           place(&end, ES_CACHE_LINE, geo->num_leaves, sizeof(uint64_t), &o->leaves) &&
           place(&end, ES_CACHE_LINE, geo->schema_size, 1, &o->schema) &&
           place(&end, ES_CACHE_LINE, geo->num_tables, sizeof(es_table_config), &o->tables) &&
           place(&end, ES_CACHE_LINE, es_store_layout_count_outputs(geo, tables), sizeof(es_output), &o->outputs) &&
           place(&end, ES_CACHE_LINE, geo->num_tables, sizeof(es_table_words), &o->words) &&
           place(&end, ES_CACHE_LINE, geo->inbox_slots, sizeof(uint64_t), &o->inbox) &&
           place(&end, ES_CACHE_LINE, geo->update_slots, sizeof(uint64_t), &o->updates) &&
           place(&end, ES_CACHE_LINE, 1, sizeof(es_redo_log) + o->redo_room * sizeof(es_redo_entry), &o->redo) &&
           place(&end, ES_CACHE_LINE, 2, es_store_layout_notes_size(geo), &o->notes) &&
           place(&end, ES_PAGE, es_store_layout_step_slots(geo), sizeof(es_step_record), &o->steps) &&
           place(&end, ES_PAGE, marks, sizeof(uint64_t), &o->marks) &&
           place(&end, ES_PAGE, records, sizeof(es_item_record), &o->items) &&
           place(&end, ES_PAGE, columns, sizeof(es_item_column), &o->columns) &&
           place(&end, geo->columns ? ES_STORE_FILE : ES_PAGE, rows, 1, &o->rows) &&
           place(&end, ES_PAGE, 0, 1, &o->size);
}

bool es_store_layout(const es_store_geometry *geo, const es_store_parts *parts, es_store_offsets *at)
{
    if (!es_store_layout_geometry_in_range(geo) || !es_store_layout_tables_in_range(geo, parts->tables))
        return false;
    const es_output *outputs = parts->outputs;
    for (uint32_t t = 0; t < geo->num_tables; t++) {
        if (!outputs_in_range(outputs, &parts->tables[t].item, geo, parts->leaf_sizes))
            return false;
        outputs += parts->tables[t].item.num_outputs;
    }
    return offsets_of(geo, parts->leaf_sizes, parts->tables, at);
}
