/* A bridge that is killed before any of its steps: its client sends the rest, and nothing twice. */
#include <string.h>

#include "es_core.h"
#include "es_scene.h"
#include "es_test.h"

#define SAMPLES 5
#define ANN ((const uint8_t *)"ann: sixteen b..")

static int64_t remote;
static es_ring *reaper;

/* Sends samples first .. SAMPLES - 1 of the client. Their ids are their numbers. */
static int64_t send_from(es_ring *bridge, uint64_t first)
{
    uint8_t block[SAMPLES * (8 + FIX_PATTERN)];
    for (uint64_t i = 0; i < SAMPLES; i++) {
        fix_sample_t s;
        fix_sample(i, &s);
        memcpy(block + i * 8, &s.id, 8);
        memcpy(block + SAMPLES * 8 + i * FIX_PATTERN, s.pattern, FIX_PATTERN);
    }
    return es_bridge_send(bridge, (uint32_t)remote, block, first, SAMPLES, 0, es_sample_version(0, SAMPLES), 0);
}

static void two_are_in(void)
{
    scene_open(3, 4, 0);
    reaper = fix_learner(scene.f);
    CHECK_EQ(es_bridge_begin(scene.p), ES_OK);
    remote = es_bridge_open(scene.p, ANN, 0, "ann");
    CHECK_EQ(scene_send(scene.q, 20), ES_OK);
    for (int i = 0; i < SAMPLES; i++)
        scene.sent[i] = 1;
}

static void bridge_sends(void)
{
    send_from(scene.p, 0);
}

/* Others fill and drain more than a lap, unless something blocks them. */
static void others_work(void)
{
    for (uint64_t id = 21; id < 50; id++) {
        scene_send(scene.q, id);
        scene_drain(scene.l, 0);
    }
}

/* The bridge is dead. A reaper of it may be dead too. */
static void another_bridge_continues(void)
{
    es_locks_yield(scene.f->locks, scene.p->me);
    if (scene.rc)
        es_locks_yield(scene.f->locks, reaper->me);
    fix_sweep(scene.l);
    CHECK_EQ(es_bridge_begin(scene.q), ES_OK);
    REQUIRE_EQ(es_bridge_open(scene.q, ANN, 0, "ann"), remote);
    uint64_t there = (uint64_t)es_bridge_committed(scene.q, (uint32_t)remote);
    for (int64_t sent = 1; CHECK(there <= SAMPLES) && there < SAMPLES && CHECK(sent > 0); there += (uint64_t)sent) {
        scene_drain(scene.l, 0);
        sent = send_from(scene.q, there);
    }
    CHECK_EQ(es_bridge_committed(scene.q, (uint32_t)remote), SAMPLES);
    scene_settle(scene.l);
    scene_close();
}

/* The bridge is killed before any step of its send, alone and with others at work in between. */
TEST(bridge_killed_at_any_step)
{
    es_step_case c = {"bridge sends", two_are_in, bridge_sends, NULL, another_bridge_continues, true};
    es_step_each(&c);
    es_step_case d = {"bridge sends, others", two_are_in, bridge_sends, others_work, another_bridge_continues, true};
    es_step_each(&d);
}

static void bridge_died_half_way(void)
{
    two_are_in();
    uint64_t pos;
    es_owner *o = &scene.p->map.owners[scene.p->me];
    REQUIRE_EQ(es_producer_claim(scene.p, 2, &pos), 2);
    o->journal_number = 0;
    o->journal_position = pos;
    o->journal_count = 2;
    o->journal_remote = (uint32_t)remote + 1;
    for (uint64_t i = 0; i < 2; i++) {
        fix_sample_t s;
        fix_sample(i, &s);
        es_leaves_write(&scene.p->map, pos + i, (void *[]){&s.id, s.pattern});
        es_leaves_stamp(&scene.p->map, pos + i, 1, es_sample_version(i, 1));
    }
    CHECK_EQ(es_producer_commit(scene.p, pos, 1), 1); /* one of the two claimed */
    es_locks_drop(scene.f->locks, scene.p->me);
    scene.rc = 1;
}

static void it_is_reaped(void)
{
    fix_sweep(reaper);
}

/* The reaper is killed before any step of its reap. The next reaper settles the same count. */
TEST(reaper_of_a_bridge_killed_at_any_step)
{
    es_step_case c = {"a bridge is reaped", bridge_died_half_way, it_is_reaped, NULL, another_bridge_continues, true};
    es_step_each(&c);
    es_step_case d = {
        "a bridge is reaped, others", bridge_died_half_way, it_is_reaped, others_work, another_bridge_continues, true};
    es_step_each(&d);
}

/* --- one client, two bridges ---------------------------------------------------- */

#define BOB ((const uint8_t *)"bob: sixteen b..")

static int64_t first, second;

static void two_bridges(void)
{
    scene_open(3, 4, 0);
    CHECK_EQ(es_bridge_begin(scene.p), ES_OK);
    CHECK_EQ(es_bridge_begin(scene.q), ES_OK);
    first = second = ES_EMPTY;
}

static void comes_to_the_first(void)
{
    first = es_bridge_open(scene.p, ANN, 0, "ann");
}

static void comes_to_the_second(void)
{
    second = es_bridge_open(scene.q, ANN, 0, "ann");
}

/* How many entries with that id are in use. */
static int entries_of(const uint8_t *id)
{
    const es_map *m = &scene.p->map;
    int n = 0;
    for (uint32_t i = 0; i < m->num_remotes; i++)
        n += (m->remotes[i].word & 0xff) > ES_REMOTE_TAKEN && memcmp((const void *)m->remotes[i].id, id, 16) == 0;
    return n;
}

static void has_one_entry_at_most(void)
{
    CHECK(first < 0 || second < 0);
    CHECK(first >= 0 || first == ES_UNSURE);
    CHECK(second >= 0 || second == ES_UNSURE);
    CHECK_EQ(entries_of(ANN), first >= 0 || second >= 0 ? 1 : 0);
    scene_close();
}

/* A client has gone to a second bridge while its hello still waits at the first. It gets one entry. */
TEST(a_client_at_two_bridges_has_one_entry)
{
    es_step_case c = {"two open", two_bridges, comes_to_the_first, comes_to_the_second, has_one_entry_at_most, false};
    es_step_each(&c);
}

static void bob_was_here(void)
{
    two_bridges();
    uint8_t id[16] = "others, no. ...";
    int64_t bob = es_bridge_open(scene.p, BOB, 7, "bob");
    REQUIRE_EQ(es_bridge_leave(scene.p, (uint32_t)bob, 1), ES_OK);
    for (uint32_t i = 1; i < scene.p->map.num_remotes; i++) { /* so that bob's entry is the oldest of those away */
        id[15] = (uint8_t)i;
        REQUIRE_EQ(es_bridge_open(scene.q, id, 0, "other"), i);
    }
}

/* The search for an entry to use again finds bob's, sees that another entry is being given out, and puts it back. */
static void bob_was_here_and_somebody_is_new(void)
{
    bob_was_here();
    scene.p->map.remotes[1].word = (uint64_t)scene.q->me << 8 | ES_REMOTE_TAKEN;
}

static void bob_is_looked_for(void)
{
    first = es_bridge_find(scene.p, BOB, "bob");
}

static void ann_is_put_off(void)
{
    second = es_bridge_open(scene.q, ANN, 99, "ann");
}

static void bob_is_not_forgotten(void)
{
    CHECK(second == ES_UNSURE || first >= 0);
    CHECK(first == 0 || first == ES_UNSURE);
    CHECK_EQ(entries_of(BOB), 1);
    scene_close();
}

TEST(an_entry_that_was_put_back)
{
    es_step_case c = {
        "put back", bob_was_here_and_somebody_is_new, ann_is_put_off, bob_is_looked_for, bob_is_not_forgotten, false};
    es_step_each(&c);
}

static void bob_comes(void)
{
    first = es_bridge_open(scene.p, BOB, 5, "bob");
}

static void ann_has_been(void)
{
    second = es_bridge_open(scene.q, ANN, 99, "ann");
    if (second >= 0)
        REQUIRE_EQ(es_bridge_leave(scene.q, (uint32_t)second, 1), ES_OK);
}

static void bob_has_his_own_count(void)
{
    if (first >= 0)
        CHECK_EQ(es_bridge_committed(scene.p, (uint32_t)first), es_bridge_known(scene.p, (uint32_t)first) ? 7 : 5);
    else
        CHECK_EQ(first, ES_UNSURE);
    scene_close();
}

/* Between the look at an entry and its take, another client has used the entry and left it as it was. */
TEST(an_entry_that_was_anothers_meanwhile)
{
    es_step_case c = {"open", bob_was_here, bob_comes, ann_has_been, bob_has_his_own_count, false};
    es_step_each(&c);
}
