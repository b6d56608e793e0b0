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

/* How many records a table has: what it may hold, one more while the remover has not picked yet, and what is parked. */
uint64_t es_store_item_slots(const es_store_geometry *geo, const es_table_config *table);
/* How many records of steps there are: a new step comes before an old one goes, and with it what its episode ends with. */
uint64_t es_store_step_slots(const es_store_geometry *geo);
/* How many outputs all tables have. */
uint64_t es_store_count_outputs(const es_store_geometry *geo, const es_table_config *tables);
/* How many columns all items of a table have. */
uint64_t es_store_count_columns(const es_store_geometry *geo, const es_table_config *table);
/* How many of its last steps a stream keeps: of tables of single steps the last one, whose episode goes on. Otherwise
 * so many that the next step can complete any item: one that ends before it, too. */
uint64_t es_store_steps_kept(const es_store_geometry *geo, const es_table_config *tables);
/* Where each leaf is in a row: those of large alignment first. *row_size is a multiple of the largest. */
bool es_store_place_leaves(uint32_t n, const uint64_t *sizes, es_store_leaf *leaves, uint64_t *row_size);

#endif
