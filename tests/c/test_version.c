/* Versions of weights: what each call says, what a death leaves, and words that no correct process has written. */
#include <string.h>

#include "es_fixture.h"
#include "es_test.h"

#define LIMIT (UINT64_C(1) << (64 - ES_VERSION_SLOT_BITS))

static es_fix *weights(uint64_t leases)
{
    return fix_new(1, leases + 2, ES_FLAG_WEIGHTS);
}

/* A version is a sample: its id is what the test says. */
static int64_t publish(es_ring *r, uint64_t id)
{
    fix_sample_t s;
    fix_sample(id, &s);
    return es_weights_publish(r, (void *[]){&s.id, s.pattern});
}

/* The id of the latest version, or a negative result. FIX_TORN: its leaves disagree. */
static int64_t copy(es_ring *r, int64_t *number)
{
    fix_sample_t got, want;
    *number = es_weights_copy(r, (void *[]){&got.id, got.pattern});
    if (*number < 0)
        return *number;
    fix_sample(got.id, &want);
    return memcmp(got.pattern, want.pattern, sizeof want.pattern) == 0 ? (int64_t)got.id : FIX_TORN;
}

static int64_t lease(es_ring *r, uint64_t *number, uint64_t *id)
{
    uint64_t slot;
    int64_t it = es_weights_lease(r, number, &slot);
    CHECK(it < 0 || fix_read(r, slot, id));
    return it;
}

static void set_latest(es_ring *r, uint64_t number, uint64_t slot)
{
    atomic_store(&r->map.weights->latest, number << ES_VERSION_SLOT_BITS | slot);
}

/* Versions count from 1. A reader gets the latest one, and an error before there is any. */
TEST(readers_get_the_latest_version)
{
    es_fix *f = weights(1);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    uint64_t leased, id = 0;
    int64_t number;
    CHECK_EQ(copy(r, &number), ES_NOTHING);
    CHECK_EQ(lease(r, &leased, &id), ES_NOTHING);
    CHECK_EQ(es_weights_latest(r), 0);
    for (int64_t n = 1; n < 10; n++) {
        CHECK_EQ(publish(w, (uint64_t)n + 100), n);
        CHECK_EQ(copy(r, &number), n + 100);
        CHECK_EQ(number, n);
        REQUIRE_EQ(lease(r, &leased, &id), 0);
        CHECK_EQ(leased, n);
        CHECK_EQ(id, n + 100);
        CHECK_EQ(es_weights_release(r, 0), ES_OK);
    }
    CHECK_EQ(es_weights_latest(r), 9);
    CHECK_EQ(*(uint64_t *)(void *)(f->base + es_weights_word(r)) >> 16, 9);
    fix_free(f);
}

/* The publisher may number its versions itself, upwards. What is refused is not published. */
TEST(numbers_are_the_publishers)
{
    es_fix *f = weights(1);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    const struct {
        uint64_t asked;
        int64_t got;
    } table[] = {{7, 7},  {7, -EINVAL}, {6, -EINVAL},          {0, 8},
                 {9, 9},  {20, 20},     {LIMIT, -EINVAL},      {UINT64_MAX, -EINVAL},
                 {0, 21}, {22, 22},     {LIMIT - 1, LIMIT - 1}};
    int64_t number, latest = 0;
    uint64_t leased, id = 0, newest = 0;
    for (uint64_t i = 0; i < sizeof table / sizeof *table; i++) {
        fix_sample_t s;
        fix_sample(100 + i, &s);
        CHECK_EQ(es_weights_publish_as(w, table[i].asked, (void *[]){&s.id, s.pattern}), table[i].got);
        if (table[i].got > 0)
            latest = table[i].got, newest = 100 + i;
        CHECK_EQ(es_weights_latest(r), latest);
        CHECK_EQ(copy(r, &number), (int64_t)newest);
        CHECK_EQ(number, latest);
        REQUIRE_EQ(lease(r, &leased, &id), 0);
        CHECK_EQ(leased, (uint64_t)latest);
        CHECK_EQ(id, newest);
        CHECK_EQ(es_weights_release(r, 0), ES_OK);
    }
    fix_free(f);
}

/* A leased version stays as it is, however many come after it, and the publisher always finds a slot. */
TEST(leased_versions_stay)
{
    es_fix *f = weights(3);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    uint64_t number, slots[3], none, id = 0;
    int64_t latest;
    for (uint64_t i = 0; i < 3; i++) {
        publish(w, 100 + i);
        publish(w, 200 + i);
        REQUIRE_EQ(es_weights_lease(r, &number, &slots[i]), (int64_t)i);
        CHECK_EQ(number, 2 * (i + 1));
    }
    CHECK_EQ(es_weights_lease(r, &number, &none), ES_FULL);
    for (int64_t n = 7; n < 30; n++)
        CHECK_EQ(publish(w, (uint64_t)n), n);
    CHECK_EQ(copy(r, &latest), 29);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK(fix_read(r, slots[i], &id));
        CHECK_EQ(id, 200 + i);
    }
    fix_free(f);
}

/* Only its owner ends a lease, and once. */
TEST(leases_end_once)
{
    es_fix *f = weights(2);
    es_ring *w = fix_learner(f), *a = fix_producer(f), *b = fix_producer(f);
    uint64_t number, id = 0;
    publish(w, 1);
    REQUIRE_EQ(lease(a, &number, &id), 0);
    CHECK_EQ(es_weights_holder(b, 0), a->me);
    CHECK_EQ(es_weights_holder(b, 1), ES_EMPTY);
    CHECK_EQ(es_weights_holder(b, 2), -EINVAL);
    CHECK_EQ(es_weights_release(b, 0), ES_ESTALE);
    CHECK_EQ(es_weights_release(a, 1), ES_ESTALE);
    atomic_store(&a->map.leases[2], atomic_load(&a->map.leases[0])); /* the word behind them is none */
    CHECK_EQ(es_weights_release(a, 2), ES_ESTALE);
    CHECK_EQ(es_weights_release(a, -1), ES_ESTALE);
    CHECK_EQ(es_weights_release(a, 0), ES_OK);
    CHECK_EQ(es_weights_release(a, 0), ES_ESTALE);
    fix_free(f);
}

/* A reader that leaves ends its leases; a dead one's end when it is reaped. Those of others stay. */
TEST(leases_end_with_their_owner)
{
    es_fix *f = weights(3);
    es_ring *w = fix_learner(f), *leaves = fix_producer(f), *dies = fix_producer(f), *stays = fix_producer(f);
    uint64_t number, id = 0;
    publish(w, 1);
    REQUIRE_EQ(lease(leaves, &number, &id), 0);
    REQUIRE_EQ(lease(dies, &number, &id), 1);
    REQUIRE_EQ(lease(stays, &number, &id), 2);
    CHECK_EQ(es_api_detach(leaves), ES_OK);
    CHECK_EQ(es_weights_holder(w, 0), ES_EMPTY);
    fix_die(f, dies);
    CHECK_EQ(es_weights_holder(w, 1), dies->me);
    CHECK_EQ(fix_sweep(w), 1);
    CHECK_EQ(es_weights_holder(w, 1), ES_EMPTY);
    CHECK_EQ(es_weights_holder(w, 2), stays->me);
    fix_free(f);
}

/* A publisher that dies while it fills a slot leaves the version before. Its successor uses the number again. */
TEST(next_publisher_goes_on)
{
    es_fix *f = weights(1);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    int64_t number;
    for (uint64_t n = 1; n <= 4; n++)
        publish(w, n);
    uint64_t next = (es_version_slot(es_version_latest(&w->map)) + 1) % w->map.num_batches;
    atomic_store(&w->map.sequences[next], 5 * 2 + 1);
    memset(w->map.leaf_data[1] + next * FIX_PATTERN, 0xff, FIX_PATTERN / 2);
    fix_die(f, w);
    CHECK_EQ(copy(r, &number), 4);
    es_ring *successor = fix_learner(f);
    CHECK_EQ(publish(successor, 50), 5);
    CHECK_EQ(copy(r, &number), 50);
    CHECK_EQ(number, 5);
    fix_free(f);
}

/* A wait ends with its version, with a close if that never comes, and with its time. */
TEST(waits_end)
{
    es_fix *f = weights(1);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    publish(w, 1);
    CHECK_EQ(es_weights_wait(r, 0, UINT64_MAX), ES_OK);
    CHECK_EQ(es_weights_wait(r, 1, UINT64_MAX), ES_OK);
    CHECK_EQ(es_weights_wait(r, 2, 1000), ES_TIMEOUT);
    CHECK_EQ(es_api_close(w), ES_OK);
    CHECK_EQ(es_weights_wait(r, 1, UINT64_MAX), ES_OK);
    CHECK_EQ(es_weights_wait(r, 2, UINT64_MAX), ES_ECLOSED);
    CHECK_EQ(publish(w, 2), ES_ECLOSED);
    CHECK_EQ(es_api_stop(r), ES_OK);
    CHECK_EQ(es_weights_wait(r, 2, UINT64_MAX), ES_EDETACHED);
    fix_free(f);
}

/* A stopped reader takes no more leases. It ends those that it has. */
TEST(stopped_reader_ends_its_lease)
{
    es_fix *f = weights(2);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    uint64_t number, id = 0;
    int64_t copied;
    publish(w, 1);
    REQUIRE_EQ(lease(r, &number, &id), 0);
    CHECK_EQ(es_api_stop(r), ES_OK);
    CHECK_EQ(lease(r, &number, &id), ES_EDETACHED);
    CHECK_EQ(copy(r, &copied), ES_EDETACHED);
    CHECK_EQ(es_weights_release(r, 0), ES_OK);
    fix_free(f);
}

/* A ring of samples has no weights. */
TEST(rings_have_no_weights)
{
    es_fix *f = fix_new(1, 3, 0);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    uint64_t number, id = 0;
    int64_t copied;
    CHECK_EQ(publish(w, 1), -EINVAL);
    CHECK_EQ(copy(r, &copied), -EINVAL);
    CHECK_EQ(lease(r, &number, &id), -EINVAL);
    CHECK_EQ(es_weights_release(r, 0), -EINVAL);
    CHECK_EQ(es_weights_wait(r, 1, 0), -EINVAL);
    CHECK_EQ(es_weights_latest(r), -EINVAL);
    CHECK_EQ(es_weights_holder(r, 0), -EINVAL);
    CHECK_EQ(es_weights_word(r), 0);
    fix_free(f);
}

/* A copy of a version that was overwritten since its word was loaded is thrown away. */
TEST(copy_of_an_old_version_is_lapped)
{
    es_fix *f = weights(1);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    fix_sample_t s;
    publish(w, 1);
    uint64_t old = es_version_latest(&r->map);
    for (uint64_t n = 2; n <= 3; n++) {
        publish(w, n);
        CHECK_EQ(es_version_copy(&r->map, old, (void *[]){&s.id, s.pattern}), ES_OK);
        CHECK_EQ(s.id, 1);
    }
    publish(w, 4);
    CHECK_EQ(es_version_copy(&r->map, old, (void *[]){&s.id, s.pattern}), ES_LAPPED);
    fix_free(f);
}

/* latest names no slot, a slot that has not that version, no number, or the last one: everybody says so, and keeps no lease. */
TEST(scribbled_latest_is_noticed)
{
    es_fix *f = weights(1);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    const uint64_t bad[][2] = {{5, 3}, {5, 0xffff}, {LIMIT - 1, 1}, {2, 1}, {5, 0}, {0, 2}};
    uint64_t number, id = 0;
    int64_t copied;
    publish(w, 1); /* in slot 1 */
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        set_latest(w, bad[i][0], bad[i][1]);
        CHECK_EQ(copy(r, &copied), ES_ESCRIBBLED);
        CHECK_EQ(lease(r, &number, &id), ES_ESCRIBBLED);
        CHECK_EQ(es_weights_holder(r, 0), ES_EMPTY);
        if (bad[i][1] > 2 || bad[i][0] == LIMIT - 1)
            CHECK_EQ(publish(w, 2), ES_ESCRIBBLED);
    }
    set_latest(w, LIMIT - 2, 1);
    CHECK_EQ(publish(w, 7), (int64_t)(LIMIT - 1));
    CHECK_EQ(copy(r, &copied), 7);
    CHECK_EQ(copied, (int64_t)(LIMIT - 1));
    fix_free(f);
}

/* More slots are named than there are leases for: the publisher gives up after a bounded number of tries. */
TEST(scribbled_leases_do_not_stop_the_publisher_for_good)
{
    es_fix *f = weights(4);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    int64_t number;
    publish(w, 1);
    /* The latest is one more slot that cannot be used, so one is left. */
    for (uint64_t i = 0; i < 4; i++)
        atomic_store(&w->map.leases[i], UINT64_C(900) << 32 | (i + 3));
    CHECK_EQ(publish(w, 2), 2);
    CHECK_EQ(es_version_slot(es_version_latest(&w->map)), 0);
    CHECK_EQ(publish(w, 3), 3);
    fix_free(f);
    f = weights(1);
    w = fix_learner(f), r = fix_producer(f);
    publish(w, 1);
    w->map.num_batches = 2; /* two slots, one of which is the latest and the other is leased */
    atomic_store(&w->map.leases[0], UINT64_C(900) << 32 | 1);
    CHECK_EQ(publish(w, 2), ES_ESCRIBBLED);
    CHECK_EQ(copy(r, &number), 1);
    fix_free(f);
}

/* A lease that names no owner or no slot that exists is nobody's and stops nobody. */
TEST(scribbled_lease_is_nobodys)
{
    es_fix *f = weights(1);
    es_ring *w = fix_learner(f), *r = fix_producer(f);
    uint64_t number, id = 0;
    atomic_store(&w->map.leases[0], UINT64_MAX);
    CHECK_EQ(es_weights_holder(r, 0), (int64_t)UINT32_MAX - 1);
    for (int64_t n = 1; n < 8; n++)
        CHECK_EQ(publish(w, 1), n);
    CHECK_EQ(lease(r, &number, &id), ES_FULL);
    CHECK_EQ(es_weights_release(r, 0), ES_ESTALE);
    fix_free(f);
}
