/* Wake-ups: a waiter and a waker interrupt each other at every step, and no wake-up is lost. */
#include <string.h>

#include "api/es_group.h"
#include "es_scene.h"
#include "es_test.h"

#define SLICE 1000

static int64_t batch_of_l;
static uint64_t claim;

/* A signal ends the sleep, so that no look after it hides a lost wake-up. */
static void take_wait(void)
{
    es_snapshot snap;
    es_still_signals = true;
    scene.rc = es_api_take(scene.l, 0, SLICE, &snap);
    es_still_signals = false;
}

static void send_wait(void)
{
    es_still_signals = true;
    scene.rc = fix_send_wait(scene.q, 9, SLICE);
    es_still_signals = false;
}

/* As a learner, and as a producer. */
static void wait_any(void)
{
    const es_watch both[] = {{scene.m, ES_WATCH_BATCH}, {scene.q, ES_WATCH_ROOM}};
    es_still_signals = true;
    scene.rc = es_api_wait_any(both, 2, NULL, 0, SLICE);
    es_still_signals = false;
}

static void send_1(void)
{
    fix_send(scene.p, 1);
}

static void half_a_batch(void)
{
    scene_open(2, 2, 0);
    CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
    fix_send(scene.q, 0);
}

/* A learner that would still sleep has nothing to take. */
static void learner_missed_nothing(void)
{
    if (scene.rc < 0 && es_still_parked(&scene.l->map.hdr->ready_seq))
        CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
    scene_close();
}

/* A producer that would still sleep finds the ring full. */
static void producer_missed_nothing(void)
{
    if (scene.rc < 0 && es_still_parked(&scene.l->map.hdr->space_seq))
        CHECK_EQ(fix_send(scene.q, 9), ES_FULL);
    scene_close();
}

/* A process that would still sleep has nothing to take, and finds the ring full. */
static void waiter_missed_nothing(void)
{
    bool for_batch = es_still_parked(&scene.l->map.hdr->ready_seq);
    bool for_room = es_still_parked(&scene.l->map.hdr->space_seq);
    CHECK(scene.rc >= 0 || scene.rc == -EINTR);
    if (scene.rc < 0 && for_batch && for_room) {
        CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
        CHECK_EQ(fix_send(scene.q, 9), ES_FULL);
    }
    scene_close();
}

static void full_ring_with_a_lease(void)
{
    uint64_t round;
    scene_open(1, 2, 0);
    fix_send(scene.p, 0);
    fix_send(scene.p, 1);
    batch_of_l = fix_take(scene.l, 0, &round);
}

static void release(void)
{
    es_api_release(scene.l, (uint64_t)batch_of_l, 0);
}

static es_group_lease both[2];

static void full_ring_with_a_group(void)
{
    bool due;
    scene_open(1, 2, 0);
    fix_send(scene.p, 0);
    fix_send(scene.p, 1);
    CHECK_EQ(es_group_take(scene.l, 0, 2, both, &due), 2);
}

static void release_group(void)
{
    es_group_release(scene.l, both, 2);
}

static void full_ring_with_a_claim(void)
{
    scene_open(2, 1, 0);
    CHECK_EQ(es_one_claim(scene.p, &claim), ES_OK);
    fix_send(scene.q, 0);
    CHECK_EQ(fix_send(scene.q, 0), ES_FULL); /* q has searched for re-opened slots */
}

static void abort_claim(void)
{
    es_api_abort(scene.p, claim);
}

static void commit_claim(void)
{
    CHECK_EQ(es_one_commit(scene.p, claim, 1), ES_OK);
}

static void detach_p(void)
{
    es_api_detach(scene.p);
}

static void dead_claim(void)
{
    full_ring_with_a_claim();
    fix_die(scene.f, scene.p);
}

static void dead_lease(void)
{
    uint64_t round;
    scene_open(1, 2, 0);
    CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
    fix_send(scene.p, 1);
    CHECK_EQ(fix_take(scene.m, 0, &round), 0);
    CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
    fix_die(scene.f, scene.m);
}

static void sweep_by_q(void)
{
    fix_sweep(scene.q);
}

static void sweep_by_l(void)
{
    fix_sweep(scene.l);
}

static void both_ways(es_step_case c)
{
    es_step_each(&c);
    void (*act)(void) = c.act;
    c.act = c.meanwhile;
    c.meanwhile = act;
    es_step_each(&c);
}

/* Tests the stepper itself: an operation has steps, and each is visited. */
TEST(every_step_is_visited)
{
    es_step_case c = {"send", half_a_batch, send_1, NULL, scene_close, false};
    CHECK(es_step_count(&c) >= 8);
}

/* Statement 8 of tests/model/checks.pml for learners: a commit completes a batch. */
TEST(commit_against_a_parking_learner)
{
    both_ways((es_step_case){"send, take", half_a_batch, send_1, take_wait, learner_missed_nothing, false});
}

static void three_batches_of_one(void)
{
    scene_open(1, 3, 0);
    CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
}

static void send_three(void)
{
    CHECK_EQ(fix_send_many(scene.p, 1, 3, 0), 3);
}

/* The same of several batches, with one wake-up for all. */
TEST(commits_of_a_call_against_a_parking_learner)
{
    both_ways((es_step_case){"send of three, take", three_batches_of_one, send_three, take_wait, learner_missed_nothing,
                             false});
}

#define MOST 3
#define LARGE (UINT64_C(600) << 10)

/* A call that sends so many samples of a size into a ring of batches of one. */
static struct {
    uint64_t size, num_batches, sends;
} call;
static uint8_t samples[MOST * LARGE];
static bool woken_early;

static void a_learner_sleeps(void)
{
    es_geometry geo = fix_geometry(1, call.num_batches, 0);
    geo.num_leaves = 1;
    memset(&scene, 0, sizeof scene);
    scene.f = fix_new_leaves(&geo, &call.size);
    scene.p = fix_producer(scene.f);
    scene.l = fix_learner(scene.f);
    scene.l->map.hdr->learner_sleeps = 1;
}

static void send_them(void)
{
    CHECK_EQ(es_api_send_many(scene.p, (void *[]){samples}, 0, call.sends, 0), (int64_t)call.sends);
}

static void look_whether_woken(void)
{
    bool all_came = es_word_state(fix_slot_word(scene.l, call.sends - 1)) == ES_COMMITTED;
    woken_early |= scene.l->map.hdr->ready_seq != 0 && !all_came;
}

static bool wakes_before_its_end(uint64_t size, uint64_t num_batches, uint64_t sends)
{
    es_step_case c = {"send of several", a_learner_sleeps, send_them, look_whether_woken, scene_close, false};
    call.size = size;
    call.num_batches = num_batches;
    call.sends = sends;
    woken_early = false;
    es_step_each(&c);
    return woken_early;
}

/* A learner does not wait for all that a call sends: for no more than a mebibyte, or half of a small ring. */
TEST(call_that_sends_much_wakes_before_its_end)
{
    CHECK(wakes_before_its_end(LARGE, 9, 3));
    CHECK(!wakes_before_its_end(LARGE, 9, 2));
    CHECK(wakes_before_its_end(8, 4, 4));
    CHECK(!wakes_before_its_end(8, 4, 3));
}

/* The same of several batches in one call. */
TEST(release_of_a_group_against_a_parking_producer)
{
    both_ways((es_step_case){"release of a group, send", full_ring_with_a_group, release_group, send_wait,
                             producer_missed_nothing, false});
    both_ways((es_step_case){"release of a group, wait", full_ring_with_a_group, release_group, wait_any,
                             waiter_missed_nothing, false});
}

/* Statement 8 for producers: a release. */
TEST(release_against_a_parking_producer)
{
    both_ways(
        (es_step_case){"release, send", full_ring_with_a_lease, release, send_wait, producer_missed_nothing, false});
}

/* Statement 8 for producers: a slot is re-opened by an abort, a detach or a reap. */
TEST(reopened_slot_against_a_parking_producer)
{
    both_ways(
        (es_step_case){"abort, send", full_ring_with_a_claim, abort_claim, send_wait, producer_missed_nothing, false});
    both_ways(
        (es_step_case){"detach, send", full_ring_with_a_claim, detach_p, send_wait, producer_missed_nothing, false});
    both_ways((es_step_case){"reap, send", dead_claim, sweep_by_l, send_wait, producer_missed_nothing, false});
}

/* Statement 8 for learners: a batch is given back. */
TEST(batch_given_back_against_a_parking_learner)
{
    both_ways((es_step_case){"reap, take", dead_lease, sweep_by_q, take_wait, learner_missed_nothing, false});
}

/* The same for a process that waits for a batch and for room: whatever comes ends its sleep. */
TEST(nothing_is_missed_by_a_process_that_waits_for_both)
{
    both_ways(
        (es_step_case){"commit, wait", full_ring_with_a_claim, commit_claim, wait_any, waiter_missed_nothing, false});
    both_ways(
        (es_step_case){"abort, wait", full_ring_with_a_claim, abort_claim, wait_any, waiter_missed_nothing, false});
    both_ways((es_step_case){"detach, wait", full_ring_with_a_claim, detach_p, wait_any, waiter_missed_nothing, false});
    both_ways((es_step_case){"reap, wait", dead_claim, sweep_by_l, wait_any, waiter_missed_nothing, false});
    both_ways((es_step_case){"release, wait", full_ring_with_a_lease, release, wait_any, waiter_missed_nothing, false});
}

static void full_ring_to_be_searched(void)
{
    full_ring_with_a_claim();
    atomic_fetch_add(&scene.q->map.hdr->reopen_seq, 1); /* for a re-opened slot that is claimed again */
}

static void reopened_slot_is_found(void)
{
    if (scene.rc != ES_OK)
        CHECK_EQ(fix_send(scene.q, 9), ES_OK);
    CHECK_EQ(fix_slot_word(scene.q, 0), es_word(1, scene.q->me, ES_COMMITTED));
    scene_close();
}

/* A slot that is re-opened during a search is found by the next search. */
TEST(slot_reopened_during_a_search_is_found_by_the_next)
{
    both_ways(
        (es_step_case){"abort, send", full_ring_with_a_claim, abort_claim, send_wait, reopened_slot_is_found, false});
    both_ways(
        (es_step_case){"detach, send", full_ring_with_a_claim, detach_p, send_wait, reopened_slot_is_found, false});
    both_ways((es_step_case){"abort, search", full_ring_to_be_searched, abort_claim, send_wait, reopened_slot_is_found,
                             false});
    both_ways((es_step_case){"reap, send", dead_claim, sweep_by_l, send_wait, reopened_slot_is_found, false});
}

static void batch_is_found(void)
{
    if (scene.rc < 0)
        CHECK_EQ(fix_take_k(scene.l, 0), 0);
    CHECK_EQ(fix_batch_word(scene.l, 0) == es_word(0, 0, ES_FILL), false);
    scene_close();
}

static void dead_lease_to_be_looked_for(void)
{
    dead_lease();
    atomic_fetch_add(&scene.l->map.hdr->given_back_seq, 1); /* for a batch that somebody has taken again */
}

/* A batch that is given back during a look is found by the next look. */
TEST(batch_given_back_during_a_look_is_found_by_the_next)
{
    both_ways((es_step_case){"reap, take", dead_lease, sweep_by_q, take_wait, batch_is_found, false});
    both_ways((es_step_case){"reap, look everywhere", dead_lease_to_be_looked_for, sweep_by_q, take_wait,
                             batch_is_found, false});
}

static void register_again(void)
{
    es_identity id = {.role = ES_ROLE_PRODUCER, .pid = 1};
    if (es_owner_register(&scene.q->map, scene.f->locks, &id) != scene.p->me)
        return;
    /* The index has a new owner. The sweep and the wake-ups for the old one must be over. */
    CHECK_EQ(fix_slot_word(scene.q, 0), es_word(1, 0, ES_REOPEN));
    CHECK(scene.q->map.hdr->reopen_seq != 0);
    CHECK(scene.q->map.hdr->given_back_seq != 0);
    CHECK(scene.q->map.hdr->ready_seq != 0);
    CHECK(scene.q->map.hdr->space_seq != 0);
}

/* Statement 10: the entry becomes free only after everything else in the reap is done. */
TEST(index_is_free_only_when_the_reap_is_over)
{
    es_step_case c = {"reap, register", dead_claim, sweep_by_l, register_again, scene_close, false};
    es_step_each(&c);
    c.before = full_ring_with_a_claim;
    c.act = detach_p;
    c.meanwhile = NULL; /* detach gives no lease back, so given_back_seq does not change */
    es_step_each(&c);
}

static void take_release_and_send_again(void)
{
    fix_take_k(scene.l, 0);
    for (uint64_t i = 2; i < 5; i++)
        fix_send(scene.q, i);
}

static void learner_is_woken_by_the_last_commit(void)
{
    es_snapshot snap;
    while (fix_take_k(scene.l, 0) >= 0)
        ;
    uint64_t into = fix_tail(scene.l) % scene.l->map.batch_size;
    scene.rc = es_api_take(scene.l, 0, SLICE, &snap);
    for (uint64_t i = into; i < scene.l->map.batch_size; i++)
        fix_send(scene.q, 7);
    CHECK(!es_still_parked(&scene.l->map.hdr->ready_seq));
    scene_close();
}

static void release_of_three(void)
{
    uint64_t round;
    scene_open(3, 1, 0);
    for (uint64_t i = 0; i < 3; i++)
        fix_send(scene.p, i);
    batch_of_l = fix_take(scene.l, 0, &round);
}

static void send_two_by_q(void)
{
    fix_send(scene.q, 3);
    fix_send(scene.q, 4);
}

/* A count that arrives a lap late, or is zeroed around a commit, still lets the next batch wake the learner. */
TEST(late_or_early_counts_still_wake)
{
    both_ways((es_step_case){"send, take and release", half_a_batch, send_1, take_release_and_send_again,
                             learner_is_woken_by_the_last_commit, false});
    both_ways((es_step_case){"release, send", release_of_three, release, send_two_by_q,
                             learner_is_woken_by_the_last_commit, false});
}

static void laps_go_by(void)
{
    for (int i = 0; i < 3; i++) {
        fix_take_k(scene.l, 0);
        fix_send(scene.q, 20 + (uint64_t)i);
        fix_take_k(scene.l, 0);
    }
    fix_take_k(scene.l, 0);
}

static void send_1_noting(void)
{
    scene.rc = fix_send(scene.p, 1);
}

static void ring_had_room(void)
{
    CHECK_EQ(scene.rc, ES_OK);
    scene_close();
}

static void one_slot_taken(void)
{
    scene_open(1, 2, 0);
    fix_send(scene.q, 0);
}

/* Statement 7: a claim at a stale position looks again and does not say that the ring is full. */
TEST(stale_position_is_not_full)
{
    es_step_case c = {"send, laps", one_slot_taken, send_1_noting, laps_go_by, ring_had_room, false};
    es_step_each(&c);
}
