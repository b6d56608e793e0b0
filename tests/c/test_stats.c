/* Counters, gauges and histograms. */
#include <string.h>

#include "es_fixture.h"
#include "es_test.h"

/* The upper edge of a bucket is at least its values and at most an eighth above them. */
TEST(percentile_is_within_an_eighth_above)
{
    es_fix *f = fix_new(1, 1, ES_FLAG_DETAILED);
    es_ring *l = fix_learner(f);
    es_histogram_summary s;
    for (int bit = 0; bit < 63; bit++)
        for (uint64_t off = 0; off < 3; off++) {
            uint64_t ns = (UINT64_C(1) << bit) + off - (bit > 1 ? 1 : 0);
            es_stats_reset(&l->map);
            es_stats_record(&l->map, ES_STATS_COPY, ns);
            es_histogram_summarise(&l->map.hists[ES_STATS_COPY], &s);
            CHECK_EQ(s.count, 1);
            CHECK_EQ(s.min_ns, ns);
            CHECK_EQ(s.max_ns, ns);
            CHECK_EQ(s.sum_ns, ns);
            CHECK(s.p50_ns >= ns && s.p50_ns - ns <= ns / 8);
            CHECK_EQ(s.p99_ns, s.p50_ns);
        }
    fix_free(f);
}

/* A percentile is the smallest bucket edge with that share of the values at or below it. */
TEST(percentiles_of_a_known_sample)
{
    es_fix *f = fix_new(1, 1, ES_FLAG_DETAILED);
    es_ring *l = fix_learner(f);
    es_histogram_summary s;
    for (uint64_t i = 0; i < 100; i++)
        es_stats_record(&l->map, ES_STATS_LOOK, i < 50 ? 3 : i < 90 ? 5 : i < 99 ? 7 : UINT64_MAX);
    es_histogram_summarise(&l->map.hists[ES_STATS_LOOK], &s);
    CHECK_EQ(s.count, 100);
    CHECK_EQ(s.p50_ns, 3);
    CHECK_EQ(s.p90_ns, 5);
    CHECK_EQ(s.p99_ns, 7);
    CHECK_EQ(s.min_ns, 3);
    CHECK_EQ(s.max_ns, UINT64_MAX);
    es_api_reset_histograms(l);
    es_histogram_summarise(&l->map.hists[ES_STATS_LOOK], &s);
    CHECK_EQ(s.count + s.min_ns + s.max_ns + s.sum_ns + s.p99_ns, 0);
    fix_free(f);
}

/* A segment without detailed metrics has no histograms. */
TEST(no_histograms_without_the_flag)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_snapshot s = {.look = {.count = 5}};
    es_stats_record(&l->map, ES_STATS_LOOK, 3);
    es_stats_reset(&l->map);
    es_stats_snapshot(&l->map, &s);
    CHECK_EQ(s.look.count, 0);
    fix_send(p, 1);
    CHECK_EQ(l->map.owners[p->me].cas_success, 0);
    fix_free(f);
}

/* The gauges follow claims, takes and releases. The maximum occupancy stays. */
TEST(snapshot_follows_the_ring)
{
    es_fix *f = fix_new(2, 2, ES_FLAG_DETAILED);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_snapshot s;
    for (uint64_t i = 0; i < 4; i++)
        fix_send(p, i);
    CHECK_EQ(fix_send_wait(p, 9, 1), ES_TIMEOUT);
    es_monitor_observe(l, &s);
    CHECK_EQ(s.samples_inserted, 4);
    CHECK_EQ(s.store_size, 4);
    CHECK_EQ(s.occupancy, 4);
    CHECK_EQ(s.push_blocked, 1);
    CHECK_EQ(s.active_producers, 1);
    CHECK_EQ(s.cas_success, 4);
    REQUIRE_EQ(es_api_take(l, 0, 0, &s), 0);
    CHECK_EQ(s.round, 0);
    CHECK_EQ(s.length, 2);
    CHECK_EQ(s.store_size, 2);
    CHECK_EQ(s.occupancy, 4);
    CHECK_EQ(s.occupancy_max, 4);
    CHECK_EQ(s.look.count, 1);
    CHECK_EQ(s.copy.count, 4);
    es_api_release(l, 0, 0);
    es_monitor_observe(l, &s);
    CHECK_EQ(s.occupancy, 2);
    CHECK_EQ(s.occupancy_max, 4);
    CHECK_EQ(s.batches_taken, 1);
    fix_free(f);
}

/* es_owner_info says who an owner is, what it did, and what it holds now. */
TEST(owner_info_counts_what_is_held)
{
    es_fix *f = fix_new(1, 4, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_owner_info info;
    uint64_t round;
    fix_send(p, 1);
    fix_reserve(p, 0);
    fix_reserve(p, 0);
    fix_take(l, 0, &round);
    REQUIRE_EQ(es_monitor_next_owner(l, 0, &info), l->me);
    CHECK_EQ(info.id.role, ES_ROLE_LEARNER);
    REQUIRE_EQ(es_monitor_next_owner(l, l->me + 1, &info), p->me);
    CHECK_EQ(info.samples, 1);
    uint32_t held[ES_MAX_LEARNERS + FIX_PRODUCERS] = {0};
    es_monitor_count_held(l, held, es_monitor_owner_entries(l));
    CHECK_EQ(held[l->me], 1);
    CHECK_EQ(held[p->me], 2);
    es_monitor_count_held(l, held, 1); /* nothing is written beyond a shorter table */
    CHECK_EQ(held[l->me], 2);
    CHECK_EQ(held[p->me], 2);
    uint64_t word;
    REQUIRE_EQ(es_monitor_next_claim(l, 0, &word), 1);
    CHECK_EQ(es_monitor_claim_owner(word), p->me);
    CHECK_EQ(es_monitor_next_claim(l, 2, &word), 2);
    CHECK_EQ(es_monitor_next_claim(l, 3, &word), ES_EMPTY);
    CHECK(info.id.start_time == 1.5);
    CHECK_EQ(info.is_bridge, 0);
    CHECK_EQ(es_monitor_next_owner(l, p->me + 1, &info), ES_EMPTY);
    REQUIRE_EQ(es_bridge_begin(p), ES_OK);
    es_monitor_next_owner(l, p->me, &info);
    CHECK_EQ(info.is_bridge, 1);
    fix_free(f);
}

/* The age of an owner's leases is that of the oldest. A time that lies ahead was scribbled, and is not shown. */
TEST(lease_ages_count_from_the_oldest)
{
    es_fix *f = fix_new(1, 4, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *other = fix_learner(f);
    uint64_t ages[ES_MAX_LEARNERS + FIX_PRODUCERS] = {0}, round, before = es_clock_ns();
    uint32_t owners = es_monitor_owner_entries(l);
    for (uint64_t i = 0; i < 3; i++)
        fix_send(p, i);
    fix_take(l, 0, &round);
    fix_take(l, 0, &round);
    fix_take(other, 0, &round);
    es_monitor_lease_ages(l, ages, owners);
    CHECK(ages[l->me] <= es_clock_ns() - before);
    CHECK_EQ(ages[p->me], 0);
    for (int j = 0; j < 3; j++)
        CHECK(l->map.batches[j].leased_ns >= before && l->map.batches[j].leased_ns <= es_clock_ns());
    l->map.batches[0].leased_ns = 0; /* not noted yet */
    l->map.batches[1].leased_ns = es_clock_ns() - 1;
    memset(ages, 0, sizeof ages);
    es_monitor_lease_ages(l, ages, owners);
    CHECK(ages[l->me] < 5000000000);
    l->map.batches[0].leased_ns = es_clock_ns() - 3000000000;
    l->map.batches[1].leased_ns = es_clock_ns() - 5000000000;
    l->map.batches[2].leased_ns = UINT64_MAX;
    memset(ages, 0, sizeof ages);
    es_monitor_lease_ages(l, ages, owners);
    CHECK(ages[l->me] >= 5000000000);
    CHECK_EQ(ages[other->me], 0);
    memset(ages, 0, sizeof ages);
    es_monitor_lease_ages(l, ages, 0); /* nothing is written beyond a shorter table */
    CHECK_EQ(ages[l->me], 0);
    es_api_release(l, 0, 0);
    es_api_release(l, 1, 0);
    es_monitor_lease_ages(l, ages, owners);
    CHECK_EQ(ages[l->me], 0);
    fix_free(f);
}

/* What is committed counts until it is released. Open claims, and slots that were re-opened, do not. */
TEST(committed_samples_and_full_batches_are_counted)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t full, round;
    CHECK_EQ(es_monitor_count_committed(l, &full), 0);
    CHECK_EQ(full, 0);
    for (uint64_t i = 0; i < 3; i++)
        fix_send(p, i);
    int64_t open = fix_reserve(p, 0);
    CHECK_EQ(es_monitor_count_committed(l, &full), 3);
    CHECK_EQ(full, 1);
    es_api_abort(p, open);
    CHECK_EQ(es_monitor_count_committed(l, &full), 3);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(es_monitor_count_committed(l, &full), 3);
    es_api_release(l, 0, round);
    CHECK_EQ(es_monitor_count_committed(l, &full), 1);
    CHECK_EQ(full, 0);
    fix_free(f);
}

/* Dead producers are counted. Dead learners and producers that detach are not. */
TEST(counts_dead_producers_only)
{
    es_fix *f = fix_new(1, 4, 0);
    es_ring *a = fix_producer(f), *b = fix_producer(f), *x = fix_learner(f), *l = fix_learner(f);
    es_snapshot s;
    fix_reserve(a, 0);
    fix_die(f, a);
    fix_die(f, x);
    es_api_detach(b);
    CHECK_EQ(fix_sweep(l), 2);
    es_sweep_set_stalled(l, 3);
    es_monitor_observe(l, &s);
    CHECK_EQ(s.dead_producers, 1);
    CHECK_EQ(s.active_producers, 0);
    CHECK_EQ(s.reopened_slots, 1);
    CHECK_EQ(s.stalled_producers, 3);
    fix_free(f);
}

/* A sweep falls due once an interval, and the start of a sweep puts off the next. */
TEST(sweep_falls_due_until_it_is_begun)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *l = fix_learner(f);
    es_snapshot s;
    es_identity id;
    atomic_store(&l->last_sweep_ns, 0);
    CHECK_EQ(es_api_take(l, 0, 0, &s), ES_EMPTY);
    CHECK_EQ(s.sweep_due, 1);
    es_sweep_next_dead(l, 1, &id);
    CHECK_EQ(es_api_take(l, 0, 0, &s), ES_EMPTY);
    CHECK_EQ(s.sweep_due, 1); /* a call with from > 0 continues a sweep */
    es_sweep_next_dead(l, 0, &id);
    CHECK(atomic_load(&l->last_sweep_ns) != 0);
    fix_free(f);
}

/* Gauges are differences of counters, and a crash may leave one behind the other. A gauge is never negative. */
TEST(gauges_do_not_fall_below_nothing)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *l = fix_learner(f);
    es_snapshot s;
    atomic_store(&l->map.hdr->totals.batches_taken, 3);
    atomic_store(&l->map.hdr->totals.batches_released, 2);
    es_monitor_observe(l, &s);
    CHECK_EQ(s.store_size, 0);
    CHECK_EQ(s.occupancy, 0);
    fix_free(f);
}

/* A HELD word of the last lap holds nothing. */
TEST(holds_of_the_last_lap_are_not_shown)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *l = fix_learner(f);
    uint32_t held[ES_MAX_LEARNERS + FIX_PRODUCERS] = {0};
    uint64_t word;
    fix_slot(l, 0, 1, l->me, ES_COMMITTED);
    fix_slot(l, 1, 1, l->me, ES_HELD);
    es_monitor_count_held(l, held, es_monitor_owner_entries(l));
    CHECK_EQ(held[l->me], 1);
    CHECK_EQ(es_monitor_next_claim(l, 0, &word), 1);
    fix_batch(l, 0, 1, 0, ES_FILL);
    es_monitor_count_held(l, held, es_monitor_owner_entries(l));
    CHECK_EQ(held[l->me], 1);
    CHECK_EQ(es_monitor_next_claim(l, 0, &word), ES_EMPTY);
    fix_free(f);
}
