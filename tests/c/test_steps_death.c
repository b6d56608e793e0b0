/* Killed at every step: no committed sample is lost or doubled, and the ring goes on. */
#include "es_scene.h"
#include "es_test.h"

static uint64_t claim;

static void some_samples(void)
{
    scene_open(2, 2, 0);
    CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
    scene_send(scene.q, 0);
}

static void send_1(void)
{
    scene_send(scene.p, 1);
}

static void send_three(void)
{
    for (uint64_t id = 1; id < 4; id++)
        scene.sent[id] = 2;
    int64_t n = fix_send_many(scene.p, 1, 3, 0);
    for (int64_t i = 0; i < n; i++)
        scene.sent[1 + i] = 1;
}

static void reserve_and_abort(void)
{
    int64_t pos = fix_reserve(scene.p, 0);
    fix_write(scene.p, (uint64_t)pos, 60);
    es_api_abort(scene.p, (uint64_t)pos);
}

/* The others go on for several laps. They reap the dead producer first, or only when they have to. */
static void the_ring_goes_on(void)
{
    fix_die(scene.f, scene.p);
    scene_drain(scene.l, 0);
    fix_sweep(scene.l);
    for (uint64_t id = 10; id < 30; id++) {
        if (!CHECK_EQ(scene_send(scene.q, id), ES_OK))
            break;
        scene_drain(scene.l, 0);
    }
    scene_settle(scene.l);
    scene_close();
}

static void q_sends(void)
{
    scene_send(scene.q, 40);
    scene_drain(scene.l, 0);
    scene_send(scene.q, 41);
}

/* Statements 2, 3, 4 and 7 of tests/model/checks.pml for each kind of producer, alone and with another in between. */
TEST(producer_killed_at_any_step)
{
    void (*const acts[])(void) = {send_1, send_three, reserve_and_abort};
    for (int i = 0; i < 3; i++)
        for (int other = 0; other < 2; other++) {
            es_step_case c = {"producer", some_samples, acts[i], other ? q_sends : NULL, the_ring_goes_on, true};
            es_step_each(&c);
            c.kill = false;
            c.after = the_ring_goes_on;
            es_step_each(&c);
        }
}

static bool released;

static void two_batches(void)
{
    released = false;
    scene_open(2, 2, 0);
    CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
    for (uint64_t id = 0; id < 4; id++)
        scene_send(scene.q, id);
}

static void take_and_release(void)
{
    uint64_t round;
    int64_t j = fix_take(scene.m, 0, &round);
    if (j < 0)
        return;
    es_api_release(scene.m, (uint64_t)j, round);
    released = true;
    for (int i = 0; i < 2; i++) /* counted as delivered only after the release */
        scene.got[2 * j + i]++;
}

static void lease_is_given_back_unless_released(void)
{
    bool given = fix_batch_word(scene.l, 0) == es_word(1, 0, ES_FILL);
    if (given && !released) /* m died right after the word was stored, so it delivered the batch */
        for (int i = 0; i < 2; i++)
            scene.got[i]++;
    fix_die(scene.f, scene.m);
    fix_sweep(scene.l);
    for (uint64_t id = 10; id < 30; id++) {
        scene_drain(scene.l, 0);
        if (!CHECK_EQ(scene_send(scene.q, id), ES_OK))
            break;
    }
    scene_settle(scene.l);
    scene_close();
}

/* A learner dies. Its lease is given back if it died before the release, and never after it. */
TEST(learner_killed_at_any_step)
{
    es_step_case c = {"take, release", two_batches, take_and_release, NULL, lease_is_given_back_unless_released, true};
    es_step_each(&c);
}

static es_ring *reaper;

static void two_dead(void)
{
    uint64_t round;
    scene_open(2, 3, 0);
    for (uint64_t id = 0; id < 3; id++)
        scene_send(scene.q, id);
    CHECK_EQ(es_one_claim(scene.p, &claim), ES_OK);
    scene_send(scene.q, 3);
    CHECK_EQ(fix_take(scene.m, 0, &round), 0);
    CHECK_EQ(fix_take(scene.l, 0, &round), ES_EMPTY);
    reaper = fix_learner(scene.f);
    fix_die(scene.f, scene.p);
    fix_die(scene.f, scene.m);
}

static void reaper_sweeps(void)
{
    fix_sweep(reaper);
}

/* The kernel drops every lock byte of the dead reaper. */
static void kernel_drops_bytes_of_the_dead(void)
{
    for (uint32_t i = 0; i < scene.l->map.num_owners; i++)
        if (i != scene.l->me && i != scene.q->me)
            es_locks_yield(scene.f->locks, i);
}

static void sweep_is_done_again(void)
{
    kernel_drops_bytes_of_the_dead();
    fix_sweep(scene.l);
    CHECK_EQ(fix_batch_word(scene.l, 0), es_word(0, ES_GIVEN_BACK, ES_FILL));
    CHECK_EQ(fix_slot_word(scene.l, 3), es_word(1, 0, ES_REOPEN));
    CHECK_EQ(scene_send(scene.q, 4), ES_OK); /* q had searched for re-opened slots before */
    CHECK_EQ(fix_slot_word(scene.l, 3), es_word(1, scene.q->me, ES_COMMITTED));
    es_owner_info info;
    for (uint32_t i = 0; i < es_owner_high(&scene.l->map); i++)
        if (es_monitor_next_owner(scene.l, i, &info) == i)
            CHECK(i == scene.l->me || i == scene.q->me);
    scene_drain(scene.l, 0); /* l had looked everywhere before; it finds the batch that was given back */
    for (int id = 0; id < 5; id++)
        CHECK_EQ(scene.got[id], id != 3); /* sample 3 is alone in the last batch */
    scene_settle(scene.l);
    scene_close();
}

static void everybody_looked_before(void)
{
    two_dead();
    scene.got[0] = scene.got[1] = 0;
    uint64_t round;
    CHECK_EQ(fix_take(scene.l, 0, &round), ES_EMPTY);
}

/* Statement 9: when a reaper is killed at any step, the next one finishes the reap. */
TEST(reaper_killed_at_any_step)
{
    es_step_case c = {"reap", everybody_looked_before, reaper_sweeps, NULL, sweep_is_done_again, true};
    es_step_each(&c);
}

static void sleeper_and_a_death_before_the_count(void)
{
    es_snapshot snap;
    scene_open(2, 2, 0);
    reaper = fix_open(scene.f, 0); /* has no entry: its own death is nothing to reap */
    scene_send(scene.q, 0);
    CHECK_EQ(es_one_claim(scene.p, &claim), ES_OK);
    CHECK_EQ(es_api_take(scene.l, 0, 1000, &snap), ES_TIMEOUT);
    fix_slot(scene.p, claim, 1, scene.p->me, ES_COMMITTED);
    fix_die(scene.f, scene.p);
}

static void sleeper_was_woken(void)
{
    es_locks_yield(scene.f->locks, scene.p->me); /* as the kernel would */
    fix_sweep(scene.q);
    CHECK(!es_still_parked(&scene.l->map.hdr->ready_seq));
    scene_close();
}

/* A sleeper that the dead owner should have woken is woken, even if a reaper without an entry dies at any step. */
TEST(reaper_without_an_entry_killed_at_any_step)
{
    es_step_case c = {"reap", sleeper_and_a_death_before_the_count, reaper_sweeps, NULL, sleeper_was_woken, true};
    es_step_each(&c);
}

static void m_died_with_a_lease(void)
{
    uint64_t round;
    two_batches();
    reaper = fix_learner(scene.f);
    CHECK_EQ(fix_take(scene.m, 0, &round), 0);
    fix_die(scene.f, scene.m);
}

/* A drain does not wait forever for live learners' leases. So a dead learner's lease must never look like one. */
static void lease_of_the_dead_is_known(void)
{
    bool leased = es_word_state(fix_batch_word(scene.l, 0)) == ES_LEASED;
    CHECK(fix_sweep(scene.l) != 0 || !leased);
}

static void nothing_else_happens(void)
{
    kernel_drops_bytes_of_the_dead();
    fix_sweep(scene.l);
    scene_settle(scene.l);
    scene_close();
}

static void attach_a_learner(void)
{
    es_identity id = {.role = ES_ROLE_LEARNER, .pid = 1};
    es_owner_register(&scene.l->map, scene.f->locks, &id);
}

static void another_attaches_leases_and_dies(void)
{
    uint64_t round;
    es_ring *other = fix_learner(scene.f);
    CHECK_EQ(fix_take(other, 0, &round), 0);
    fix_die(scene.f, other);
    lease_of_the_dead_is_known();
}

/* A process stops, or dies, while it holds the byte of a dead learner: its reaper, or its successor in the entry. */
TEST(lease_of_the_dead_is_known_at_any_step)
{
    for (int kill = 0; kill < 2; kill++) {
        es_step_case c = {"reap, is anybody dead?",   m_died_with_a_lease,  reaper_sweeps,
                          lease_of_the_dead_is_known, nothing_else_happens, kill};
        es_step_each(&c);
        es_step_case d = {"register, is anybody dead?",     two_batches,          attach_a_learner,
                          another_attaches_leases_and_dies, nothing_else_happens, kill};
        es_step_each(&d);
    }
}

static void q_and_l_work(void)
{
    scene_send(scene.q, 5);
    scene_drain(scene.l, 0);
}

static void nothing_is_lost(void)
{
    kernel_drops_bytes_of_the_dead();
    fix_sweep(scene.l);
    scene_drain(scene.l, 0);
    for (uint64_t id = 10; id < 20; id++) {
        CHECK_EQ(scene_send(scene.q, id), ES_OK);
        scene_drain(scene.l, 0);
    }
    scene_settle(scene.l);
    scene_close();
}

/* Others work in the middle of a reap, which is finished or killed. */
TEST(reap_among_others_at_any_step)
{
    for (int kill = 0; kill < 2; kill++) {
        es_step_case c = {"reap, others", two_dead, reaper_sweeps, q_and_l_work, nothing_is_lost, kill};
        es_step_each(&c);
    }
}

static void p_holds_a_claim(void)
{
    scene_open(2, 2, 0);
    scene_send(scene.q, 0);
    CHECK_EQ(es_one_claim(scene.p, &claim), ES_OK);
    scene_send(scene.q, 2);
}

static void p_detaches(void)
{
    es_api_detach(scene.p);
}

static void m_detaches(void)
{
    uint64_t round;
    fix_take(scene.m, 0, &round);
    es_api_detach(scene.m);
}

static void detached_owner_is_gone(void)
{
    kernel_drops_bytes_of_the_dead();
    fix_sweep(scene.l);
    CHECK_EQ(es_owner_learner_alive(&scene.l->map, scene.f->locks, ES_NOBODY), 1);
    es_identity id = {.role = ES_ROLE_PRODUCER, .pid = 1};
    CHECK_EQ(es_owner_register(&scene.l->map, scene.f->locks, &id), scene.p->me); /* the index of p is free */
    nothing_is_lost();
}

static void leased_batch_is_delivered(void)
{
    for (int id = 0; id < 4; id++)
        scene.sent[id] = 2; /* released by the detach, or given back after the death */
    kernel_drops_bytes_of_the_dead();
    nothing_is_lost();
}

/* A process that is killed while it detaches is dead like any other. */
TEST(detach_killed_at_any_step)
{
    for (int other = 0; other < 2; other++) {
        es_step_case c = {"detach", p_holds_a_claim, p_detaches, other ? q_and_l_work : NULL, detached_owner_is_gone,
                          true};
        es_step_each(&c);
        es_step_case d = {"detach with a lease", two_batches, m_detaches, NULL, leased_batch_is_delivered, true};
        es_step_each(&d);
    }
}

static void attach_one(void)
{
    es_identity id = {.role = ES_ROLE_PRODUCER, .pid = 1};
    scene.rc = es_owner_register(&scene.f->rings[0]->map, scene.f->locks, &id);
}

static void attach_another(void)
{
    es_identity id = {.role = ES_ROLE_PRODUCER, .pid = 2};
    int64_t other = es_owner_register(&scene.q->map, scene.f->locks, &id);
    CHECK(other >= 0);
    CHECK_EQ(scene.q->map.owners[other].pid, 2);
    scene.got[0] = (int)other;
}

static void attach_another_that_dies(void)
{
    attach_another();
    es_locks_drop(scene.f->locks, (uint32_t)scene.got[0]);
}

static void nobody_shares_an_index(void)
{
    CHECK(scene.rc != scene.got[0] || scene.rc == 0);
    if (scene.rc != 0)
        CHECK_EQ(scene.q->map.owners[scene.rc].pid, 1);
    kernel_drops_bytes_of_the_dead();
    fix_sweep(scene.l);
    es_identity id = {.role = ES_ROLE_PRODUCER, .pid = 3};
    for (int i = 0; i < FIX_PRODUCERS - 1; i++) /* all entries except that of q */
        CHECK(es_owner_register(&scene.q->map, scene.f->locks, &id) >= 0);
    scene_close();
}

/* A registration that is killed at any step leaks no entry. One that finishes shares no entry. */
TEST(registrant_killed_at_any_step)
{
    void (*const others[])(void) = {NULL, attach_another, attach_another_that_dies};
    for (int i = 0; i < 6; i++) {
        es_step_case c = {"register", some_samples, attach_one, others[i % 3], nobody_shares_an_index, i < 3};
        es_step_each(&c);
    }
}

static void sweep_by_l_alone(void)
{
    fix_sweep(scene.l);
}

static void leave_p(void)
{
    es_api_detach(scene.p);
}

static void ring_of_two(void)
{
    scene_open(2, 2, 0);
}

static void nobody_has_died(void)
{
    CHECK_EQ(scene.l->map.hdr->totals.dead_producers, 0);
    scene_close();
}

/* An owner that leaves while a sweep looks at it has left: the sweep does not reap it. */
TEST(leaver_is_not_reaped_at_any_step)
{
    es_step_case c = {"sweep, detach", ring_of_two, sweep_by_l_alone, leave_p, nobody_has_died, false};
    es_step_each(&c);
    c = (es_step_case){"detach, sweep", ring_of_two, leave_p, sweep_by_l_alone, nobody_has_died, false};
    es_step_each(&c);
}

#define NEWCOMERS_PID 4242

static uint32_t entry_of_p;

static void entry_left_by_p(void)
{
    ring_of_two();
    entry_of_p = scene.p->me;
    leave_p();
}

static void newcomer_registers(void)
{
    es_identity id = {.role = ES_ROLE_PRODUCER, .pid = NEWCOMERS_PID};
    CHECK_EQ(es_owner_register(&scene.q->map, scene.f->locks, &id), entry_of_p);
}

static void whoever_is_there_is_the_newcomer(void)
{
    es_owner_info info;
    if (es_monitor_next_owner(scene.l, entry_of_p, &info) == entry_of_p)
        CHECK_EQ(info.id.pid, NEWCOMERS_PID);
}

/* A LIVE entry has its owner's identity. */
TEST(entry_names_its_owner_at_any_step)
{
    es_step_case c = {
        "register, look on", entry_left_by_p, newcomer_registers, whoever_is_there_is_the_newcomer, scene_close, false};
    es_step_each(&c);
}

static es_ring *newcomer;
static int64_t claim_of_newcomer;

static void claim_of_nobody(void)
{
    entry_left_by_p();
    fix_slot(scene.l, 3, 1, entry_of_p, ES_CLAIMED); /* a scribble */
    newcomer = NULL;
}

static void l_repairs(void)
{
    es_repair(scene.l);
}

static void newcomer_claims(void)
{
    newcomer = fix_producer(scene.f);
    claim_of_newcomer = fix_reserve(newcomer, 0);
}

static void claim_of_newcomer_stays(void)
{
    if (newcomer != NULL && CHECK(claim_of_newcomer >= 0))
        CHECK_EQ(fix_slot_word(scene.l, (uint64_t)claim_of_newcomer), es_word(1, newcomer->me, ES_CLAIMED));
    scene_close();
}

/* A word that names nobody is re-opened. A claim by a newcomer to that entry meanwhile stays the newcomer's. */
TEST(repair_against_a_newcomer)
{
    es_step_case c = {"repair, register", claim_of_nobody, l_repairs, newcomer_claims, claim_of_newcomer_stays, false};
    es_step_each(&c);
}
