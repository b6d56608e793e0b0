/* Abort and reap: claims that end without a sample, and what dead owners leave behind. */
#include "es_fixture.h"
#include "es_test.h"

/* An abort re-opens its own claim, announces it, and changes nothing else. */
TEST(abort_reopens_its_claim_and_announces_it)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    int64_t pos = fix_reserve(p, 0);
    REQUIRE_EQ(pos, 0);
    uint32_t seq = p->map.hdr->reopen_seq;
    CHECK_EQ(es_api_abort(q, (uint64_t)pos), ES_OK);
    CHECK_EQ(fix_slot_word(p, 0), es_word(1, p->me, ES_CLAIMED)); /* q cannot abort p's claim */
    CHECK_EQ(p->map.hdr->reopen_seq, seq);
    CHECK_EQ(es_api_abort(p, (uint64_t)pos), ES_OK);
    CHECK_EQ(fix_slot_word(p, 0), es_word(1, 0, ES_REOPEN));
    CHECK_EQ(p->map.hdr->reopen_seq, seq + 1);
    CHECK_EQ(es_api_commit(p, (uint64_t)pos), ES_EEVICTED); /* the claim is gone */
    CHECK_EQ(fix_slot_word(p, 0), es_word(1, 0, ES_REOPEN));
    fix_free(f);
}

static void leave_debris(es_fix *f, es_ring *dead, es_ring *live)
{
    (void)f;
    fix_slot(live, 0, 2, dead->me, ES_CLAIMED);
    fix_slot(live, 1, 1, dead->me, ES_COMMITTED);
    fix_slot(live, 2, 1, live->me, ES_CLAIMED);
    fix_slot(live, 3, 1, 0, ES_REOPEN);
    fix_slot(live, 4, 1, dead->me, ES_CLAIMED);
    fix_slot(live, 5, 1, live->me, ES_COMMITTED);
    fix_batch(live, 0, 1, 0, ES_FILL);
}

/* A reap re-opens every claim of the dead owner in the same lap. Live owners' claims and committed slots stay. */
TEST(reap_reopens_the_claims_of_the_dead_alone)
{
    es_fix *f = fix_new(2, 3, 0);
    es_ring *dead = fix_producer(f), *live = fix_producer(f);
    leave_debris(f, dead, live);
    uint32_t me = dead->me;
    fix_die(f, dead);
    es_identity id;
    REQUIRE_EQ(es_sweep_next_dead(live, 0, &id), me);
    CHECK_EQ(es_reap(live, me), 2);
    CHECK_EQ(fix_slot_word(live, 0), es_word(2, 0, ES_REOPEN));
    CHECK_EQ(fix_slot_word(live, 1), es_word(1, me, ES_COMMITTED));
    CHECK_EQ(fix_slot_word(live, 2), es_word(1, live->me, ES_CLAIMED));
    CHECK_EQ(fix_slot_word(live, 4), es_word(1, 0, ES_REOPEN));
    CHECK_EQ(fix_slot_word(live, 5), es_word(1, live->me, ES_COMMITTED));
    CHECK_EQ(es_sweep_next_dead(live, 0, &id), ES_EMPTY);
    fix_free(f);
}

/* A reaper can die at any point. The next one finishes the reap with the same result. */
TEST(reap_may_be_repeated_from_any_point)
{
    for (int done = 0; done < 4; done++) {
        es_fix *f = fix_new(2, 3, 0);
        es_ring *dead = fix_producer(f), *live = fix_producer(f);
        leave_debris(f, dead, live);
        uint32_t me = dead->me;
        fix_die(f, dead);
        if (done == 1) /* the dead reaper re-opened half of the words */
            fix_slot(live, 0, 2, 0, ES_REOPEN);
        for (int i = 2; i <= done; i++) { /* it did everything except free the entry; 3: two reapers did */
            CHECK_EQ(fix_sweep(live), 1);
            atomic_store(&live->map.owners[me].state, ES_OWNER_LIVE);
        }
        uint32_t reopen = live->map.hdr->reopen_seq, given_back = live->map.hdr->given_back_seq;
        CHECK_EQ(fix_sweep(live), 1);
        CHECK_EQ(fix_slot_word(live, 0), es_word(2, 0, ES_REOPEN));
        CHECK_EQ(fix_slot_word(live, 4), es_word(1, 0, ES_REOPEN));
        CHECK_EQ(fix_slot_word(live, 1), es_word(1, me, ES_COMMITTED));
        /* The reap announces even when it changed no word: the first reaper may have died before it announced. */
        CHECK(live->map.hdr->reopen_seq != reopen);
        CHECK(live->map.hdr->given_back_seq != given_back);
        CHECK_EQ(live->map.hdr->totals.reopened_slots, done == 1 ? 1 : 2);
        fix_free(f);
    }
}

/* Every reap wakes both kinds of sleeper, whether or not a sleep flag is set. */
TEST(reap_wakes_everybody_unconditionally)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *dead = fix_producer(f), *l = fix_learner(f);
    fix_die(f, dead);
    uint32_t ready = l->map.hdr->ready_seq, space = l->map.hdr->space_seq;
    CHECK_EQ(l->map.hdr->learner_sleeps, 0);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK(l->map.hdr->ready_seq != ready);
    CHECK(l->map.hdr->space_seq != space);
    fix_free(f);
}

/* After a reap every commit wakes the learners, because the dead producer may have committed without counting. */
TEST(reap_raises_every_count_beyond_a_batch)
{
    es_fix *f = fix_new(3, 2, 0);
    es_ring *dead = fix_producer(f), *p = fix_producer(f), *l = fix_learner(f);
    fix_send(p, 1);
    fix_slot(p, 1, 1, dead->me, ES_COMMITTED); /* dead commits but dies before it counts */
    atomic_store(&p->map.hdr->tail, 2);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(l), 1);
    for (uint64_t j = 0; j < 2; j++)
        CHECK(fix_count(l, j) >= 3);
    l->map.hdr->learner_sleeps = 1;
    uint32_t ready = l->map.hdr->ready_seq;
    CHECK_EQ(fix_send(p, 2), ES_OK);
    CHECK(l->map.hdr->ready_seq != ready);
    CHECK_EQ(fix_take_k(l, 0), 0);
    CHECK(fix_count(l, 0) < 3); /* the release zeroes the count */
    fix_free(f);
}

/* Only the dead learner's leases are given back. Those batches are delivered again. */
TEST(reap_gives_back_the_leases_of_the_dead_alone)
{
    es_fix *f = fix_new(1, 3, 0);
    es_ring *p = fix_producer(f), *dead = fix_learner(f), *l = fix_learner(f);
    uint64_t round, got;
    for (uint64_t i = 0; i < 3; i++)
        fix_send(p, i);
    CHECK_EQ(fix_take(dead, 0, &round), 0);
    CHECK_EQ(fix_take(l, 0, &round), 1);
    CHECK_EQ(l->map.hdr->totals.batches_taken, 2);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(l->map.hdr->totals.batches_taken, 1);
    CHECK_EQ(fix_batch_word(l, 0), es_word(0, ES_GIVEN_BACK, ES_FILL));
    CHECK_EQ(fix_batch_word(l, 1), es_word(0, l->me, ES_LEASED));
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    CHECK(fix_read(l, 0, &got) && got == 0);
    fix_free(f);
}

/* A batch that its learner released before it died is not delivered again. */
TEST(released_batch_is_not_given_back)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *dead = fix_learner(f), *l = fix_learner(f);
    fix_send(p, 1);
    CHECK_EQ(fix_take_k(dead, 0), 0);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(fix_batch_word(l, 0), es_word(1, 0, ES_FILL));
    CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
    fix_free(f);
}

/* The learner dies after it zeroes the count and before it releases the batch. The whole batch is delivered again. */
TEST(learner_dead_between_count_and_word_gives_its_batch_back)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f), *dead = fix_learner(f), *l = fix_learner(f);
    uint64_t round, got;
    fix_send(p, 1);
    fix_send(p, 2);
    CHECK_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(es_api_release(l, 0, round), ES_OK);
    fix_send(p, 3);
    fix_send(p, 4);
    CHECK_EQ(fix_take(dead, 0, &round), 0);
    atomic_store(&l->map.batches[0].count, 0);
    fix_die(f, dead);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(round, 1);
    CHECK(fix_read(l, 0, &got) && got == 3);
    CHECK(fix_read(l, 1, &got) && got == 4);
    fix_free(f);
}

/* es_valid() names each broken invariant. */
TEST(valid_names_what_is_broken)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    const uint32_t nobody = ES_MAX_LEARNERS + 7;
    CHECK_STR(es_valid(l), NULL);
    fix_slot(l, 0, 1, p->me, 7);
    CHECK_STR(es_valid(l), "a slot word has a state, and lap 0 is FREE");
    fix_slot(l, 0, 0, p->me, ES_CLAIMED);
    CHECK_STR(es_valid(l), "a slot word has a state, and lap 0 is FREE");
    fix_slot(l, 0, 2, p->me, ES_COMMITTED);
    CHECK_STR(es_valid(l), "a slot is in its batch's lap or the one before");
    fix_slot(l, 0, 1, nobody, ES_CLAIMED);
    CHECK_STR(es_valid(l), "no CLAIMED word has a reaped owner");
    fix_slot(l, 0, 1, p->me, ES_CLAIMED);
    CHECK_STR(es_valid(l), NULL);
    fix_batch(l, 0, 0, l->me, ES_LEASED);
    CHECK_STR(es_valid(l), "every slot of a leased or retired batch is COMMITTED, SEALED or HELD");
    fix_batch(l, 0, 0, 0, ES_RETIRED);
    CHECK_STR(es_valid(l), "every slot of a leased or retired batch is COMMITTED, SEALED or HELD");
    fix_batch(l, 0, 1, 0, ES_FILL);
    CHECK_STR(es_valid(l), "a slot of a released lap is COMMITTED, SEALED or HELD");
    fix_batch(l, 0, 0, nobody, ES_LEASED);
    CHECK_STR(es_valid(l), "no LEASED word has a reaped owner");
    fix_batch(l, 0, 0, 0, 9);
    CHECK_STR(es_valid(l), "a batch word has a state");
    fix_batch(l, 0, 0, 0, ES_FILL);
    atomic_store(&l->map.hdr->tail, 2);
    CHECK_STR(es_valid(l), "p < tail implies S[p mod C].lap >= LAP(p)");
    fix_slot(l, 1, 1, p->me, ES_COMMITTED);
    CHECK_STR(es_valid(l), NULL);
    fix_free(f);
}
