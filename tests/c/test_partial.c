/* Partial takes: the samples of a batch that is still being filled. */
#include "es_fixture.h"
#include "es_test.h"

/* A partial take delivers the samples in the batch being filled. The ring goes on, also in the next lap. */
TEST(partial_take_ends_the_batch_and_the_ring_goes_on)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4], n = 0;
    for (int lap = 0; lap < 5; lap++) {
        fix_send(p, n);
        fix_send(p, n + 1);
        CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY); /* only with ES_TAKE_SHORT */
        CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), 2);
        CHECK_EQ(ids[0], n);
        CHECK_EQ(ids[1], n + 1);
        CHECK_STR(es_valid(l), NULL);
        n += 2;
        CHECK_EQ(fix_send_many(p, n, 3, 0), 3);
        CHECK_EQ(fix_take_short(l, 0, ids), 3);
        CHECK_EQ(ids[2], n + 2);
        n += 3;
        CHECK_STR(es_valid(l), NULL);
    }
    fix_free(f);
}

/* At a batch boundary there is nothing to hold, and a partial take changes nothing. */
TEST(partial_take_at_a_batch_boundary_changes_nothing)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    CHECK_EQ(fix_take_k(l, ES_TAKE_SHORT), ES_EMPTY);
    CHECK_EQ(fix_tail(l), 0);
    fix_send_many(p, 0, 2, 0);
    CHECK_EQ(fix_take_k(l, ES_TAKE_SHORT), 0);
    CHECK_EQ(fix_take_k(l, ES_TAKE_SHORT), ES_EMPTY);
    CHECK_EQ(fix_tail(l), 2);
    fix_free(f);
}

/* A partial take does not wait for a claim under way. It leaves that batch as it was, and others can fill it. */
TEST(partial_take_lets_go_of_a_batch_with_a_claim_under_way)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(p, 0), 0);
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), ES_EMPTY);
    CHECK_EQ(es_word_state(fix_slot_word(l, 1)), ES_REOPEN);
    CHECK_EQ(es_word_state(fix_slot_word(l, 2)), ES_REOPEN);
    CHECK_EQ(fix_send(q, 5), ES_OK);
    CHECK_EQ(fix_send(q, 6), ES_OK);
    fix_write(p, 0, 4);
    CHECK_EQ(es_api_commit(p, 0), ES_OK);
    CHECK_EQ(fix_take_short(l, 0, ids), 3);
    CHECK_EQ(ids[0] + 10 * ids[1] + 100 * ids[2], 654);
    fix_free(f);
}

/* When a partial take lets go of a held slot, it wakes a producer that waits for one. */
TEST(partial_take_wakes_producers_for_what_it_lets_go)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(p, 0), 0);
    l->map.hdr->producers_sleep = 1;
    uint32_t space = l->map.hdr->space_seq, reopen = l->map.hdr->reopen_seq;
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), ES_EMPTY);
    CHECK(l->map.hdr->space_seq != space);
    CHECK(l->map.hdr->reopen_seq != reopen);
    fix_free(f);
}

/* Re-opened slots do not keep the samples around them from a partial take, in any batch. */
TEST(partial_take_passes_over_reopened_slots_in_several_batches)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f), *dead = fix_producer(f), *l = fix_learner(f);
    const uint64_t want[] = {1, 2, 4};
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(dead, 0), 0);
    fix_send(p, 1);
    fix_send(p, 2);
    CHECK_EQ(fix_reserve(dead, 0), 3);
    fix_send(p, 4);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), 1);
    CHECK_EQ(ids[0], want[0]);
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), 1);
    CHECK_EQ(ids[0], want[1]);
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), 1);
    CHECK_EQ(ids[0], want[2]);
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), ES_EMPTY);
    CHECK_STR(es_valid(l), NULL);
    fix_free(f);
}

/* A position that is claimed beyond a lagging tail belongs to the batch being filled. */
TEST(partial_take_looks_beyond_a_stale_tail)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    fix_slot(p, 0, 1, p->me, ES_CLAIMED); /* p dies before it moves the tail */
    fix_die(f, p);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(fix_send(q, 3), ES_OK); /* fills the re-opened slot; the tail is still 0 */
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), 1);
    fix_free(f);
}

/* A partial take gives back the slots of a batch that has no sample left. The batch blocks nothing. */
TEST(partial_take_lets_go_of_a_batch_without_samples)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4], got = 0;
    CHECK_EQ(fix_reserve(p, 0), 0);
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), ES_EMPTY);
    es_api_abort(p, 0);
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), ES_EMPTY);
    for (uint64_t i = 0; i < 12; i++) {
        CHECK_EQ(fix_send(p, i), ES_OK);
        int64_t n = fix_take_short(l, ES_TAKE_SHORT, ids);
        got += n > 0 ? (uint64_t)n : 0;
    }
    CHECK_EQ(got, 12);
    fix_free(f);
}

/* A learner that dies with a partial lease leaves an ordinary unfinished batch. Its held words of past laps mean
 * nothing. */
TEST(partial_lease_of_the_dead_is_given_back)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *dead = fix_learner(f);
    uint64_t ids[4], round;
    fix_send(p, 0);
    CHECK_EQ(fix_take_short(dead, ES_TAKE_SHORT, ids), 1); /* slot 1 keeps HELD(dead) of lap 1 */
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(dead, ES_TAKE_SHORT, &round), 1);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(fix_slot_word(l, 1), es_word(1, dead->me, ES_HELD));
    CHECK_EQ(fix_slot_word(l, 3), es_word(1, 0, ES_REOPEN));
    CHECK_STR(es_valid(l), NULL);
    fix_send(p, 2);
    CHECK_EQ(fix_take_short(l, 0, ids), 2);
    CHECK_EQ(ids[0] + 10 * ids[1], 21);
    fix_free(f);
}

/* A learner does not take a batch in which another learner holds slots. The slots stay the other's. */
TEST(partial_take_leaves_what_another_holds)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *m = fix_learner(f);
    uint64_t ids[4];
    fix_send(p, 1);
    fix_slot(l, 1, 1, m->me, ES_HELD);
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), ES_EMPTY);
    CHECK_EQ(fix_slot_word(l, 1), es_word(1, m->me, ES_HELD));
    fix_free(f);
}

/* A learner that leaves a closed ring with a partial batch retires the batch. Its held slots are not re-opened. */
TEST(partial_lease_of_a_leaver_is_retired)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *m = fix_learner(f);
    uint64_t round;
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(l, ES_TAKE_SHORT, &round), 0);
    uint32_t index = l->me;
    es_api_close(m);
    CHECK_EQ(es_api_detach(l), ES_OK);
    CHECK_EQ(fix_batch_word(m, 0), es_word(0, 0, ES_RETIRED));
    CHECK_EQ(fix_slot_word(m, 1), es_word(1, index, ES_HELD));
    CHECK_STR(es_valid(m), NULL);
    fix_free(f);
}
