#include "replay/es_store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC UINT64_C(0x79616c7065722d73) /* "s-replay" */
#define VERSION 2u

/* Words that one step may change: its own, the counter of arrivals, the round of the ring that brought it, and for each
 * table an item's word and orders, and counters. */
#define STEP_ROOM(tables) (8 + 8 * (uint64_t)(tables))
/* Words that ES_STORE_DRAWS draws change: an item's each, the table's counters, and the position that they went to. */
#define DRAW_ROOM (ES_STORE_DRAWS + 8)
#define REDO_ROOM(tables) (STEP_ROOM(tables) > DRAW_ROOM ? STEP_ROOM(tables) : DRAW_ROOM)

static bool finite_at_least(double value, double least)
{
    return isfinite(value) && value >= least;
}

static bool selector_in_range(const es_selector_config *s)
{
    bool weights = s->kind == ES_PRIORITIZED || s->kind == ES_SOFTMAX;
    return s->kind >= ES_UNIFORM && s->kind <= ES_CUSTOM && s->zero == 0 &&
           (!weights || (finite_at_least(s->parameter, 0) && finite_at_least(s->beta, 0))) &&
           (s->kind != ES_SOFTMAX || s->parameter > 0);
}

static bool table_in_range(const es_table_config *t)
{
    return memchr(t->name, 0, sizeof t->name) != NULL && t->name[0] != 0 && selector_in_range(&t->sampler) &&
           selector_in_range(&t->remover) && t->max_size >= 1 && t->min_size >= 1 && isfinite(t->ratio) &&
           t->ratio > 0 && !isnan(t->min_diff) && !isnan(t->max_diff) && t->max_parked <= ES_STORE_MAX_ITEMS &&
           t->replacement <= 1 && t->is_protected <= 1;
}

static bool geometry_in_range(const es_store_geometry *geo)
{
    return geo->capacity >= 1 && geo->capacity <= ES_STORE_MAX_STEPS && geo->max_items >= 1 &&
           geo->max_items <= ES_STORE_MAX_ITEMS && geo->num_leaves >= 1 && geo->num_leaves <= ES_STORE_MAX_LEAVES &&
           geo->num_tables >= 1 && geo->num_tables <= ES_MAX_TABLES && geo->schema_size <= ES_STORE_MAX_SCHEMA &&
           geo->inbox_slots <= ES_STORE_MAX_SOURCE && geo->update_slots <= ES_STORE_MAX_SOURCE && geo->zero == 0;
}

/* How many records a table has: what it may hold, one more while the remover has not picked yet, and what is parked. */
static uint64_t item_slots(const es_store_geometry *geo, const es_table_config *table)
{
    uint64_t most = table->max_size < geo->max_items ? table->max_size : geo->max_items;
    return most + 1 + table->max_parked;
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

/* Where each leaf is in a row: those of large alignment first. *row_size is a multiple of the largest. */
static bool place_leaves(uint32_t n, const uint64_t *sizes, es_store_leaf *leaves, uint64_t *row_size)
{
    uint64_t end = 0, widest = 1, at;
    for (uint64_t align = ES_CACHE_LINE; align >= 1; align /= 2)
        for (uint32_t i = 0; i < n; i++) {
            if (leaf_alignment(sizes[i]) != align)
                continue;
            if (!place(&end, align, 1, sizes[i], &at) || end > ES_STORE_MAX_ROW)
                return false;
            widest = align > widest ? align : widest;
            if (leaves != NULL)
                leaves[i] = (es_store_leaf){at, sizes[i]};
        }
    return place(&end, widest, 0, 1, row_size);
}

static bool offsets_of(const es_store_geometry *geo, const uint64_t *leaf_sizes, const es_table_config *tables,
                       es_store_offsets *o)
{
    if (!geometry_in_range(geo))
        return false;
    uint64_t end = sizeof(es_store_header), items = 0;
    for (uint32_t t = 0; t < geo->num_tables; t++) {
        if (!table_in_range(&tables[t]))
            return false;
        items += item_slots(geo, &tables[t]);
    }
    o->redo_room = REDO_ROOM(geo->num_tables);
    return items < UINT32_MAX && place_leaves(geo->num_leaves, leaf_sizes, NULL, &o->row_size) &&
           place(&end, ES_CACHE_LINE, geo->num_leaves, sizeof(uint64_t), &o->leaves) &&
           place(&end, ES_CACHE_LINE, geo->schema_size, 1, &o->schema) &&
           place(&end, ES_CACHE_LINE, geo->num_tables, sizeof(es_table_config), &o->tables) &&
           place(&end, ES_CACHE_LINE, geo->num_tables, sizeof(es_table_words), &o->words) &&
           place(&end, ES_CACHE_LINE, geo->inbox_slots, sizeof(uint64_t), &o->inbox) &&
           place(&end, ES_CACHE_LINE, geo->update_slots, sizeof(uint64_t), &o->updates) &&
           place(&end, ES_CACHE_LINE, 1, sizeof(es_redo_log) + o->redo_room * sizeof(es_redo_entry), &o->redo) &&
           place(&end, ES_PAGE, geo->capacity + 1, sizeof(es_step_record), &o->steps) &&
           place(&end, ES_PAGE, items, sizeof(es_item_record), &o->items) &&
           place(&end, ES_PAGE, geo->capacity + 1, o->row_size, &o->rows) && place(&end, ES_PAGE, 0, 1, &o->size);
}

uint64_t es_store_size(const es_store_geometry *geo, const uint64_t *leaf_sizes, const es_table_config *tables)
{
    es_store_offsets o;
    return offsets_of(geo, leaf_sizes, tables, &o) ? o.size : 0;
}

static uint64_t mix(uint64_t h, const void *data, uint64_t n)
{
    const uint8_t *bytes = data;
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return h;
}

static uint64_t hash_of(const uint8_t *base, const es_store_header *hdr)
{
    uint64_t h = mix(UINT64_C(0xcbf29ce484222325), hdr, offsetof(es_store_header, hash));
    h = mix(h, base + hdr->at.leaves, hdr->geo.num_leaves * sizeof(uint64_t));
    h = mix(h, base + hdr->at.schema, hdr->geo.schema_size);
    return mix(h, base + hdr->at.tables, hdr->geo.num_tables * sizeof(es_table_config));
}

int es_store_format(void *base, uint64_t size, const es_store_geometry *geo, const uint64_t *leaf_sizes,
                    const es_table_config *tables, const void *schema, const uint8_t *uuid, int64_t pid,
                    int64_t created_ns)
{
    es_store_header *hdr = base;
    es_store_offsets at;
    if (!offsets_of(geo, leaf_sizes, tables, &at) || size < at.size)
        return ES_EGEOMETRY;
    hdr->version = VERSION;
    hdr->geo = *geo;
    hdr->at = at;
    memcpy(hdr->uuid, uuid, sizeof hdr->uuid);
    hdr->pid = pid;
    hdr->created_ns = created_ns;
    memcpy((uint8_t *)base + at.leaves, leaf_sizes, geo->num_leaves * sizeof *leaf_sizes);
    memcpy((uint8_t *)base + at.schema, schema, geo->schema_size);
    memcpy((uint8_t *)base + at.tables, tables, geo->num_tables * sizeof *tables);
    es_table_words *words = (es_table_words *)((uint8_t *)base + at.words);
    for (uint32_t t = 0; t < geo->num_tables; t++)
        words[t] = (es_table_words){.highest = 1, .round = 1, .random = geo->seed + t * UINT64_C(0x632be59bd9b4e019)};
    hdr->hash = mix(hash_of(base, hdr), &(uint64_t){MAGIC}, sizeof(uint64_t));
    ES_COMPILER_BARRIER(); /* a store with its magic number is complete */
    *(volatile uint64_t *)&hdr->magic = MAGIC;
    return ES_OK;
}

/* Reads the header and what it names. The copies in *hdr, *leaf_sizes and *tables (to be freed) are the ones that
 * were checked. */
static int read_header(const uint8_t *base, uint64_t size, es_store_header *hdr, uint64_t **leaf_sizes,
                       es_table_config **tables)
{
    *leaf_sizes = NULL, *tables = NULL;
    if (size < sizeof *hdr)
        return ES_ESIZE;
    memcpy(hdr, base, sizeof *hdr);
    if (hdr->magic != MAGIC)
        return hdr->magic == 0 ? ES_EINIT : ES_EMAGIC;
    if (hdr->version != VERSION)
        return ES_EVERSION;
    if (!geometry_in_range(&hdr->geo))
        return ES_EGEOMETRY;
    const es_store_offsets *at = &hdr->at;
    uint64_t leaf_bytes = hdr->geo.num_leaves * sizeof(uint64_t);
    uint64_t table_bytes = hdr->geo.num_tables * sizeof(es_table_config);
    if (at->leaves > size || leaf_bytes > size - at->leaves || at->tables > size || table_bytes > size - at->tables ||
        at->schema > size || hdr->geo.schema_size > size - at->schema)
        return ES_EOFFSET;
    *leaf_sizes = malloc(leaf_bytes);
    *tables = malloc(table_bytes);
    if (*leaf_sizes == NULL || *tables == NULL)
        return -ENOMEM;
    memcpy(*leaf_sizes, base + at->leaves, leaf_bytes);
    memcpy(*tables, base + at->tables, table_bytes);
    es_store_offsets expected;
    memset(&expected, 0, sizeof expected);
    if (!offsets_of(&hdr->geo, *leaf_sizes, *tables, &expected))
        return ES_EGEOMETRY;
    if (memcmp(&expected, at, sizeof expected) != 0)
        return ES_EOFFSET;
    if (size < at->size)
        return ES_ESIZE;
    uint64_t magic = MAGIC;
    es_store_header unborn = *hdr;
    unborn.magic = 0;
    return mix(hash_of(base, &unborn), &magic, sizeof magic) == hdr->hash ? ES_OK : ES_EHASH;
}

int es_store_check(const void *base, uint64_t size)
{
    es_store_header hdr;
    uint64_t *leaf_sizes;
    es_table_config *tables;
    int code = read_header(base, size, &hdr, &leaf_sizes, &tables);
    free(leaf_sizes);
    free(tables);
    return code;
}

void es_store_describe(const void *base, uint64_t size, es_store_geometry *geo, uint8_t *uuid, int64_t *pid,
                       int64_t *created_ns, void *schema, uint64_t room, es_table_config *tables, uint32_t max_tables)
{
    es_store_header hdr;
    uint64_t *leaf_sizes;
    es_table_config *read;
    if (read_header(base, size, &hdr, &leaf_sizes, &read) == ES_OK) {
        *geo = hdr.geo;
        memcpy(uuid, hdr.uuid, sizeof hdr.uuid);
        *pid = hdr.pid;
        *created_ns = hdr.created_ns;
        if (room > 0)
            memcpy(schema, (const uint8_t *)base + hdr.at.schema,
                   room < hdr.geo.schema_size ? room : hdr.geo.schema_size);
        for (uint32_t t = 0; t < max_tables && t < hdr.geo.num_tables; t++)
            tables[t] = read[t];
    }
    free(leaf_sizes);
    free(read);
}

int es_store_map(es_store *s, void *base, uint64_t size)
{
    es_store_header hdr;
    uint64_t *leaf_sizes;
    *s = (es_store){.size = size};
    int code = read_header(base, size, &hdr, &leaf_sizes, &s->tables);
    if (code != ES_OK) {
        free(leaf_sizes);
        es_store_unmap(s);
        return code;
    }
    const es_store_geometry *geo = &hdr.geo;
    const es_store_offsets *at = &hdr.at;
    uint8_t *bytes = base;
    s->capacity = geo->capacity;
    s->step_slots = geo->capacity + 1; /* a new step comes before an old one goes */
    s->max_items = geo->max_items;
    s->num_leaves = geo->num_leaves;
    s->num_tables = geo->num_tables;
    s->row_size = at->row_size;
    s->hdr = base;
    s->words = (es_table_words *)(bytes + at->words);
    s->inbox = (uint64_t *)(bytes + at->inbox);
    s->updates = (uint64_t *)(bytes + at->updates);
    s->inbox_slots = geo->inbox_slots;
    s->update_slots = geo->update_slots;
    s->steps = (es_step_record *)(bytes + at->steps);
    s->items = (es_item_record *)(bytes + at->items);
    s->rows = bytes + at->rows;
    s->redo =
        (es_redo){.base = base, .size = at->size, .log = (es_redo_log *)(bytes + at->redo), .room = at->redo_room};
    s->leaves = calloc(geo->num_leaves, sizeof *s->leaves);
    s->first_item = calloc(geo->num_tables + 1, sizeof *s->first_item);
    if (s->leaves != NULL && s->first_item != NULL) {
        place_leaves(geo->num_leaves, leaf_sizes, s->leaves, &s->row_size);
        for (uint32_t t = 0; t < geo->num_tables; t++)
            s->first_item[t + 1] = s->first_item[t] + item_slots(geo, &s->tables[t]);
    } else {
        code = -ENOMEM;
        es_store_unmap(s);
    }
    free(leaf_sizes);
    return code;
}

void es_store_unmap(es_store *s)
{
    free(s->leaves);
    free(s->tables);
    free(s->first_item);
    s->leaves = NULL, s->tables = NULL, s->first_item = NULL;
}
