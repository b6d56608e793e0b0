/* Leases: release and give back. */
#include <string.h>

#include "es_fixture.h"
#include "es_test.h"

/* A release opens the next round for claims and zeroes its count. */
TEST(release_opens_the_next_round)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round;
    fix_send(p, 1);
    fix_send(p, 2);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(fix_count(l, 0), 2);
    CHECK_EQ(es_api_release(l, 0, round), ES_OK);
    CHECK_EQ(fix_batch_word(l, 0), es_word(1, 0, ES_FILL));
    CHECK_EQ(fix_count(l, 0), 0);
    CHECK_EQ(fix_slot_word(l, 0), es_word(1, p->me, ES_COMMITTED)); /* a release leaves slot words as they are */
    CHECK_STR(es_valid(l), NULL);
    fix_free(f);
}

/* A lease ends once. A second release is stale and does not release another learner's batch. */
TEST(second_release_is_stale_and_gives_nothing_away)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *p = fix_producer(f), *a = fix_learner(f), *b = fix_learner(f);
    uint64_t round;
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(a, 0, &round), 0);
    CHECK_EQ(es_api_release(a, 0, round), ES_OK);
    CHECK_EQ(es_api_release(a, 0, round), ES_ESTALE);
    fix_send(p, 2);
    uint64_t next;
    REQUIRE_EQ(fix_take(b, 0, &next), 0);
    CHECK_EQ(es_api_release(a, 0, round), ES_ESTALE);
    CHECK_EQ(es_api_release(a, 0, next), ES_ESTALE);
    CHECK_EQ(es_api_release(b, 0, round), ES_ESTALE);
    CHECK_EQ(fix_batch_word(b, 0), es_word(next, b->me, ES_LEASED));
    CHECK_EQ(es_api_release(b, 0, next), ES_OK);
    fix_free(f);
}

/* When the same learner takes the same physical batch again, it is another lease. */
TEST(release_of_an_earlier_round_leaves_the_later_lease)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t first, second;
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(l, 0, &first), 0);
    es_api_release(l, 0, first);
    fix_send(p, 2);
    REQUIRE_EQ(fix_take(l, 0, &second), 0);
    CHECK_EQ(es_api_release(l, 0, first), ES_ESTALE);
    CHECK_EQ(fix_send(p, 3), ES_FULL);
    CHECK_EQ(es_api_release(l, 0, second), ES_OK);
    fix_free(f);
}

/* An index or a round that was not leased releases nothing. */
TEST(release_out_of_range_is_stale)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *l = fix_learner(f);
    CHECK_EQ(es_api_release(l, 0, 0), ES_ESTALE);
    CHECK_EQ(es_api_release(l, 2, 0), ES_ESTALE);
    CHECK_EQ(es_api_release(l, UINT64_MAX, 0), ES_ESTALE);
    CHECK_EQ(fix_batch_word(l, 0), 0);
    fix_free(f);
}

/* No lease has the round before the first one, so its release is stale. */
TEST(release_of_round_minus_one_is_stale)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *p = fix_producer(f), *a = fix_learner(f), *b = fix_learner(f);
    uint64_t round;
    uint8_t mask[1];
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(a, 0, &round), 0);
    CHECK_EQ(es_api_committed_mask(b, 0, UINT64_MAX, mask), ES_ESTALE);
    CHECK_EQ(es_api_release(b, 0, UINT64_MAX), ES_ESTALE);
    CHECK_EQ(fix_batch_word(a, 0), es_word(0, a->me, ES_LEASED));
    fix_free(f);
}

/* Batches can be released in any order. Claims wait for the oldest. */
TEST(releases_out_of_order)
{
    es_fix *f = fix_new(1, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round;
    for (uint64_t i = 0; i < 3; i++)
        fix_send(p, i);
    for (int64_t j = 0; j < 3; j++)
        CHECK_EQ(fix_take(l, 0, &round), j);
    CHECK_EQ(es_api_release(l, 2, 0), ES_OK);
    CHECK_EQ(fix_send(p, 3), ES_FULL);
    CHECK_EQ(es_api_release(l, 0, 0), ES_OK);
    CHECK_EQ(fix_send(p, 3), ES_OK);
    CHECK_EQ(fix_send(p, 4), ES_FULL);
    CHECK_EQ(es_api_release(l, 1, 0), ES_OK);
    CHECK_EQ(fix_send(p, 4), ES_OK);
    CHECK_EQ(fix_send(p, 5), ES_OK);
    for (int64_t k = 3; k < 6; k++)
        CHECK_EQ(fix_take_k(l, 0), k);
    fix_free(f);
}

/* A lease that is never released stops the ring after K - 1 further batches. */
TEST(unreleased_lease_stops_the_ring_after_the_others)
{
    es_fix *f = fix_new(1, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round, sent = 0;
    fix_send(p, 0);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    while (fix_send(p, sent) == ES_OK) {
        sent++;
        CHECK(fix_take_k(l, 0) >= 0);
    }
    CHECK_EQ(sent, 2);
    fix_free(f);
}

/* With poison, a release overwrites every leaf of its batch and nothing outside it. */
TEST(poisons_the_released_batch_alone)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_open(f, 1);
    es_identity id = {.role = ES_ROLE_LEARNER, .pid = 1};
    uint64_t round, got;
    REQUIRE_EQ(es_api_attach(l, &id), 0);
    for (uint64_t i = 0; i < 4; i++)
        fix_send(p, i);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    REQUIRE_EQ(fix_take(l, 0, &round), 1);
    CHECK_EQ(es_api_release(l, 0, 0), ES_OK);
    for (uint64_t q = 0; q < 2; q++) {
        CHECK(!fix_read(l, q, &got));
        CHECK_EQ(got, UINT64_MAX);
    }
    for (uint64_t q = 2; q < 4; q++) {
        CHECK(fix_read(l, q, &got));
        CHECK_EQ(got, q);
    }
    fix_free(f);
}

/* Only the holder of a lease can read which slots hold samples. */
TEST(committed_mask_is_the_holders)
{
    es_fix *f = fix_new(3, 1, 0);
    es_ring *p = fix_producer(f), *a = fix_learner(f), *b = fix_learner(f);
    uint8_t mask[3] = {9, 9, 9};
    uint64_t round;
    for (uint64_t i = 0; i < 3; i++)
        fix_send(p, i);
    CHECK_EQ(es_api_committed_mask(a, 0, 0, mask), ES_ESTALE);
    REQUIRE_EQ(fix_take(a, 0, &round), 0);
    CHECK_EQ(es_api_committed_mask(b, 0, 0, mask), ES_ESTALE);
    CHECK_EQ(es_api_committed_mask(a, 0, 1, mask), ES_ESTALE);
    CHECK_EQ(es_api_committed_mask(a, 7, 0, mask), ES_ESTALE);
    CHECK_EQ(mask[0], 9);
    CHECK_EQ(es_api_committed_mask(a, 0, round, mask), 3);
    CHECK_EQ(mask[0] + mask[1] + mask[2], 3);
    fix_free(f);
}

/* A batch that was given back lies below head, and the next learner that looks gets it first. */
TEST(batch_given_back_is_delivered_again)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *m = fix_learner(f);
    uint64_t round;
    fix_send_many(p, 0, 4, 0);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(fix_take_k(m, 0), 1);
    CHECK_EQ(fix_take_k(m, 0), ES_EMPTY);
    l->map.hdr->learner_sleeps = 1;
    uint32_t ready = l->map.hdr->ready_seq;
    CHECK_EQ(es_api_give_back(l, 0, round), ES_OK);
    CHECK(l->map.hdr->ready_seq != ready);
    CHECK_EQ(es_api_give_back(l, 0, round), ES_ESTALE);
    CHECK_EQ(es_api_release(l, 0, round), ES_ESTALE);
    CHECK_STR(es_valid(l), NULL);
    CHECK_EQ(fix_take_k(m, 0), 0);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
    CHECK_EQ(l->map.hdr->totals.batches_taken, 2);
    fix_free(f);
}

/* When a partial batch is given back, the slots that the take held are free for producers again. */
TEST(partial_batch_given_back_can_be_filled)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round, id;
    fix_send(p, 7);
    REQUIRE_EQ(fix_take(l, ES_TAKE_SHORT, &round), 0);
    CHECK_EQ(es_api_give_back(l, 0, round), ES_OK);
    CHECK_EQ(fix_slot_word(l, 1), es_word(1, 0, ES_REOPEN));
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
    CHECK_EQ(fix_send(p, 8), ES_OK);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    CHECK(fix_read(l, 1, &id) && id == 8);
    CHECK_STR(es_valid(l), NULL);
    fix_free(f);
}

/* A partial batch that was given back below head fills up. A learner that looked at it too early finds it there. */
TEST(returned_partial_batch_is_found_below_head)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *m = fix_learner(f);
    uint64_t round, round_of_m;
    fix_send(p, 7);
    REQUIRE_EQ(fix_take(l, ES_TAKE_SHORT, &round), 0);
    CHECK_EQ(fix_send_many(p, 8, 2, 0), 2);
    REQUIRE_EQ(fix_take(m, 0, &round_of_m), 1);
    CHECK_EQ(fix_take_k(m, 0), ES_EMPTY);
    CHECK_EQ(fix_head(m), 2);
    CHECK_EQ(es_api_give_back(l, 0, round), ES_OK);
    CHECK_EQ(fix_take_k(m, 0), ES_EMPTY);
    CHECK_EQ(fix_send(p, 10), ES_OK);
    CHECK_EQ(fix_take_k(m, 0), 0);
    fix_free(f);
}
