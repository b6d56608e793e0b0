/* Drain steps: the end of a stream against everything that can cross it. */
#include <string.h>

#include "es_scene.h"
#include "es_test.h"

static uint64_t claim;

static void one_sent_one_claimed(void)
{
    scene_open(2, 2, 0);
    scene_send(scene.q, 0);
    CHECK_EQ(es_one_claim(scene.p, &claim), ES_OK);
}

static void closed_with_a_claim(void)
{
    one_sent_one_claimed();
    es_api_close(scene.q);
}

static void drain(void)
{
    scene.ended = scene_drain(scene.l, 0) == ES_ENDED;
}

static void close_and_drain(void)
{
    es_api_close(scene.m);
    drain();
}

/* A learner that was told the end takes nothing more, so nothing may be left. */
static void ended_means_all_delivered(void)
{
    if (!scene.ended)
        scene_drain(scene.l, 0);
    for (int id = 0; id < SCENE_IDS; id++)
        CHECK_EQ(scene.got[id], scene.sent[id]);
    scene_settle(scene.l);
    scene_close();
}

static void abort_claim(void)
{
    es_api_abort(scene.p, claim);
}

static void commit_claim(void)
{
    fix_write(scene.p, claim, 1);
    scene.sent[1] = es_api_commit(scene.p, claim) == ES_OK;
}

static void p_detaches(void)
{
    es_api_detach(scene.p);
}

static void m_reaps_p(void)
{
    fix_die(scene.f, scene.p);
    fix_sweep(scene.m);
}

static void send_3(void)
{
    scene_send(scene.p, 3);
}

static void some_sent(void)
{
    scene_open(2, 2, 0);
    for (uint64_t id = 0; id < 3; id++)
        scene_send(scene.q, id);
}

static void both_ways(es_step_case c)
{
    es_step_each(&c);
    void (*act)(void) = c.act;
    c.act = c.meanwhile;
    c.meanwhile = act;
    es_step_each(&c);
}

/* A claim that re-opens between the learner's seal and its search for claims does not end the stream early. */
TEST(end_against_an_abort)
{
    both_ways(
        (es_step_case){"drain, abort", closed_with_a_claim, drain, abort_claim, ended_means_all_delivered, false});
}

/* The same when the claimant detaches. */
TEST(end_against_a_detach)
{
    both_ways(
        (es_step_case){"drain, detach", closed_with_a_claim, drain, p_detaches, ended_means_all_delivered, false});
}

static void wait_for_the_end(void)
{
    es_snapshot snap;
    scene.rc = es_api_take(scene.l, 0, 1000, &snap);
}

static void waiter_missed_nothing(void)
{
    if (scene.rc < 0 && scene.rc != ES_ENDED && es_still_parked(&scene.l->map.hdr->ready_seq))
        CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
    scene_close();
}

static void empty_ring(void)
{
    scene_open(2, 2, 0);
}

static void close_by_m(void)
{
    es_api_close(scene.m);
}

/* The close, the last commit and the last abort each wake a learner that waits for the end. */
TEST(waiter_for_the_end_is_woken)
{
    both_ways((es_step_case){"close, take", empty_ring, close_by_m, wait_for_the_end, waiter_missed_nothing, false});
    both_ways((es_step_case){"commit, take", closed_with_a_claim, commit_claim, wait_for_the_end, waiter_missed_nothing,
                             false});
    both_ways((es_step_case){"abort, take", closed_with_a_claim, abort_claim, wait_for_the_end, waiter_missed_nothing,
                             false});
}

static void closed_with_one_claim(void)
{
    scene_open(2, 2, 0);
    CHECK_EQ(es_one_claim(scene.p, &claim), ES_OK);
    es_api_close(scene.q);
}

/* A signal ends the sleep, so that no look after it hides a lost wake-up. */
static void sleep_until_the_end(void)
{
    es_still_signals = true;
    wait_for_the_end();
    es_still_signals = false;
}

static void m_evicts_the_claim(void)
{
    es_still_advance(UINT64_C(2000000000));
    scene_drain(scene.m, 0);
}

/* One learner sleeps because of an open claim. Another evicts the claim after the grace period: that was the last thing
 * that the first one waited for. */
TEST(eviction_wakes_the_other_learner)
{
    both_ways((es_step_case){"evict, take", closed_with_one_claim, m_evicts_the_claim, sleep_until_the_end,
                             waiter_missed_nothing, false});
}

static void partial_by_m(void)
{
    scene_drain(scene.m, ES_TAKE_SHORT);
}

static void partial_takes_deliver_all(void)
{
    fix_sweep(scene.l);
    scene_drain(scene.l, ES_TAKE_SHORT);
    for (uint64_t id = 10; id < 20; id++) {
        CHECK_EQ(scene_send(scene.q, id), ES_OK);
        scene_drain(scene.l, ES_TAKE_SHORT);
    }
    for (int id = 0; id < SCENE_IDS; id++)
        CHECK_EQ(scene.got[id], scene.sent[id]);
    scene_settle(scene.l);
    scene_close();
}

/* A send, or another partial take, crosses a partial take. Nothing is lost, and the ring goes on. */
TEST(partial_take_against_a_send)
{
    both_ways((es_step_case){"partial, send", some_sent, partial_by_m, send_3, partial_takes_deliver_all, false});
}

static void partial_by_l(void)
{
    scene_drain(scene.l, ES_TAKE_SHORT);
}

TEST(partial_take_against_a_partial_take)
{
    both_ways(
        (es_step_case){"partial, partial", some_sent, partial_by_m, partial_by_l, partial_takes_deliver_all, false});
}

static void m_died(void)
{
    fix_die(scene.f, scene.m);
    fix_sweep(scene.l);
    CHECK_STR(es_valid(scene.l), NULL);
    memset(scene.got, 0, sizeof scene.got); /* samples that m took and did not release come twice; check words only */
    for (uint64_t q = 0; q < scene.l->map.capacity; q++)
        CHECK(es_word_state(fix_slot_word(scene.l, q)) != ES_HELD ||
              es_word_lap(fix_slot_word(scene.l, q)) ==
                  es_word_round(fix_batch_word(scene.l, q / scene.l->map.batch_size)));
    for (uint64_t id = 10; id < 20; id++) {
        CHECK_EQ(scene_send(scene.q, id), ES_OK);
        scene_drain(scene.l, ES_TAKE_SHORT);
    }
    for (int id = 10; id < 20; id++)
        CHECK_EQ(scene.got[id], 1);
    CHECK_STR(es_valid(scene.l), NULL);
    scene_close();
}

/* A learner that dies anywhere in a partial take leaves no unusable slot. */
TEST(partial_taker_killed_at_any_step)
{
    es_step_case c = {"partial", one_sent_one_claimed, partial_by_m, commit_claim, m_died, true};
    es_step_each(&c);
    c = (es_step_case){"partial", some_sent, partial_by_m, NULL, m_died, true};
    es_step_each(&c);
}

static void m_died_and_nothing_is_lost(void)
{
    fix_die(scene.f, scene.m);
    fix_sweep(scene.l);
    if (!scene.ended)
        CHECK_EQ(scene_drain(scene.l, 0), ES_ENDED);
    for (int id = 0; id < SCENE_IDS; id++)
        CHECK(scene.sent[id] == 0 || scene.got[id] >= 1); /* twice if m died before its release */
    scene_close();
}

/* The stream does not end while a learner in the middle of a partial take may die and leave its samples. */
TEST(end_against_a_partial_taker_that_dies)
{
    es_step_case c = {"partial, close", some_sent, partial_by_m, close_and_drain, m_died_and_nothing_is_lost, true};
    es_step_each(&c);
}

static uint64_t round_of_m;

static void m_holds_a_lease(void)
{
    scene_open(1, 2, 0);
    scene_send(scene.q, 0);
    CHECK_EQ(fix_take(scene.m, 0, &round_of_m), 0);
    scene.got[0] = 1;
}

static void m_releases(void)
{
    es_api_release(scene.m, 0, round_of_m);
}

static void close_drain_send(void)
{
    scene_send(scene.p, 1);
    close_and_drain();
}

static void both_learners_see_the_end(void)
{
    scene_drain(scene.m, 0); /* a learner whose release crosses the close looks again */
    ended_means_all_delivered();
}

/* A release that crosses the close leaves only what its learner's next take finds. */
TEST(end_against_a_release)
{
    both_ways((es_step_case){"release, close", m_holds_a_lease, m_releases, close_drain_send, both_learners_see_the_end,
                             false});
}

/* A drain waits for another learner's lease, but not forever. */
TEST(stream_ends_under_a_lease_that_is_kept)
{
    m_holds_a_lease();
    close_and_drain();
    CHECK(!scene.ended);
    es_still_advance(UINT64_C(2000000000));
    drain();
    CHECK(scene.ended);
    CHECK_EQ(es_api_release(scene.m, 0, round_of_m), ES_OK);
    scene_close();
}

static void drain_by_m(void)
{
    scene_drain(scene.m, 0);
}

static void drain_by_l(void)
{
    scene_drain(scene.l, 0);
}

static void everything_is_delivered_once(void)
{
    es_api_close(scene.m);
    scene_drain(scene.m, 0);
    ended_means_all_delivered();
}

static void some_sent_and_closed(void)
{
    some_sent();
    es_api_close(scene.p);
}

/* Statement 2: two learners on one ring, open or closed, never both deliver a batch. */
TEST(two_learners_take_each_batch_once)
{
    both_ways((es_step_case){"take, take", some_sent, drain_by_l, drain_by_m, everything_is_delivered_once, false});
    both_ways((es_step_case){"drain, drain", some_sent_and_closed, drain_by_l, drain_by_m, everything_is_delivered_once,
                             false});
    both_ways((es_step_case){"close, close", some_sent, close_by_m, close_and_drain, ended_means_all_delivered, false});
}

/* A partial take is crossed by whatever ends a claim. Nothing that was sent is lost. */
TEST(partial_take_against_the_end_of_a_claim)
{
    void (*const ends[])(void) = {abort_claim, commit_claim, p_detaches, m_reaps_p};
    for (int i = 0; i < 4; i++)
        both_ways((es_step_case){"partial, end of a claim", one_sent_one_claimed, partial_by_m, ends[i],
                                 partial_takes_deliver_all, false});
}

static void close_drain_and_evict(void)
{
    close_and_drain();
    es_still_advance(UINT64_C(2000000000));
    drain();
}

static void send_three(void)
{
    int64_t n = fix_send_many(scene.p, 3, 3, 0);
    for (int64_t i = 0; i < n; i++)
        scene.sent[3 + i] = 1;
}

static void empty_ring_of_four(void)
{
    scene_open(4, 2, 0);
}

/* A send whose claim is evicted after the close reports it, and its sample is not delivered. */
TEST(eviction_against_a_send)
{
    es_step_case c = {"send, evict", some_sent, send_3, close_drain_and_evict, ended_means_all_delivered, false};
    es_step_each(&c);
}

static void as_many_as_it_said(void)
{
    int sent = 0, got = 0;
    for (int id = 0; id < SCENE_IDS; id++) {
        sent += scene.sent[id];
        got += scene.got[id];
    }
    CHECK_EQ(got, sent);
    scene_close();
}

/* A run that is partly evicted counts only the part that is delivered. */
TEST(eviction_against_a_run)
{
    es_step_case c = {"send many, evict",    empty_ring_of_four, send_three,
                      close_drain_and_evict, as_many_as_it_said, false};
    es_step_each(&c);
}

static void ended_and_valid(void)
{
    CHECK_STR(es_valid(scene.l), NULL);
    ended_means_all_delivered();
}

/* A claim that is evicted while it is being aborted is sealed, and stays so. */
TEST(eviction_against_an_abort)
{
    es_step_case c = {"abort, evict", closed_with_a_claim, abort_claim, close_drain_and_evict, ended_and_valid, false};
    es_step_each(&c);
}

static void long_after_the_start(void)
{
    one_sent_one_claimed();
    es_still_advance(UINT64_C(2000000000));
}

static void claim_is_left(void)
{
    CHECK_EQ(es_word_state(fix_slot_word(scene.l, claim)), ES_CLAIMED);
    scene_close();
}

/* A learner that finds the ring closed just now waits for the claims under way. */
TEST(look_against_the_close_evicts_nobody)
{
    both_ways((es_step_case){"close, look", long_after_the_start, close_by_m, drain, claim_is_left, false});
}
