/* Which ring some words of a store are about. The ring is known by its segment's uuid; what the words say of another one
 * is forgotten.
 *
 * Killed while it forgets, the words are of no ring. Whoever connects next forgets once more. */
#ifndef ES_KNOWN_H
#define ES_KNOWN_H

#include "base/es_base.h"

typedef struct es_known_ring {
    uint64_t uuid[2]; /* of the ring's segment */
    uint64_t known;   /* whether uuid and the words about the ring are complete */
} es_known_ring;

bool es_known_is(const es_known_ring *ring, const uint64_t *uuid);
/* Makes the n words about the ring those of the ring with that uuid: all 0, unless they are already. */
void es_known_adopt(es_known_ring *ring, const uint64_t *uuid, uint64_t *words, uint64_t n);

#endif
