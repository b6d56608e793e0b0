/* Drain: the close, and what is delivered after it. */
#include "es_fixture.h"
#include "es_test.h"

/* After the close no claim succeeds. The full batch is delivered, then the short one, then the stream ends. */
TEST(close_refuses_claims_and_drains)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4], pos;
    for (uint64_t i = 0; i < 3; i++)
        fix_send(p, i);
    CHECK_EQ(es_api_close(l), ES_OK);
    CHECK_EQ(fix_send(p, 9), ES_ECLOSED);
    CHECK_EQ(fix_send_many(p, 9, 2, 0), ES_ECLOSED);
    CHECK_EQ(fix_reserve(p, 1000), ES_ECLOSED);
    CHECK_EQ(es_one_claim(p, &pos), ES_ECLOSED);
    CHECK_EQ(fix_take_short(l, 0, ids), 2);
    CHECK_EQ(ids[0] + 10 * ids[1], 10);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 2);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    CHECK_STR(es_valid(l), NULL);
    fix_free(f);
}

/* An empty closed ring ends at once. */
TEST(close_of_an_empty_ring_ends)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *l = fix_learner(f);
    uint64_t ids[4];
    es_api_close(l);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* Full batches come first, in any order. A short batch comes after them even if it is older. */
TEST(closed_fifo_gives_full_batches_before_short_ones)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(p, 0), 0);
    for (uint64_t i = 1; i < 4; i++)
        fix_send(p, i);
    es_api_abort(p, 0);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    es_api_close(l);
    CHECK_EQ(fix_take_short(l, 0, ids), 2);
    CHECK_EQ(ids[0], 2);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 1);
    CHECK_EQ(fix_slot_word(l, 0), es_word(1, 0, ES_SEALED));
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* A claim under way keeps a short batch back. Its commit wakes the learner, although the batch stays short. */
TEST(closed_ring_waits_for_claims_under_way)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(p, 0), 0);
    fix_send(p, 1);
    es_api_close(l);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    CHECK_EQ(fix_take_short(l, ES_TAKE_SHORT, ids), ES_EMPTY);
    l->map.hdr->learner_sleeps = 1;
    uint32_t ready = l->map.hdr->ready_seq;
    fix_write(p, 0, 0);
    CHECK_EQ(es_api_commit(p, 0), ES_OK);
    CHECK(l->map.hdr->ready_seq != ready);
    CHECK_EQ(fix_take_short(l, 0, ids), 2);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* An abort after the close wakes the learner, which no longer has to wait for that slot. */
TEST(abort_on_a_closed_ring_wakes_the_learner)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(p, 0), 0);
    fix_send(p, 1);
    es_api_close(l);
    l->map.hdr->learner_sleeps = 1;
    uint32_t ready = l->map.hdr->ready_seq;
    CHECK_EQ(es_api_abort(p, 0), ES_OK);
    CHECK(l->map.hdr->ready_seq != ready);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* The claim of a dead producer is sealed after it is reaped. */
TEST(reap_after_the_close_ends_the_stream)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(p, 0), 0);
    fix_send(q, 1);
    es_api_close(l);
    fix_die(f, p);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 1);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* A claim that is still open one second after the close is evicted, and its commit reports it. */
TEST(stalled_claim_is_evicted_after_the_close)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4], pos;
    REQUIRE_EQ(es_producer_claim(p, 2, &pos), 2);
    fix_send(p, 5);
    es_api_close(l);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    l->map.hdr->closed_ns -= UINT64_C(1000000000);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 5);
    CHECK_EQ(es_one_commit(p, pos, 2), ES_EEVICTED);
    es_producer_abort(p, pos);
    CHECK_EQ(fix_slot_word(l, 0), es_word(1, 0, ES_SEALED));
    CHECK_EQ(fix_slot_word(l, 1), es_word(1, 0, ES_SEALED));
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    CHECK_EQ(l->map.owners[p->me].samples, 1);
    fix_free(f);
}

/* A close time in the future, which another time namespace can cause, evicts no claim. */
TEST(close_in_the_future_evicts_nobody)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(p, 0), 0);
    es_api_close(l);
    atomic_store(&l->map.hdr->closed_ns, es_clock_ns() + UINT64_C(3600000000000));
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    CHECK_EQ(es_word_state(fix_slot_word(l, 0)), ES_CLAIMED);
    fix_free(f);
}

/* A second close changes nothing: it does not delay the eviction. */
TEST(second_close_does_not_put_eviction_off)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    CHECK_EQ(fix_reserve(p, 0), 0);
    es_api_close(l);
    l->map.hdr->closed_ns -= UINT64_C(1000000000);
    es_api_close(l);
    uint64_t ids[4];
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* A release on a closed ring opens no new lap, because the writer of an evicted claim may still write. */
TEST(release_on_a_closed_ring_retires)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round, ids[4];
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    es_api_close(l);
    CHECK_EQ(es_api_release(l, 0, round), ES_OK);
    CHECK_EQ(fix_batch_word(l, 0), es_word(0, 0, ES_RETIRED));
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    CHECK_STR(es_valid(l), NULL);
    fix_free(f);
}

/* Sealing helps the tail over a claim that never moved it. It neither seals past the claim nor stops there. */
TEST(seal_helps_the_tail_over_claims)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    fix_send(p, 0);
    atomic_store(&l->map.hdr->tail, 0);
    es_api_close(l);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 0);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    CHECK_EQ(fix_tail(l), 6);
    fix_free(f);
}

/* The stream does not end while another learner holds a lease, because that learner may die and be reaped. */
TEST(stream_does_not_end_under_a_lease_of_another)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *dead = fix_learner(f);
    uint64_t round, ids[4];
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(dead, 0, &round), 0);
    es_api_close(l);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* A learner that holds a lease does not wait for other leases. Otherwise two such learners would wait forever. */
TEST(two_learners_with_leases_both_see_the_end)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *m = fix_learner(f);
    uint64_t round, ids[4];
    fix_send_many(p, 1, 2, 0);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    REQUIRE_EQ(fix_take(m, 0, &round), 1);
    es_api_close(l);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    CHECK_EQ(fix_take_short(m, 0, ids), ES_ENDED);
    CHECK_EQ(es_api_release(l, 0, 0), ES_OK);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY); /* m's batch may be given back */
    l->map.hdr->learner_sleeps = 1;
    uint32_t ready = l->map.hdr->ready_seq;
    CHECK_EQ(es_api_release(m, 1, 0), ES_OK);
    CHECK(l->map.hdr->ready_seq != ready);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* What a run committed before its eviction counts as sent and is delivered. The rest is not. */
TEST(partial_eviction_ends_a_run)
{
    es_fix *f = fix_new(3, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t pos, ids[4];
    REQUIRE_EQ(es_producer_claim(p, 3, &pos), 3);
    for (uint64_t i = 0; i < 3; i++)
        fix_write(p, pos + i, i);
    es_api_close(l);
    fix_slot(l, 1, 1, 0, ES_SEALED);
    CHECK_EQ(es_one_commit(p, pos, 3), ES_EEVICTED);
    CHECK_EQ(l->map.owners[p->me].samples, 1);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    l->map.hdr->closed_ns -= UINT64_C(1000000000);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 0);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* A batch with a gap also waits for claims in other batches. Those batches may become full, and then they come
 * first. */
TEST(short_batch_waits_for_a_claim_in_another)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(p, 0), 0);
    fix_send(p, 1);
    CHECK_EQ(fix_reserve(p, 0), 2);
    fix_send(p, 3);
    es_api_abort(p, 0);
    es_api_close(l);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    fix_write(p, 2, 2);
    CHECK_EQ(es_api_commit(p, 2), ES_OK);
    CHECK_EQ(fix_take_short(l, 0, ids), 2);
    CHECK_EQ(ids[0], 2);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 1);
    fix_free(f);
}

/* A drain waits for slots that another learner holds, as it does for claims. After the grace period it seals them. */
TEST(stalled_hold_is_taken_away_after_the_close)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *m = fix_learner(f);
    uint64_t ids[4];
    fix_send(p, 7);
    fix_slot(l, 1, 1, m->me, ES_HELD);
    es_api_close(l);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    CHECK_EQ(fix_slot_word(l, 1), es_word(1, m->me, ES_HELD));
    l->map.hdr->closed_ns -= UINT64_C(1000000000);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(ids[0], 7);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_ENDED);
    fix_free(f);
}

/* A release during the close zeroes a count. The next drain sets the alarm again, so every commit wakes the
 * learners. */
TEST(look_at_a_closed_ring_renews_the_alarm)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(p, 0), 0);
    es_api_close(l);
    atomic_store(&l->map.batches[0].count, 0);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    l->map.hdr->learner_sleeps = 1;
    uint32_t ready = l->map.hdr->ready_seq;
    CHECK_EQ(es_api_commit(p, 0), ES_OK);
    CHECK(l->map.hdr->ready_seq != ready);
    fix_free(f);
}

/* A batch that is taken restarts the drain's clock. A wait before it says nothing about the claims that are open
 * now. */
TEST(batch_on_a_closed_ring_restarts_the_clock)
{
    es_fix *f = fix_new(1, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t ids[4];
    CHECK_EQ(fix_reserve(p, 0), 0);
    CHECK_EQ(fix_reserve(p, 0), 1);
    es_api_close(l);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    fix_write(p, 0, 5);
    CHECK_EQ(es_api_commit(p, 0), ES_OK);
    l->finish_ns -= UINT64_C(1000000000);
    CHECK_EQ(fix_take_short(l, 0, ids), 1);
    CHECK_EQ(fix_take_short(l, 0, ids), ES_EMPTY);
    CHECK_EQ(fix_slot_word(l, 1), es_word(1, p->me, ES_CLAIMED));
    fix_free(f);
}
