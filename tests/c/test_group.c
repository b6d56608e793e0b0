/* Several batches are taken and released in one call. */
#include "api/es_group.h"
#include "base/es_clock.h"
#include "es_fixture.h"
#include "es_test.h"

static void send_some(es_ring *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        CHECK_EQ(fix_send(p, i), ES_OK);
}

/* They come in order, as many as there are, and at most as many as are asked for. */
TEST(takes_what_is_there)
{
    es_fix *f = fix_new(2, 8, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_group_lease leases[ES_GROUP_MOST];
    bool due;
    CHECK_EQ(es_group_take(l, 0, 8, leases, &due), ES_EMPTY);
    send_some(p, 11);
    CHECK_EQ(es_group_take(l, 0, 2, leases, &due), 2);
    CHECK_EQ(es_group_take(l, 0, 8, leases + 2, &due), 3);
    for (uint64_t i = 0; i < 5; i++) {
        CHECK_EQ(leases[i].batch, i);
        CHECK_EQ(leases[i].round, 0);
        CHECK_EQ(leases[i].length, 2);
        CHECK_EQ(l->held[i], 1);
    }
    CHECK_EQ(es_group_take(l, 0, 8, leases, &due), ES_EMPTY);
    fix_free(f);
}

static uint64_t taken(es_ring *l)
{
    es_snapshot snap;
    es_monitor_observe(l, &snap);
    return snap.batches_taken;
}

/* Their space is used again, and each counts as one take. A process that waits for room is woken by the call. */
TEST(releases_all_and_wakes)
{
    es_fix *f = fix_new(1, 4, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_group_lease leases[ES_GROUP_MOST];
    bool due;
    for (uint64_t lap = 0; lap < 3; lap++) {
        send_some(p, 4);
        CHECK_EQ(fix_send_wait(p, 9, 1), ES_TIMEOUT);
        CHECK_EQ(l->map.hdr->producers_sleep, 1);
        CHECK_EQ(es_group_take(l, ES_TAKE_ANY_ORDER, ES_GROUP_MOST, leases, &due), 4);
        CHECK_EQ(leases[3].round, lap);
        CHECK_EQ(taken(l), 4 * (lap + 1));
        CHECK_EQ(fix_send(p, 9), ES_FULL);
        CHECK_EQ(es_group_release(l, leases, 4), ES_OK);
        CHECK_EQ(l->map.hdr->producers_sleep, 0);
    }
    fix_free(f);
}

/* Some of them may have been given back, or be another round's: the others are released. */
TEST(says_what_is_stale)
{
    es_fix *f = fix_new(1, 4, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_group_lease leases[ES_GROUP_MOST];
    bool due;
    send_some(p, 3);
    REQUIRE_EQ(es_group_take(l, 0, 3, leases, &due), 3);
    CHECK_EQ(es_api_give_back(l, leases[0].batch, leases[0].round), ES_OK);
    leases[1].round++;
    CHECK_EQ(es_group_release(l, leases, 3), ES_ESTALE);
    CHECK_EQ(l->held[0], 0);
    CHECK_EQ(l->held[1], 1);
    CHECK_EQ(l->held[2], 0);
    CHECK_EQ(fix_take_k(l, ES_TAKE_ANY_ORDER), 0);
    fix_free(f);
}

/* On a closed ring a batch may be sealed in part: its length says so. */
TEST(lengths_leave_out_what_is_sealed)
{
    es_fix *f = fix_new(2, 4, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_group_lease leases[ES_GROUP_MOST];
    bool due;
    send_some(p, 3);
    CHECK_EQ(es_api_close(l), ES_OK);
    REQUIRE_EQ(es_group_take(l, ES_TAKE_SHORT, 4, leases, &due), 1);
    CHECK_EQ(leases[0].length, 2);
    REQUIRE_EQ(es_group_take(l, ES_TAKE_SHORT, 4, leases, &due), 1);
    CHECK_EQ(leases[0].batch, 1);
    CHECK_EQ(leases[0].length, 1);
    fix_free(f);
}

TEST(refuses_impossible_counts)
{
    es_fix *f = fix_new(1, 40, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_group_lease leases[ES_GROUP_MOST];
    bool due = true;
    send_some(p, 40);
    CHECK_EQ(es_group_take(l, 0, 0, leases, &due), -EINVAL);
    CHECK(!due);
    CHECK_EQ(es_group_take(l, 0, ES_GROUP_MOST + 1, leases, &due), -EINVAL);
    CHECK_EQ(es_group_take(l, 0, ES_GROUP_MOST, leases, &due), ES_GROUP_MOST);
    CHECK_EQ(leases[ES_GROUP_MOST - 1].batch, ES_GROUP_MOST - 1);
    fix_free(f);
}

/* It says when nobody has looked for the dead for a while, also where nothing is there, and notes when it took what. */
TEST(says_that_a_sweep_is_due)
{
    es_fix *f = fix_new(1, 4, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_group_lease leases[ES_GROUP_MOST];
    bool due = true;
    CHECK_EQ(fix_sweep(l), 0);
    l->map.reap_interval_ns = UINT64_MAX;
    CHECK_EQ(es_group_take(l, 0, 1, leases, &due), ES_EMPTY);
    CHECK(!due);
    l->map.reap_interval_ns = 0;
    CHECK_EQ(es_group_take(l, 0, 1, leases, &due), ES_EMPTY);
    CHECK(due);
    send_some(p, 2);
    uint64_t before = es_clock_ns();
    CHECK_EQ(es_group_take(l, 0, 2, leases, &due), 2);
    for (int i = 0; i < 2; i++)
        CHECK(l->map.batches[i].leased_ns >= before);
    fix_free(f);
}

/* A learner that is gone gets nothing; what it has it may still release. */
TEST(serves_nobody_who_is_gone)
{
    es_fix *f = fix_new(1, 4, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_group_lease leases[ES_GROUP_MOST];
    bool due;
    send_some(p, 2);
    REQUIRE_EQ(es_group_take(l, 0, 1, leases, &due), 1);
    es_api_stop(l);
    CHECK_EQ(es_group_take(l, 0, 1, leases, &due), ES_EDETACHED);
    CHECK_EQ(es_group_release(l, leases, 1), ES_OK);
    CHECK_EQ(l->held[0], 0);
    fix_free(f);
}
