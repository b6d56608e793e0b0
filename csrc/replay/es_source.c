#include "replay/es_source.h"

#include <stdlib.h>
#include <string.h>

static bool fits(es_ring *ring, uint32_t slots, const uint64_t *leaf_sizes, uint32_t num_leaves)
{
    uint64_t batch_size, num_batches;
    uint32_t leaves;
    es_api_shape(ring, &batch_size, &num_batches, &leaves);
    if (batch_size != 1 || num_batches != slots || leaves != num_leaves)
        return false;
    for (uint32_t i = 0; i < leaves; i++)
        if (es_api_leaf_size(ring, i) != leaf_sizes[i])
            return false;
    return true;
}

int es_source_open(es_source *s, es_ring *ring, void *segment, const uint8_t *uuid, es_known_ring *known,
                   uint64_t *rounds, uint32_t slots, const uint64_t *leaf_sizes, uint32_t num_leaves)
{
    uint64_t id[2];
    if (!fits(ring, slots, leaf_sizes, num_leaves))
        return ES_EGEOMETRY;
    *s = (es_source){.segment = segment, .rounds = rounds, .slots = slots, .num_leaves = num_leaves};
    s->leaves = calloc(num_leaves, sizeof *s->leaves);
    if (s->leaves == NULL)
        return -ENOMEM;
    s->versions = (_Atomic int64_t *)(s->segment + es_age_offset(ring));
    memcpy(id, uuid, sizeof id);
    es_known_adopt(known, id, rounds, slots);
    s->ring = ring;
    return ES_OK;
}

void es_source_close(es_source *s)
{
    if (s->ring != NULL) {
        es_source_release(s);
        if (s->has_taken)
            es_api_give_back(s->ring, s->taken.batch, s->taken.round);
    }
    free(s->leaves);
    *s = (es_source){.ring = NULL};
}

void es_source_release(es_source *s)
{
    for (uint32_t i = 0; i < s->num_used; i++)
        es_api_release(s->ring, s->used[i].batch, s->used[i].round);
    s->num_used = 0;
}

void es_source_used(es_source *s)
{
    s->used[s->num_used].batch = s->taken.batch;
    s->used[s->num_used++].round = s->taken.round;
    s->has_taken = false;
    if (s->num_used == ES_SOURCE_GROUP)
        es_source_release(s);
}

const void *const *es_source_next(es_source *s, int *code)
{
    es_snapshot snap;
    *code = ES_OK;
    while (!s->has_taken) {
        int64_t batch = es_api_take(s->ring, ES_TAKE_ANY_ORDER, 0, &snap);
        s->sweep_due |= snap.sweep_due != 0;
        if (batch < 0) {
            es_source_release(s);
            *code = (int)batch;
            return NULL;
        }
        s->taken.batch = snap.batch, s->taken.round = snap.round;
        s->has_taken = true;
        if (snap.length == 0 || s->rounds[snap.batch] == snap.round + 1)
            es_source_used(s); /* sealed, or used before its replay was killed */
    }
    for (uint32_t i = 0; i < s->num_leaves; i++)
        s->leaves[i] = s->segment + es_api_leaf_offset(s->ring, i) + s->taken.batch * es_api_leaf_size(s->ring, i);
    /* relaxed: es_leaves_stamp() stores it before the commit that the take has seen. */
    s->version = atomic_load_explicit(&s->versions[s->taken.batch], memory_order_relaxed);
    return s->leaves;
}
