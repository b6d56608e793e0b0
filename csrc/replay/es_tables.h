/* A store and its tables together: a step enters all its tables or none, and goes with its last item. */
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

/* Where a step comes from: a word of the store that notes it, and its new value. */
typedef struct es_origin {
    uint64_t *word, value;
} es_origin;

/* Stores a step and its items. leaves: for each leaf where the first one is; the i-th is taken. priorities: see
 * es_replay_add(). origin: not NULL for a step that came through a ring:
 * an item that its table's limiter forbids is parked then. ES_OK; ES_REFUSED, ES_NO_ROOM, ES_EPRIORITY, ES_ETWICE or -ENOMEM, and
 * nothing has changed; ES_ESELECTOR when a custom selector failed now, and the step is stored, or earlier. */
int es_tables_add(es_tables *m, const es_step_head *head, const void *const *leaves, uint64_t i,
                  const double *priorities, const es_origin *origin, es_trouble *why);
/* Whether a step with that head, and then what its episode ends with, can be stored now: as es_tables_add(). If so, it
 * takes both of them, without an origin. */
int es_tables_can_add_last(es_tables *m, const es_step_head *head, const double *priorities, es_trouble *why);
/* Lets parked items in as far as limiters allow: how many. */
uint64_t es_tables_unpark(es_tables *m);
/* How many items are parked. */
uint64_t es_tables_parked(const es_tables *m);

#endif
