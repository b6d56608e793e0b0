/* All operations at once on one ring: producers and learners that attach, detach and die, reapers, onlookers,
 * partial takes, batches given back, and the close.
 *
 * A thread dies by dropping its lock byte while it holds a claim or a lease, as the kernel drops the byte of a
 * killed process. Every sample that was sent is released once.
 */
#include <pthread.h>
#include <sched.h>

#include "es_account.h"
#include "es_fixture.h"
#include "es_test.h"

#define PRODUCERS 3
#define LEARNERS 3
#define REAPERS 2
#define SLICE UINT64_C(5000000)
#define NEVER UINT64_MAX /* an id that no learner may see */

typedef struct fair {
    es_fix *f;
    uint64_t each; /* samples of a producer */
    es_account *account;
    _Atomic uint64_t batches;
    _Atomic bool over;    /* nobody dies any more, and the reapers may go */
    uint64_t close_after; /* batches; 0: when all is sent */
} fair;

typedef struct visitor {
    fair *a;
    uint32_t number;
} visitor;

/* Waits until the reapers make room. */
static es_ring *join(fair *a, uint32_t role)
{
    return fix_join(a->f, a->f->locks, role, 0);
}

static void leave(es_ring *r)
{
    CHECK_EQ(es_api_detach(r), ES_OK);
    es_api_free(r);
}

static void die(fair *a, es_ring *r)
{
    fix_die(a->f, r);
    es_api_free(r);
}

/* --- producers --------------------------------------------------------------- */

static es_ring *die_claiming(fair *a, es_ring *r)
{
    int64_t pos = fix_reserve(r, SLICE);
    if (pos >= 0)
        fix_write(r, (uint64_t)pos, NEVER);
    die(a, r);
    return join(a, ES_ROLE_PRODUCER);
}

static int64_t reserve_one(es_ring *r, uint64_t id, bool abort)
{
    int64_t pos = fix_reserve(r, SLICE);
    if (pos < 0)
        return pos;
    fix_write(r, (uint64_t)pos, abort ? NEVER : id);
    int rc = abort ? es_api_abort(r, pos) : es_api_commit(r, pos);
    return rc != ES_OK ? rc : !abort;
}

static void *produce(void *arg)
{
    visitor *v = arg;
    fair *a = v->a;
    es_random rnd = es_random_new(v->number);
    es_ring *r = join(a, ES_ROLE_PRODUCER);
    for (uint64_t seq = 0; seq < a->each;) {
        uint64_t id = es_sample_id(v->number, (uint32_t)seq), left = a->each - seq;
        int64_t n = 0;
        es_account_begin(a->account, v->number, left < 5 ? (uint32_t)left : 5);
        switch (es_random_below(&rnd, 24)) {
        case 0:
            leave(r);
            r = join(a, ES_ROLE_PRODUCER);
            break;
        case 1:
            r = atomic_load(&a->over) ? r : die_claiming(a, r);
            break;
        case 2:
        case 3:
        case 4:
            n = reserve_one(r, id, es_random_below(&rnd, 2) == 0);
            break;
        case 5:
        case 6:
            n = fix_send_many(r, id, left < 5 ? left : 5, SLICE);
            break;
        default:
            n = fix_send_wait(r, id, SLICE);
            n = n == ES_OK ? 1 : n;
        }
        es_account_end(a->account, v->number, n > 0 ? (uint32_t)n : 0);
        if (n == ES_ECLOSED || n == ES_EEVICTED)
            break;
        seq += n > 0 ? (uint64_t)n : 0;
        CHECK(n >= 0 || n == ES_TIMEOUT);
    }
    leave(r);
    return NULL;
}

/* --- learners ---------------------------------------------------------------- */

static void note_released(fair *a, const uint64_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        es_account_deliver(a->account, ids[i]);
    atomic_fetch_add(&a->batches, 1);
}

/* Does with a batch what a learner can do. Returns the attachment to continue with. */
static es_ring *use(fair *a, es_ring *r, es_random *rnd, uint64_t j, const es_snapshot *snap)
{
    uint64_t ids[FIX_MAX_BATCH];
    int64_t n = fix_read_batch(r, (int64_t)j, snap, ids);
    CHECK_EQ(n, (int64_t)snap->length);
    switch (es_random_below(rnd, 16)) {
    case 0:
        CHECK_EQ(es_api_give_back(r, j, snap->round), ES_OK);
        return r;
    case 1:
        if (atomic_load(&a->over))
            break;
        die(a, r); /* the batch is delivered again */
        return join(a, ES_ROLE_LEARNER);
    case 2:
        leave(r); /* the detach releases the batch */
        note_released(a, ids, n);
        return join(a, ES_ROLE_LEARNER);
    }
    CHECK_EQ(es_api_release(r, j, snap->round), ES_OK);
    note_released(a, ids, n);
    return r;
}

static void take_until_the_end(fair *a, es_ring *r, es_random *rnd)
{
    static const uint32_t wishes[] = {0, 0, ES_TAKE_ANY_ORDER, ES_TAKE_SHORT};
    es_snapshot snap;
    for (;;) {
        int64_t j = es_api_take(r, wishes[es_random_below(rnd, 4)], SLICE, &snap);
        if (j >= 0)
            r = use(a, r, rnd, (uint64_t)j, &snap);
        else if (j == ES_ENDED)
            break;
        else
            CHECK(j == ES_TIMEOUT || j == ES_EMPTY);
        if (a->close_after != 0 && atomic_load(&a->batches) >= a->close_after)
            CHECK_EQ(es_api_close(r), ES_OK);
    }
    leave(r);
}

static void *learn(void *arg)
{
    visitor *v = arg;
    es_random rnd = es_random_new(100 + v->number);
    take_until_the_end(v->a, join(v->a, ES_ROLE_LEARNER), &rnd);
    return NULL;
}

/* --- reapers, which also observe ------------------------------------------------ */

static void observe(es_ring *r)
{
    uint32_t held[ES_MAX_LEARNERS + FIX_PRODUCERS] = {0};
    es_owner_info info;
    es_snapshot snap;
    uint64_t word;
    int n = 0;
    for (int64_t i = es_monitor_next_owner(r, 0, &info); i >= 0; i = es_monitor_next_owner(r, (uint32_t)i + 1, &info))
        n++;
    for (int64_t q = es_monitor_next_claim(r, 0, &word); q >= 0; q = es_monitor_next_claim(r, (uint64_t)q + 1, &word))
        n++;
    es_monitor_count_held(r, held, es_monitor_owner_entries(r));
    es_sweep_set_stalled(r, (uint64_t)n % 3);
    es_monitor_observe(r, &snap);
    CHECK_EQ(es_api_learner_alive(r), 1);
    CHECK_EQ(es_api_reset_histograms(r), ES_OK);
    (void)es_valid(r); /* under load its answer means nothing, but the call must be safe */
}

static void *reap(void *arg)
{
    visitor *v = arg;
    es_ring *r = join(v->a, ES_ROLE_LEARNER);
    while (!atomic_load(&v->a->over)) {
        fix_sweep(r);
        observe(r);
        sched_yield();
    }
    leave(r);
    return NULL;
}

/* --- all of them ---------------------------------------------------------------- */

static void account_for(fair *a)
{
    es_random rnd = es_random_new(999);
    es_ring *l = join(a, ES_ROLE_LEARNER);
    fix_sweep(l);
    CHECK_STR(es_valid(l), NULL);
    take_until_the_end(a, l, &rnd); /* what the last dead learner held */
    es_account_settle(a->account, PRODUCERS, false);
    CHECK_EQ(es_account_faults(a->account), 0);
}

static void hold_fair(uint64_t B, uint64_t K, uint32_t flags, uint64_t each, uint64_t close_after)
{
    fair a = {.f = fix_new(B, K, flags), .each = each, .close_after = close_after};
    a.account = es_account_new(PRODUCERS, (uint32_t)each);
    visitor v[PRODUCERS + LEARNERS + REAPERS];
    pthread_t t[PRODUCERS + LEARNERS + REAPERS];
    for (uint32_t i = 0; i < PRODUCERS + LEARNERS + REAPERS; i++) {
        v[i] = (visitor){&a, i};
        pthread_create(&t[i], NULL, i < PRODUCERS ? produce : i < PRODUCERS + LEARNERS ? learn : reap, &v[i]);
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(t[i], NULL);
    atomic_store(&a.over, true);
    for (int i = 0; i < REAPERS; i++)
        pthread_join(t[PRODUCERS + LEARNERS + i], NULL);
    es_ring *l = join(&a, ES_ROLE_LEARNER);
    fix_sweep(l); /* reaps the last dead, so that learners get their batches before the end */
    CHECK_EQ(es_api_close(l), ES_OK);
    leave(l);
    for (int i = PRODUCERS; i < PRODUCERS + LEARNERS; i++)
        pthread_join(t[i], NULL);
    account_for(&a);
    es_account_free(a.account);
    fix_free(a.f);
}

static const uint64_t shapes[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 2}, {8, 4}};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* All producers send all their samples. */
TEST(everything_at_once_accounts_for_every_sample)
{
    for (size_t i = 0; i < 2 * SHAPES; i++)
        hold_fair(shapes[i % SHAPES][0], shapes[i % SHAPES][1],
                  (i % 2 ? ES_FLAG_DETAILED : 0) | (i >= SHAPES ? ES_FLAG_READY_ORDER : 0), es_test_scaled(4000), 0);
}

/* A learner closes the ring in the middle of everything. What was sent is delivered, what was refused is not. */
TEST(everything_at_once_survives_the_close)
{
    for (uint64_t turn = 0; turn < es_test_scaled(400); turn++)
        hold_fair(shapes[turn % SHAPES][0], shapes[turn % SHAPES][1], turn & 8 ? ES_FLAG_READY_ORDER : 0, 1000,
                  10 + turn % 100);
}

/* --- claims that are evicted after the close ----------------------------------------- */

typedef struct holder {
    fair *a;
    es_ring *r;
    uint32_t number;
    _Atomic int *claimed;
    uint64_t until;
    int rc;
} holder;

static void *commit_late(void *arg)
{
    holder *h = arg;
    int64_t pos = fix_reserve(h->r, 0);
    CHECK(pos >= 0);
    atomic_fetch_add(h->claimed, 1);
    while (es_clock_ns() < h->until)
        ;
    fix_write(h->r, (uint64_t)pos, es_sample_id(h->number, 0));
    es_account_begin(h->a->account, h->number, 1);
    h->rc = es_api_commit(h->r, pos);
    es_account_end(h->a->account, h->number, h->rc == ES_OK);
    return NULL;
}

static void *take_what_comes(void *arg)
{
    holder *h = arg;
    uint64_t ids[FIX_MAX_BATCH];
    es_snapshot snap;
    for (int64_t j; (j = es_api_take(h->r, 0, SLICE, &snap)) != ES_ENDED;)
        if (j >= 0) {
            int64_t n = fix_read_batch(h->r, j, &snap, ids);
            CHECK_EQ(n, (int64_t)snap.length);
            CHECK_EQ(es_api_release(h->r, (uint64_t)j, snap.round), ES_OK);
            note_released(h->a, ids, n);
        }
    return NULL;
}

/* Either the commit reports the eviction, or the sample is delivered, also at the instant of the eviction. */
TEST(commit_against_eviction)
{
    for (uint64_t turn = 0; turn < es_test_scaled(600); turn++) {
        fair a = {.f = fix_new(1 + turn % 3, 3, turn & 4 ? ES_FLAG_READY_ORDER : 0), .each = 1};
        _Atomic int claimed = 0;
        a.account = es_account_new(PRODUCERS, 1);
        es_random rnd = es_random_new(turn);
        pthread_t t[PRODUCERS + 2];
        holder h[PRODUCERS + 2];
        uint64_t end = es_clock_ns() + 600000; /* ES_PATIENCE_NS after the close, a learner evicts open claims */
        for (uint32_t i = 0; i < PRODUCERS + 2; i++) {
            bool producer = i < PRODUCERS;
            h[i] = (holder){&a, producer ? fix_producer(a.f) : fix_learner(a.f), i, &claimed, end, 0};
            h[i].until += es_random_below(&rnd, 200000) - UINT64_C(100000);
            pthread_create(&t[i], NULL, producer ? commit_late : take_what_comes, &h[i]);
        }
        while (atomic_load(&claimed) < PRODUCERS)
            sched_yield();
        es_api_close(h[0].r);
        atomic_store(&a.f->rings[0]->map.hdr->closed_ns, end - UINT64_C(1000000000));
        for (int i = 0; i < PRODUCERS + 2; i++)
            pthread_join(t[i], NULL);
        CHECK_EQ(es_account_settle(a.account, PRODUCERS, false), a.account->delivered);
        CHECK_EQ(es_account_faults(a.account), 0);
        CHECK_STR(es_valid(h[0].r), NULL);
        es_account_free(a.account);
        fix_free(a.f);
    }
}
