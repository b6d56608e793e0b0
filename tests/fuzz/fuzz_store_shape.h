/* Stores for the store target: good ones, and ways to damage them. */
#ifndef FUZZ_STORE_SHAPE_H
#define FUZZ_STORE_SHAPE_H

#include "fuzz.h"

#define FUZZ_MAX_STORE (UINT64_C(1) << 19)
#define FUZZ_MAX_OUTPUTS 8 /* of a table of a good store */

/* A good store, as drawn, in a block of *size bytes, at most FUZZ_MAX_STORE. */
uint8_t *fuzz_draw_store(fuzz_in *in, uint64_t *size);
/* Overwrites one field of the header, the tables, their counters, a record, the redo list or the leaves' sizes, or any
 * bytes. */
void fuzz_store_edit(fuzz_in *in, uint8_t *base, uint64_t size);
/* Makes the hash, and the offsets if asked, fit geometry, leaves, schema and tables. Returns how large such a store is
 * if it has at most FUZZ_MAX_STORE bytes, otherwise 0. */
uint64_t fuzz_store_repair(uint8_t *base, uint64_t size, bool offsets);

#endif
