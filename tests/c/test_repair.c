/* Repair: a scribbled ring goes on, and an intact ring is not changed. */
#include <stdlib.h>
#include <string.h>

#include "es_fixture.h"
#include "es_test.h"

#define B 2
#define K 3
#define C (B * K)

/* Owner entries in which nobody is registered, one of each role. */
#define NO_PRODUCER (ES_MAX_LEARNERS + 5)
#define NO_LEARNER 5

typedef struct world {
    es_fix *f;
    es_ring *p, *l;
} world;

static world world_at(uint64_t sent, uint64_t taken, uint32_t flags)
{
    world w = {.f = fix_new(B, K, flags)};
    w.p = fix_producer(w.f);
    w.l = fix_learner(w.f);
    for (uint64_t i = 0; i < sent; i++) {
        CHECK_EQ(fix_send(w.p, i), ES_OK);
        if (i % B == B - 1 && taken > 0) {
            CHECK_EQ(fix_take_k(w.l, 0), (int64_t)(i / B));
            taken--;
        }
    }
    return w;
}

/* Whether three more laps of batches are delivered, with a repair whenever nothing moves. */
static bool goes_on(world *w)
{
    int batches = 0;
    for (uint64_t turn = 0; turn < 40 * C && batches < 3 * K; turn++) {
        bool moved = fix_send(w->p, 1000 + turn) == ES_OK;
        uint64_t round;
        int64_t j = fix_take(w->l, 0, &round);
        if (j >= 0) {
            es_api_release(w->l, (uint64_t)j, round);
            batches++;
        } else if (!moved) {
            es_repair(w->l);
        }
    }
    return batches == 3 * K;
}

/* Runs for every fill level and every number of batches taken. */
#define EACH_PHASE(sent, taken)                    \
    for (uint64_t sent = 0; sent <= 2 * C; sent++) \
        for (uint64_t taken = sent < C ? 0 : sent / B - K + 1; taken <= sent / B; taken++)

static void slot_survives(uint64_t lap_offset, uint32_t owner, uint32_t state)
{
    for (uint32_t flags = 0; flags <= ES_FLAG_READY_ORDER; flags += ES_FLAG_READY_ORDER)
        EACH_PHASE (sent, taken)
            for (uint64_t q = 0; q < C; q++) {
                world w = world_at(sent, taken, flags);
                fix_slot(w.l, q, es_word_lap(fix_slot_word(w.l, q)) + lap_offset, owner, state);
                if (!CHECK(goes_on(&w)))
                    CHECK_EQ(state * 1000000 + q * 10000 + sent * 100 + taken, -1); /* fails, and prints the case */
                fix_free(w.f);
            }
}

/* The ring goes on after any slot word, unless the word names a live owner. */
TEST(ring_goes_on_after_any_slot_word)
{
    const uint64_t offsets[] = {0, 1, UINT64_MAX, UINT64_C(1) << 43};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        for (uint32_t state = 0; state <= ES_HELD + 1; state++)
            slot_survives(offsets[i], NO_PRODUCER, state);
        slot_survives(offsets[i], 0xffff, ES_CLAIMED);
        slot_survives(offsets[i], 0xffff, ES_HELD);
        slot_survives(offsets[i], 0xffff, 15);
    }
}

static void batch_survives(uint64_t round_offset, uint32_t owner, uint32_t state)
{
    EACH_PHASE (sent, taken)
        for (uint64_t j = 0; j < K; j++) {
            world w = world_at(sent, taken, ES_FLAG_READY_ORDER);
            fix_batch(w.l, j, es_word_round(fix_batch_word(w.l, j)) + round_offset, owner, state);
            if (!CHECK(goes_on(&w)))
                CHECK_EQ(j * 10000 + sent * 100 + taken, -1);
            fix_free(w.f);
        }
}

/* The ring goes on after a batch word with an invalid state or owner. */
TEST(ring_goes_on_after_a_batch_word_of_nobody)
{
    batch_survives(0, NO_LEARNER, ES_LEASED);
    batch_survives(0, NO_PRODUCER, ES_LEASED);
    batch_survives(0, 0xffff, ES_LEASED);
    batch_survives(0, 0, ES_RETIRED);
    batch_survives(0, NO_LEARNER, ES_POISONING);
    batch_survives(0, 0, ES_POISONING + 1);
    batch_survives(0, 0xffff, 15);
}

/* The ring goes on after a batch word that names a producer as its learner. */
TEST(ring_goes_on_after_a_lease_of_a_producer)
{
    batch_survives(0, ES_MAX_LEARNERS, ES_LEASED); /* the producer of this world */
    batch_survives(0, ES_MAX_LEARNERS, ES_POISONING);
}

/* A scribbled word in a leased batch does not pull the tail down. It is repaired when its batch is being filled. */
TEST(leased_batch_with_a_scribbled_word_stops_nobody_else)
{
    for (uint64_t q = 0; q < B; q++) {
        es_fix *f = fix_new(B, K, 0);
        es_ring *p = fix_producer(f), *l = fix_learner(f);
        uint64_t round;
        for (uint64_t i = 0; i < B; i++)
            CHECK_EQ(fix_send(p, i), ES_OK);
        REQUIRE_EQ(fix_take(l, 0, &round), 0);
        fix_slot(l, q, 0, 0, ES_FREE);
        es_repair(l);
        CHECK_EQ(fix_tail(l), B);
        for (uint64_t i = B; i < C; i++)
            CHECK_EQ(fix_send(p, i), ES_OK);
        CHECK_EQ(fix_take_k(l, 0), 1);
        fix_free(f);
    }
}

/* Dead owners are found whatever is written over the owners' states and the high-water mark. */
TEST(the_dead_are_found_in_a_scribbled_table)
{
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t state = i % 2 ? ES_OWNER_LIVE : ES_OWNER_LIVE + 1;
        es_fix *f = fix_new(B, K, 0);
        es_ring *p = fix_producer(f), *l = fix_learner(f);
        CHECK(fix_reserve(p, 0) >= 0);
        atomic_store(&l->map.owners[p->me].state, state);
        atomic_store(&l->map.hdr->owners_high, i < 2 ? 1 : p->me);
        fix_die(f, p);
        es_repair(l);
        CHECK_EQ(fix_sweep(l), 1);
        CHECK_EQ(fix_slot_word(l, 0), es_word(1, 0, ES_REOPEN));
        fix_free(f);
    }
}

/* The ring goes on after any value of tail. */
TEST(ring_goes_on_after_any_tail)
{
    const uint64_t offsets[] = {1, B, C, 2 * C + 1, UINT64_MAX, UINT64_C(1) << 40, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        EACH_PHASE (sent, taken) {
            world w = world_at(sent, taken, 0);
            atomic_fetch_add(&w.l->map.hdr->tail, offsets[i]);
            CHECK(goes_on(&w));
            fix_free(w.f);
        }
}

/* The ring goes on after any value of head. */
TEST(ring_goes_on_after_any_head)
{
    const uint64_t offsets[] = {1, K, UINT64_MAX, UINT64_C(1) << 40, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        EACH_PHASE (sent, taken) {
            world w = world_at(sent, taken, 0);
            atomic_fetch_add(&w.l->map.hdr->head, offsets[i]);
            CHECK(goes_on(&w));
            fix_free(w.f);
        }
}

static void repair_changes_nothing(world *w)
{
    uint64_t size = w->f->size;
    uint8_t *before = malloc(size);
    memcpy(before, w->f->base, size);
    CHECK_EQ(es_repair(w->l), 0);
    ((es_header *)(void *)before)->reopen_seq = w->l->map.hdr->reopen_seq; /* repair may raise it */
    CHECK(memcmp(before, w->f->base, size) == 0);
    free(before);
}

/* On a ring that nobody scribbled on, repair writes nothing, whatever is under way. */
TEST(repair_leaves_an_intact_ring_alone)
{
    EACH_PHASE (sent, taken)
        for (int scene = 0; scene < 8; scene++) {
            world w = world_at(sent, taken, 0);
            es_ring *q = fix_producer(w.f), *m = fix_learner(w.f);
            uint64_t round;
            if (scene & 1) /* a claim and a re-opened slot */
                fix_reserve(q, 0);
            if (scene & 2) {
                int64_t pos = fix_reserve(w.p, 0);
                if (pos >= 0)
                    es_api_abort(w.p, pos);
            }
            if (scene & 4) /* a lease, if possible of a partial batch with held slots */
                fix_take(m, ES_TAKE_SHORT | ES_TAKE_ANY_ORDER, &round);
            repair_changes_nothing(&w);
            es_api_close(w.l);
            es_api_take(w.l, 0, 0, &(es_snapshot){0}); /* seals the free slots */
            repair_changes_nothing(&w);
            fix_free(w.f);
        }
}

/* A learner that gets nothing repairs the ring itself, once in a reap interval. */
TEST(waiting_learner_repairs)
{
    world w = world_at(1, 0, 0);
    es_snapshot snap;
    fix_slot(w.l, 0, 9, 0, 9);
    CHECK_EQ(fix_send(w.p, 1), ES_OK);
    uint64_t interval = w.l->map.reap_interval_ns = 600 * UINT64_C(1000000000);
    CHECK_EQ(es_api_take(w.l, 0, 1, &snap), ES_TIMEOUT); /* no repair so soon after it attached */
    CHECK_EQ(fix_slot_word(w.l, 0), es_word(9, 0, 9));
    atomic_store(&w.l->last_repair_ns, es_clock_ns() - interval);
    CHECK_EQ(es_api_take(w.l, 0, 1, &snap), ES_TIMEOUT);
    CHECK_EQ(fix_slot_word(w.l, 0), es_word(1, 0, ES_REOPEN));
    CHECK_EQ(fix_send(w.p, 2), ES_OK); /* into the re-opened slot */
    CHECK_EQ(fix_take_k(w.l, 0), 0);
    fix_free(w.f);
}

/* A repair wakes all sleepers, and after it the commits of these laps wake learners. */
TEST(repair_wakes_everybody)
{
    world w = world_at(2, 0, 0);
    es_header *h = w.l->map.hdr;
    uint32_t ready = h->ready_seq, space = h->space_seq, reopen = h->reopen_seq, given_back = h->given_back_seq;
    fix_slot(w.l, 0, 9, 0, 9);
    CHECK_EQ(es_repair(w.l), 1);
    CHECK(h->ready_seq != ready && h->space_seq != space && h->reopen_seq != reopen && h->given_back_seq != given_back);
    for (uint64_t j = 0; j < K; j++)
        CHECK(fix_count(w.l, j) >= ES_COUNT_ALARM);
    fix_free(w.f);
}

/* The stream of a ring with a scribbled slot ends. */
TEST(scribbled_ring_ends_when_closed)
{
    world w = world_at(5, 1, 0);
    es_snapshot snap;
    int64_t rc = ES_TIMEOUT;
    fix_slot(w.l, 3, 9, 0, 9);
    es_api_close(w.l);
    atomic_store(&w.l->map.hdr->closed_ns, UINT64_MAX);
    for (int turn = 0; turn < 200 && rc != ES_ENDED; turn++) {
        rc = es_api_take(w.l, 0, w.f->geo.reap_interval_ns, &snap);
        if (rc >= 0)
            es_api_release(w.l, (uint64_t)rc, snap.round);
    }
    CHECK_EQ(rc, ES_ENDED);
    fix_free(w.f);
}

/* When scribbled words never say that nothing is left, the stream ends after enough tries over enough time. */
TEST(closed_ring_of_far_rounds_ends)
{
    world w = world_at(0, 0, 0);
    es_snapshot snap;
    for (uint64_t j = 0; j < K; j++)
        fix_batch(w.l, j, UINT64_C(1) << 40, 0, ES_FILL);
    es_api_close(w.l);
    for (int ask = 0; ask < 20; ask++)
        CHECK_EQ(es_api_take(w.l, 0, 0, &snap), ES_EMPTY);
    atomic_fetch_sub(&w.l->finish_ns, UINT64_C(4000000000));
    CHECK_EQ(es_api_take(w.l, 0, 0, &snap), ES_ENDED);
    fix_free(w.f);
}
