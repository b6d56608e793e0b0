/* Processes that are killed at random moments: kernel locks, real deaths, real waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "es_fixture.h"
#include "es_test.h"

#define LIVES 8192 /* processes in one run */
#define SEQS 2048  /* samples of one process */
#define MAX_RUN 5  /* samples of one send; so many can be committed but not noted */
#define CREW 3     /* producers that live at the same time */
#define SLACK_NS UINT64_C(5000000000)

typedef struct side_table {        /* shared memory */
    _Atomic uint32_t noted[LIVES]; /* the child says that it sent the numbers below this */
    _Atomic uint8_t got[LIVES][SEQS];
    _Atomic uint8_t released[LIVES];
    _Atomic uint32_t ready;
} side_table;

typedef struct world {
    es_geometry geo;
    void *base;
    uint64_t size;
    side_table *side;
    char path[32];
    es_locks *locks; /* of the parent */
} world;

static void *shared(uint64_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool world_open(world *w, uint64_t B, uint64_t K, uint32_t flags)
{
    w->geo = fix_geometry(B, K, flags);
    w->size = fix_segment_size(&w->geo);
    w->base = shared(w->size);
    w->side = shared(sizeof *w->side);
    strcpy(w->path, "/tmp/es-locks-XXXXXX");
    int fd = mkstemp(w->path);
    w->locks = es_locks_new(fd, ES_MAX_LEARNERS + FIX_PRODUCERS);
    return CHECK(w->base && w->side && fd >= 0 && w->locks) && CHECK_EQ(fix_format(w->base, w->size, &w->geo), ES_OK);
}

static void world_close(world *w)
{
    es_locks_free(w->locks);
    unlink(w->path);
    munmap(w->base, w->size);
    munmap(w->side, sizeof *w->side);
}

static es_ring *attach(world *w, es_locks *locks, uint32_t role)
{
    int error;
    es_ring *r = es_api_open(w->base, w->size, locks, 0, &error);
    es_identity id = {.role = role, .pid = getpid()};
    /* Entries of dead owners can fill the table for a moment. */
    while (r != NULL && es_api_attach(r, &id) == ES_ENOOWNER)
        sched_yield();
    return r;
}

/* Runs body in a child with its own locks. The child dies with its parent. */
static pid_t spawn(world *w, uint32_t role, void (*body)(world *, es_ring *, uint32_t), uint32_t life)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    es_locks *locks = es_locks_new(open(w->path, O_RDWR | O_CLOEXEC), ES_MAX_LEARNERS + FIX_PRODUCERS);
    es_ring *r = attach(w, locks, role);
    if (r == NULL)
        _exit(2);
    body(w, r, life);
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
    uint64_t slice = w->geo.reap_interval_ns;
    if (es_random_below(&rnd, 4) == 0)
        fix_sweep(r); /* so reapers are killed too */
    for (uint32_t seq = 0; seq + MAX_RUN < SEQS;) {
        uint64_t id = (uint64_t)life << 32 | seq;
        uint32_t way = es_random_below(&rnd, 16);
        int64_t n;
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
        if (n > 0)
            atomic_store(&w->side->noted[life], seq += (uint32_t)n);
        if (way == 2 && es_random_below(&rnd, 16) == 0)
            fix_sweep(r);
    }
}

static void count_batch(world *w, es_ring *l, int64_t j, const es_snapshot *snap)
{
    uint8_t mask[64];
    CHECK_EQ(es_api_committed_mask(l, (uint64_t)j, snap->round, mask), (int64_t)snap->length);
    for (uint64_t i = 0; i < w->geo.batch_size; i++) {
        uint64_t id;
        if (!mask[i])
            continue;
        if (CHECK(fix_read(l, (uint64_t)j * w->geo.batch_size + i, &id)) && CHECK(id >> 32 < LIVES) &&
            CHECK((uint32_t)id < SEQS))
            atomic_fetch_add(&w->side->got[id >> 32][(uint32_t)id], 1);
    }
    CHECK_EQ(es_api_release(l, (uint64_t)j, snap->round), ES_OK);
}

/* Every noted sample arrived once. Beyond them, at most one send's samples arrived, once each. */
static void check_life(world *w, uint32_t life)
{
    uint32_t noted = atomic_load(&w->side->noted[life]), lost = 0, doubled = 0, beyond = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        uint8_t n = atomic_load(&w->side->got[life][s]);
        lost += s < noted && n == 0;
        doubled += n > 1;
        beyond += s >= noted && n > 0;
    }
    CHECK_EQ(lost, 0);
    CHECK_EQ(doubled, 0);
    CHECK(beyond <= MAX_RUN);
}

static void drain_to_the_end(world *w, es_ring *l)
{
    es_snapshot snap;
    fix_sweep(l);
    CHECK_STR(es_valid(l), NULL);
    es_api_close(l);
    for (;;) {
        int64_t j = es_api_take(l, 0, w->geo.reap_interval_ns, &snap);
        if (j >= 0)
            count_batch(w, l, j, &snap);
        else if (j != ES_TIMEOUT && j != ES_EMPTY)
            break;
    }
    CHECK_STR(es_valid(l), NULL);
}

static void kill_producers(uint64_t B, uint64_t K, uint32_t flags, uint32_t kills)
{
    world w;
    if (!world_open(&w, B, K, flags))
        return;
    es_ring *l = attach(&w, w.locks, ES_ROLE_LEARNER);
    es_random rnd = es_random_new(B * 100 + K);
    pid_t crew[CREW];
    uint32_t life = 0, spared = 0;
    for (int i = 0; i < CREW; i++)
        crew[i] = spawn(&w, ES_ROLE_PRODUCER, producing, life++);
    uint64_t last = es_clock_ns(), longest = 0;
    while (life < kills + CREW && es_test_failures() == 0) {
        es_snapshot snap;
        int64_t j = es_api_take(l, 0, w.geo.reap_interval_ns, &snap);
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
    CHECK(longest < w.geo.reap_interval_ns + SLACK_NS);
    drain_to_the_end(&w, l);
    for (uint32_t i = 0; i < life; i++)
        check_life(&w, i);
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
    (void)life;
    for (;;) {
        es_snapshot snap;
        int64_t j = es_api_take(r, 0, w->geo.reap_interval_ns, &snap);
        if (j < 0)
            continue;
        uint64_t id;
        for (uint64_t i = 0; i < w->geo.batch_size; i++)
            if (fix_read(r, (uint64_t)j * w->geo.batch_size + i, &id) && (uint32_t)id < SEQS) {
                atomic_fetch_add(&w->side->got[0][(uint32_t)id], 1);
                if (atomic_load(&w->side->released[(uint32_t)id]))
                    atomic_store(&w->side->got[1][0], 1); /* delivered after its release */
            } else {
                atomic_store(&w->side->got[1][1], 1); /* torn */
            }
        uint64_t first = (uint64_t)j * w->geo.batch_size;
        uint64_t ids[8];
        for (uint64_t i = 0; i < w->geo.batch_size; i++)
            fix_read(r, first + i, &ids[i]);
        es_api_release(r, (uint64_t)j, snap.round);
        for (uint64_t i = 0; i < w->geo.batch_size; i++)
            atomic_store(&w->side->released[ids[i] % SEQS], 1);
    }
}

/* Learners are killed while they hold leases. A sample is delivered at least once, and never after its release. */
TEST(killed_learners_leases_are_delivered_again)
{
    world w;
    if (!world_open(&w, 3, 2, 0))
        return;
    es_random rnd = es_random_new(77);
    es_ring *p = attach(&w, w.locks, ES_ROLE_PRODUCER);
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
        int rc = fix_send_wait(p, seq, w.geo.reap_interval_ns);
        if (rc == ES_OK)
            seq++;
        else
            CHECK_EQ(rc, ES_TIMEOUT);
        fix_sweep(p);
    }
    for (int i = 0; i < 2; i++)
        kill_and_wait(crew[i]);
    es_ring *l = attach(&w, w.locks, ES_ROLE_LEARNER);
    drain_to_the_end(&w, l);
    uint32_t lost = 0;
    for (uint32_t s = 0; s < seq; s++)
        lost += w.side->got[0][s] == 0;
    CHECK_EQ(lost, 0);
    CHECK_EQ(w.side->got[1][0], 0);
    CHECK_EQ(w.side->got[1][1], 0);
    es_api_free(l);
    es_api_free(p);
    world_close(&w);
}

static void lease_and_hold(world *w, es_ring *r, uint32_t life)
{
    es_snapshot snap;
    (void)life;
    if (es_api_take(r, 0, 0, &snap) == 0)
        atomic_store(&w->side->ready, 1);
}

static void until_ready(world *w)
{
    while (atomic_load(&w->side->ready) == 0)
        sched_yield();
}

/* A lease lasts exactly as long as its process lives. */
TEST(lease_of_a_killed_process_is_given_back)
{
    world w;
    if (!world_open(&w, 1, 2, 0))
        return;
    es_ring *p = attach(&w, w.locks, ES_ROLE_PRODUCER), *l = attach(&w, w.locks, ES_ROLE_LEARNER);
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
    atomic_store(&w->side->ready, 1);
}

/* A stopped producer is alive and is not reaped. In ready order it holds up only its own batch. */
TEST(stopped_producer_harms_its_slot_alone)
{
    world w;
    if (!world_open(&w, 2, 3, ES_FLAG_READY_ORDER))
        return;
    es_ring *p = attach(&w, w.locks, ES_ROLE_PRODUCER), *l = attach(&w, w.locks, ES_ROLE_LEARNER);
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
    world w;
    if (!world_open(&w, 1, 1, 0))
        return;
    es_ring *l = attach(&w, w.locks, ES_ROLE_LEARNER);
    pid_t child = spawn(&w, ES_ROLE_PRODUCER, reserve_and_stop, 0);
    int status;
    waitpid(child, &status, WUNTRACED);
    CHECK_EQ(es_locks_held(w.locks, ES_MAX_LEARNERS), 1);
    CHECK_EQ(es_locks_try(w.locks, ES_MAX_LEARNERS), -EAGAIN);
    CHECK_EQ(es_locks_held(w.locks, ES_MAX_LEARNERS + 1), 0);
    kill_and_wait(child);
    CHECK_EQ(es_locks_held(w.locks, ES_MAX_LEARNERS), 0);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(es_locks_any(w.locks), 1); /* this process's own byte */
    CHECK_EQ(es_api_detach(l), ES_OK);
    CHECK_EQ(es_locks_any(w.locks), 0);
    es_api_free(l);
    world_close(&w);
}
