#include "replay/es_store.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC UINT64_C(0x79616c7065722d73)   /* "s-replay" */
#define FILLING UINT64_C(0x676e696c6c69662d) /* "-filling" */
#define VERSION 6u

uint64_t es_store_size(const es_store_geometry *geo, const es_store_parts *parts)
{
    es_store_offsets o;
    return es_store_layout(geo, parts, &o) ? o.size : 0;
}

static uint64_t mix(uint64_t h, const void *data, uint64_t n)
{
    const uint8_t *bytes = data;
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return h;
}

static uint64_t hash_of(const es_store_header *hdr, const es_store_parts *parts)
{
    const es_store_geometry *geo = &hdr->geo;
    uint64_t h = mix(UINT64_C(0xcbf29ce484222325), hdr, offsetof(es_store_header, hash));
    h = mix(h, parts->leaf_sizes, geo->num_leaves * sizeof *parts->leaf_sizes);
    h = mix(h, parts->schema, geo->schema_size);
    h = mix(h, parts->tables, geo->num_tables * sizeof *parts->tables);
    h = mix(h, parts->outputs, es_store_layout_count_outputs(geo, parts->tables) * sizeof *parts->outputs);
    return mix(h, &(uint64_t){MAGIC}, sizeof(uint64_t)); /* the header's own is still 0 */
}

int es_store_format(void *base, uint64_t size, const es_store_geometry *geo, const es_store_parts *parts,
                    const uint8_t *uuid, int64_t pid, int64_t created_ns)
{
    es_store_header *hdr = base;
    es_store_offsets at;
    memset(&at, 0, sizeof at);
    if (!es_store_layout(geo, parts, &at) || size < at.size)
        return ES_EGEOMETRY;
    uint8_t *bytes = base;
    hdr->version = VERSION;
    hdr->geo = *geo;
    hdr->at = at;
    memcpy(hdr->uuid, uuid, sizeof hdr->uuid);
    hdr->pid = pid;
    hdr->created_ns = created_ns;
    memcpy(bytes + at.leaves, parts->leaf_sizes, geo->num_leaves * sizeof *parts->leaf_sizes);
    memcpy(bytes + at.schema, parts->schema, geo->schema_size);
    memcpy(bytes + at.tables, parts->tables, geo->num_tables * sizeof *parts->tables);
    memcpy(bytes + at.outputs, parts->outputs,
           es_store_layout_count_outputs(geo, parts->tables) * sizeof *parts->outputs);
    es_table_words *words = (es_table_words *)(bytes + at.words);
    for (uint32_t t = 0; t < geo->num_tables; t++)
        words[t] = (es_table_words){.highest = 1,
                                    .round = 1,
                                    .random = geo->seed + t * UINT64_C(0x632be59bd9b4e019),
                                    .min_diff = parts->tables[t].min_diff,
                                    .max_diff = parts->tables[t].max_diff};
    hdr->hash = hash_of(hdr, parts);
    ES_COMPILER_BARRIER(); /* a store with its magic number is complete */
    *(volatile uint64_t *)&hdr->magic = MAGIC;
    return ES_OK;
}

/* Copies of what a header names, to be freed. */
typedef struct parts_read {
    uint64_t *leaf_sizes;
    es_table_config *tables;
    es_output *outputs;
    uint8_t *schema;
} parts_read;

static void free_parts(const parts_read *p)
{
    free(p->leaf_sizes);
    free(p->tables);
    free(p->outputs);
    free(p->schema);
}

/* Copies a part of the store: ES_OK, ES_EOFFSET if it is not inside, or -ENOMEM. */
static int copy_part(const uint8_t *base, uint64_t size, uint64_t at, uint64_t count, uint64_t width, void **copy)
{
    uint64_t bytes = count * width; /* both are in range */
    if (at > size || bytes > size - at)
        return ES_EOFFSET;
    *copy = malloc(bytes + 1);
    if (*copy == NULL)
        return -ENOMEM;
    memcpy(*copy, base + at, bytes);
    return ES_OK;
}

static int copy_parts(const uint8_t *base, uint64_t size, const es_store_header *hdr, parts_read *p)
{
    const es_store_geometry *geo = &hdr->geo;
    const es_store_offsets *at = &hdr->at;
    void *leaf_sizes = NULL, *tables = NULL, *outputs = NULL, *schema = NULL;
    int code = copy_part(base, size, at->leaves, geo->num_leaves, sizeof *p->leaf_sizes, &leaf_sizes);
    if (code == ES_OK)
        code = copy_part(base, size, at->tables, geo->num_tables, sizeof *p->tables, &tables);
    if (code == ES_OK)
        code = copy_part(base, size, at->schema, geo->schema_size, 1, &schema);
    if (code == ES_OK && !es_store_layout_tables_in_range(geo, tables))
        code = ES_EGEOMETRY;
    if (code == ES_OK)
        code = copy_part(base, size, at->outputs, es_store_layout_count_outputs(geo, tables), sizeof *p->outputs,
                         &outputs);
    *p = (parts_read){leaf_sizes, tables, outputs, schema};
    return code;
}

/* How much of a store is there: all of it; what comes before its rows; or a part, because it is being filled. */
enum extent { WHOLE, RECORDS, PART };

/* Reads the header and what it names. The copies are what was checked. Whatever it returns, they are to be freed. */
static int read_header(const uint8_t *base, uint64_t size, enum extent extent, es_store_header *hdr, parts_read *p)
{
    *p = (parts_read){NULL, NULL, NULL, NULL};
    if (size < sizeof *hdr)
        return ES_ESIZE;
    memcpy(hdr, base, sizeof *hdr);
    if (hdr->magic != (extent == PART ? FILLING : MAGIC))
        return hdr->magic == 0 || hdr->magic == FILLING ? ES_EINIT : ES_EMAGIC;
    if (hdr->version != VERSION)
        return ES_EVERSION;
    if (!es_store_layout_geometry_in_range(&hdr->geo))
        return ES_EGEOMETRY;
    int code = copy_parts(base, size, hdr, p);
    if (code != ES_OK)
        return code;
    es_store_parts parts = {p->leaf_sizes, p->tables, p->outputs, p->schema};
    es_store_offsets expected;
    memset(&expected, 0, sizeof expected);
    if (!es_store_layout(&hdr->geo, &parts, &expected))
        return ES_EGEOMETRY;
    if (memcmp(&expected, &hdr->at, sizeof expected) != 0)
        return ES_EOFFSET;
    if (extent == RECORDS  ? size < hdr->at.rows
        : hdr->geo.columns ? size != hdr->at.size /* columns end where their files do */
                           : size < hdr->at.size)
        return ES_ESIZE;
    hdr->magic = 0;
    return hash_of(hdr, &parts) == hdr->hash ? ES_OK : ES_EHASH;
}

static int check_extent(const void *base, uint64_t size, enum extent extent)
{
    es_store_header hdr;
    parts_read parts;
    int code = read_header(base, size, extent, &hdr, &parts);
    free_parts(&parts);
    return code;
}

int es_store_check(const void *base, uint64_t size)
{
    return check_extent(base, size, WHOLE);
}

int es_store_check_records(const void *base, uint64_t size)
{
    return check_extent(base, size, RECORDS);
}

void es_store_describe(const void *base, uint64_t size, es_store_geometry *geo, uint8_t *uuid, int64_t *pid,
                       int64_t *created_ns, void *schema, uint64_t room, es_table_config *tables, uint32_t max_tables)
{
    es_store_header hdr;
    parts_read parts;
    if (read_header(base, size, RECORDS, &hdr, &parts) == ES_OK) {
        *geo = hdr.geo;
        memcpy(uuid, hdr.uuid, sizeof hdr.uuid);
        *pid = hdr.pid;
        *created_ns = hdr.created_ns;
        if (room > 0)
            memcpy(schema, parts.schema, room < hdr.geo.schema_size ? room : hdr.geo.schema_size);
        for (uint32_t t = 0; t < max_tables && t < hdr.geo.num_tables; t++)
            tables[t] = parts.tables[t];
    }
    free_parts(&parts);
}

void es_store_fetch_leaves(const es_store *store, uint32_t step)
{
    for (uint32_t i = 0; i < store->num_leaves; i++)
        if (store->leaves[i].size > 0)
            es_store_fetch_bytes(es_store_at(store, &store->leaves[i], step), store->leaves[i].size);
}

/* Where each table's part of what all have begins. */
static void place_tables(es_store *s, const es_store_geometry *geo)
{
    for (uint32_t t = 0; t < geo->num_tables; t++) {
        const es_table_config *table = &s->tables[t];
        s->first_item[t + 1] = s->first_item[t] + es_store_layout_item_slots(geo, table);
        s->first_record[t + 1] = s->first_record[t] + es_store_layout_record_slots(geo, table);
        s->first_mark[t + 1] = s->first_mark[t] + es_store_layout_mark_words(geo, table);
        s->first_output[t + 1] = s->first_output[t] + table->item.num_outputs;
        s->first_column[t + 1] = s->first_column[t] + es_store_layout_count_columns(geo, table);
        if (table->item.kind == ES_ITEM_EXPLICIT && table->item.num_outputs > s->max_columns)
            s->max_columns = table->item.num_outputs;
    }
}

static int map(es_store *s, void *base, uint64_t size, enum extent extent)
{
    es_store_header hdr;
    parts_read parts;
    *s = (es_store){.size = size};
    int code = read_header(base, size, extent, &hdr, &parts);
    if (code != ES_OK) {
        free_parts(&parts);
        return code;
    }
    const es_store_geometry *geo = &hdr.geo;
    const es_store_offsets *at = &hdr.at;
    uint8_t *bytes = base;
    s->capacity = geo->capacity;
    s->step_slots = es_store_layout_step_slots(geo);
    s->is_columns = geo->columns != 0;
    s->max_items = geo->max_items;
    s->num_leaves = geo->num_leaves;
    s->num_tables = geo->num_tables;
    s->keep = (uint32_t)es_store_layout_steps_kept(geo, parts.tables);
    s->row_size = at->row_size;
    s->hdr = base;
    s->words = (es_table_words *)(bytes + at->words);
    s->inbox = (uint64_t *)(bytes + at->inbox);
    s->updates = (uint64_t *)(bytes + at->updates);
    s->inbox_slots = geo->inbox_slots;
    s->update_slots = geo->update_slots;
    s->steps = (es_step_record *)(bytes + at->steps);
    s->marks = (uint64_t *)(bytes + at->marks);
    s->items = (es_item_record *)(bytes + at->items);
    s->columns = (es_item_column *)(bytes + at->columns);
    s->notes = bytes + at->notes;
    s->notes_size = geo->notes;
    s->rows = extent == RECORDS ? NULL : bytes + at->rows;
    s->redo = (es_redo){.base = base,
                        .size = extent == RECORDS ? at->rows : at->size,
                        .log = (es_redo_log *)(bytes + at->redo),
                        .room = at->redo_room};
    s->tables = parts.tables;
    s->outputs = parts.outputs;
    s->leaves = calloc(geo->num_leaves, sizeof *s->leaves);
    s->packed = calloc(geo->num_leaves, sizeof *s->packed);
    s->first_item = calloc(geo->num_tables + 1, sizeof *s->first_item);
    s->first_record = calloc(geo->num_tables + 1, sizeof *s->first_record);
    s->first_mark = calloc(geo->num_tables + 1, sizeof *s->first_mark);
    s->first_output = calloc(geo->num_tables + 1, sizeof *s->first_output);
    s->first_column = calloc(geo->num_tables + 1, sizeof *s->first_column);
    if (s->leaves != NULL && s->packed != NULL && s->first_item != NULL && s->first_record != NULL &&
        s->first_mark != NULL && s->first_output != NULL && s->first_column != NULL) {
        uint64_t rows_size;
        es_store_geometry packed = *geo;
        packed.columns = 0;
        es_store_layout_place_leaves(&packed, parts.leaf_sizes, s->packed, &s->packed_size, &rows_size);
        es_store_layout_place_leaves(geo, parts.leaf_sizes, s->leaves, &s->row_size, &rows_size);
        place_tables(s, geo);
    } else {
        code = -ENOMEM;
        es_store_unmap(s);
    }
    free(parts.leaf_sizes);
    free(parts.schema);
    return code;
}

int es_store_map(es_store *store, void *base, uint64_t size)
{
    return map(store, base, size, WHOLE);
}

int es_store_map_records(es_store *store, void *base, uint64_t size)
{
    return map(store, base, size, RECORDS);
}

int es_store_map_filling(es_store *store, void *base, uint64_t size)
{
    return map(store, base, size, PART);
}

void es_store_fill(es_store *store)
{
    *(volatile uint64_t *)&store->hdr->magic = FILLING;
    ES_COMPILER_BARRIER();
}

void es_store_filled(es_store *store)
{
    ES_COMPILER_BARRIER();
    *(volatile uint64_t *)&store->hdr->magic = MAGIC;
}

void es_store_unmap(es_store *s)
{
    free(s->leaves);
    free(s->packed);
    free(s->tables);
    free(s->outputs);
    free(s->first_item);
    free(s->first_record);
    free(s->first_mark);
    free(s->first_output);
    free(s->first_column);
    s->leaves = NULL, s->packed = NULL, s->tables = NULL, s->outputs = NULL;
    s->first_item = NULL, s->first_record = NULL, s->first_mark = NULL;
    s->first_output = NULL, s->first_column = NULL;
}
