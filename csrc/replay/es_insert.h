/* Steps and items that come: a step enters all its tables or none. */
#ifndef ES_INSERT_H
#define ES_INSERT_H

#include "base/es_base.h"
#include "replay/es_tables.h"

/* Stores a step and its items. leaves: for each leaf where the first one is; the i-th is taken. priorities: see
 * es_replay_add(). origin: not NULL for a step that came through a ring: an item that its table's limiter forbids is
 * parked then. ES_OK; ES_REFUSED, ES_NO_ROOM, ES_UNSYNCED, ES_EPRIORITY, ES_ETWICE or -ENOMEM, and nothing has changed;
 * ES_ESELECTOR when a custom selector failed now, and the step is stored, or earlier. */
int es_insert_step(es_tables *m, const es_step_head *head, const void *const *leaves, uint64_t i,
                   const double *priorities, const es_origin *origin, es_trouble *why);
/* An item of several steps that a writer describes. columns: one for each output of the table. */
typedef struct es_explicit_item {
    uint64_t stream, number; /* of its last step */
    uint32_t environment, table, length, zero;
    double priority;
    const es_item_column *columns;
} es_explicit_item;

/* Stores such an item, in a table of explicit ones. ES_EXPIRED: steps of it are not stored, not kept any more, or do not
 * follow each other, or the columns do not fit. Else as es_insert_step(). */
int es_insert_item(es_tables *m, const es_explicit_item *item, const es_origin *origin, es_trouble *why);
/* Whether a step with that head, and then what its episode ends with, can be stored now: as es_insert_step(). If so, it
 * takes both of them, without an origin. */
int es_insert_can_end(es_tables *m, const es_step_head *head, const double *priorities, es_trouble *why);

/* A dead process was making a step's items: makes those that are missing. ES_OK or ES_EDAMAGED. */
int es_insert_finish(es_tables *m);

/* Lets parked items in as far as limiters allow: how many. */
uint64_t es_insert_unpark(es_tables *m);
/* How many items are parked. */
uint64_t es_insert_parked(const es_tables *m);

#endif
