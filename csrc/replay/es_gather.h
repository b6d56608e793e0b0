/* Rows into arrays: one array for each leaf. streams: the arrays outgrow the caches (es_copy.h). */
#ifndef ES_GATHER_H
#define ES_GATHER_H

#include "base/es_base.h"
#include "replay/es_store.h"

/* Copies the leaves of step which[i] to place first + i of each array, for i below n. */
void es_gather(const es_store *store, const uint32_t *which, uint64_t n, void *const *leaves, uint64_t first,
               bool streams);
/* The same for steps that are on their way into the cache already. */
void es_gather_near(const es_store *store, const uint32_t *which, uint64_t n, void *const *leaves, uint64_t first,
                    bool streams);
/* One leaf of such steps to an array: from its start on, one after the other. */
void es_gather_leaf(const es_store *store, const es_store_leaf *leaf, const uint32_t *which, uint64_t n, uint8_t *to,
                    bool streams);
/* The other way for one step. leaves: for each leaf, where its first one is; the i-th is taken. */
void es_gather_into_step(const es_store *store, uint32_t step, const void *const *leaves, uint64_t i);
/* One step, as a row outside of the store, and back. */
void es_gather_pack(const es_store *store, uint32_t step, uint8_t *row);
void es_gather_unpack(const es_store *store, const uint8_t *row, uint32_t step);

#endif
