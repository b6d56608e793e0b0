#include "es_scene.h"

#include <string.h>

#include "es_account.h"
#include "es_test.h"

es_scene scene;

void scene_open(uint64_t batch_size, uint64_t num_batches, uint32_t flags)
{
    memset(&scene, 0, sizeof scene);
    scene.f = fix_new(batch_size, num_batches, flags);
    scene.p = fix_producer(scene.f);
    scene.q = fix_producer(scene.f);
    scene.l = fix_learner(scene.f);
    scene.m = fix_learner(scene.f);
}

void scene_close(void)
{
    fix_free(scene.f);
}

int scene_send(es_ring *r, uint64_t id)
{
    scene.sent[id] = SENT_MAYBE;
    int rc = fix_send(r, id);
    scene.sent[id] = rc == ES_OK ? SENT_OK : SENT_NOT;
    return rc;
}

int64_t scene_drain(es_ring *l, uint32_t flags)
{
    es_snapshot snap;
    uint64_t ids[FIX_MAX_BATCH];
    for (;;) {
        int64_t j = es_api_take(l, flags, 0, &snap);
        if (j < 0)
            return j;
        int64_t n = fix_read_batch(l, j, &snap, ids);
        CHECK_EQ(n, (int64_t)snap.length);
        for (int64_t i = 0; i < n; i++) {
            CHECK(ids[i] < SCENE_IDS);
            scene.got[ids[i] % SCENE_IDS]++;
        }
        CHECK_EQ(es_api_release(l, (uint64_t)j, snap.round), ES_OK);
    }
}

void scene_settle(es_ring *l)
{
    fix_sweep(l);
    CHECK_STR(es_valid(l), NULL);
    es_api_close(l);
    CHECK_EQ(scene_drain(l, 0), ES_ENDED);
    CHECK_STR(es_valid(l), NULL);
    for (int id = 0; id < SCENE_IDS; id++)
        if (!CHECK_STR(es_account_name(es_account_verdict((enum es_sent)scene.sent[id], (uint64_t)scene.got[id])),
                       NULL))
            CHECK_EQ(id, -1); /* names it */
}
