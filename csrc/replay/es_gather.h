/* Rows into arrays: one array for each leaf. */
#ifndef ES_GATHER_H
#define ES_GATHER_H

#include "base/es_base.h"
#include "replay/es_store.h"

/* Copies the leaves of rows[which[i]], or of row i where which is NULL, to place first + i of each array, for i
 * below n. */
void es_gather(const es_store *store, const uint8_t *rows, const uint32_t *which, uint64_t n, void *const *leaves,
               uint64_t first);
/* The same for rows that are on their way into the cache already. */
void es_gather_near(const es_store *store, const uint8_t *rows, const uint32_t *which, uint64_t n, void *const *leaves,
                    uint64_t first);
/* The other way for one row. leaves: for each leaf, where its first one is; the i-th is taken. */
void es_gather_into_row(const es_store *store, uint8_t *row, const void *const *leaves, uint64_t i);

#endif
