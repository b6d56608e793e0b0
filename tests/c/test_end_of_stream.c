/* Flush and close: the only places where a batch may be short. */
#include "es_fixture.h"
#include "es_test.h"

/* Takes a batch that may be short: how many samples, their ids in order; negative results as they are. */
static int64_t take_short(es_ring *l, uint32_t flags, uint64_t *ids)
{
    es_snapshot snap;
    uint8_t mask[16];
    int64_t j = es_take(l, flags, 0, &snap), n = 0;
    if (j < 0)
        return j;
    CHECK_EQ(es_committed_mask(l, (uint64_t)j, snap.round, mask), (int64_t)snap.length);
    for (uint64_t i = 0; i < l->map.batch_size; i++)
        if (mask[i])
            CHECK(fix_read(l, (uint64_t)j * l->map.batch_size + i, &ids[n++]));
    CHECK_EQ(es_release_batch(l, (uint64_t)j, snap.round), ES_OK);
    return n;
}

/* After the close nobody claims; the full batch and then the short one come out; then it is over. */
TEST(close_refuses_claims_and_drains)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4], pos;
    for (uint64_t i = 0; i < 3; i++)
        fix_send(p, i);
    CHECK_EQ(es_close_stream(l), ES_OK);
    CHECK_EQ(fix_send(p, 9), ES_ECLOSED);
    CHECK_EQ(fix_send_many(p, 9, 2, 0), ES_ECLOSED);
    CHECK_EQ(es_reserve(p, 1000), ES_ECLOSED);
    CHECK_EQ(es_claim(p, &pos), ES_ECLOSED);
    CHECK_EQ(take_short(l, 0, ids), 2);
    CHECK_EQ(ids[0] + 10 * ids[1], 10);
    CHECK_EQ(take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 2);
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    CHECK_STR(es_valid(l), NULL);
    fix_free(f);
}

/* An empty ring that is closed ends at once. */
TEST(close_of_an_empty_ring_ends)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *l = fix_learner(f);
    uint64_t ids[4];
    es_close_stream(l);
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* Full batches come first, in whatever order; a short one that is older comes after. */
TEST(closed_fifo_gives_full_batches_before_short_ones)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(es_reserve(p, 0), 0);
    for (uint64_t i = 1; i < 4; i++)
        fix_send(p, i);
    es_reserve_abort(p, 0);
    CHECK_EQ(take_short(l, 0, ids), ES_EMPTY);
    es_close_stream(l);
    CHECK_EQ(take_short(l, 0, ids), 2);
    CHECK_EQ(ids[0], 2);
    CHECK_EQ(take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 1);
    CHECK_EQ(fix_slot_word(l, 0), es_word(1, 0, ES_SEALED));
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* A claim under way keeps a short batch back, and its commit wakes though the batch stays short. */
TEST(closed_ring_waits_for_claims_under_way)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(es_reserve(p, 0), 0);
    fix_send(p, 1);
    es_close_stream(l);
    CHECK_EQ(take_short(l, 0, ids), ES_EMPTY);
    CHECK_EQ(take_short(l, ES_TAKE_SHORT, ids), ES_EMPTY);
    l->map.hdr->learner_sleeps = 1;
    uint32_t ready = l->map.hdr->ready_seq;
    fix_write(p, 0, 0);
    CHECK_EQ(es_reserve_commit(p, 0), ES_OK);
    CHECK(l->map.hdr->ready_seq != ready);
    CHECK_EQ(take_short(l, 0, ids), 2);
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* An abort after the close wakes the learner, which need not wait for that slot any more. */
TEST(abort_on_a_closed_ring_wakes_the_learner)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(es_reserve(p, 0), 0);
    fix_send(p, 1);
    es_close_stream(l);
    l->map.hdr->learner_sleeps = 1;
    uint32_t ready = l->map.hdr->ready_seq;
    CHECK_EQ(es_reserve_abort(p, 0), ES_OK);
    CHECK(l->map.hdr->ready_seq != ready);
    CHECK_EQ(take_short(l, 0, ids), 1);
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* A dead producer's claim is sealed once it is reaped. */
TEST(reap_after_the_close_ends_the_stream)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(es_reserve(p, 0), 0);
    fix_send(q, 1);
    es_close_stream(l);
    fix_die(f, p);
    CHECK_EQ(take_short(l, 0, ids), ES_EMPTY);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 1);
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* A claim still open a second after the close is taken away, and its commit says so. */
TEST(stalled_claim_is_evicted_after_the_close)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4], pos;
    REQUIRE_EQ(es_claim_run(p, 2, &pos), 2);
    fix_send(p, 5);
    es_close_stream(l);
    CHECK_EQ(take_short(l, 0, ids), ES_EMPTY);
    l->map.hdr->closed_ns -= UINT64_C(1000000000);
    CHECK_EQ(take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 5);
    CHECK_EQ(es_commit(p, pos, 2), ES_EEVICTED);
    es_abort(p, pos);
    CHECK_EQ(fix_slot_word(l, 0), es_word(1, 0, ES_SEALED));
    CHECK_EQ(fix_slot_word(l, 1), es_word(1, 0, ES_SEALED));
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    CHECK_EQ(l->map.owners[p->me].samples, 1);
    fix_free(f);
}

/* A second close is the first one: it does not put the eviction off. */
TEST_WANTED(second_close_does_not_put_eviction_off)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    CHECK_EQ(es_reserve(p, 0), 0);
    es_close_stream(l);
    l->map.hdr->closed_ns -= UINT64_C(1000000000);
    es_close_stream(l);
    uint64_t ids[4];
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* A closed ring opens no new space: a writer of an evicted claim may still be at it. */
TEST(release_on_a_closed_ring_retires)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round, ids[4];
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    es_close_stream(l);
    CHECK_EQ(es_release_batch(l, 0, round), ES_OK);
    CHECK_EQ(fix_batch_word(l, 0), es_word(0, 0, ES_RETIRED));
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    CHECK_STR(es_valid(l), NULL);
    fix_free(f);
}

/* Sealing steps over a claim that never moved the tail, instead of sealing past it or stopping. */
TEST(seal_helps_the_tail_over_claims)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    fix_send(p, 0);
    atomic_store(&l->map.hdr->tail, 0);
    es_close_stream(l);
    CHECK_EQ(take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 0);
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    CHECK_EQ(fix_tail(l), 6);
    fix_free(f);
}

/* A flush makes the batch being filled short; the ring goes on, the next lap too. */
TEST(flush_makes_one_short_batch_and_the_ring_goes_on)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4], n = 0;
    for (int lap = 0; lap < 5; lap++) {
        fix_send(p, n);
        fix_send(p, n + 1);
        CHECK_EQ(take_short(l, ES_TAKE_SHORT, ids), ES_EMPTY);
        CHECK_EQ(es_flush_stream(l), ES_OK);
        CHECK_EQ(take_short(l, 0, ids), ES_EMPTY); /* only to who asks for short ones */
        CHECK_EQ(take_short(l, ES_TAKE_SHORT, ids), 2);
        CHECK_EQ(ids[0], n);
        CHECK_EQ(ids[1], n + 1);
        n += 2;
        CHECK_EQ(fix_send_many(p, n, 3, 0), 3);
        CHECK_EQ(take_short(l, 0, ids), 3);
        CHECK_EQ(ids[2], n + 2);
        n += 3;
        CHECK_STR(es_valid(l), NULL);
    }
    fix_free(f);
}

/* Flushing between batches changes nothing. */
TEST(flush_at_a_batch_boundary_seals_nothing)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    es_flush_stream(l);
    fix_send_many(p, 0, 2, 0);
    es_flush_stream(l);
    CHECK_EQ(fix_tail(l), 2);
    CHECK_EQ(fix_take_k(l, 0), 0);
    CHECK_EQ(fix_take_k(l, ES_TAKE_SHORT), ES_EMPTY);
    fix_free(f);
}

/* A flush waits for nobody: the claim under way completes the short batch later, and wakes. */
TEST(flush_leaves_claims_to_their_owners)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(es_reserve(p, 0), 0);
    es_flush_stream(l);
    CHECK_EQ(take_short(l, ES_TAKE_SHORT, ids), ES_EMPTY);
    l->map.hdr->learner_sleeps = 1;
    uint32_t ready = l->map.hdr->ready_seq;
    fix_write(p, 0, 4);
    CHECK_EQ(es_reserve_commit(p, 0), ES_OK);
    CHECK(l->map.hdr->ready_seq != ready);
    CHECK_EQ(take_short(l, ES_TAKE_SHORT, ids), 1);
    CHECK_EQ(ids[0], 4);
    fix_free(f);
}

/* A position claimed beyond a lagging tail belongs to the batch being filled. */
TEST_WANTED(flush_looks_beyond_a_stale_tail)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    fix_slot(p, 0, 1, p->me, ES_CLAIMED); /* and died before moving the tail */
    fix_die(f, p);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(fix_send(q, 3), ES_OK); /* fills the hole: the tail is 0 still */
    es_flush_stream(l);
    CHECK_EQ(take_short(l, ES_TAKE_SHORT, ids), 1);
    fix_free(f);
}

/* A batch of nothing but sealed slots holds no sample and must not hold up an open ring either. */
TEST_WANTED(batch_flushed_to_nothing_does_not_stop_the_ring)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4], got = 0;
    CHECK_EQ(es_reserve(p, 0), 0);
    es_flush_stream(l); /* seals slot 1 */
    es_reserve_abort(p, 0);
    es_flush_stream(l); /* and slot 0 */
    for (uint64_t i = 0; i < 12; i++) {
        fix_send(p, i);
        int64_t n = take_short(l, ES_TAKE_SHORT, ids);
        got += n > 0 ? (uint64_t)n : 0;
    }
    CHECK_EQ(got, 12);
    fix_free(f);
}

/* The flush itself wakes a learner that asked for short batches. */
TEST_WANTED(flush_wakes_a_parked_learner)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *other = fix_learner(f);
    es_snapshot snap;
    fix_send(p, 1);
    CHECK_EQ(es_take(l, ES_TAKE_SHORT, 1, &snap), ES_TIMEOUT);
    uint32_t ready = l->map.hdr->ready_seq;
    es_flush_stream(other);
    CHECK(l->map.hdr->ready_seq != ready);
    fix_free(f);
}

/* The stream has not ended while a lease may still come back from a learner that dies. */
TEST_WANTED(stream_does_not_end_under_a_lease_of_another)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *dead = fix_learner(f);
    uint64_t round, ids[4];
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(dead, 0, &round), 0);
    es_close_stream(l);
    CHECK_EQ(take_short(l, 0, ids), ES_EMPTY);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(take_short(l, 0, ids), 1);
    CHECK_EQ(take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* What a run committed before part of it was evicted is counted as sent: it will be delivered. */
TEST(partial_eviction_commits_the_rest)
{
    es_fix *f = fix_new(3, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t pos, ids[4];
    REQUIRE_EQ(es_claim_run(p, 3, &pos), 3);
    for (uint64_t i = 0; i < 3; i++)
        fix_write(p, pos + i, i);
    es_close_stream(l);
    fix_slot(l, 1, 1, 0, ES_SEALED);
    CHECK_EQ(es_commit(p, pos, 3), ES_EEVICTED);
    CHECK_EQ(l->map.owners[p->me].samples, 2);
    CHECK_EQ(take_short(l, 0, ids), 2);
    CHECK_EQ(ids[0] + 10 * ids[1], 20);
    fix_free(f);
}
