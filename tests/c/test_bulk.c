/* Bulk claims, and sends of many samples at once. */
#include <string.h>

#include "es_fixture.h"
#include "es_test.h"

/* A run ends at the end of its batch. */
TEST(run_stays_inside_one_batch)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f);
    uint64_t pos;
    CHECK_EQ(es_producer_claim(p, 2, &pos), 2);
    CHECK_EQ(pos, 0);
    CHECK_EQ(es_producer_claim(p, 5, &pos), 1);
    CHECK_EQ(pos, 2);
    CHECK_EQ(es_producer_claim(p, 5, &pos), 3);
    CHECK_EQ(pos, 3);
    CHECK_EQ(fix_tail(p), 6);
    CHECK_EQ(es_producer_claim(p, 5, &pos), ES_FULL);
    fix_free(f);
}

/* A run stops before a position that another producer has claimed. No word is claimed twice. */
TEST(run_stops_at_a_foreign_claim)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    uint64_t pos;
    fix_slot(p, 2, 1, q->me, ES_CLAIMED);
    CHECK_EQ(es_producer_claim(p, 4, &pos), 2);
    CHECK_EQ(pos, 0);
    CHECK_EQ(fix_slot_word(p, 2), es_word(1, q->me, ES_CLAIMED));
    CHECK_EQ(es_producer_claim(p, 4, &pos), 1);
    CHECK_EQ(pos, 3);
    fix_free(f);
}

/* A claim that gets a re-opened slot gets one slot only. */
TEST(run_into_a_reopened_slot_is_one_slot)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *p = fix_producer(f);
    uint64_t pos;
    CHECK_EQ(es_producer_claim(p, 2, &pos), 2);
    es_producer_abort(p, 0);
    CHECK_EQ(es_producer_claim(p, 4, &pos), 1);
    CHECK_EQ(pos, 0);
    CHECK_EQ(es_producer_claim(p, 4, &pos), 2);
    CHECK_EQ(pos, 2);
    fix_free(f);
}

/* The commits of a run are counted together. They wake the learner when they complete the batch. */
TEST(run_is_counted_at_once_and_wakes)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t pos;
    l->map.hdr->learner_sleeps = 1;
    uint32_t ready = l->map.hdr->ready_seq;
    CHECK_EQ(es_producer_claim(p, 3, &pos), 3);
    CHECK_EQ(es_one_commit(p, pos, 3), ES_OK);
    CHECK_EQ(fix_count(l, 0), 3);
    CHECK_EQ(l->map.hdr->ready_seq, ready);
    CHECK_EQ(es_producer_claim(p, 3, &pos), 1);
    CHECK_EQ(es_one_commit(p, pos, 1), ES_OK);
    CHECK(l->map.hdr->ready_seq != ready);
    CHECK_EQ(fix_take_k(l, 0), 0);
    fix_free(f);
}

/* More samples than the ring has slots arrive in order and whole. */
TEST(many_samples_arrive_in_order)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t sent = 0, got = 0, id, round;
    while (got < 60) {
        if (sent < 60) {
            int64_t n = fix_send_many(p, sent, 60 - sent < 11 ? 60 - sent : 11, 0);
            CHECK(n > 0 || n == ES_FULL);
            sent += n > 0 ? (uint64_t)n : 0;
        }
        int64_t j = fix_take(l, 0, &round);
        REQUIRE(j >= 0);
        for (uint64_t i = 0; i < 3; i++, got++) {
            CHECK(fix_read(l, (uint64_t)j * 3 + i, &id));
            CHECK_EQ(id, got);
        }
        es_api_release(l, (uint64_t)j, round);
    }
    fix_free(f);
}

/* `first` skips samples that were sent already. It is no error when nothing is left to send. */
TEST(resumes_many_from_first)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f);
    uint64_t ids[6] = {0, 1, 2, 3, 4, 5}, id;
    uint8_t patterns[6][FIX_PATTERN];
    fix_sample_t s;
    for (uint64_t i = 0; i < 6; i++) {
        fix_sample(i, &s);
        memcpy(patterns[i], s.pattern, FIX_PATTERN);
    }
    void *leaves[2] = {ids, patterns};
    es_age_set_version(p, es_sample_version(0, 6), true);
    CHECK_EQ(es_api_send_many(p, leaves, 3, 6, 0), 3);
    for (uint64_t q = 0; q < 3; q++)
        CHECK(fix_read(p, q, &id) && id == 3 + q);
    CHECK_EQ(es_api_send_many(p, leaves, 6, 6, 0), 0);
    CHECK_EQ(es_api_send_many(p, leaves, 0, 6, 0), 1); /* the last free slot */
    CHECK_EQ(es_api_send_many(p, leaves, 1, 6, 0), ES_FULL);
    CHECK_EQ(es_api_send_many(p, leaves, 1, 6, 1), ES_TIMEOUT);
    fix_free(f);
}

/* A reserved slot is written in place. Then it is committed, or aborted and offered again. */
TEST(reserve_commit_and_abort)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t id, round;
    int64_t a = fix_reserve(p, 0), b = fix_reserve(p, 0);
    CHECK_EQ(a, 0);
    CHECK_EQ(b, 1);
    CHECK_EQ(fix_reserve(p, 0), ES_FULL);
    CHECK_EQ(fix_reserve(p, 1), ES_TIMEOUT);
    fix_write(p, (uint64_t)b, 11);
    CHECK_EQ(es_api_commit(p, (uint64_t)b), ES_OK);
    CHECK_EQ(es_api_abort(p, (uint64_t)a), ES_OK);
    CHECK_EQ(fix_send(p, 10), ES_OK);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    CHECK(fix_read(l, 0, &id) && id == 10);
    CHECK(fix_read(l, 1, &id) && id == 11);
    fix_free(f);
}

/* A second commit of the same position is refused and loses nothing. */
TEST(second_commit_is_refused)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t pos = (uint64_t)fix_reserve(p, 0);
    fix_write(p, pos, 1);
    CHECK_EQ(es_api_commit(p, pos), ES_OK);
    CHECK_EQ(es_api_commit(p, pos), ES_EEVICTED);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY); /* the count says 2, the words say 1 */
    CHECK_EQ(fix_send(p, 2), ES_OK);
    CHECK_EQ(fix_take_k(l, 0), 0);
    CHECK_EQ(l->map.owners[p->me].samples, 2);
    fix_free(f);
}
