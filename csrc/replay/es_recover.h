/* Opening a store: what a dead process had begun is finished, and what is derived is derived anew. */
#ifndef ES_RECOVER_H
#define ES_RECOVER_H

#include "base/es_base.h"
#include "replay/es_tables.h"

/* Opens a store. custom: see es_replay_open(). ES_OK; what es_store_check() says; -ENOMEM; ES_ESELECTOR;
 * ES_ENOSELECTOR; or ES_EDAMAGED, with why->index its record: of a step, or counted from there, of an item. In every
 * case es_recover_close() frees what there is. */
int es_recover_open(es_tables *m, void *base, uint64_t size, const es_custom_selector *custom, uint32_t num_custom,
                    es_trouble *why);
void es_recover_close(es_tables *m);
/* The same of what comes before a store's rows, for whoever only looks at it. The memory is private. */
int es_recover_open_records(es_tables *m, void *base, uint64_t size, es_trouble *why);

#endif
