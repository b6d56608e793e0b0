/* A ring that brings something to a replay, one sample a batch, in any order: each is used once, whoever is
 * killed when.
 *
 * A sample is taken, its effect and the round of its slot are written to the store at once, and then it
 * is released. If the replay is killed in between, the ring delivers it again, and the store says that it
 * was used. Releases are grouped, so that a full ring does not wake its producers for each sample. */
#ifndef ES_SOURCE_H
#define ES_SOURCE_H

#include "api/es_api.h"
#include "base/es_base.h"
#include "replay/es_store.h"

#define ES_SOURCE_GROUP 32

typedef struct es_source {
    es_ring *ring; /* NULL: not connected */
    uint8_t *segment;
    uint64_t *rounds; /* in the store */
    uint32_t slots, num_leaves;
    const void **leaves; /* of the sample that was taken last */
    struct {
        uint64_t batch, round;
    } used[ES_SOURCE_GROUP], taken;
    uint32_t num_used;
    _Atomic int64_t *versions; /* of the ring's samples */
    int64_t version;           /* of the sample that was taken last */
    bool has_taken;            /* one that was taken, and is not used yet */
    bool sweep_due;            /* a take has said that dead producers should be looked for */
} es_source;

/* Connects to a ring whose leaves have those sizes. known, rounds: what the store knows of such a ring; of another ring
 * it forgets it. uuid: 16 bytes, of the ring's segment. ES_OK, -ENOMEM, or ES_EGEOMETRY when it is not such a ring. */
int es_source_open(es_source *s, es_ring *ring, void *segment, const uint8_t *uuid, es_known_ring *known,
                   uint64_t *rounds, uint32_t slots, const uint64_t *leaf_sizes, uint32_t num_leaves);
/* Gives back what it has. Does not detach. */
void es_source_close(es_source *s);

/* The leaves of the sample that is to be used next, or NULL; then *code says why: ES_EMPTY, ES_ENDED, or an error. */
const void *const *es_source_next(es_source *s, int *code);
/* The word of the store that notes the use of that sample, and its new value. */
static inline uint64_t *es_source_word(const es_source *s)
{
    return &s->rounds[s->taken.batch];
}
static inline uint64_t es_source_value(const es_source *s)
{
    return s->taken.round + 1;
}
/* That sample was used. */
void es_source_used(es_source *s);
/* Releases all that were used. */
void es_source_release(es_source *s);

#endif
