/* Threads against each other: every sample is accounted for, in every ring from one slot up. */
#include <pthread.h>
#include <sched.h>

#include "es_account.h"
#include "es_fixture.h"
#include "es_test.h"

#define MAX_THREADS 6
#define MAX_RUN 5 /* samples of one send */
#define SLICE UINT64_C(20000000)

typedef struct arena {
    es_fix *f;
    uint64_t each; /* samples of each producer */
    es_account *account;
    bool aborts;
} arena;

typedef struct worker {
    arena *a;
    es_ring *r;
    uint32_t number;
} worker;

/* Sends one sample in a random way. Returns how many were committed. */
static int64_t produce_some(worker *w, es_random *rnd, uint64_t seq)
{
    uint32_t way = es_random_below(rnd, 8);
    uint64_t left = w->a->each - seq;
    if (way == 0) {
        uint64_t n = 1 + es_random_below(rnd, MAX_RUN);
        int64_t sent = fix_send_many(w->r, es_sample_id(w->number, (uint32_t)seq), n < left ? n : left, SLICE);
        return sent == ES_TIMEOUT ? 0 : sent;
    }
    if (way <= 2) {
        int64_t pos = fix_reserve(w->r, SLICE);
        if (pos == ES_TIMEOUT)
            return 0;
        if (pos < 0)
            return pos;
        if (w->a->aborts && way == 1) {
            fix_write(w->r, (uint64_t)pos, UINT64_MAX); /* must never be delivered */
            es_api_abort(w->r, (uint64_t)pos);
            return 0;
        }
        fix_write(w->r, (uint64_t)pos, es_sample_id(w->number, (uint32_t)seq));
        int rc = es_api_commit(w->r, (uint64_t)pos);
        return rc == ES_OK ? 1 : rc;
    }
    int rc = fix_send_wait(w->r, es_sample_id(w->number, (uint32_t)seq), SLICE);
    return rc == ES_OK ? 1 : rc == ES_TIMEOUT ? 0 : rc;
}

static void *produce(void *arg)
{
    worker *w = arg;
    es_random rnd = es_random_new(w->number);
    for (uint64_t seq = 0; seq < w->a->each;) {
        es_account_begin(w->a->account, w->number, MAX_RUN);
        int64_t n = produce_some(w, &rnd, seq);
        es_account_end(w->a->account, w->number, n < 0 ? 0 : (uint32_t)n);
        if (!CHECK(n >= 0))
            break;
        seq += (uint64_t)n;
    }
    return NULL;
}

static void *learn(void *arg)
{
    worker *w = arg;
    uint64_t ids[FIX_MAX_BATCH];
    es_snapshot snap;
    for (;;) {
        int64_t j = es_api_take(w->r, 0, SLICE, &snap);
        if (j == ES_TIMEOUT || j == ES_EMPTY)
            continue;
        if (j < 0) {
            CHECK_EQ(j, ES_ENDED);
            return NULL;
        }
        int64_t n = fix_read_batch(w->r, j, &snap, ids);
        CHECK_EQ(n, (int64_t)snap.length);
        for (int64_t i = 0; i < n; i++)
            es_account_deliver(w->a->account, ids[i]);
        CHECK_EQ(es_api_release(w->r, (uint64_t)j, snap.round), ES_OK);
    }
}

/* Runs producers and learners. shared: all threads of a kind use one attachment. */
static void run(uint64_t B, uint64_t K, uint32_t flags, int producers, int learners, bool aborts, bool shared)
{
    arena a = {.f = fix_new(B, K, flags), .each = es_test_scaled(6000), .aborts = aborts};
    a.account = es_account_new((uint32_t)producers, (uint32_t)a.each);
    a.account->ordered = learners == 1 && !aborts && !shared && (flags & ES_FLAG_READY_ORDER) == 0;
    es_ring *p = shared ? fix_producer(a.f) : NULL, *l = shared ? fix_learner(a.f) : NULL;
    if (shared)
        fix_share(p);
    worker w[2 * MAX_THREADS];
    pthread_t t[2 * MAX_THREADS];
    int n = producers + learners;
    for (int i = 0; i < n; i++) {
        bool producer = i < producers;
        es_ring *own = shared ? (producer ? p : l) : producer ? fix_producer(a.f) : fix_learner(a.f);
        w[i] = (worker){&a, own, (uint32_t)i};
        pthread_create(&t[i], NULL, producer ? produce : learn, &w[i]);
    }
    for (int i = 0; i < producers; i++)
        pthread_join(t[i], NULL);
    CHECK_EQ(es_api_close(w[0].r), ES_OK);
    for (int i = producers; i < n; i++)
        pthread_join(t[i], NULL);
    CHECK_EQ(es_account_settle(a.account, (uint32_t)producers, false), (uint64_t)producers * a.each);
    CHECK_EQ(a.account->delivered, (uint64_t)producers * a.each);
    CHECK_EQ(es_account_faults(a.account), 0);
    CHECK_STR(es_valid(w[0].r), NULL);
    es_account_free(a.account);
    fix_free(a.f);
}

static const uint64_t small[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 2}, {8, 4}};
#define SMALL (sizeof small / sizeof *small)

/* One learner, no aborts: fifo order keeps each producer's order, and no sample is lost, doubled or torn. */
TEST(fifo_keeps_each_producers_order)
{
    for (size_t i = 0; i < SMALL; i++)
        run(small[i][0], small[i][1], 0, 3, 1, false, false);
}

/* Aborts and several learners: every sample arrives once, in any order. */
TEST(fifo_accounts_for_every_sample)
{
    for (size_t i = 0; i < SMALL; i++)
        run(small[i][0], small[i][1], 0, 3, 2, true, false);
}

/* The same in ready order. */
TEST(ready_accounts_for_every_sample)
{
    for (size_t i = 0; i < SMALL; i++)
        run(small[i][0], small[i][1], ES_FLAG_READY_ORDER, 4, 3, true, false);
}

/* Threads can share an attachment, because words tell claims apart by position. */
TEST(threads_may_share_one_attachment)
{
    for (size_t i = 0; i < SMALL; i++)
        run(small[i][0], small[i][1], i % 2 ? ES_FLAG_READY_ORDER | ES_FLAG_DETAILED : 0, 3, 2, true, true);
}

static void *produce_until_refused(void *arg)
{
    worker *w = arg;
    for (uint64_t seq = 0; seq < w->a->each;) {
        es_account_begin(w->a->account, w->number, 1);
        int rc = fix_send_wait(w->r, es_sample_id(w->number, (uint32_t)seq), SLICE);
        es_account_end(w->a->account, w->number, rc == ES_OK);
        if (rc == ES_ECLOSED || rc == ES_EEVICTED) /* its copy took longer than a drain waits */
            break;
        seq += rc == ES_OK;
        CHECK(rc == ES_OK || rc == ES_TIMEOUT);
    }
    return NULL;
}

/* The ring closes during the sends. What was sent is delivered, and what was refused is not. */
TEST(close_in_full_flight_delivers_what_was_sent)
{
    for (uint64_t turn = 0; turn < es_test_scaled(120); turn++) {
        const uint64_t *g = small[turn % SMALL];
        arena a = {.f = fix_new(g[0], g[1], turn & 8 ? ES_FLAG_READY_ORDER : 0), .each = 1000};
        a.account = es_account_new(3, (uint32_t)a.each);
        worker w[5];
        pthread_t t[5];
        for (int i = 0; i < 5; i++) {
            w[i] = (worker){&a, i < 3 ? fix_producer(a.f) : fix_learner(a.f), (uint32_t)i};
            pthread_create(&t[i], NULL, i < 3 ? produce_until_refused : learn, &w[i]);
        }
        while (atomic_load(&a.account->delivered) < 20 + turn)
            sched_yield();
        es_api_close(w[4].r);
        for (int i = 0; i < 5; i++)
            pthread_join(t[i], NULL);
        CHECK_EQ(es_account_settle(a.account, 3, false), a.account->delivered);
        CHECK_EQ(es_account_faults(a.account), 0);
        CHECK_STR(es_valid(w[0].r), NULL);
        es_account_free(a.account);
        fix_free(a.f);
    }
}
