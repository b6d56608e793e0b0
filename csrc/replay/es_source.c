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
        for (uint32_t i = 0; i < s->num_taken; i++)
            es_api_give_back(s->ring, s->taken[i].batch, s->taken[i].round);
    }
    free(s->leaves);
    *s = (es_source){.ring = NULL};
}

void es_source_release(es_source *s)
{
    if (s->num_used == 0)
        return;
    es_group_release(s->ring, s->taken, s->num_used);
    s->num_taken -= s->num_used;
    memmove(s->taken, s->taken + s->num_used, s->num_taken * sizeof *s->taken);
    s->num_used = 0;
}

void es_source_used(es_source *s)
{
    s->num_used++;
}

/* Passes over samples that were used before their replay was killed. Whether one is left. */
static bool has_next(es_source *s)
{
    while (s->num_used < s->num_taken && s->rounds[s->taken[s->num_used].batch] == s->taken[s->num_used].round + 1)
        s->num_used++;
    return s->num_used < s->num_taken;
}

/* Takes samples, once all that were taken are used. ES_OK, or what es_group_take() returns. */
static int take_more(es_source *s)
{
    bool due = false;
    es_source_release(s);
    int64_t n = es_group_take(s->ring, ES_TAKE_ANY_ORDER, ES_GROUP_MOST, s->taken, &due);
    s->sweep_due |= due;
    s->num_taken = n < 0 ? 0 : (uint32_t)n;
    return n < 0 ? (int)n : ES_OK;
}

const void *const *es_source_next(es_source *s, int *code)
{
    *code = ES_OK;
    while (!has_next(s)) {
        *code = take_more(s);
        if (*code != ES_OK)
            return NULL;
    }
    uint64_t batch = s->taken[s->num_used].batch;
    for (uint32_t i = 0; i < s->num_leaves; i++)
        s->leaves[i] = s->segment + es_api_leaf_offset(s->ring, i) + batch * es_api_leaf_size(s->ring, i);
    /* relaxed: es_leaves_stamp() stores it before the commit that the take has seen. */
    s->version = atomic_load_explicit(&s->versions[batch], memory_order_relaxed);
    return s->leaves;
}
