/* Room for steps and items: what goes when there is none. */
#ifndef ES_ROOM_H
#define ES_ROOM_H

#include "base/es_base.h"
#include "replay/es_tables.h"

/* Whether something can go for a step and so many new items of each table, or nothing has to. A table that is full loses as many items
 * as it gets. One record more than capacity makes this simple: it is in use only if what has gone has freed no step. */
bool es_room_for(const es_tables *m, const uint64_t *newcomers);

/* Brings everything within its limits again. What it does depends on the store alone, so whoever opens the store after
 * a kill goes on with it. */
void es_room_settle(es_tables *m);
/* The numbers of items alone: false if that cannot be. */
bool es_room_settle_items(es_tables *m);

#endif
