/* Give-back steps: a give back against everything that can cross it. */
#include "es_scene.h"
#include "es_test.h"

static uint64_t round_of_m;

static void m_holds_a_lease(void)
{
    scene_open(1, 2, 0);
    scene_send(scene.q, 0);
    CHECK_EQ(fix_take(scene.m, 0, &round_of_m), 0);
    scene.got[0] = 1;
}

static void m_gives_back(void)
{
    scene.got[0] = 0;
    es_api_give_back(scene.m, 0, round_of_m);
}

static void both_have_drained(void)
{
    scene_drain(scene.m, 0);
    scene_drain(scene.l, 0);
    for (int id = 0; id < SCENE_IDS; id++)
        CHECK_EQ(scene.got[id], scene.sent[id]);
    scene_settle(scene.l);
    scene_close();
}

static void send_and_drain_by_l(void)
{
    scene_send(scene.p, 1);
    scene_drain(scene.l, 0);
}

/* A batch that is given back in the middle of a look is delivered once, to one learner. */
TEST(give_back_against_a_take)
{
    es_step_case c = {"give back, take", m_holds_a_lease, m_gives_back, send_and_drain_by_l, both_have_drained, false};
    es_step_each(&c);
}

static void m_releases_and_poisons(void)
{
    scene.m->poison = true;
    es_api_release(scene.m, 0, round_of_m);
}

static void m_died_poisoning(void)
{
    scene.got[0] = 0;
    scene.sent[0] = 2; /* delivered again if the release had not begun */
    fix_die(scene.f, scene.m);
    fix_sweep(scene.l);
    CHECK_STR(es_valid(scene.l), NULL);
    for (uint64_t id = 1; id < 5; id++) { /* two laps of the ring */
        CHECK_EQ(scene_send(scene.p, id), ES_OK);
        scene_drain(scene.l, 0); /* fails on a torn sample */
    }
    scene_settle(scene.l);
    scene_close();
}

/* A learner dies while it poisons a batch. No learner gets the torn samples, and the space is not lost. */
TEST(learner_killed_while_it_poisons)
{
    es_step_case c = {"release, poisoned", m_holds_a_lease, m_releases_and_poisons, NULL, m_died_poisoning, true};
    es_step_each(&c);
}
