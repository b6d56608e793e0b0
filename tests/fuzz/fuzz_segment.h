/* Segments for the attach target: good ones, damaged ones, and damaged ones with fitting hash and offsets. */
#ifndef FUZZ_SEGMENT_H
#define FUZZ_SEGMENT_H

#include "es_core.h"
#include "fuzz.h"

#define FUZZ_MAX_LEAVES 4
#define FUZZ_MAX_SEGMENT (UINT64_C(1) << 16)

typedef struct fuzz_shape {
    es_geometry geo;
    uint64_t leaf_sizes[FUZZ_MAX_LEAVES];
} fuzz_shape;

/* A geometry whose segment has at most FUZZ_MAX_SEGMENT bytes. */
fuzz_shape fuzz_draw_shape(fuzz_in *in);
/* A good segment of that shape in a block of *size bytes. Its schema is drawn too. */
uint8_t *fuzz_draw_segment(fuzz_in *in, const fuzz_shape *shape, uint64_t *size);
/* Overwrites one field of the header, leaf table, schema, owners, words or histograms, or any bytes. */
void fuzz_edit(fuzz_in *in, uint8_t *base, uint64_t size);
/* Makes the hash, and the offsets if asked, fit the geometry, leaf table and schema. total becomes size. False when
 * no segment of that size can have them. */
bool fuzz_repair(uint8_t *base, uint64_t size, bool offsets);

#endif
