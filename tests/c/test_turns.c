/* Which of several producers that sleep on a full ring is woken, and how many. */
#define _GNU_SOURCE /* syscall */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "es_core.h"
#include "es_fixture.h"
#include "es_test.h"

#define MINUTE UINT64_C(60000000000)

typedef struct sleeper {
    es_ring *r;
    pthread_t thread;
    _Atomic long tid;
    _Atomic bool done;
    int64_t rc;
} sleeper;

static void *send_in_thread(void *arg)
{
    sleeper *s = arg;
    atomic_store(&s->tid, syscall(SYS_gettid));
    s->rc = fix_send_wait(s->r, 9, MINUTE);
    atomic_store(&s->done, true);
    return NULL;
}

/* What the kernel says of a thread: its state, and how often it has slept so far. */
static char state_of(const sleeper *s, long *slept)
{
    char path[64], line[128], state = '?';
    snprintf(path, sizeof path, "/proc/self/task/%ld/status", atomic_load(&s->tid));
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "State: %c", &state) != 1)
            sscanf(line, "voluntary_ctxt_switches: %ld", slept);
    if (file != NULL)
        fclose(file);
    return state;
}

/* Returns once the thread sleeps in a call that has begun: how often it has slept. */
static long until_asleep(const sleeper *s)
{
    long slept = 0;
    while (atomic_load(&s->tid) == 0 || atomic_load(&s->r->map.owners[s->r->me].waiting) == 0 ||
           state_of(s, &slept) != 'S')
        sched_yield();
    return slept;
}

static long sleeper_start(sleeper *s, es_ring *r)
{
    *s = (sleeper){.r = r};
    pthread_create(&s->thread, NULL, send_in_thread, s);
    return until_asleep(s);
}

static int finished(sleeper *s, int n)
{
    int done = 0;
    for (int i = 0; i < n; i++)
        done += atomic_load(&s[i].done);
    return done;
}

/* Empties the ring until all have sent. */
static void sleepers_end(es_ring *l, sleeper *s, int n)
{
    while (finished(s, n) < n) {
        fix_take_k(l, 0);
        sched_yield();
    }
    for (int i = 0; i < n; i++) {
        pthread_join(s[i].thread, NULL);
        CHECK_EQ(s[i].rc, ES_OK);
    }
}

/* A release wakes no more producers than go on: the others sleep in the same call as before. */
TEST(release_wakes_one_producer)
{
    if (strcmp(es_wait_kind(), "futex") != 0)
        return;
    es_fix *f = fix_new(1, 1, 0);
    es_ring *l = fix_learner(f);
    fix_send(fix_producer(f), 1);
    sleeper s[3];
    long before[3];
    int woken = 0;
    for (int i = 0; i < 3; i++)
        before[i] = sleeper_start(&s[i], fix_producer(f));
    CHECK_EQ(fix_take_k(l, 0), 0);
    while (finished(s, 3) == 0)
        sched_yield();
    for (int i = 0; i < 3; i++)
        woken += atomic_load(&s[i].done) || until_asleep(&s[i]) != before[i];
    CHECK_EQ(woken, 1);
    sleepers_end(l, s, 3);
    fix_free(f);
}

/* Of two producers, the one that was woken and found the ring full is woken first next time, although the other has
 * slept longer by then. */
TEST(producer_woken_in_vain_comes_first)
{
    if (strcmp(es_wait_kind(), "futex") != 0)
        return;
    es_fix *f = fix_new(1, 1, 0);
    es_ring *l = fix_learner(f);
    sleeper s[2];
    fix_send(fix_producer(f), 1);
    for (int i = 0; i < 2; i++)
        sleeper_start(&s[i], fix_producer(f));
    es_wake_producer(l);
    while (atomic_load(&l->map.hdr->passed_over) == 0)
        sched_yield();
    until_asleep(&s[0]);
    CHECK_EQ(fix_take_k(l, 0), 0);
    while (finished(s, 2) == 0)
        sched_yield();
    CHECK(s[0].done && !s[1].done);
    sleepers_end(l, s, 2);
    fix_free(f);
}
