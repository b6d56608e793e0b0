/* Threads of one process that share an attachment: they release each other's leases and detach under each other. */
#include <pthread.h>
#include <sched.h>

#include "es_fixture.h"
#include "es_test.h"

#define SLICE UINT64_C(5000000)

static const uint64_t shapes[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 2}, {8, 4}};
#define SHAPES (sizeof shapes / sizeof *shapes)

typedef struct crowd {
    es_ring *p, *l;
    _Atomic uint64_t sent, delivered;
    _Atomic uint64_t lease; /* the last lease taken: [round | batch:8 | samples + 1:8] */
    uint64_t each;
} crowd;

static void *send_until_detached(void *arg)
{
    crowd *c = arg;
    for (uint64_t i = 0;; i++) {
        int64_t n = i % 4 == 0 ? fix_send_many(c->p, i, 3, SLICE) : fix_send_wait(c->p, i, SLICE);
        if (n == ES_EDETACHED)
            return NULL;
        CHECK(n >= 0 || n == ES_TIMEOUT);
        atomic_fetch_add(&c->sent, n < 0 ? 0 : n == ES_OK ? 1 : (uint64_t)n);
    }
}

/* Reads no batch: a thread that can be detached by another must not. */
static void *take_until_detached(void *arg)
{
    crowd *c = arg;
    for (uint64_t i = 0;; i++) {
        es_snapshot snap;
        int64_t j = es_api_take(c->l, i % 3 == 0 ? ES_TAKE_SHORT : 0, SLICE, &snap);
        if (j == ES_EDETACHED)
            return NULL;
        if (j < 0)
            continue;
        atomic_fetch_add(&c->delivered, snap.length);
        int rc = es_api_release(c->l, (uint64_t)j, snap.round);
        CHECK(rc == ES_OK || rc == ES_EDETACHED); /* ES_EDETACHED: the detach released the batch */
    }
}

/* Detach waits for the threads inside a call and makes them return. Their sends and takes are counted once. */
TEST(detach_under_threads_that_share_the_attachment)
{
    for (uint64_t turn = 0; turn < es_test_scaled(500); turn++) {
        es_fix *f = fix_new(shapes[turn % SHAPES][0], shapes[turn % SHAPES][1], turn & 8 ? ES_FLAG_READY_ORDER : 0);
        crowd c = {.p = fix_producer(f), .l = fix_learner(f)};
        es_ring *last = fix_learner(f);
        fix_share(c.p);
        pthread_t t[5];
        for (int i = 0; i < 5; i++)
            pthread_create(&t[i], NULL, i < 3 ? send_until_detached : take_until_detached, &c);
        while (atomic_load(&c.sent) < 20 + turn % 100)
            sched_yield();
        CHECK_EQ(es_api_detach(turn & 1 ? c.l : c.p), ES_OK);
        CHECK_EQ(es_api_detach(turn & 1 ? c.p : c.l), ES_OK);
        for (int i = 0; i < 5; i++)
            pthread_join(t[i], NULL);
        uint64_t ids[16];
        es_api_close(last);
        for (int64_t n = 0; n != ES_ENDED; n = fix_take_short(last, 0, ids))
            c.delivered += n > 0 ? (uint64_t)n : 0;
        CHECK_EQ(c.delivered, c.sent);
        CHECK_STR(es_valid(last), NULL);
        fix_free(f);
    }
}

/* --- one lease, several threads ------------------------------------------------------ */

static void *send_each(void *arg)
{
    crowd *c = arg;
    for (uint64_t i = 0; i < c->each;) {
        int64_t n = i % 4 == 0 && i + 3 <= c->each ? fix_send_many(c->p, i, 3, SLICE) : fix_send_wait(c->p, i, SLICE);
        if (n < 0 && !CHECK_EQ(n, ES_TIMEOUT))
            break;
        i += n < 0 ? 0 : n == ES_OK ? 1 : (uint64_t)n;
    }
    return NULL;
}

/* Releases a lease that other threads may also release. The thread that succeeds counts its samples. */
static void release(crowd *c, uint64_t lease)
{
    int rc = es_api_release(c->l, lease >> 8 & 0xff, lease >> 16);
    if (CHECK(rc == ES_OK || rc == ES_ESTALE) && rc == ES_OK)
        atomic_fetch_add(&c->delivered, (lease & 0xff) - 1);
}

static void *take_and_meddle(void *arg)
{
    static const uint32_t wishes[] = {0, ES_TAKE_SHORT, ES_TAKE_ANY_ORDER, ES_TAKE_SHORT};
    static _Atomic uint64_t salt;
    crowd *c = arg;
    es_random rnd = es_random_new(500 + atomic_fetch_add(&salt, 1));
    es_snapshot snap;
    for (;;) {
        int64_t j = es_api_take(c->l, wishes[es_random_below(&rnd, 4)], SLICE, &snap);
        if (j == ES_ENDED)
            return NULL;
        if (j < 0)
            continue;
        if (es_random_below(&rnd, 8) == 0) { /* (batch, round) will be leased again, and no thread knows this lease */
            CHECK_EQ(es_api_give_back(c->l, (uint64_t)j, snap.round), ES_OK);
            continue;
        }
        uint64_t lease = snap.round << 16 | (uint64_t)j << 8 | (snap.length + 1);
        uint64_t others = atomic_exchange(&c->lease, lease);
        if (es_random_below(&rnd, 4) == 0)
            sched_yield();
        if (others != 0)
            release(c, others);
        release(c, lease);
    }
}

/* When several threads release one lease, one succeeds. Others give their leases back in between. */
TEST(lease_is_released_by_one_thread)
{
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        es_fix *f = fix_new(shapes[i % SHAPES][0], shapes[i % SHAPES][1], i >= SHAPES ? ES_FLAG_READY_ORDER : 0);
        crowd c = {.p = fix_producer(f), .l = fix_learner(f), .each = es_test_scaled(2000)};
        fix_share(c.p);
        pthread_t t[6];
        for (int k = 0; k < 6; k++)
            pthread_create(&t[k], NULL, k < 3 ? send_each : take_and_meddle, &c);
        for (int k = 0; k < 3; k++)
            pthread_join(t[k], NULL);
        es_api_close(c.p);
        for (int k = 3; k < 6; k++)
            pthread_join(t[k], NULL);
        CHECK_EQ(c.delivered, 3 * c.each);
        CHECK_STR(es_valid(c.l), NULL);
        fix_free(f);
    }
}
