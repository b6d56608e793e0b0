/* Parking and waking. A thread that must be woken waits for a minute; the watchdog is the limit. */
#include <pthread.h>
#include <sched.h>

#include "es_core.h"
#include "es_fixture.h"
#include "es_test.h"

#define MINUTE UINT64_C(60000000000)

typedef struct call {
    es_ring *r;
    int64_t rc;
    uint64_t id;
} call;

static void *take_in_thread(void *arg)
{
    call *c = arg;
    es_snapshot snap;
    c->rc = es_api_take(c->r, 0, MINUTE, &snap);
    return NULL;
}

static void *send_in_thread(void *arg)
{
    call *c = arg;
    c->rc = fix_send_wait(c->r, c->id, MINUTE);
    return NULL;
}

static void until_set(_Atomic uint32_t *flag)
{
    while (atomic_load(flag) == 0)
        sched_yield();
}

/* es_wait() does not sleep on a word that has changed. Otherwise it sleeps until the timeout. */
TEST(wait_returns_on_a_changed_word)
{
    _Atomic uint32_t word = 5;
    CHECK_EQ(es_wait(&word, 4, MINUTE, ES_WAIT_IN_TURN), -EAGAIN);
    uint64_t start = es_clock_ns();
    CHECK_EQ(es_wait(&word, 5, 2000000, ES_WAIT_IN_TURN), ES_TIMEOUT);
    CHECK(es_clock_ns() - start >= 2000000);
    CHECK_EQ(es_wait(&word, 5, 0, ES_WAIT_FIRST), ES_TIMEOUT);
}

/* The built kind of wait is the one that the build asked for. */
TEST(wait_kind_is_the_one_built)
{
#ifdef ES_WAIT_POLL
    CHECK_STR(es_wait_kind(), "poll");
#else
    CHECK_STR(es_wait_kind(), "futex");
#endif
}

/* The last commit of a batch wakes a parked learner. */
TEST(commit_wakes_a_parked_learner)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f);
    call c = {.r = fix_learner(f)};
    pthread_t t;
    fix_send(p, 1);
    pthread_create(&t, NULL, take_in_thread, &c);
    until_set(&p->map.hdr->learner_sleeps);
    fix_send(p, 2);
    pthread_join(t, NULL);
    CHECK_EQ(c.rc, 0);
    CHECK_EQ(p->map.hdr->totals.notify_count, 1);
    fix_free(f);
}

/* A release wakes a parked producer, which wakes the next one, for as long as there is room. */
TEST(release_wakes_producers_for_its_room)
{
    es_fix *f = fix_new(3, 1, 0);
    es_ring *l = fix_learner(f), *p = fix_producer(f);
    call c[3];
    pthread_t t[3];
    for (uint64_t i = 0; i < 3; i++)
        fix_send(p, i);
    for (int i = 0; i < 3; i++) {
        c[i] = (call){.r = fix_producer(f), .id = (uint64_t)i};
        pthread_create(&t[i], NULL, send_in_thread, &c[i]);
        until_set(&l->map.owners[c[i].r->me].waiting);
    }
    CHECK_EQ(fix_take_k(l, 0), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], NULL);
        CHECK_EQ(c[i].rc, ES_OK);
        CHECK_EQ(l->map.owners[c[i].r->me].waiting, 0);
    }
    CHECK_EQ(fix_take_k(l, 0), 1);
    fix_free(f);
}

/* One commit wakes all parked learners. One takes the batch, and the other is woken again by the next. */
TEST(second_learner_is_still_woken_after_the_first)
{
    es_fix *f = fix_new(1, 3, 0);
    es_ring *p = fix_producer(f);
    call c[2] = {{.r = fix_learner(f)}, {.r = fix_learner(f)}};
    pthread_t t[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&t[i], NULL, take_in_thread, &c[i]);
    until_set(&p->map.hdr->learner_sleeps);
    fix_send(p, 1);
    fix_send(p, 2);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    CHECK(c[0].rc >= 0 && c[1].rc >= 0 && c[0].rc != c[1].rc);
    fix_free(f);
}

/* A count beyond B, from an increment that came a lap late, does not stop the last commit from waking. */
TEST(overcounted_batch_still_wakes)
{
    for (uint32_t late = 1; late <= 3; late++) {
        es_fix *f = fix_new(3, 2, 0);
        es_ring *p = fix_producer(f);
        call c = {.r = fix_learner(f)};
        pthread_t t;
        fix_send(p, 1);
        fix_send(p, 2);
        atomic_fetch_add(&p->map.batches[0].count, late);
        pthread_create(&t, NULL, take_in_thread, &c);
        until_set(&p->map.hdr->learner_sleeps);
        fix_send(p, 3);
        pthread_join(t, NULL);
        CHECK_EQ(c.rc, 0);
        fix_free(f);
    }
}

/* An abort wakes a producer that is parked on a full ring. */
TEST(abort_wakes_a_parked_producer)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f);
    call c = {.r = fix_producer(f), .id = 3};
    pthread_t t;
    uint64_t pos;
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    fix_send(p, 1);
    pthread_create(&t, NULL, send_in_thread, &c);
    until_set(&p->map.hdr->producers_sleep);
    es_api_abort(p, pos);
    pthread_join(t, NULL);
    CHECK_EQ(c.rc, ES_OK);
    fix_free(f);
}

/* A reap wakes a producer for the slot that it re-opens. */
TEST(reap_wakes_a_parked_producer)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *dead = fix_producer(f), *l = fix_learner(f);
    call c = {.r = fix_producer(f), .id = 3};
    pthread_t t;
    uint64_t pos;
    REQUIRE_EQ(es_one_claim(dead, &pos), ES_OK);
    pthread_create(&t, NULL, send_in_thread, &c);
    until_set(&l->map.hdr->producers_sleep);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(l), 1);
    pthread_join(t, NULL);
    CHECK_EQ(c.rc, ES_OK);
    CHECK_EQ(fix_take_k(l, 0), 0);
    fix_free(f);
}

/* A reap wakes a learner for the batch that it gives back. */
TEST(reap_wakes_a_parked_learner)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *dead = fix_learner(f), *p = fix_producer(f);
    call c = {.r = fix_learner(f)};
    pthread_t t;
    uint64_t round;
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(dead, 0, &round), 0);
    pthread_create(&t, NULL, take_in_thread, &c);
    until_set(&p->map.hdr->learner_sleeps);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(p), 1);
    pthread_join(t, NULL);
    CHECK_EQ(c.rc, 0);
    fix_free(f);
}

/* The waker clears the sleep flag. A sleeper that wakes leaves the flag as it is. */
TEST(sleeper_leaves_the_flag_to_its_waker)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_snapshot snap;
    CHECK_EQ(es_api_take(l, 0, 1, &snap), ES_TIMEOUT);
    CHECK_EQ(l->map.hdr->learner_sleeps, 1);
    fix_send(p, 1);
    CHECK_EQ(l->map.hdr->learner_sleeps, 0);
    CHECK_EQ(fix_send_wait(p, 2, 1), ES_TIMEOUT);
    CHECK_EQ(l->map.hdr->producers_sleep, 1);
    CHECK_EQ(fix_take_k(l, 0), 0);
    CHECK_EQ(l->map.hdr->producers_sleep, 0);
    fix_free(f);
}

/* No process is woken when none sleeps. */
TEST(no_wake_without_a_sleeper)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    fix_spin_laps(p, l, 10);
    CHECK_EQ(l->map.hdr->ready_seq, 0);
    CHECK_EQ(l->map.hdr->space_seq, 0);
    CHECK_EQ(l->map.hdr->totals.notify_count, 0);
    fix_free(f);
}

/* A stop ends the sleep of a parked producer. Its other claim can still be committed. Others sleep on. */
TEST(stop_takes_a_parked_producer_out)
{
    es_fix *f = fix_new(1, 2, 0);
    call s = {.r = fix_producer(f), .id = 2}, other = {.r = fix_producer(f), .id = 3};
    es_ring *watch = fix_learner(f);
    pthread_t ts, to;
    CHECK_EQ(fix_reserve(s.r, 0), 0);
    fix_send(s.r, 1);
    pthread_create(&ts, NULL, send_in_thread, &s);
    pthread_create(&to, NULL, send_in_thread, &other);
    until_set(&watch->map.owners[s.r->me].waiting);
    until_set(&watch->map.owners[other.r->me].waiting);
    CHECK_EQ(es_api_stop(s.r), ES_OK);
    pthread_join(ts, NULL);
    CHECK_EQ(s.rc, ES_EDETACHED);
    CHECK_EQ(watch->map.owners[other.r->me].waiting, 1);
    CHECK_EQ(es_api_commit(s.r, 0), ES_OK);
    CHECK_EQ(fix_take_k(watch, 0), 0);
    CHECK_EQ(fix_take_k(watch, 0), 1);
    pthread_join(to, NULL);
    CHECK_EQ(other.rc, ES_OK);
    fix_free(f);
}

/* Detach waits for threads inside a call, and ends the sleep of those that are parked. */
TEST(detach_takes_parked_threads_out)
{
    es_fix *f = fix_new(1, 1, 0);
    call s = {.r = fix_producer(f), .id = 2}, t = {.r = fix_learner(f)};
    es_ring *watch = fix_learner(f);
    uint64_t round;
    pthread_t ts, tt;
    fix_send(s.r, 1);
    REQUIRE_EQ(fix_take(watch, 0, &round), 0);
    pthread_create(&ts, NULL, send_in_thread, &s);
    pthread_create(&tt, NULL, take_in_thread, &t);
    until_set(&watch->map.hdr->producers_sleep);
    until_set(&watch->map.hdr->learner_sleeps);
    CHECK_EQ(es_api_detach(s.r), ES_OK);
    CHECK_EQ(es_api_detach(t.r), ES_OK);
    CHECK_EQ(atomic_load(&s.r->busy), 0);
    pthread_join(ts, NULL);
    pthread_join(tt, NULL);
    CHECK_EQ(s.rc, ES_EDETACHED);
    CHECK_EQ(t.rc, ES_EDETACHED);
    fix_free(f);
}

/* The close ends the wait of a parked producer and of a parked learner. */
TEST(close_takes_parked_threads_out)
{
    es_fix *f = fix_new(1, 1, 0);
    call s = {.r = fix_producer(f), .id = 2}, t = {.r = fix_learner(f)};
    es_ring *holder = fix_learner(f);
    uint64_t round;
    pthread_t ts, tt;
    fix_send(s.r, 1);
    REQUIRE_EQ(fix_take(holder, 0, &round), 0);
    pthread_create(&ts, NULL, send_in_thread, &s);
    pthread_create(&tt, NULL, take_in_thread, &t);
    until_set(&holder->map.hdr->producers_sleep);
    until_set(&holder->map.hdr->learner_sleeps);
    CHECK_EQ(es_api_close(holder), ES_OK);
    pthread_join(ts, NULL);
    CHECK_EQ(s.rc, ES_ECLOSED);
    es_api_release(holder, 0, round);
    es_wake_all(holder);
    pthread_join(tt, NULL);
    CHECK_EQ(t.rc, ES_ENDED);
    fix_free(f);
}
