/* Where the parts of a store are, and which settings a store can have. */
#ifndef ES_STORE_LAYOUT_H
#define ES_STORE_LAYOUT_H

#include "base/es_base.h"
#include "replay/es_store.h"

bool es_store_geometry_in_range(const es_store_geometry *geo);
/* Of a geometry that is in range. */
bool es_store_tables_in_range(const es_store_geometry *geo, const es_table_config *tables);
/* Checks all of it, and says where everything is. */
bool es_store_layout(const es_store_geometry *geo, const es_store_parts *parts, es_store_offsets *at);

/* In a store of columns, whoever maps it has a file for what is before the rows, and one for each column: they start at
 * multiples of ES_STORE_FILE, which every system can map. A column's file begins with ES_STORE_HEADER bytes that the core
 * leaves alone. */
#define ES_STORE_FILE 65536u
#define ES_STORE_HEADER 4096u

/* How many records of steps, and rows: one more than capacity, because a new step comes before an old one goes. */
static inline uint64_t es_store_step_slots(const es_store_geometry *geo)
{
    return geo->capacity + 1 + geo->spare;
}

/* How many records a table has: what it may hold, one more while the remover has not picked yet, and what is parked. */
uint64_t es_store_item_slots(const es_store_geometry *geo, const es_table_config *table);
/* How many outputs all tables have. */
uint64_t es_store_count_outputs(const es_store_geometry *geo, const es_table_config *tables);
/* How many columns all items of a table have. */
uint64_t es_store_count_columns(const es_store_geometry *geo, const es_table_config *table);
/* How many of its last steps a stream keeps: of tables of single steps the last one, whose episode goes on. Otherwise
 * so many that the next step can complete any item: one that ends before it, too. */
uint64_t es_store_steps_kept(const es_store_geometry *geo, const es_table_config *tables);
/* Where each leaf is. In rows: those of large alignment first; *row_size is a multiple of the largest. In columns: one
 * after the other, each from ES_STORE_HEADER bytes after the start of a file on. *rows_size: of all together. */
bool es_store_place_leaves(const es_store_geometry *geo, const uint64_t *sizes, es_store_leaf *leaves,
                           uint64_t *row_size, uint64_t *rows_size);

#endif
