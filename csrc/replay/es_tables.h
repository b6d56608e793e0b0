/* A store and its tables together. A step goes with the last item that refers to it, once its stream does not keep it. */
#ifndef ES_TABLES_H
#define ES_TABLES_H

#include "base/es_base.h"
#include "replay/es_steps.h"
#include "replay/es_store.h"
#include "replay/es_table.h"

typedef struct es_tables {
    es_store store;
    es_steps steps;
    es_table *table;
    uint32_t num_tables;
    bool failed; /* a custom selector has: what is private to this process is not what the store says */
} es_tables;

/* Opens a store. custom: see es_replay_open(). ES_OK; what es_store_check() says; -ENOMEM; ES_ESELECTOR;
 * ES_ENOSELECTOR; or ES_EDAMAGED, with why->index its record: of a step, or counted from there, of an item. In every
 * case es_tables_close() frees what there is. */
int es_tables_open(es_tables *m, void *base, uint64_t size, const es_custom_selector *custom, uint32_t num_custom,
                   es_trouble *why);
void es_tables_close(es_tables *m);

/* Lets parked items in as far as limiters allow: how many. */
uint64_t es_tables_unpark(es_tables *m);
/* How many items are parked. */
uint64_t es_tables_parked(const es_tables *m);

#endif
