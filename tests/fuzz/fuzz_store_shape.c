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

static es_selector_config draw_selector(fuzz_in *in)
{
    static const double parameters[] = {0.6, 1, 0.5, 2, 1e-300, 1e300, 10, 1e-3};
    return (es_selector_config){.kind = 1 + fuzz_below(in, 8), .parameter = parameters[fuzz_below(in, 8)], .beta = 0.4};
}

static es_table_config draw_table(fuzz_in *in, uint32_t number)
{
    es_table_config t = {.name = {(char)('a' + number)}, .sampler = draw_selector(in), .remover = draw_selector(in)};
    t.max_size = 1 + fuzz_below(in, 12);
    t.max_times_sampled = fuzz_below(in, 4) == 0 ? 1 + fuzz_below(in, 3) : 0;
    t.min_size = 1 + fuzz_below(in, 3);
    t.ratio = fuzz_below(in, 2) ? 1 : 4;
    t.min_diff = fuzz_below(in, 2) ? 0 : -INFINITY;
    t.max_diff = fuzz_below(in, 3) ? INFINITY : 8;
    t.max_parked = fuzz_below(in, 4);
    t.replacement = fuzz_below(in, 3) > 0;
    t.is_protected = fuzz_below(in, 6) == 0;
    return t;
}

uint8_t *fuzz_draw_store(fuzz_in *in, uint64_t *size)
{
    uint64_t sizes[3];
    es_table_config tables[3];
    uint8_t schema[64];
    es_store_geometry geo = {.capacity = 1 + fuzz_below(in, 16),
                             .max_items = 1 + fuzz_below(in, 32),
                             .seed = fuzz_byte(in),
                             .num_leaves = 1 + fuzz_below(in, 3),
                             .num_tables = 1 + fuzz_below(in, 3),
                             .schema_size = fuzz_below(in, sizeof schema),
                             .inbox_slots = fuzz_below(in, 4),
                             .update_slots = fuzz_below(in, 4)};
    for (uint32_t l = 0; l < geo.num_leaves; l++)
        sizes[l] = leaf_size(in);
    for (uint32_t t = 0; t < geo.num_tables; t++)
        tables[t] = draw_table(in, t);
    memset(schema, '0', sizeof schema);
    *size = es_store_size(&geo, sizes, tables);
    FUZZ_CHECK(*size != 0 && *size <= FUZZ_MAX_STORE);
    uint8_t *base = fuzz_block(*size);
    FUZZ_CHECK(es_store_format(base, *size, &geo, sizes, tables, schema, uuid, 1, 1) == ES_OK);
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
    PART(redo, es_redo_entry, offset), /* the first is the length */
    PART(redo, es_redo_entry, value),
    PART(steps, es_step_record, word),
    PART(steps, es_step_record, stream),
    PART(steps, es_step_record, number),
    PART(steps, es_step_record, environment),
    PART(steps, es_step_record, episode),
    PART(steps, es_step_record, arrival),
    PART(items, es_item_record, word),
    PART(items, es_item_record, step),
    PART(items, es_item_record, length),
    PART(items, es_item_record, priority),
    PART(items, es_item_record, times_sampled),
    PART(items, es_item_record, inserted),
    PART(items, es_item_record, updated),
    PART(items, es_item_record, round),
#define NUM_WORDS 30 /* so many */
    HEADER(magic),
    HEADER(version),
    HEADER(geo.capacity),
    HEADER(geo.max_items),
    HEADER(geo.num_leaves),
    HEADER(geo.num_tables),
    HEADER(geo.schema_size),
    HEADER(geo.inbox_slots),
    HEADER(geo.update_slots),
    HEADER(at.leaves),
    HEADER(at.schema),
    HEADER(at.tables),
    HEADER(at.words),
    HEADER(at.redo),
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
    PART(tables, es_table_config, name[0]),
    PART(tables, es_table_config, sampler.kind),
    PART(tables, es_table_config, sampler.parameter),
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

uint64_t fuzz_store_repair(uint8_t *base, uint64_t size, bool offsets)
{
    es_store_header *hdr = (es_store_header *)base;
    if (size < sizeof *hdr)
        return 0;
    const es_store_geometry *geo = &hdr->geo;
    const es_store_offsets *at = &hdr->at;
    uint64_t leaf_bytes = geo->num_leaves * sizeof(uint64_t), table_bytes = geo->num_tables * sizeof(es_table_config);
    if (geo->num_leaves > 64 || geo->num_tables > 8 || geo->schema_size > size || at->leaves > size ||
        leaf_bytes > size - at->leaves || at->tables > size || table_bytes > size - at->tables || at->schema > size ||
        geo->schema_size > size - at->schema)
        return 0;
    uint64_t *leaf_sizes = malloc(leaf_bytes + 1);
    es_table_config *tables = malloc(table_bytes + 1);
    uint8_t *schema = malloc(geo->schema_size + 1);
    memcpy(leaf_sizes, base + at->leaves, leaf_bytes);
    memcpy(tables, base + at->tables, table_bytes);
    memcpy(schema, base + at->schema, geo->schema_size);
    uint64_t total = es_store_size(geo, leaf_sizes, tables);
    if (total > FUZZ_MAX_STORE)
        total = 0;
    if (total != 0) {
        uint8_t *made = fuzz_block(total);
        FUZZ_CHECK(es_store_format(made, total, geo, leaf_sizes, tables, schema, hdr->uuid, hdr->pid,
                                   hdr->created_ns) == ES_OK);
        const es_store_header *good = (const es_store_header *)made;
        if (offsets && total <= size) { /* the parts that are hashed may have to move */
            memcpy(base + good->at.leaves, leaf_sizes, leaf_bytes);
            memcpy(base + good->at.schema, schema, geo->schema_size);
            memcpy(base + good->at.tables, tables, table_bytes);
        }
        hdr->hash = good->hash;
        if (offsets)
            hdr->at = good->at;
        free(made);
    }
    free(leaf_sizes);
    free(tables);
    free(schema);
    return total;
}
