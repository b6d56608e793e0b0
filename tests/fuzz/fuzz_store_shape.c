#include "fuzz_store_shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/es_store.h"

static const uint8_t uuid[16] = "fuzzed-store---";

static uint64_t leaf_size(fuzz_in *in)
{
    static const uint64_t sizes[] = {0, 1, 3, 4, 8, 40, 64, 100};
    return sizes[fuzz_below(in, sizeof sizes / sizeof *sizes)];
}

static es_selector_config draw_remover(fuzz_in *in)
{
    static const double parameters[] = {0.6, 1, 0.5, 2, 1e-300, 1e300, 10, 1e-3};
    return (es_selector_config){.kind = 1 + fuzz_below(in, 8), .parameter = parameters[fuzz_below(in, 8)], .beta = 0.4};
}

/* One of two parts, or one that chooses its temperature, can be a sampler only. */
static es_selector_config draw_sampler(fuzz_in *in)
{
    es_selector_config s = draw_remover(in);
    if (s.kind == ES_SOFTMAX && fuzz_below(in, 2) > 0)
        s.target = 0.3;
    if (s.kind == ES_UNIFORM && fuzz_below(in, 2) > 0) {
        s.kind = ES_HOT_COLD, s.share = 0.25 * fuzz_below(in, 5), s.hot_size = 1 + fuzz_below(in, 8);
        s.age = fuzz_below(in, 4), s.max_age = fuzz_below(in, 6), s.target = 0.5 * fuzz_below(in, 3);
    }
    return s;
}

/* An output that an item of several steps can have. */
static es_output draw_output(fuzz_in *in, const es_item_config *item, const uint64_t *sizes, uint32_t num_leaves)
{
    es_output o = {.leaf = fuzz_below(in, num_leaves)};
    uint32_t kind = fuzz_below(in, 8), width = 4 + 4 * fuzz_below(in, 2);
    if (item->kind == ES_ITEM_EXPLICIT) {
        o.kind = ES_OUTPUT_COLUMN, o.count = 1 + fuzz_below(in, item->length);
    } else if (kind < 4) {
        o.kind = item->kind == ES_ITEM_N_STEP && kind % 2 ? ES_OUTPUT_NEXT : ES_OUTPUT_STEPS;
        o.from = -(int32_t)fuzz_below(in, item->before + 1);
        o.count = 1 + fuzz_below(in, (item->kind == ES_ITEM_N_STEP ? 1 : item->length) + (uint32_t)-o.from);
        o.repeat = fuzz_below(in, 2);
    } else if (kind == 4) {
        o.kind = ES_OUTPUT_LENGTH;
    } else if (item->kind == ES_ITEM_SEQUENCE) {
        o.kind = ES_OUTPUT_MASK, o.count = item->length;
    } else if (kind < 7 && sizes[o.leaf] % width == 0) {
        o.kind = ES_OUTPUT_RETURN, o.width = width;
    } else {
        o.kind = ES_OUTPUT_DISCOUNT, o.width = width;
    }
    return o;
}

/* What the items of a table are, and their outputs. Each stream keeps no more than capacity. */
static es_item_config draw_item(fuzz_in *in, uint64_t capacity, const uint64_t *sizes, uint32_t num_leaves,
                                es_output *outputs)
{
    es_item_config item = {.kind = 1 + fuzz_below(in, 8) % 4, .length = 1 + fuzz_below(in, 4), .period = 1};
    uint64_t room = capacity; /* the span, and one step */
    if (item.kind == ES_ITEM_SEQUENCE)
        item.period = 1 + fuzz_below(in, item.length), item.padded = fuzz_below(in, 2);
    if (item.kind == ES_ITEM_N_STEP)
        item.before = fuzz_below(in, 3), item.gamma = fuzz_below(in, 5) / 4.0;
    if (item.kind == ES_ITEM_STEP || es_store_layout_span(&item) + UINT64_C(1) > room) {
        item = (es_item_config){.kind = ES_ITEM_STEP, .length = 1, .period = 1, .num_outputs = num_leaves};
        for (uint32_t l = 0; l < num_leaves; l++)
            outputs[l] = (es_output){.kind = ES_OUTPUT_STEPS, .leaf = l, .count = 1};
        return item;
    }
    item.num_outputs = 1 + fuzz_below(in, FUZZ_MAX_OUTPUTS);
    for (uint32_t i = 0; i < item.num_outputs; i++)
        outputs[i] = draw_output(in, &item, sizes, num_leaves);
    return item;
}

static es_table_config draw_table(fuzz_in *in, uint32_t number)
{
    es_table_config t = {.name = {(char)('a' + number)}, .sampler = draw_sampler(in), .remover = draw_remover(in)};
    t.max_size = 1 + fuzz_below(in, 12);
    t.max_times_sampled = fuzz_below(in, 4) == 0 ? 1 + fuzz_below(in, 3) : 0;
    t.min_size = 1 + fuzz_below(in, 3);
    t.ratio = fuzz_below(in, 2) ? 1 : 4;
    t.min_diff = fuzz_below(in, 2) ? 0 : -INFINITY;
    t.max_diff = fuzz_below(in, 3) ? INFINITY : 8;
    t.max_parked = fuzz_below(in, 4);
    t.replacement = fuzz_below(in, 3) > 0 || t.sampler.kind == ES_HOT_COLD;
    t.is_protected = fuzz_below(in, 6) == 0;
    return t;
}

/* Half of the tables of all windows have the other settings with which these are implicit. */
static void make_implicit(es_table_config *t)
{
    if (t->item.kind != ES_ITEM_SEQUENCE || t->item.period != 1 || t->ratio > 1)
        return;
    t->sampler = (es_selector_config){.kind = ES_UNIFORM};
    t->remover = (es_selector_config){.kind = ES_FIFO};
    t->max_times_sampled = t->is_protected = 0;
    t->replacement = 1;
    t->max_diff = INFINITY;
    FUZZ_CHECK(es_store_layout_is_implicit(t));
}

uint8_t *fuzz_draw_store(fuzz_in *in, uint64_t *size)
{
    uint64_t sizes[3];
    es_table_config tables[3];
    es_output outputs[3 * FUZZ_MAX_OUTPUTS], *next = outputs;
    uint8_t schema[64];
    es_store_geometry geo = {.capacity = 1 + fuzz_below(in, 16),
                             .max_items = 1 + fuzz_below(in, 32),
                             .seed = fuzz_byte(in),
                             .num_leaves = 1 + fuzz_below(in, 3),
                             .num_tables = 1 + fuzz_below(in, 3),
                             .schema_size = fuzz_below(in, sizeof schema),
                             .inbox_slots = fuzz_below(in, 4),
                             .update_slots = fuzz_below(in, 4),
                             .columns = fuzz_below(in, 8) == 0,
                             .notes = fuzz_below(in, 20)};
    if (geo.columns)
        geo.spare = fuzz_below(in, 8);
    for (uint32_t l = 0; l < geo.num_leaves; l++)
        sizes[l] = leaf_size(in);
    for (uint32_t t = 0; t < geo.num_tables; t++) {
        tables[t] = draw_table(in, t);
        tables[t].item = draw_item(in, geo.capacity, sizes, geo.num_leaves, next);
        next += tables[t].item.num_outputs;
        make_implicit(&tables[t]);
    }
    memset(schema, '0', sizeof schema);
    es_store_parts parts = {sizes, tables, outputs, schema};
    *size = es_store_size(&geo, &parts);
    FUZZ_CHECK(*size != 0 && *size <= FUZZ_MAX_STORE);
    uint8_t *base = fuzz_block(*size);
    FUZZ_CHECK(es_store_format(base, *size, &geo, &parts, uuid, 1, 1) == ES_OK);
    return base;
}

/* --- damage -------------------------------------------------------------------------- */

static void put(uint8_t *base, uint64_t size, uint64_t at, uint64_t width, uint64_t value)
{
    if (at < size && width <= size - at)
        memcpy(base + at, &value, width);
}

static uint64_t get(const uint8_t *base, uint64_t size, uint64_t at, uint64_t width)
{
    uint64_t value = 0;
    if (at < size && width <= size - at)
        memcpy(&value, base + at, width);
    return value;
}

/* What the store says of a ring's batch. */
typedef struct rounds {
    uint64_t round;
} rounds;

/* A field of a part: where the header says that the part is; bytes from one entry to the next; the field. */
static const struct field {
    uint16_t part, step, at, width;
} fields[] = {
/* First those that change while a store is used. */
#define HEADER(name)                                                                          \
    {                                                                                         \
        UINT16_MAX, 0, offsetof(es_store_header, name), sizeof((es_store_header *)NULL)->name \
    }
#define PART(name, type, field)                                                                              \
    {                                                                                                        \
        offsetof(es_store_header, at.name), sizeof(type), offsetof(type, field), sizeof((type *)NULL)->field \
    }
    PART(inbox, rounds, round),
    PART(updates, rounds, round),
    HEADER(inbox.known),
    HEADER(outboxes[0].drawn),
    HEADER(outboxes[0].ring.known),
    PART(words, es_table_words, inserted),
    PART(words, es_table_words, sampled),
    PART(words, es_table_words, evicted),
    PART(words, es_table_words, clock),
    PART(words, es_table_words, highest),
    PART(words, es_table_words, random),
    PART(words, es_table_words, round),
    PART(words, es_table_words, resetting),
    PART(words, es_table_words, parkings),
    PART(words, es_table_words, cold),
    PART(words, es_table_words, gone),
    PART(words, es_table_words, marked),
    PART(words, es_table_words, tune_at),
    PART(words, es_table_words, temperature[0]),
    PART(words, es_table_words, temperature[1]),
    PART(words, es_table_words, min_diff),
    PART(words, es_table_words, max_diff),
    HEADER(notes),
    PART(redo, es_redo_entry, offset), /* the first is the length */
    PART(redo, es_redo_entry, value),
    PART(steps, es_step_record, word),
    PART(steps, es_step_record, stream),
    PART(steps, es_step_record, number),
    PART(steps, es_step_record, environment),
    PART(steps, es_step_record, episode),
    PART(steps, es_step_record, arrival),
    PART(steps, es_step_record, index),
    {offsetof(es_store_header, at.marks), sizeof(uint64_t), 0, sizeof(uint64_t)},
    PART(items, es_item_record, word),
    PART(items, es_item_record, step),
    PART(items, es_item_record, length),
    PART(items, es_item_record, priority),
    PART(items, es_item_record, times_sampled),
    PART(items, es_item_record, inserted),
    PART(items, es_item_record, updated),
    PART(items, es_item_record, round),
    PART(items, es_item_record, before),
    PART(items, es_item_record, flags),
    PART(columns, es_item_column, back),
    PART(columns, es_item_column, stride),
    HEADER(making.step),
    HEADER(making.made),
    HEADER(making.park),
    HEADER(making.priorities[0]),
    HEADER(making.priorities[1]),
#define NUM_WORDS 48 /* so many */
    HEADER(magic),
    HEADER(version),
    HEADER(geo.capacity),
    HEADER(geo.max_items),
    HEADER(geo.num_leaves),
    HEADER(geo.num_tables),
    HEADER(geo.schema_size),
    HEADER(geo.inbox_slots),
    HEADER(geo.update_slots),
    HEADER(geo.columns),
    HEADER(geo.spare),
    HEADER(geo.notes),
    HEADER(at.leaves),
    HEADER(at.schema),
    HEADER(at.tables),
    HEADER(at.outputs),
    HEADER(at.columns),
    HEADER(at.words),
    HEADER(at.redo),
    HEADER(at.notes),
    HEADER(at.steps),
    HEADER(at.items),
    HEADER(at.rows),
    HEADER(at.size),
    HEADER(at.row_size),
    HEADER(at.redo_room),
    HEADER(hash),
    HEADER(arrivals),
    PART(leaves, es_store_leaf, offset), /* two sizes are as long as an es_store_leaf */
    PART(leaves, es_store_leaf, size),
    PART(leaves, es_store_leaf, stride),
    PART(tables, es_table_config, name[0]),
    PART(tables, es_table_config, sampler.kind),
    PART(tables, es_table_config, sampler.parameter),
    PART(tables, es_table_config, sampler.target),
    PART(tables, es_table_config, sampler.share),
    PART(tables, es_table_config, sampler.hot_size),
    PART(tables, es_table_config, sampler.age),
    PART(tables, es_table_config, remover.kind),
    PART(tables, es_table_config, remover.parameter),
    PART(tables, es_table_config, max_size),
    PART(tables, es_table_config, max_times_sampled),
    PART(tables, es_table_config, min_size),
    PART(tables, es_table_config, ratio),
    PART(tables, es_table_config, max_diff),
    PART(tables, es_table_config, max_parked),
    PART(tables, es_table_config, replacement),
    PART(tables, es_table_config, is_protected),
    PART(tables, es_table_config, item.kind),
    PART(tables, es_table_config, item.length),
    PART(tables, es_table_config, item.period),
    PART(tables, es_table_config, item.before),
    PART(tables, es_table_config, item.padded),
    PART(tables, es_table_config, item.num_outputs),
    PART(tables, es_table_config, item.gamma),
    PART(outputs, es_output, kind),
    PART(outputs, es_output, leaf),
    PART(outputs, es_output, count),
    PART(outputs, es_output, width),
    PART(outputs, es_output, from),
    PART(outputs, es_output, repeat),
#undef HEADER
#undef PART
};

/* Doubles that arithmetic does not expect, and records in other states. */
static uint64_t special(fuzz_in *in, uint64_t was)
{
    static const double numbers[] = {NAN, INFINITY, -INFINITY, -1, -0.0, 1e308, 5e-324, 0x1p991};
    uint32_t kind = fuzz_below(in, 16);
    if (kind < 8) {
        uint64_t bits;
        memcpy(&bits, &numbers[kind], sizeof bits);
        return bits;
    }
    return kind < 14 ? (was & ~UINT64_C(0xff)) | kind % 3 : was + (UINT64_C(1) << 32);
}

/* Makes the record of any item one that could be: of a living step, as old as another. */
static void plant_item(fuzz_in *in, uint8_t *base, uint64_t size)
{
    uint64_t items = get(base, size, offsetof(es_store_header, at.items), 8);
    uint64_t from = items + fuzz_below(in, 24) * sizeof(es_item_record);
    uint64_t to = items + fuzz_below(in, 48) * sizeof(es_item_record);
    if (from >= size || to >= size || size - from < sizeof(es_item_record) || size - to < sizeof(es_item_record))
        return;
    memmove(base + to, base + from, sizeof(es_item_record));
    put(base, size, to, 1, 1 + fuzz_below(in, 2));
}

void fuzz_store_edit(fuzz_in *in, uint8_t *base, uint64_t size)
{
    uint32_t kind = fuzz_byte(in);
    uint64_t at, width;
    if (kind < 40) {
        plant_item(in, base, size);
        return;
    }
    if (kind < 232) {
        const struct field *f = &fields[fuzz_below(in, kind < 190 ? NUM_WORDS : sizeof fields / sizeof *fields)];
        uint64_t part = f->part == UINT16_MAX ? 0 : get(base, size, f->part, 8);
        uint64_t entry = fuzz_byte(in);
        entry = entry % (entry < 128 ? 3 : 24); /* of some parts there are few */
        at = (part < size ? part : 0) + f->step * entry + f->at;
        width = f->width;
    } else {
        at = ((uint64_t)fuzz_byte(in) << 8 | fuzz_byte(in)) % (size > 0 ? size : 1);
        width = UINT64_C(1) << fuzz_below(in, 4);
    }
    uint64_t was = get(base, size, at, width);
    put(base, size, at, width, width == 8 && fuzz_below(in, 2) ? special(in, was) : fuzz_value(in, was));
}

/* Copies a part of a damaged store, or NULL if it is not inside. */
static void *copy_of(const uint8_t *base, uint64_t size, uint64_t at, uint64_t bytes)
{
    if (at > size || bytes > size - at)
        return NULL;
    void *copy = malloc(bytes + 1);
    memcpy(copy, base + at, bytes);
    return copy;
}

/* The outputs are where tables say how many there are. Writes good parts where they belong. */
static uint64_t repair(uint8_t *base, uint64_t size, bool offsets, const es_store_parts *parts, uint64_t num_outputs)
{
    es_store_header *hdr = (es_store_header *)base;
    const es_store_geometry *geo = &hdr->geo;
    uint64_t total = es_store_size(geo, parts);
    if (total == 0 || total > FUZZ_MAX_STORE)
        return 0;
    uint8_t *made = fuzz_block(total);
    FUZZ_CHECK(es_store_format(made, total, geo, parts, hdr->uuid, hdr->pid, hdr->created_ns) == ES_OK);
    const es_store_header *good = (const es_store_header *)made;
    if (offsets && total <= size) { /* the parts that are hashed may have to move */
        memcpy(base + good->at.leaves, parts->leaf_sizes, geo->num_leaves * sizeof *parts->leaf_sizes);
        memcpy(base + good->at.schema, parts->schema, geo->schema_size);
        memcpy(base + good->at.tables, parts->tables, geo->num_tables * sizeof *parts->tables);
        memcpy(base + good->at.outputs, parts->outputs, num_outputs * sizeof *parts->outputs);
    }
    hdr->hash = good->hash;
    if (offsets)
        hdr->at = good->at;
    free(made);
    return total;
}

uint64_t fuzz_store_repair(uint8_t *base, uint64_t size, bool offsets)
{
    es_store_header *hdr = (es_store_header *)base;
    if (size < sizeof *hdr)
        return 0;
    const es_store_geometry *geo = &hdr->geo;
    const es_store_offsets *at = &hdr->at;
    if (geo->num_leaves > 64 || geo->num_tables > 8 || geo->schema_size > size)
        return 0;
    uint64_t *leaf_sizes = copy_of(base, size, at->leaves, geo->num_leaves * sizeof *leaf_sizes);
    es_table_config *tables = copy_of(base, size, at->tables, geo->num_tables * sizeof *tables);
    uint8_t *schema = copy_of(base, size, at->schema, geo->schema_size);
    uint64_t count = tables == NULL ? 0 : es_store_layout_count_outputs(geo, tables), total = 0;
    es_output *outputs = count > 64 ? NULL : copy_of(base, size, at->outputs, count * sizeof *outputs);
    es_store_parts parts = {leaf_sizes, tables, outputs, schema};
    if (leaf_sizes != NULL && tables != NULL && schema != NULL && outputs != NULL)
        total = repair(base, size, offsets, &parts, count);
    free(leaf_sizes);
    free(tables);
    free(schema);
    free(outputs);
    return total;
}
