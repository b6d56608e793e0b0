/* Room for steps and items: what goes when there is none. */
#ifndef ES_ROOM_H
#define ES_ROOM_H

#include "base/es_base.h"
#include "replay/es_tables.h"

/* Whether something can go for so many steps and new items of each table, or nothing has to. A table that is full loses
 * as many items as it gets. Records beyond capacity make this simple: they are in use only if what has gone has freed no
 * step. steps: 1; 2: with what its episode ends with; 0: for items alone. */
bool es_room_for(const es_tables *m, uint64_t steps, const uint64_t *newcomers);
/* The same for what an episode ends with, when there was room for it together with the step before. What could go may
 * have gone for that: then its own items go at once. */
bool es_room_was_found(const es_tables *m, const uint64_t *newcomers);
/* Whether one more item of that table, which is parked, has room, or something can go for it. */
bool es_room_for_item(const es_tables *m, const es_table *t);

/* Items were removed. If there were too many steps, because nothing could go for them, something can by now, perhaps. */
void es_room_use(es_tables *m);
/* Brings everything within its limits again. What it does depends on the store alone, so whoever opens the store after
 * a kill goes on with it. */
void es_room_settle(es_tables *m);
/* The numbers of items alone: false if that cannot be. */
bool es_room_settle_items(es_tables *m);

#endif
