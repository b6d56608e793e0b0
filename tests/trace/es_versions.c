#include "es_versions.h"

#include <string.h>

#include "es_kill.h"

int64_t versions_publish(es_world *w, es_ring *r)
{
    world_fill(w, (uint64_t)es_weights_latest(r) + 1, 1);
    return es_weights_publish(r, w->leaves);
}

static void check_bytes(es_world *w, uint64_t number, void *const *leaves)
{
    world_fill(w, number, 1);
    for (uint32_t l = 0; l < w->geo.num_leaves; l++)
        CHECK_EQ(memcmp(leaves[l], w->leaves[l], w->f->leaf_sizes[l]), 0);
}

int64_t versions_copy(es_world *w, es_ring *r)
{
    uint64_t leaves[2][8];
    void *into[] = {leaves[0], leaves[1]};
    int64_t number = es_weights_copy(r, into);
    if (number > 0)
        check_bytes(w, (uint64_t)number, into);
    return number;
}

void versions_check_slot(es_world *w, es_ring *r, uint64_t number, uint64_t slot)
{
    void *leaves[WORLD_LEAVES];
    for (uint32_t l = 0; l < w->geo.num_leaves; l++)
        leaves[l] = r->map.leaf_data[l] + slot * w->f->leaf_sizes[l];
    check_bytes(w, number, leaves);
}

int64_t versions_lease(es_world *w, es_ring *r)
{
    uint64_t number, slot;
    int64_t lease = es_weights_lease(r, &number, &slot);
    if (lease >= 0)
        versions_check_slot(w, r, number, slot);
    return lease;
}

/* The next publisher goes on, through all slots. Each version can be copied and leased. */
static void go_on(es_world *w, int64_t number)
{
    for (uint64_t n = 0; n < w->geo.num_batches + 2; n++) {
        CHECK_EQ(versions_publish(w, w->l), ++number);
        CHECK_EQ(versions_copy(w, w->p), number);
        int64_t lease = versions_lease(w, w->p);
        if (CHECK(lease >= 0))
            CHECK_EQ(es_weights_release(w->p, lease), ES_OK);
    }
}

unsigned versions_after(es_world *w)
{
    int64_t before = (int64_t)w->position, latest = es_weights_latest(w->p);
    bool published = latest == before + w->scenario->sends;
    CHECK(latest == before || published);
    CHECK_EQ(versions_copy(w, w->p), latest == 0 ? ES_NOTHING : latest);
    for (uint32_t i = 0; i < w->l->map.num_leases; i++)
        CHECK_EQ(es_weights_holder(w->l, i), ES_EMPTY);
    if (!w->l->map.hdr->closed)
        go_on(w, latest);
    return w->scenario->sends == 0 ? 0 : published ? KEPT : LOST;
}
