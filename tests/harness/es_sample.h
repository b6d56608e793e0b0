/* The contents of samples. A reader can detect a torn sample.
 *
 * Leaf 0 holds the sample's id, in 8 bytes. Every byte of the other leaves is computed from the id and the leaf's
 * number. If a sample is a mix of two, or is read while it is written, its leaves disagree.
 *
 * An id is [sender:32 | number:32]: the sender, and the sample's number in the sender's sequence.
 */
#ifndef ES_SAMPLE_H
#define ES_SAMPLE_H

#include "ring/es_layout.h"

static inline uint64_t es_sample_id(uint32_t sender, uint32_t number)
{
    return (uint64_t)sender << 32 | number;
}

/* Writes one leaf, of `size` bytes, of the sample. */
void es_sample_leaf(uint64_t id, uint32_t leaf, uint64_t size, uint8_t *to);
/* Whether these bytes are that leaf of the sample. */
bool es_sample_is_leaf(uint64_t id, uint32_t leaf, uint64_t size, const uint8_t *from);

/* Writes a sample in place, at a slot's index. */
void es_sample_write(const es_map *map, uint64_t index, uint64_t id);
/* Reads the id at a slot's index. Returns false if the leaves disagree. */
bool es_sample_read(const es_map *map, uint64_t index, uint64_t *id);

#endif
