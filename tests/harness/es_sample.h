/* What samples contain, so that a reader can tell a torn one.
 *
 * Leaf 0 holds the sample's id, in 8 bytes. Every byte of the other leaves follows from the id and the leaf's number.
 * So a sample that was put together from two, or read while it was written, does not agree with itself.
 *
 * An id is [sender:32 | number:32]: who sends it, and which of its samples it is.
 */
#ifndef ES_SAMPLE_H
#define ES_SAMPLE_H

#include "ring/es_layout.h"

static inline uint64_t es_sample_id(uint32_t sender, uint32_t number)
{
    return (uint64_t)sender << 32 | number;
}

/* Leaf number leaf, of size bytes, of that sample. */
void es_sample_leaf(uint64_t id, uint32_t leaf, uint64_t size, uint8_t *to);
/* Whether these bytes are that leaf of that sample. */
bool es_sample_is_leaf(uint64_t id, uint32_t leaf, uint64_t size, const uint8_t *from);

/* Writes a sample in place, at a slot's index. */
void es_sample_write(const es_map *map, uint64_t index, uint64_t id);
/* The id at a slot's index: false when the leaves disagree. */
bool es_sample_read(const es_map *map, uint64_t index, uint64_t *id);

#endif
