/* Every way into a slot brings the version of its sample. */
#include <string.h>

#include "es_fixture.h"
#include "es_test.h"

static int64_t version_at(es_ring *r, uint64_t index)
{
    return atomic_load(&r->map.versions[index]);
}

/* What is sent carries the version that its attachment has at that moment; 0 at first. */
TEST(sends_carry_the_version)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    uint64_t ids[3] = {1, 2, 3};
    uint8_t patterns[3][FIX_PATTERN] = {{0}};
    void *leaves[FIX_LEAVES] = {ids, patterns};
    CHECK_EQ(es_api_send(p, leaves), ES_OK);
    CHECK_EQ(version_at(p, 0), 0);
    CHECK_EQ(es_age_set_version(p, 7, true), ES_OK);
    CHECK_EQ(es_age_version(p), 7);
    CHECK_EQ(es_age_version(q), 0);
    CHECK_EQ(es_api_send(p, leaves), ES_OK);
    CHECK_EQ(es_age_set_version(p, INT64_C(1) << 62, true), ES_OK);
    CHECK_EQ(es_api_send_many(p, leaves, 0, 3, 0), 3); /* two runs: the batch ends */
    CHECK_EQ(version_at(p, 1), 7);
    for (uint64_t i = 2; i < 5; i++)
        CHECK_EQ(version_at(p, i), INT64_C(1) << 62);
    CHECK_EQ(version_at(p, 5), 0);
    fix_free(f);
}

/* A reserved slot has the version of its claim, also a re-opened one, which had another. */
TEST(reservations_carry_the_version)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    int64_t position = -1;
    es_age_set_version(p, 3, true);
    CHECK_EQ(es_api_reserve(p, 0, &position), ES_OK);
    CHECK_EQ(version_at(p, 0), 3);
    es_age_set_version(p, 4, true); /* in the block: this sample's actions were made before */
    CHECK_EQ(version_at(p, 0), 3);
    CHECK_EQ(es_api_reserve_many(p, 2, &position), 2);
    CHECK_EQ(version_at(p, 1), 4);
    CHECK_EQ(version_at(p, 2), 4);
    fix_die(f, p);
    CHECK_EQ(fix_sweep(q), 1);
    es_age_set_version(q, 5, true);
    CHECK_EQ(es_api_reserve(q, 0, &position), ES_OK);
    CHECK_EQ(position, 0);
    CHECK_EQ(version_at(q, 0), 5);
    CHECK_EQ(fix_send(q, 9), ES_OK);
    CHECK(es_sample_is_version(version_at(q, 1), 9));
    fix_free(f);
}

/* A version that was set by hand stays, whatever the weights' latest is. */
TEST(version_by_hand_stays)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    CHECK_EQ(es_age_set_version(p, 1, false), ES_OK);
    CHECK_EQ(es_age_set_version(p, 2, false), ES_OK);
    CHECK_EQ(es_age_version(p), 2);
    CHECK_EQ(es_age_set_version(p, 1, true), ES_OK);
    CHECK_EQ(es_age_set_version(p, 3, false), ES_OK);
    CHECK_EQ(es_age_version(p), 1);
    CHECK_EQ(es_age_set_latest(l, 4), ES_OK); /* and what the learner itself sends */
    CHECK_EQ(es_age_version(l), 4);
    CHECK_EQ(es_age_version(p), 1);
    CHECK_EQ(es_age_set_version(l, 2, true), ES_OK);
    CHECK_EQ(es_age_set_latest(l, 5), ES_OK);
    CHECK_EQ(es_age_version(l), 2);
    fix_free(f);
}

/* Numbers that no version has. */
TEST(versions_out_of_range_are_refused)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *onlooker = es_api_open(f->base, f->size, NULL, 0, &(int){0});
    const int64_t wrong[] = {-1, INT64_MIN, (INT64_C(1) << 62) + 1};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(es_age_set_version(p, wrong[i], true), -EINVAL);
        CHECK_EQ(es_age_set_latest(p, wrong[i]), -EINVAL);
    }
    CHECK_EQ(es_age_version(p), 0);
    CHECK_EQ(es_age_set_latest(onlooker, 1), ES_EDETACHED);
    es_api_free(onlooker);
    fix_free(f);
}

static int64_t take(es_ring *l, es_snapshot *snap)
{
    int64_t j = es_api_take(l, 0, 0, snap);
    CHECK_EQ(es_api_release(l, (uint64_t)j, snap->round), ES_OK);
    return j;
}

static void send_with(es_ring *p, int64_t version)
{
    uint64_t id = 0;
    uint8_t pattern[FIX_PATTERN] = {0};
    CHECK_EQ(es_age_set_version(p, version, true), ES_OK);
    CHECK_EQ(es_api_send(p, (void *[]){&id, pattern}), ES_OK);
}

/* A batch's ages are those at its take: of its samples alone, none below 0, none without weights. */
TEST(takes_measure_ages)
{
    es_fix *f = fix_new(3, 4, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_snapshot snap;
    for (int64_t i = 0; i < 3; i++)
        send_with(p, i);
    CHECK_EQ(take(l, &snap), 0);
    CHECK_EQ(snap.latest_version, 0);
    CHECK_EQ(snap.age_max, 0);
    CHECK_EQ(es_age_set_latest(l, 10), ES_OK);
    const int64_t versions[] = {10, 4, 9, 12, 10, 11, 1, 1, 1};
    for (int i = 0; i < 9; i++)
        send_with(p, versions[i]);
    CHECK_EQ(take(l, &snap), 1);
    CHECK_EQ(snap.latest_version, 10);
    CHECK_EQ(snap.age_max, 6);
    CHECK(snap.age_mean == 7.0 / 3);
    CHECK_EQ(take(l, &snap), 2); /* its producer knew of a newer one than the learner has said */
    CHECK_EQ(snap.age_max, 0);
    CHECK(snap.age_mean == 0);
    p->map.versions[9] = INT64_MIN; /* as another process may write */
    p->map.versions[10] = INT64_MAX;
    CHECK_EQ(take(l, &snap), 3);
    CHECK_EQ(snap.age_max, 10);
    CHECK(snap.age_mean == 19.0 / 3);
    CHECK_EQ(es_age_count_too_old(l, 5), ES_OK);
    es_monitor_observe(l, &snap);
    CHECK_EQ(snap.too_old, 5);
    fix_free(f);
}

/* No call claims a slot in a segment of weights. */
TEST(weights_take_no_samples)
{
    es_fix *f = fix_new(1, 4, ES_FLAG_WEIGHTS);
    es_ring *p = fix_producer(f);
    fix_sample_t s;
    int64_t position = -1;
    fix_sample(1, &s);
    void *leaves[FIX_LEAVES] = {&s.id, s.pattern};
    CHECK(p->map.versions == NULL);
    CHECK_EQ(es_age_offset(p), 0);
    CHECK_EQ(es_api_send(p, leaves), -EINVAL);
    CHECK_EQ(es_api_send_wait(p, leaves, 1000), -EINVAL);
    CHECK_EQ(es_api_send_many(p, leaves, 0, 1, 0), -EINVAL);
    CHECK_EQ(es_api_reserve(p, 0, &position), -EINVAL);
    CHECK_EQ(es_api_reserve_many(p, 1, &position), -EINVAL);
    CHECK_EQ(es_bridge_begin(p), -EINVAL);
    CHECK_EQ(es_age_set_latest(p, 1), -EINVAL);
    CHECK_EQ(position, -1);
    CHECK_EQ(fix_tail(p), 0);
    fix_free(f);
}
