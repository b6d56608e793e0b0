/* Look and take: which batch is taken, and in what order. */
#include "es_fixture.h"
#include "es_test.h"

static void commit_all(es_ring *r, uint64_t j, uint64_t lap)
{
    for (uint64_t i = 0; i < r->map.batch_size; i++)
        fix_slot(r, j * r->map.batch_size + i, lap, ES_MAX_LEARNERS, ES_COMMITTED);
}

/* Committed words make a batch complete, even if every producer died before it counted. */
TEST(takes_by_words_when_the_count_is_zero)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *l = fix_learner(f);
    uint64_t round;
    commit_all(l, 0, 1);
    atomic_store(&l->map.hdr->tail, 3);
    CHECK_EQ(fix_count(l, 0), 0);
    CHECK_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(fix_batch_word(l, 0), es_word(0, l->me, ES_LEASED));
    fix_free(f);
}

/* A full count does not make a batch complete while one of its words is still claimed. */
TEST(does_not_take_by_the_count_alone)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round;
    const uint64_t words[] = {es_word(1, p->me, ES_CLAIMED), es_word(1, 0, ES_REOPEN), es_word(0, 0, ES_FREE)};
    for (int i = 0; i < 3; i++)
        for (uint64_t q = 0; q < 3; q++) {
            commit_all(l, 0, 1);
            atomic_store(&l->map.slots[q], words[i]);
            atomic_store(&l->map.batches[0].count, 3);
            l->scan[0] = (es_scan){0}; /* this test moves words backwards, which real words never do */
            CHECK_EQ(fix_take(l, 0, &round), ES_EMPTY);
        }
    commit_all(l, 0, 1);
    CHECK_EQ(fix_take(l, 0, &round), 0);
    fix_free(f);
}

/* Words that were committed in the previous lap do not belong to this lap's batch. */
TEST(does_not_take_words_of_the_last_lap)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    fix_spin_laps(p, l, 1);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
    CHECK_EQ(fix_send(p, 0), ES_OK);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
    CHECK_EQ(fix_send(p, 1), ES_OK);
    CHECK_EQ(fix_take_k(l, 0), 2);
    fix_free(f);
}

/* Repeated looks resume the scan and never miss the last word. */
TEST(resumes_a_scan_at_each_missing_word)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t pos[4];
    for (uint64_t lap = 0; lap < 3; lap++) {
        for (int i = 0; i < 4; i++)
            REQUIRE_EQ(es_one_claim(p, &pos[i]), ES_OK);
        const int order[4] = {2, 0, 3, 1};
        for (int i = 0; i < 4; i++) {
            CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
            CHECK_EQ(es_one_commit(p, pos[order[i]], 1), ES_OK);
        }
        CHECK_EQ(fix_take_k(l, 0), (int64_t)lap);
    }
    fix_free(f);
}

static void second_batch_ready_first(es_fix *f, es_ring **l, es_ring **p, uint64_t *pos)
{
    *l = fix_learner(f);
    *p = fix_producer(f);
    CHECK_EQ(es_one_claim(*p, pos), ES_OK);
    for (uint64_t i = 0; i < 3; i++)
        CHECK_EQ(fix_send(*p, i), ES_OK);
}

/* In fifo order no look takes a batch past an incomplete one: neither look_everywhere() nor look_from_head(). */
TEST(fifo_stops_at_the_first_incomplete_batch)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *l, *p;
    uint64_t pos;
    second_batch_ready_first(f, &l, &p, &pos);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY); /* look_everywhere() */
    CHECK_EQ(l->seen_given_back, 0);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY); /* look_from_head() */
    CHECK_EQ(es_one_commit(p, pos, 1), ES_OK);
    CHECK_EQ(fix_take_k(l, 0), 0);
    CHECK_EQ(fix_take_k(l, 0), 1);
    fix_free(f);
}

/* In ready order both kinds of look take a complete batch past an incomplete one. */
TEST(ready_passes_over_an_incomplete_batch)
{
    for (int warm = 0; warm < 2; warm++) {
        es_fix *f = fix_new(2, 3, ES_FLAG_READY_ORDER);
        es_ring *l, *p;
        uint64_t pos;
        if (warm) {
            l = fix_learner(f);
            CHECK_EQ(fix_take_k(l, 0), ES_EMPTY); /* from now on l looks from head */
            p = fix_producer(f);
            CHECK_EQ(es_one_claim(p, &pos), ES_OK);
            for (uint64_t i = 0; i < 3; i++)
                CHECK_EQ(fix_send(p, i), ES_OK);
        } else {
            second_batch_ready_first(f, &l, &p, &pos);
        }
        CHECK_EQ(fix_take_k(l, 0), 1);
        CHECK_EQ(fix_head(l), 0); /* head does not pass the incomplete batch */
        CHECK_EQ(es_one_commit(p, pos, 1), ES_OK);
        CHECK_EQ(fix_take_k(l, 0), 0);
        fix_free(f);
    }
}

/* A single take can ask a fifo ring for any order. */
TEST(any_order_flag_passes_over_an_incomplete_batch)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *l, *p;
    uint64_t pos;
    second_batch_ready_first(f, &l, &p, &pos);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
    CHECK_EQ(fix_take_k(l, ES_TAKE_ANY_ORDER), 1);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
    fix_free(f);
}

/* head moves by one, and only past a batch that is leased or in a later round. */
TEST(head_moves_only_past_leased_batches)
{
    es_fix *f = fix_new(1, 3, ES_FLAG_READY_ORDER);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t pos, round;
    CHECK_EQ(fix_take(l, 0, &round), ES_EMPTY);
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(fix_send(p, 1), ES_OK);
    CHECK_EQ(fix_send(p, 2), ES_OK);
    CHECK_EQ(fix_take(l, 0, &round), 1);
    CHECK_EQ(fix_take(l, 0, &round), 2);
    CHECK_EQ(fix_take(l, 0, &round), ES_EMPTY);
    CHECK_EQ(fix_head(l), 0);
    CHECK_EQ(es_one_commit(p, pos, 1), ES_OK);
    CHECK_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(fix_head(l), 0); /* a take does not move head; the next look does */
    CHECK_EQ(fix_take(l, 0, &round), ES_EMPTY);
    CHECK_EQ(fix_head(l), 3);
    fix_free(f);
}

/* Batches that were given back are delivered although head has passed them. The smallest number comes first. */
TEST(delivers_batches_given_back_below_head_smallest_first)
{
    for (uint32_t flags = 0; flags <= ES_FLAG_READY_ORDER; flags += ES_FLAG_READY_ORDER) {
        es_fix *f = fix_new(1, 4, flags);
        es_ring *p = fix_producer(f), *dead = fix_learner(f), *l = fix_learner(f);
        uint64_t round;
        CHECK_EQ(fix_take(l, 0, &round), ES_EMPTY);
        for (uint64_t i = 0; i < 4; i++)
            CHECK_EQ(fix_send(p, i), ES_OK);
        for (int64_t k = 0; k < 3; k++)
            CHECK_EQ(fix_take(dead, 0, &round), k);
        CHECK_EQ(fix_take(l, 0, &round), 3);
        CHECK_EQ(es_api_release(l, 3, round), ES_OK);
        CHECK_EQ(fix_take(l, 0, &round), ES_EMPTY);
        CHECK(fix_head(l) >= 3);
        fix_die(f, dead);
        CHECK_EQ(fix_sweep(l), 1);
        for (int64_t k = 0; k < 3; k++)
            CHECK_EQ(fix_take_k(l, 0), k);
        CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
        fix_free(f);
    }
}

/* The smallest number comes first also across the end of the ring, where the order of indices differs. */
TEST(given_back_across_the_wrap_in_number_order)
{
    es_fix *f = fix_new(1, 3, 0);
    es_ring *p = fix_producer(f), *dead = fix_learner(f), *l = fix_learner(f);
    uint64_t round;
    for (uint64_t i = 0; i < 2; i++)
        fix_send(p, i);
    CHECK_EQ(fix_take_k(l, 0), 0);
    CHECK_EQ(fix_take_k(l, 0), 1);
    for (uint64_t i = 2; i < 5; i++)
        CHECK_EQ(fix_send(p, i), ES_OK);
    CHECK_EQ(fix_take(dead, 0, &round), 2);
    CHECK_EQ(fix_take(dead, 0, &round), 0);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(l), 1);
    for (int64_t k = 2; k < 5; k++)
        CHECK_EQ(fix_take_k(l, 0), k);
    fix_free(f);
}

/* A new learner looks everywhere first, so it finds batches that were given back before it attached. */
TEST(new_learner_finds_what_was_given_back_before)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *dead = fix_learner(f), *other = fix_learner(f);
    uint64_t round;
    fix_send(p, 1);
    fix_send(p, 2);
    CHECK_EQ(fix_take(dead, 0, &round), 0);
    CHECK_EQ(fix_take_k(other, 0), 1);
    CHECK_EQ(fix_take_k(other, 0), ES_EMPTY);
    CHECK_EQ(fix_take_k(other, 0), ES_EMPTY);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(other), 1);
    CHECK_EQ(es_api_detach(other), ES_OK);
    es_ring *l = fix_learner(f);
    CHECK_EQ(fix_take_k(l, 0), 0);
    fix_free(f);
}

/* A batch has one learner. A second learner finds it leased. */
TEST(two_learners_never_hold_one_batch)
{
    es_fix *f = fix_new(1, 3, 0);
    es_ring *p = fix_producer(f), *a = fix_learner(f), *b = fix_learner(f);
    uint64_t round;
    fix_send(p, 1);
    fix_send(p, 2);
    CHECK_EQ(fix_take(a, 0, &round), 0);
    CHECK_EQ(fix_take(b, 0, &round), 1);
    CHECK_EQ(fix_take(a, 0, &round), ES_EMPTY);
    CHECK_EQ(fix_take(b, 0, &round), ES_EMPTY);
    CHECK_EQ(es_api_release(b, 0, 0), ES_ESTALE);
    CHECK_EQ(es_api_release(a, 0, 0), ES_OK);
    fix_free(f);
}
