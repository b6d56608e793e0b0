/* The contents of samples. A reader can detect a torn sample.
 *
 * Leaf 0 holds the sample's id, in 8 bytes. Every byte of the other leaves is computed from the id and the leaf's
 * number. If a sample is a mix of two, or is read while it is written, its leaves disagree.
 *
 * An id is [sender:32 | number:32]: the sender, and the sample's number in the sender's sequence.
 *
 * A sample carries the version of the weights that it was made with (es_leaves.h). Here that is a number that says which
 * ids the call that sent it had. A sample with the version of another one counts as torn.
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

/* The version of n samples that one call sends, from that id on; n at most 255. And whether it is that of this sample. */
int64_t es_sample_version(uint64_t first, uint64_t n);
/* Of all samples of threads that share an attachment: it has one version at a time. */
#define ES_SAMPLE_ANY_VERSION (INT64_C(1) << 61)
bool es_sample_is_version(int64_t version, uint64_t id);

/* Writes a sample in place, at a slot's index. Its version is there since the claim. */
void es_sample_write(const es_map *map, uint64_t index, uint64_t id);
/* Reads the id at a slot's index. Returns false if the leaves disagree, or the version. */
bool es_sample_read(const es_map *map, uint64_t index, uint64_t *id);

#endif
