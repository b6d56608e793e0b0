/* Processes that are killed at random moments: kernel locks, real deaths, real waits. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "es_account.h"
#include "es_fixture.h"
#include "es_test.h"

#define SEQS 2048 /* samples of one process */
#define MAX_RUN 5 /* samples of one send */
#define CREW 3    /* producers that live at the same time */
#define SLACK_NS UINT64_C(5000000000)

/* A ring that processes share, and what they know of its samples. */
typedef struct world {
    es_fix *f;
    es_account *account;
    es_account *seen; /* samples that a learner has read, whether or not it lived to release them */
} world;

static world world_open(uint64_t B, uint64_t K, uint32_t flags, uint32_t lives, uint32_t seqs)
{
    es_geometry geo = fix_geometry(B, K, flags);
    return (world){fix_new_shared(&geo, NULL), es_account_new(lives, seqs), es_account_new(lives, seqs)};
}

static void world_close(world *w)
{
    es_account_free(w->account);
    es_account_free(w->seen);
    fix_free(w->f);
}

static es_ring *attach(world *w, uint32_t role)
{
    return fix_join(w->f, w->f->locks, role, 0);
}

/* Runs body in a child with its own locks. The child dies with its parent. */
static pid_t spawn(world *w, uint32_t role, void (*body)(world *, es_ring *, uint32_t), uint32_t life)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body(w, fix_join(w->f, fix_own_locks(w->f), role, 0), life);
    for (;;)
        pause();
}

static void kill_and_wait(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void producing(world *w, es_ring *r, uint32_t life)
{
    es_random rnd = es_random_new(life);
    uint64_t slice = w->f->geo.reap_interval_ns;
    if (es_random_below(&rnd, 4) == 0)
        fix_sweep(r); /* so reapers are killed too */
    for (uint32_t seq = 0; seq + MAX_RUN < SEQS;) {
        uint64_t id = es_sample_id(life, seq);
        uint32_t way = es_random_below(&rnd, 16);
        int64_t n;
        es_account_begin(w->account, life, way == 0 ? MAX_RUN : way != 1);
        if (way == 0) {
            n = fix_send_many(r, id, 1 + es_random_below(&rnd, MAX_RUN), slice);
        } else if (way == 1) {
            n = fix_reserve(r, slice);
            if (n >= 0) {
                fix_write(r, (uint64_t)n, UINT64_MAX);
                es_api_abort(r, (uint64_t)n);
            }
            n = 0;
        } else {
            n = fix_send_wait(r, id, slice) == ES_OK;
        }
        es_account_end(w->account, life, n > 0 ? (uint32_t)n : 0);
        seq += n > 0 ? (uint32_t)n : 0;
        if (way == 2 && es_random_below(&rnd, 16) == 0)
            fix_sweep(r);
    }
}

static void count_batch(world *w, es_ring *l, int64_t j, const es_snapshot *snap)
{
    uint64_t ids[FIX_MAX_BATCH];
    int64_t n = fix_read_batch(l, j, snap, ids);
    CHECK_EQ(n, (int64_t)snap->length);
    for (int64_t i = 0; i < n; i++)
        es_account_deliver(w->account, ids[i]);
    CHECK_EQ(es_api_release(l, (uint64_t)j, snap->round), ES_OK);
}

static void drain_to_the_end(world *w, es_ring *l)
{
    es_snapshot snap;
    fix_sweep(l);
    CHECK_STR(es_valid(l), NULL);
    es_api_close(l);
    for (;;) {
        int64_t j = es_api_take(l, 0, w->f->geo.reap_interval_ns, &snap);
        if (j >= 0)
            count_batch(w, l, j, &snap);
        else if (j != ES_TIMEOUT && j != ES_EMPTY)
            break;
    }
    CHECK_STR(es_valid(l), NULL);
}

static void kill_producers(uint64_t B, uint64_t K, uint32_t flags, uint32_t kills)
{
    world w = world_open(B, K, flags, kills + CREW + CREW, SEQS);
    es_ring *l = attach(&w, ES_ROLE_LEARNER);
    es_random rnd = es_random_new(B * 100 + K);
    pid_t crew[CREW];
    uint32_t life = 0, spared = 0;
    for (int i = 0; i < CREW; i++)
        crew[i] = spawn(&w, ES_ROLE_PRODUCER, producing, life++);
    uint64_t last = es_clock_ns(), longest = 0;
    while (life < kills + CREW && es_test_failures() == 0) {
        es_snapshot snap;
        int64_t j = es_api_take(l, 0, w.f->geo.reap_interval_ns, &snap);
        uint64_t now = es_clock_ns();
        if (j >= 0) {
            longest = now - last > longest ? now - last : longest;
            last = now;
            count_batch(&w, l, j, &snap);
        }
        if (snap.sweep_due || es_random_below(&rnd, 8) == 0)
            fix_sweep(l);
        /* A crew that has sent everything would wait forever to be killed. */
        if (es_random_below(&rnd, 12) == 0 || j < 0 || ++spared > 40) {
            uint32_t victim = es_random_below(&rnd, CREW);
            kill_and_wait(crew[victim]);
            crew[victim] = spawn(&w, ES_ROLE_PRODUCER, producing, life++);
            spared = 0;
        }
    }
    for (int i = 0; i < CREW; i++)
        kill_and_wait(crew[i]);
    CHECK(longest < w.f->geo.reap_interval_ns + SLACK_NS);
    drain_to_the_end(&w, l);
    CHECK_EQ(es_account_settle(w.account, life, false), w.account->delivered);
    CHECK_EQ(es_account_faults(w.account), 0);
    es_api_detach(l);
    es_api_free(l);
    world_close(&w);
}

/* Producers and reapers are killed at random. Every sample sent is delivered once, and no process waits long. */
TEST(killed_producers_lose_nothing_in_fifo_order)
{
    const uint64_t g[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 2}, {8, 4}};
    for (int i = 0; i < 6; i++)
        kill_producers(g[i][0], g[i][1], 0, (uint32_t)es_test_scaled(300));
}

/* The same in ready order. */
TEST(killed_producers_lose_nothing_in_ready_order)
{
    const uint64_t g[][2] = {{2, 2}, {3, 2}, {8, 4}};
    for (int i = 0; i < 3; i++)
        kill_producers(g[i][0], g[i][1], ES_FLAG_READY_ORDER, (uint32_t)es_test_scaled(300));
}

static void learning(world *w, es_ring *r, uint32_t life)
{
    uint64_t ids[FIX_MAX_BATCH];
    (void)life;
    for (;;) {
        es_snapshot snap;
        int64_t j = es_api_take(r, 0, w->f->geo.reap_interval_ns, &snap);
        if (j < 0)
            continue;
        int64_t n = fix_read_batch(r, j, &snap, ids);
        if (n != (int64_t)snap.length)
            es_account_torn(w->seen, ids[0]);
        for (int64_t i = 0; i < n; i++) {
            if (es_account_came(w->account, ids[i]))
                es_account_deliver(w->account, ids[i]); /* after its release: a fault */
            if (!es_account_came(w->seen, ids[i]))
                es_account_deliver(w->seen, ids[i]);
        }
        es_api_release(r, (uint64_t)j, snap.round);
        for (int64_t i = 0; i < n; i++)
            es_account_deliver(w->account, ids[i]);
    }
}

/* Learners are killed while they hold leases. A sample is delivered at least once, and never after its release. */
TEST(killed_learners_leases_are_delivered_again)
{
    world w = world_open(3, 2, 0, 1, SEQS);
    es_random rnd = es_random_new(77);
    es_ring *p = attach(&w, ES_ROLE_PRODUCER);
    pid_t crew[2];
    uint32_t kills = 0, want = (uint32_t)es_test_scaled(300), seq = 0;
    for (int i = 0; i < 2; i++)
        crew[i] = spawn(&w, ES_ROLE_LEARNER, learning, 0);
    while (seq < SEQS - SEQS % 3 && es_test_failures() == 0) {
        /* The kills are spread over the run, so that they meet every state of a lease. */
        if (kills < want && es_random_below(&rnd, SEQS) < 2 * want) {
            uint32_t victim = es_random_below(&rnd, 2);
            kill_and_wait(crew[victim]);
            crew[victim] = spawn(&w, ES_ROLE_LEARNER, learning, 0);
            kills++;
        }
        es_account_begin(w.seen, 0, 1);
        int rc = fix_send_wait(p, seq, w.f->geo.reap_interval_ns);
        es_account_end(w.seen, 0, rc == ES_OK);
        seq += rc == ES_OK;
        CHECK(rc == ES_OK || rc == ES_TIMEOUT);
        fix_sweep(p);
    }
    for (int i = 0; i < 2; i++)
        kill_and_wait(crew[i]);
    es_ring *l = attach(&w, ES_ROLE_LEARNER);
    drain_to_the_end(&w, l);
    for (uint32_t s = 0; s < seq; s++) /* what was drained had not been released; it may have been seen */
        if (es_account_came(w.account, s) && !es_account_came(w.seen, s))
            es_account_deliver(w.seen, s);
    es_account_settle(w.seen, 1, false);
    CHECK_EQ(es_account_faults(w.seen), 0);
    CHECK_EQ(es_account_faults(w.account), 0);
    es_api_free(l);
    es_api_free(p);
    world_close(&w);
}

static void lease_and_hold(world *w, es_ring *r, uint32_t life)
{
    es_snapshot snap;
    (void)life;
    if (es_api_take(r, 0, 0, &snap) == 0)
        es_account_end(w->account, 0, 1);
}

static void until_ready(world *w)
{
    while (es_account_acked(w->account, 0) == 0)
        sched_yield();
}

/* A lease lasts exactly as long as its process lives. */
TEST(lease_of_a_killed_process_is_given_back)
{
    world w = world_open(1, 2, 0, 1, 1);
    es_ring *p = attach(&w, ES_ROLE_PRODUCER), *l = attach(&w, ES_ROLE_LEARNER);
    fix_send(p, 5);
    pid_t child = spawn(&w, ES_ROLE_LEARNER, lease_and_hold, 0);
    until_ready(&w);
    CHECK_EQ(fix_sweep(l), 0);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
    kill_and_wait(child);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(fix_take_k(l, 0), 0);
    es_api_free(p);
    es_api_free(l);
    world_close(&w);
}

static void reserve_and_stop(world *w, es_ring *r, uint32_t life)
{
    (void)life;
    int64_t pos = fix_reserve(r, 0);
    raise(SIGSTOP);
    fix_write(r, (uint64_t)pos, 7);
    es_api_commit(r, (uint64_t)pos);
    es_account_end(w->account, 0, 1);
}

/* A stopped producer is alive and is not reaped. In ready order it holds up only its own batch. */
TEST(stopped_producer_harms_its_slot_alone)
{
    world w = world_open(2, 3, ES_FLAG_READY_ORDER, 1, 1);
    es_ring *p = attach(&w, ES_ROLE_PRODUCER), *l = attach(&w, ES_ROLE_LEARNER);
    int status;
    pid_t child = spawn(&w, ES_ROLE_PRODUCER, reserve_and_stop, 0);
    waitpid(child, &status, WUNTRACED);
    CHECK(WIFSTOPPED(status));
    for (uint64_t i = 1; i < 6; i++)
        CHECK_EQ(fix_send(p, i), ES_OK);
    CHECK_EQ(fix_send(p, 6), ES_FULL);
    CHECK_EQ(fix_sweep(l), 0);
    CHECK_EQ(fix_take_k(l, 0), 1);
    CHECK_EQ(fix_take_k(l, 0), 2);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
    CHECK_EQ(fix_send(p, 6), ES_FULL); /* one lap later its slot blocks all producers */
    kill(child, SIGCONT);
    until_ready(&w);
    CHECK_EQ(fix_take_k(l, 0), 0);
    CHECK_EQ(fix_send(p, 6), ES_OK);
    kill_and_wait(child);
    es_api_free(p);
    es_api_free(l);
    world_close(&w);
}

/* The byte of another process is seen as held while it lives, and as free after it dies. */
TEST(byte_of_another_process_is_held_while_it_lives)
{
    world w = world_open(1, 1, 0, 1, 1);
    es_ring *l = attach(&w, ES_ROLE_LEARNER);
    pid_t child = spawn(&w, ES_ROLE_PRODUCER, reserve_and_stop, 0);
    int status;
    waitpid(child, &status, WUNTRACED);
    CHECK_EQ(es_locks_held(w.f->locks, ES_MAX_LEARNERS), 1);
    CHECK_EQ(es_locks_try(w.f->locks, ES_MAX_LEARNERS), -EAGAIN);
    CHECK_EQ(es_locks_held(w.f->locks, ES_MAX_LEARNERS + 1), 0);
    kill_and_wait(child);
    CHECK_EQ(es_locks_held(w.f->locks, ES_MAX_LEARNERS), 0);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(es_locks_any(w.f->locks), 1); /* this process's own byte */
    CHECK_EQ(es_api_detach(l), ES_OK);
    CHECK_EQ(es_locks_any(w.f->locks), 0);
    es_api_free(l);
    world_close(&w);
}
