/* A bridge killed before any of its steps: its client sends the rest, and nothing twice. */
#include <string.h>

#include "es_copy.h"
#include "es_scene.h"
#include "es_test.h"

#define SAMPLES 5
#define ANN ((const uint8_t *)"ann: sixteen b..")

static int64_t remote;
static es_ring *reaper;

/* Samples first .. SAMPLES - 1 of the client, whose ids are their numbers. */
static int64_t send_from(es_ring *bridge, uint64_t first)
{
    uint8_t block[SAMPLES * (8 + FIX_PATTERN)];
    for (uint64_t i = 0; i < SAMPLES; i++) {
        fix_sample_t s;
        fix_sample(i, &s);
        memcpy(block + i * 8, &s.id, 8);
        memcpy(block + SAMPLES * 8 + i * FIX_PATTERN, s.pattern, FIX_PATTERN);
    }
    return es_bridge_send(bridge, (uint32_t)remote, block, first, SAMPLES, 0, 0);
}

static void two_are_in(void)
{
    scene_open(3, 4, 0);
    reaper = fix_learner(scene.f);
    CHECK_EQ(es_bridge_begin(scene.p), ES_OK);
    remote = es_remote_open(scene.p, ANN, 0, "ann");
    CHECK_EQ(scene_send(scene.q, 20), ES_OK);
    for (int i = 0; i < SAMPLES; i++)
        scene.sent[i] = 1;
}

static void bridge_sends(void)
{
    send_from(scene.p, 0);
}

/* For longer than a lap, if nobody is in the way. */
static void others_work(void)
{
    for (uint64_t id = 21; id < 50; id++) {
        scene_send(scene.q, id);
        scene_drain(scene.l, 0);
    }
}

/* The bridge is dead, and perhaps a reaper of it. */
static void another_bridge_goes_on(void)
{
    es_locks_yield(scene.f->locks, scene.p->me);
    if (scene.rc)
        es_locks_yield(scene.f->locks, reaper->me);
    fix_sweep(scene.l);
    CHECK_EQ(es_bridge_begin(scene.q), ES_OK);
    REQUIRE_EQ(es_remote_open(scene.q, ANN, 0, "ann"), remote);
    uint64_t there = (uint64_t)es_remote_committed(scene.q, (uint32_t)remote);
    for (int64_t sent = 1; CHECK(there <= SAMPLES) && there < SAMPLES && CHECK(sent > 0); there += (uint64_t)sent) {
        scene_drain(scene.l, 0);
        sent = send_from(scene.q, there);
    }
    CHECK_EQ(es_remote_committed(scene.q, (uint32_t)remote), SAMPLES);
    scene_settle(scene.l);
    scene_close();
}

/* Killed before any step of its send, alone and with others at work meanwhile. */
TEST(bridge_killed_at_any_step)
{
    es_step_case c = {"bridge sends", two_are_in, bridge_sends, NULL, another_bridge_goes_on, true};
    es_step_each(&c);
    es_step_case d = {"bridge sends, others", two_are_in, bridge_sends, others_work, another_bridge_goes_on, true};
    es_step_each(&d);
}

static void bridge_died_half_way(void)
{
    two_are_in();
    uint64_t pos;
    es_owner *o = &scene.p->map.owners[scene.p->me];
    REQUIRE_EQ(es_claim_run(scene.p, 2, &pos), 2);
    o->pending_number = 0;
    o->pending_position = pos;
    o->pending_count = 2;
    o->pending_remote = (uint32_t)remote + 1;
    for (uint64_t i = 0; i < 2; i++) {
        fix_sample_t s;
        fix_sample(i, &s);
        es_copy_sample(&scene.p->map, pos + i, (void *[]){&s.id, s.pattern});
    }
    CHECK_EQ(es_commit_run(scene.p, pos, 1), 1); /* of two */
    es_locks_drop(scene.f->locks, scene.p->me);
    scene.rc = 1;
}

static void it_is_reaped(void)
{
    fix_sweep(reaper);
}

/* The reaper is killed before any step of its reap: the next one settles the same count. */
TEST(reaper_of_a_bridge_killed_at_any_step)
{
    es_step_case c = {"a bridge is reaped", bridge_died_half_way, it_is_reaped, NULL, another_bridge_goes_on, true};
    es_step_each(&c);
    es_step_case d = {"a bridge is reaped, others", bridge_died_half_way, it_is_reaped, others_work,
                      another_bridge_goes_on, true};
    es_step_each(&d);
}
