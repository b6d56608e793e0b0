#include "es_scene.h"

#include <string.h>

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
    scene.sent[id] = 2;
    int rc = fix_send(r, id);
    scene.sent[id] = rc == ES_OK;
    return rc;
}

int64_t scene_drain(es_ring *l, uint32_t flags)
{
    es_snapshot snap;
    uint8_t mask[SCENE_IDS];
    for (;;) {
        int64_t j = es_api_take(l, flags, 0, &snap);
        if (j < 0)
            return j;
        CHECK_EQ(es_api_committed_mask(l, (uint64_t)j, snap.round, mask), (int64_t)snap.length);
        for (uint64_t i = 0; i < l->map.batch_size; i++) {
            uint64_t id = SCENE_IDS;
            if (!mask[i])
                continue;
            CHECK(fix_read(l, (uint64_t)j * l->map.batch_size + i, &id) && id < SCENE_IDS);
            scene.got[id % SCENE_IDS]++;
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
        if (scene.sent[id] == 2)
            CHECK(scene.got[id] <= 1);
        else if (!CHECK_EQ(scene.got[id], scene.sent[id]))
            CHECK_EQ(id, -1); /* names it */
}
