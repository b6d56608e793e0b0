/* Claims: which position, and when there is none. */
#include "es_fixture.h"
#include "es_test.h"

/* A slot claimed by a producer that died before moving the tail is stepped over. */
TEST(helps_tail_past_a_claim_that_never_moved_it)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    uint64_t pos;
    fix_slot(q, 0, 1, p->me, ES_CLAIMED);
    CHECK_EQ(fix_tail(q), 0);
    REQUIRE_EQ(es_one_claim(q, &pos), ES_OK);
    CHECK_EQ(pos, 1);
    CHECK_EQ(fix_tail(q), 2);
    CHECK_EQ(fix_slot_word(q, 0), es_word(1, p->me, ES_CLAIMED));
    fix_free(f);
}

/* A tail that lags by many claims is caught up with, however long the row. */
TEST(helps_tail_past_a_whole_row_of_claims)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    uint64_t pos;
    for (uint64_t i = 0; i < 5; i++)
        fix_slot(q, i, 1, p->me, i % 2 ? ES_COMMITTED : ES_CLAIMED);
    REQUIRE_EQ(es_one_claim(q, &pos), ES_OK);
    CHECK_EQ(pos, 5);
    CHECK_EQ(es_one_claim(q, &pos), ES_FULL);
    CHECK_EQ(fix_tail(q), 6);
    fix_free(f);
}

/* How many were claimed is told though the tail lags. */
TEST(counts_claims_that_the_tail_does_not)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    CHECK_EQ(es_producer_claimed(q), 0);
    for (uint64_t i = 0; i < 5; i++)
        fix_slot(q, i, 1, p->me, i % 2 ? ES_COMMITTED : ES_CLAIMED);
    CHECK_EQ(es_producer_claimed(q), 5);
    fix_slot(q, 5, 1, p->me, ES_CLAIMED);
    CHECK_EQ(es_producer_claimed(q), 6);
    CHECK_EQ(fix_tail(q), 0);
    fix_free(f);
}

/* Committed from a position on: up to a claim, a hole, another lap, or the end of the batch. */
TEST(counts_what_is_committed_without_a_gap)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f);
    CHECK_EQ(es_producer_committed_from(p, 0), 0);
    for (uint64_t q = 0; q < 6; q++)
        fix_slot(p, q, 1, p->me, ES_COMMITTED);
    CHECK_EQ(es_producer_committed_from(p, 0), 3);
    CHECK_EQ(es_producer_committed_from(p, 4), 2);
    CHECK_EQ(es_producer_committed_from(p, 6), 0);
    fix_slot(p, 2, 1, p->me, ES_CLAIMED);
    CHECK_EQ(es_producer_committed_from(p, 0), 2);
    fix_slot(p, 1, 1, 0, ES_REOPEN);
    CHECK_EQ(es_producer_committed_from(p, 0), 1);
    fix_free(f);
}

/* A hole of a lap that no ring can reach is a scribble: its position would read as an error. */
TEST(passes_over_a_hole_of_an_impossible_lap)
{
    const uint64_t sizes[] = {1};
    es_geometry geo = fix_geometry(1 << 20, 1, 0);
    geo.num_leaves = 1;
    es_fix *f = fix_new_leaves(&geo, sizes);
    es_ring *p = fix_producer(f);
    fix_slot(p, 7, (UINT64_C(1) << 44) - 1, 0, ES_REOPEN);
    atomic_fetch_add(&p->map.hdr->reopen_seq, 1);
    CHECK_EQ(fix_reserve(p, 0), 0);
    fix_free(f);
}

/* The position returned is the one claimed, not where the tail has got to. */
TEST(returns_the_position_whose_word_it_wrote)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f);
    for (uint64_t want = 0; want < 6; want++) {
        uint64_t pos;
        REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
        CHECK_EQ(pos, want);
        CHECK_EQ(fix_slot_word(p, pos), es_word(1, p->me, ES_CLAIMED));
    }
    fix_free(f);
}

/* FULL is said while, and only while, the position's batch of an older lap is unreleased. */
TEST(full_only_while_an_older_batch_is_unreleased)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round, pos;
    for (uint64_t i = 0; i < 4; i++)
        CHECK_EQ(fix_send(p, i), ES_OK);
    CHECK_EQ(es_one_claim(p, &pos), ES_FULL);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(es_one_claim(p, &pos), ES_FULL); /* leased is not released */
    CHECK_EQ(es_api_release(l, 0, round), ES_OK);
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(pos, 4);
    CHECK_EQ(fix_slot_word(p, 0), es_word(2, p->me, ES_CLAIMED));
    CHECK_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(es_one_claim(p, &pos), ES_FULL); /* batch 1 of the first lap is next */
    fix_free(f);
}

/* A tail a lap or more behind the words is a stale hint, not a full ring. */
TEST(stale_tail_is_not_full)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t pos;
    fix_spin_laps(p, l, 3);
    for (uint64_t behind = 0; behind <= 12; behind++) {
        atomic_store(&p->map.hdr->tail, 12 - behind);
        REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
        CHECK_EQ(pos, 12);
        fix_slot(p, 0, 3, p->me, ES_COMMITTED); /* as if it had not been claimed */
    }
    fix_free(f);
}

/* Claims go to a hole before they go to the tail. */
TEST(fills_a_hole_before_the_tail)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f);
    uint64_t a, b, c;
    REQUIRE_EQ(es_one_claim(p, &a), ES_OK);
    REQUIRE_EQ(es_one_claim(p, &b), ES_OK);
    es_producer_abort(p, a);
    CHECK_EQ(fix_slot_word(p, a), es_word(1, 0, ES_REOPEN));
    REQUIRE_EQ(es_one_claim(p, &c), ES_OK);
    CHECK_EQ(c, a);
    CHECK_EQ(fix_slot_word(p, a), es_word(1, p->me, ES_CLAIMED));
    CHECK_EQ(fix_tail(p), 2);
    fix_free(f);
}

/* Of several holes the oldest position is filled first, across the end of the ring. */
TEST(fills_the_oldest_hole_first)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t pos[6], again;
    for (uint64_t i = 0; i < 4; i++)
        fix_send(p, i);
    CHECK_EQ(fix_take_k(l, 0), 0);
    CHECK_EQ(fix_take_k(l, 0), 1);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY); /* head is 2 now */
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
    for (int i = 0; i < 6; i++)
        REQUIRE_EQ(es_one_claim(p, &pos[i]), ES_OK); /* positions 4 .. 9: indices 4 5 0 1 2 3 */
    CHECK_EQ(fix_head(l), 2);
    es_producer_abort(p, pos[2]);
    es_producer_abort(p, pos[5]);
    es_producer_abort(p, pos[1]);
    for (int i = 0; i < 3; i++) {
        const int order[3] = {1, 2, 5};
        REQUIRE_EQ(es_one_claim(p, &again), ES_OK);
        CHECK_EQ(again, pos[order[i]]);
    }
    CHECK_EQ(es_one_claim(p, &again), ES_FULL);
    fix_free(f);
}

/* With the head hint behind, position still decides which hole is oldest. */
TEST(fills_the_oldest_hole_first_under_a_stale_head)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t pos[4], again;
    for (uint64_t i = 0; i < 4; i++)
        fix_send(p, i);
    CHECK_EQ(fix_take_k(l, 0), 0);
    CHECK_EQ(fix_take_k(l, 0), 1);
    atomic_store(&l->map.hdr->head, 0);
    for (int i = 0; i < 4; i++)
        REQUIRE_EQ(es_one_claim(p, &pos[i]), ES_OK); /* positions 4 5 6 7 */
    es_producer_abort(p, pos[2]);
    es_producer_abort(p, pos[0]);
    REQUIRE_EQ(es_one_claim(p, &again), ES_OK);
    CHECK_EQ(again, 4);
    fix_free(f);
}

/* A hole is a position of its own lap: filling it in a later lap keeps the lap. */
TEST(hole_keeps_its_lap)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f), *l = fix_learner(f);
    uint64_t pos, hole;
    fix_spin_laps(p, l, 2);
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(pos, 8);
    es_producer_abort(p, pos);
    REQUIRE_EQ(es_one_claim(q, &hole), ES_OK);
    CHECK_EQ(hole, 8);
    CHECK_EQ(fix_slot_word(q, 0), es_word(3, q->me, ES_CLAIMED));
    CHECK_EQ(es_one_commit(q, hole, 1), ES_OK);
    CHECK_EQ(fix_slot_word(q, 0), es_word(3, q->me, ES_COMMITTED));
    CHECK_STR(es_valid(q), NULL);
    fix_free(f);
}

/* A search that finds nothing is not repeated until reopen_seq moves on. */
TEST(searches_for_holes_once_a_reopen)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    uint64_t pos;
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    fix_slot(p, 0, 1, 0, ES_REOPEN); /* a hole nobody announced */
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(pos, 1);
    atomic_fetch_add(&p->map.hdr->reopen_seq, 1);
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(pos, 0);
    (void)q;
    fix_free(f);
}

/* While a hole was found, the next claim searches again: there may be a second one. */
TEST(finds_both_holes_of_one_reopen)
{
    es_fix *f = fix_new(4, 1, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f), *l = fix_learner(f);
    uint64_t pos;
    CHECK_EQ(es_producer_claim(p, 3, &pos), 3);
    fix_die(f, p);
    CHECK_EQ(fix_sweep(l), 1);
    for (uint64_t want = 0; want < 4; want++) {
        REQUIRE_EQ(es_one_claim(q, &pos), ES_OK);
        CHECK_EQ(pos, want);
    }
    fix_free(f);
}

/* A hole can be filled although the ring is full. */
TEST(fills_a_hole_of_a_full_ring)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    uint64_t pos;
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(fix_send(q, 7), ES_OK);
    CHECK_EQ(fix_send(q, 8), ES_FULL);
    es_producer_abort(p, pos);
    CHECK_EQ(fix_send(q, 8), ES_OK);
    CHECK_EQ(fix_send(q, 9), ES_FULL);
    fix_free(f);
}

/* Free memory whose state nibble says REOPEN in lap 0 is no position of any lap. */
TEST(lap_zero_is_never_a_hole)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f);
    uint64_t pos;
    fix_slot(p, 1, 0, 0, ES_REOPEN);
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(pos, 0);
    fix_free(f);
}

/* A commit changes the committer's own claim and no other word. */
TEST(commit_leaves_a_word_that_is_not_its_claim)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    uint64_t pos;
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    const uint64_t others[] = {es_word(1, 0, ES_SEALED), es_word(1, q->me, ES_CLAIMED), es_word(1, 0, ES_REOPEN),
                               es_word(2, p->me, ES_CLAIMED)};
    for (int i = 0; i < 4; i++) {
        atomic_store(&p->map.slots[0], others[i]);
        CHECK_EQ(es_one_commit(p, pos, 1), ES_EEVICTED);
        CHECK_EQ(fix_slot_word(p, 0), others[i]);
    }
    fix_free(f);
}
