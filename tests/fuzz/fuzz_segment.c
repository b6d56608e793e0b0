#include "fuzz_segment.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t uuid[16] = "fuzzed-segment-";

static uint64_t leaf_size(fuzz_in *in)
{
    static const uint64_t sizes[] = {0, 1, 3, 4, 8, 40, 64, 100};
    return sizes[fuzz_below(in, sizeof sizes / sizeof *sizes)];
}

fuzz_shape fuzz_draw_shape(fuzz_in *in)
{
    fuzz_shape shape = {.geo = {.batch_size = 1 + fuzz_below(in, 8),
                                .num_batches = 1 + fuzz_below(in, 6),
                                .reap_interval_ns = 1000,
                                .max_producers = 1 + fuzz_below(in, 4),
                                .num_leaves = 1 + fuzz_below(in, FUZZ_MAX_LEAVES),
                                .schema_size = fuzz_byte(in),
                                .flags = fuzz_below(in, 4)}};
    for (uint32_t l = 0; l < shape.geo.num_leaves; l++)
        shape.leaf_sizes[l] = leaf_size(in);
    return shape;
}

uint8_t *fuzz_draw_segment(fuzz_in *in, const fuzz_shape *shape, uint64_t *size)
{
    uint8_t schema[256];
    /* A schema of zeros can pass as a longer leaf table. A schema of text cannot. */
    uint8_t first = fuzz_byte(in);
    for (uint32_t i = 0; i < shape->geo.schema_size; i++)
        schema[i] = first % 2 ? (uint8_t)('0' + i % 10) : 0;
    schema[0] = first;
    *size = es_layout_size(&shape->geo, shape->leaf_sizes);
    FUZZ_CHECK(*size != 0 && *size <= FUZZ_MAX_SEGMENT);
    uint8_t *base = fuzz_block(*size);
    FUZZ_CHECK(es_layout_format(base, *size, &shape->geo, shape->leaf_sizes, schema, uuid, 1, 1) == ES_OK);
    return base;
}

/* Where a table lies according to the header, kept inside the block. The block may be too short for a header. */
static uint64_t table(const uint8_t *base, uint64_t size, size_t offset_field)
{
    uint64_t at = 0;
    if (size >= sizeof(es_header))
        memcpy(&at, base + offset_field, sizeof at);
    return at < size ? at : 0;
}

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

static const struct field {
    uint16_t at, width;
} header_fields[] = {
#define FIELD(name)                                                \
    {                                                              \
        offsetof(es_header, name), sizeof((es_header *)NULL)->name \
    }
    FIELD(magic),
    FIELD(version),
    FIELD(header_size),
    FIELD(format_hash),
    FIELD(geometry.batch_size),
    FIELD(geometry.num_batches),
    FIELD(geometry.reap_interval_ns),
    FIELD(geometry.max_producers),
    FIELD(geometry.num_leaves),
    FIELD(geometry.schema_size),
    FIELD(geometry.flags),
    FIELD(offsets.leaves),
    FIELD(offsets.schema),
    FIELD(offsets.owners),
    FIELD(offsets.slots),
    FIELD(offsets.batches),
    FIELD(offsets.hists),
    FIELD(offsets.data),
    FIELD(offsets.total),
    FIELD(creator_pid),
    FIELD(created_ns),
    FIELD(tail),
    FIELD(head),
    FIELD(reopen_seq),
    FIELD(given_back_seq),
    FIELD(closed),
    FIELD(owners_high),
    FIELD(owners_high),
    FIELD(closed_ns),
    FIELD(ready_seq),
    FIELD(learner_sleeps),
    FIELD(space_seq),
    FIELD(producers_sleep),
    FIELD(totals.batches_taken),
    FIELD(totals.batches_released),
    FIELD(totals.occupancy_max),
    FIELD(totals.active_producers),
#undef FIELD
};

static const struct table {
    uint16_t offset_field, step, field, width;
} tables[] = {
#define TABLE(name, step, field, width)                             \
    {                                                               \
        offsetof(es_header, offsets.name), (step), (field), (width) \
    }
    TABLE(leaves, 8, 0, 8),
    TABLE(schema, 1, 0, 1),
    TABLE(owners, sizeof(es_owner), offsetof(es_owner, state), 4),
    TABLE(owners, sizeof(es_owner), offsetof(es_owner, role), 4),
    TABLE(owners, sizeof(es_owner), offsetof(es_owner, pid), 8),
    TABLE(owners, sizeof(es_owner), offsetof(es_owner, start_time_bits), 8),
    TABLE(slots, 8, 0, 8),
    TABLE(batches, sizeof(es_batch), offsetof(es_batch, word), 8),
    TABLE(batches, sizeof(es_batch), offsetof(es_batch, count), 4),
    TABLE(batches, sizeof(es_batch), offsetof(es_batch, leased_ns), 8),
    TABLE(hists, 8, 0, 8),
#undef TABLE
};

/* A word that some ring could have, or nearly: [lap or round | owner | state]. */
static uint64_t packed(fuzz_in *in)
{
    static const uint16_t owners[] = {0, 1, 2, 63, 64, 65, 66, 68, 69, 0xffff};
    uint64_t lap = fuzz_byte(in), state = fuzz_byte(in);
    if (lap >= 192) /* the last laps before 2^44 */
        lap = (UINT64_C(1) << 44) - (256 - lap);
    return lap << 20 | (uint64_t)owners[fuzz_below(in, 10)] << 4 | (state < 192 ? state % 6 : state & 15);
}

/* Makes an entry LIVE that no process holds, among the entries that a sweep reads. */
static void plant_owner(fuzz_in *in, uint8_t *base, uint64_t size)
{
    uint64_t owners = table(base, size, offsetof(es_header, offsets.owners)), index = fuzz_byte(in) % 80;
    put(base, size, owners + index * sizeof(es_owner) + offsetof(es_owner, state), 4, ES_OWNER_LIVE);
    put(base, size, owners + index * sizeof(es_owner) + offsetof(es_owner, role), 4, 1 + index % 2);
    put(base, size, offsetof(es_header, owners_high), 4, 80);
}

void fuzz_edit(fuzz_in *in, uint8_t *base, uint64_t size)
{
    uint32_t kind = fuzz_byte(in);
    uint64_t at, width;
    if (kind < 8) {
        plant_owner(in, base, size);
        return;
    }
    if (kind < 96) {
        const struct field *f = &header_fields[fuzz_below(in, sizeof header_fields / sizeof *header_fields)];
        at = f->at;
        width = f->width;
    } else if (kind < 224) {
        const struct table *t = &tables[kind % (sizeof tables / sizeof *tables)];
        at = table(base, size, t->offset_field) + (uint64_t)t->step * fuzz_byte(in) + t->field;
        width = t->width;
        if (width == 8 && t->step != 1 && fuzz_below(in, 2)) {
            put(base, size, at, 8, packed(in));
            return;
        }
    } else {
        at = ((uint64_t)fuzz_byte(in) << 8 | fuzz_byte(in)) % (size > 0 ? size : 1);
        width = UINT64_C(1) << fuzz_below(in, 4);
    }
    put(base, size, at, width, fuzz_value(in, get(base, size, at, width)));
}

bool fuzz_repair(uint8_t *base, uint64_t size, bool offsets)
{
    if (size < sizeof(es_header))
        return false;
    es_header *hdr = (es_header *)base;
    const uint64_t leaves_at = (sizeof *hdr + ES_CACHE_LINE - 1) & ~(uint64_t)(ES_CACHE_LINE - 1);
    uint64_t num_leaves = hdr->geometry.num_leaves, schema_size = hdr->geometry.schema_size;
    uint64_t schema_at = (leaves_at + num_leaves * 8 + ES_CACHE_LINE - 1) & ~(uint64_t)(ES_CACHE_LINE - 1);
    if (num_leaves > ES_MAX_LEAVES || schema_size > ES_MAX_SCHEMA || schema_at + schema_size > size)
        return false;
    /* es_layout_format() writes only header, leaf table and schema, so only these get room. */
    uint8_t *made = fuzz_block(schema_at + schema_size);
    uint64_t *leaf_sizes = malloc(num_leaves * sizeof *leaf_sizes + 1);
    memcpy(leaf_sizes, base + leaves_at, num_leaves * sizeof *leaf_sizes);
    bool ok =
        es_layout_format(made, UINT64_MAX, &hdr->geometry, leaf_sizes, base + schema_at, hdr->uuid, 1, 1) == ES_OK;
    if (ok) {
        es_header *good = (es_header *)made;
        hdr->format_hash = good->format_hash;
        if (offsets)
            hdr->offsets = good->offsets;
    }
    hdr->offsets.total = ok && offsets ? hdr->offsets.total : size;
    free(leaf_sizes);
    free(made);
    return ok;
}
