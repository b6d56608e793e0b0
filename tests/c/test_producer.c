/* Claims: which position is claimed, and when there is none. */
#include "es_fixture.h"
#include "es_test.h"

/* A claim moves the tail past a slot whose producer died before it moved the tail. */
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

/* A tail that lags by many claims catches up, however many they are. */
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

/* es_producer_claimed() counts claims that a lagging tail does not show. */
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

/* Counts committed samples up to a claim, a re-opened slot, another lap, or the end of the batch. */
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

/* A re-opened slot of a lap that no ring can reach is a scribble. Its position would read as an error. */
TEST(passes_over_a_reopened_slot_of_an_impossible_lap)
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

/* The position returned is the one claimed, not the current tail. */
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

/* A claim returns ES_FULL only while an earlier lap of the position's batch is not released. */
TEST(full_only_while_an_older_batch_is_unreleased)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round, pos;
    for (uint64_t i = 0; i < 4; i++)
        CHECK_EQ(fix_send(p, i), ES_OK);
    CHECK_EQ(es_one_claim(p, &pos), ES_FULL);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(es_one_claim(p, &pos), ES_FULL); /* leased but not released */
    CHECK_EQ(es_api_release(l, 0, round), ES_OK);
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(pos, 4);
    CHECK_EQ(fix_slot_word(p, 0), es_word(2, p->me, ES_CLAIMED));
    CHECK_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(es_one_claim(p, &pos), ES_FULL); /* batch 1 of the first lap is not released */
    fix_free(f);
}

/* A tail that is a lap or more behind the words is a stale hint. The ring is not full. */
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
        fix_slot(p, 0, 3, p->me, ES_COMMITTED); /* makes position 12 unclaimed again */
    }
    fix_free(f);
}

/* A claim takes a re-opened slot before a new position at the tail. */
TEST(claims_a_reopened_slot_before_the_tail)
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

/* Among several re-opened slots the oldest position is claimed first, also across the end of the ring. */
TEST(claims_the_oldest_reopened_slot_first)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t pos[6], again;
    for (uint64_t i = 0; i < 4; i++)
        fix_send(p, i);
    CHECK_EQ(fix_take_k(l, 0), 0);
    CHECK_EQ(fix_take_k(l, 0), 1);
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY); /* now head is 2 */
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

/* The oldest position comes first even when the head hint is stale. */
TEST(claims_the_oldest_reopened_slot_first_under_a_stale_head)
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

/* A re-opened slot keeps the lap of its position, however late it is claimed. */
TEST(reopened_slot_keeps_its_lap)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f), *l = fix_learner(f);
    uint64_t pos, reopened;
    fix_spin_laps(p, l, 2);
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(pos, 8);
    es_producer_abort(p, pos);
    REQUIRE_EQ(es_one_claim(q, &reopened), ES_OK);
    CHECK_EQ(reopened, 8);
    CHECK_EQ(fix_slot_word(q, 0), es_word(3, q->me, ES_CLAIMED));
    CHECK_EQ(es_one_commit(q, reopened, 1), ES_OK);
    CHECK_EQ(fix_slot_word(q, 0), es_word(3, q->me, ES_COMMITTED));
    CHECK_STR(es_valid(q), NULL);
    fix_free(f);
}

/* A search that finds no re-opened slot is not repeated until reopen_seq changes. */
TEST(searches_once_for_each_reopen)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    uint64_t pos;
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    fix_slot(p, 0, 1, 0, ES_REOPEN); /* re-opened without an announcement */
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(pos, 1);
    atomic_fetch_add(&p->map.hdr->reopen_seq, 1);
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(pos, 0);
    (void)q;
    fix_free(f);
}

/* A search ends with the tail's batch. If the tail was lowered by a scribble, a re-opened slot may lie beyond: whoever
 * moves the tail past it searches again. */
TEST(finds_a_reopened_slot_beyond_a_lowered_tail)
{
    es_fix *f = fix_new(2, 4, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    uint64_t pos;
    for (int i = 0; i < 6; i++)
        REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    es_producer_abort(p, 5);
    atomic_store(&p->map.hdr->tail, 0);
    REQUIRE_EQ(es_one_claim(q, &pos), ES_OK);
    CHECK_EQ(pos, 6);
    REQUIRE_EQ(es_one_claim(q, &pos), ES_OK);
    CHECK_EQ(pos, 5);
    fix_free(f);
}

/* After a search that found a re-opened slot, the next claim searches again, because there may be another. */
TEST(finds_both_reopened_slots)
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

/* A re-opened slot can be claimed although the ring is full. */
TEST(claims_a_reopened_slot_of_a_full_ring)
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

/* A word of lap 0 whose state bits say REOPEN is not a re-opened slot. */
TEST(lap_zero_is_never_reopened)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f);
    uint64_t pos;
    fix_slot(p, 1, 0, 0, ES_REOPEN);
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    CHECK_EQ(pos, 0);
    fix_free(f);
}

/* A commit changes only the committer's own claim. */
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
