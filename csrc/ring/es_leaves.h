/* Writes samples into the leaves of slots, and reads them. The caller owns the slots: claimed and not yet committed. */
#ifndef ES_LEAVES_H
#define ES_LEAVES_H

#include "ring/es_layout.h"

/* Leaf l of one sample is leaf_size[l] bytes at leaves[l]. */
void es_leaves_write(const es_map *map, uint64_t pos, void *const *leaves);
/* n samples into the slots from pos on, which do not wrap. Leaf l of sample i
 * (from first on) is leaf_size[l] bytes at leaves[l] + i * leaf_size[l]. */
void es_leaves_write_run(const es_map *map, uint64_t pos, uint64_t n, void *const *leaves, uint64_t first);
/* The version of n samples in the slots from pos on, which do not wrap. The caller owns the slots. To be written before
 * the commit, which publishes it with the leaves. If the writer dies before, whoever gets the slot next writes its own. */
void es_leaves_stamp(const es_map *map, uint64_t pos, uint64_t n, int64_t version);
/* Bytes of n samples. */
uint64_t es_leaves_bytes(const es_map *map, uint64_t n);
/* One sample out of a slot, to where es_leaves_write() would take it from. */
void es_leaves_read(const es_map *map, uint64_t pos, void *const *leaves);

#endif
