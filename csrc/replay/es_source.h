/* A ring that brings something to a replay, one sample a batch, in any order: each is used once, whoever is
 * killed when.
 *
 * A sample is taken, its effect and the round of its slot are written to the store at once, and then it
 * is released. If the replay is killed in between, the ring delivers it again, and the store says that it
 * was used. Takes and releases are grouped: a call costs as much as a small sample, and a full ring wakes its
 * producers less often. */
#ifndef ES_SOURCE_H
#define ES_SOURCE_H

#include "api/es_api.h"
#include "api/es_group.h"
#include "base/es_base.h"
#include "replay/es_store.h"

typedef struct es_source {
    es_ring *ring; /* NULL: not connected */
    uint8_t *segment;
    uint64_t *rounds; /* in the store */
    uint32_t slots, num_leaves;
    const void **leaves; /* of the sample that is to be used next */
    es_group_lease taken[ES_GROUP_MOST];
    uint32_t num_taken, num_used; /* those that were used come first */
    _Atomic int64_t *versions;    /* of the ring's samples */
    int64_t version;              /* of the sample that is to be used next */
    bool sweep_due;               /* a take has said that dead producers should be looked for */
} es_source;

/* Connects to a ring whose leaves have those sizes. known, rounds: what the store knows of such a ring; of another ring
 * it forgets it. uuid: 16 bytes, of the ring's segment. ES_OK, -ENOMEM, or ES_EGEOMETRY when it is not such a ring. */
int es_source_open(es_source *s, es_ring *ring, void *segment, const uint8_t *uuid, es_known_ring *known,
                   uint64_t *rounds, uint32_t slots, const uint64_t *leaf_sizes, uint32_t num_leaves);
/* Gives back what it has. Does not detach. */
void es_source_close(es_source *s);

/* The leaves of the sample that is to be used next, or NULL; then *code says why: ES_EMPTY, ES_ENDED, or an error. */
const void *const *es_source_next(es_source *s, int *code);
/* The word of the store that notes the use of that sample, and its new value. Before es_source_used(). */
static inline uint64_t *es_source_word(const es_source *s)
{
    return &s->rounds[s->taken[s->num_used].batch];
}
static inline uint64_t es_source_value(const es_source *s)
{
    return s->taken[s->num_used].round + 1;
}
/* That sample was used. */
void es_source_used(es_source *s);
/* Releases all that were used. */
void es_source_release(es_source *s);

#endif
