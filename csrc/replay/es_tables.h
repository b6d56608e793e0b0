/* A store and its tables together. A step goes with the last item that refers to it, once its stream does not keep it. */
#ifndef ES_TABLES_H
#define ES_TABLES_H

#include "base/es_base.h"
#include "replay/es_steps.h"
#include "replay/es_store.h"
#include "replay/es_table.h"

struct es_save;

typedef struct es_tables {
    es_store store;
    es_steps steps;
    es_table *table;
    uint32_t num_tables;
    struct es_save *save; /* a checkpoint that is being written, or NULL */
    bool failed;          /* a custom selector has: what is private to this process is not what the store says */
} es_tables;

#endif
