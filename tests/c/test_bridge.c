/* Bridges: the samples of remote clients are counted. Client entries outlive connections and bridges. */
#include <string.h>

#include "es_fixture.h"
#include "es_test.h"

#define ANN ((const uint8_t *)"ann: sixteen b..")
#define BOB ((const uint8_t *)"bob: sixteen b..")
#define CAT ((const uint8_t *)"cat: sixteen b..")
#define DAN ((const uint8_t *)"dan: sixteen b..")

static es_ring *bridge(es_fix *f)
{
    es_ring *r = fix_producer(f);
    CHECK_EQ(es_bridge_begin(r), ES_OK);
    return r;
}

/* n samples from id on: leaf by leaf, or with rows sample by sample. */
static void block_of(uint8_t *out, uint64_t id, uint64_t n, bool rows)
{
    for (uint64_t i = 0; i < n; i++) {
        fix_sample_t s;
        fix_sample(id + i, &s);
        uint8_t *at = rows ? out + i * (sizeof s.id + FIX_PATTERN) : out + i * sizeof s.id;
        memcpy(at, &s.id, sizeof s.id);
        memcpy(rows ? at + sizeof s.id : out + n * sizeof s.id + i * FIX_PATTERN, s.pattern, FIX_PATTERN);
    }
}

static int64_t send_block(es_ring *r, uint32_t remote, uint64_t first, uint64_t n, bool rows)
{
    uint8_t block[1024];
    block_of(block, 100, n, rows);
    return es_bridge_send(r, remote, block, first, n, rows, es_sample_version(100, n), 0);
}

static int64_t committed(es_ring *r, int64_t remote)
{
    return es_bridge_committed(r, (uint32_t)remote);
}

/* Both layouts give the same samples. Each sample is counted, whatever part of the block is sent. */
TEST(blocks_of_either_layout_are_sent)
{
    for (int rows = 0; rows < 2; rows++) {
        es_fix *f = fix_new(3, 3, 0);
        es_ring *b = bridge(f), *l = fix_learner(f);
        int64_t ann = es_bridge_open(b, ANN, 0, "ann");
        REQUIRE_EQ(ann, 0);
        CHECK_EQ(send_block(b, 0, 2, 7, rows), 5);
        CHECK_EQ(committed(b, ann), 5);
        for (uint64_t q = 0; q < 5; q++) {
            uint64_t id;
            CHECK(fix_read(l, q, &id));
            CHECK_EQ(id, 102 + q);
        }
        CHECK_EQ(b->map.owners[b->me].samples, 5);
        CHECK_EQ(b->map.owners[b->me].journal_remote, 0);
        CHECK_STR(es_valid(l), NULL);
        fix_free(f);
    }
}

/* A full ring takes as many samples as fit. The bridge sends the rest later. */
TEST(full_ring_takes_a_part)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *b = bridge(f);
    int64_t ann = es_bridge_open(b, ANN, 0, "ann");
    CHECK_EQ(send_block(b, 0, 0, 7, false), 4);
    CHECK_EQ(send_block(b, 0, 4, 7, false), ES_FULL);
    CHECK_EQ(committed(b, ann), 4);
    fix_free(f);
}

static uint64_t waits(es_ring *r)
{
    es_snapshot snap;
    es_monitor_observe(r, &snap);
    CHECK_EQ(snap.push_blocked, r->map.owners[r->me].blocked);
    CHECK_EQ(snap.producers_waiting, r->waited_ns != 0);
    return snap.push_blocked;
}

/* A wait counts once, however often the bridge asks or sleeps. Its time is counted as it goes on. */
TEST(wait_counts_once)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *b = bridge(f), *l = fix_learner(f);
    es_owner *owner = &b->map.owners[b->me];
    uint64_t round;
    uint8_t block[1024];
    block_of(block, 100, 9, false);
    CHECK_EQ(es_bridge_open(b, ANN, 0, "ann"), 0);
    CHECK_EQ(es_bridge_send(b, 0, block, 0, 9, false, 1, 0), 4);
    CHECK_EQ(waits(b), 1); /* it found no room for the fifth */
    CHECK_EQ(es_bridge_send(b, 0, block, 4, 9, false, 1, 0), ES_FULL);
    CHECK_EQ(es_bridge_send(b, 0, block, 4, 9, false, 1, 2000000), ES_TIMEOUT);
    CHECK_EQ(es_bridge_send(b, 0, block, 4, 9, false, 1, 2000000), ES_TIMEOUT);
    CHECK_EQ(waits(b), 1);
    CHECK(owner->blocked_ns >= 2000000);
    REQUIRE_EQ(fix_take(l, 0, &round), 0);
    es_api_release(l, 0, round);
    CHECK_EQ(es_bridge_send(b, 0, block, 4, 6, false, 1, 0), 2);
    uint64_t blocked_ns = owner->blocked_ns;
    CHECK_EQ(waits(b), 1); /* over */
    CHECK_EQ(es_bridge_send(b, 0, block, 6, 9, false, 1, 2000000), ES_TIMEOUT);
    CHECK_EQ(waits(b), 2);
    CHECK_EQ(es_bridge_open(b, BOB, 0, "bob"), 1);
    CHECK_EQ(es_bridge_leave(b, 1, 0), ES_OK);
    CHECK(b->waited_ns != 0);
    CHECK_EQ(es_bridge_leave(b, 0, 1), ES_OK);
    CHECK_EQ(waits(b), 2);
    CHECK(owner->blocked_ns >= blocked_ns + 2000000);
    fix_free(f);
}

/* A client that comes back finds its entry and its count. A new client gets a new entry. */
TEST(entries_are_found_again)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *b = bridge(f);
    int64_t ann = es_bridge_open(b, ANN, 7, "ann, here");
    CHECK_EQ(committed(b, ann), 7);
    CHECK_EQ(es_bridge_known(b, (uint32_t)ann), 0);
    CHECK_EQ(send_block(b, (uint32_t)ann, 0, 3, false), 3);
    CHECK_EQ(es_bridge_leave(b, (uint32_t)ann, 1), ES_OK);
    CHECK_EQ(es_bridge_leave(b, (uint32_t)ann, 1), ES_ESTALE);
    CHECK_EQ(committed(b, ann), ES_ESTALE);
    CHECK_EQ(send_block(b, (uint32_t)ann, 0, 3, false), ES_ESTALE);
    int64_t bob = es_bridge_open(b, BOB, 0, "bob");
    CHECK(bob != ann);
    CHECK_EQ(es_bridge_open(b, ANN, 0, "ann, there"), ann);
    CHECK_EQ(committed(b, ann), 10);
    CHECK_EQ(es_bridge_known(b, (uint32_t)ann), 1);
    es_remote_info info;
    CHECK_EQ(es_monitor_next_remote(b, (uint32_t)ann, &info), ann);
    CHECK_STR(info.peer, "ann, there");
    CHECK_EQ(info.state, ES_REMOTE_HERE);
    CHECK_EQ(info.bridge, b->me);
    fix_free(f);
}

/* When all entries are in use, a newcomer gets the one that was left first. Entries of connected clients stay. */
TEST(oldest_of_those_away_makes_room)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *b = bridge(f);
    int64_t ann = es_bridge_open(b, ANN, 1, "ann"), bob = es_bridge_open(b, BOB, 2, "bob");
    int64_t cat = es_bridge_open(b, CAT, 3, "cat");
    CHECK_EQ(es_bridge_open(b, DAN, 4, "dan"), ES_ENOOWNER);
    es_bridge_leave(b, (uint32_t)bob, 1);
    es_bridge_leave(b, (uint32_t)ann, 1);
    es_bridge_leave(b, (uint32_t)cat, 1);
    CHECK_EQ(es_bridge_open(b, DAN, 4, "dan"), bob);
    CHECK_EQ(es_bridge_open(b, CAT, 0, "cat"), cat);
    CHECK_EQ(committed(b, bob), 4);
    CHECK_EQ(es_bridge_open(b, ANN, 0, "ann"), ann);
    CHECK_EQ(committed(b, ann), 1);
    CHECK_EQ(es_bridge_open(b, NULL, 0, "no id"), ES_ENOOWNER);
    es_bridge_leave(b, (uint32_t)cat, 0); /* the entry becomes free */
    CHECK_EQ(es_bridge_open(b, NULL, 0, "no id"), cat);
    CHECK_EQ(es_bridge_open(b, CAT, 0, "cat"), ES_ENOOWNER);
    fix_free(f);
}

/* es_bridge_find() finds a known client's entry. It never makes a new entry, however often it is called. */
TEST(a_forgotten_client_stays_forgotten)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *b = bridge(f), *other = bridge(f);
    es_remote_info info;
    for (int turn = 0; turn < 2; turn++)
        CHECK_EQ(es_bridge_find(b, ANN, "ann"), ES_EMPTY);
    CHECK_EQ(es_monitor_next_remote(b, 0, &info), ES_EMPTY);
    int64_t ann = es_bridge_open(b, ANN, 3, "ann");
    CHECK_EQ(es_bridge_find(other, ANN, "ann"), ES_UNSURE);
    CHECK_EQ(es_bridge_wanted(b, (uint32_t)ann), 1);
    es_bridge_leave(b, (uint32_t)ann, 1);
    CHECK_EQ(es_bridge_find(other, ANN, "ann"), ann);
    CHECK_EQ(committed(other, ann), 3);
    CHECK_EQ(es_bridge_known(other, (uint32_t)ann), 1);
    es_bridge_leave(other, (uint32_t)ann, 0);
    CHECK_EQ(es_bridge_find(b, ANN, "ann"), ES_EMPTY);
    fix_free(f);
}

/* A client of a dead bridge that is not reaped must wait, because its count is not settled. */
TEST(a_dead_bridges_clients_wait_for_the_reaper)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *dead = bridge(f), *b = bridge(f), *l = fix_learner(f);
    int64_t ann = es_bridge_open(dead, ANN, 0, "ann");
    CHECK_EQ(send_block(dead, (uint32_t)ann, 0, 2, false), 2);
    CHECK_EQ(es_bridge_wanted(dead, (uint32_t)ann), 0);
    CHECK_EQ(es_bridge_open(b, ANN, 0, "ann"), ES_UNSURE);
    CHECK_EQ(es_bridge_wanted(dead, (uint32_t)ann), 1); /* a live bridge would see this and leave the client */
    fix_die(f, dead);
    CHECK_EQ(es_bridge_open(b, ANN, 0, "ann"), ES_UNSURE);
    CHECK_EQ(fix_sweep(l), 1);
    CHECK_EQ(es_bridge_open(b, ANN, 0, "ann"), ann);
    CHECK_EQ(es_bridge_wanted(b, (uint32_t)ann), 0);
    CHECK_EQ(committed(b, ann), 2);
    es_api_detach(b);
    es_ring *third = bridge(f);
    CHECK_EQ(es_bridge_open(third, ANN, 0, "ann"), ann);
    CHECK_EQ(committed(third, ann), 2);
    fix_free(f);
}

/* The gauges do not count a bridge as a producer. They count its clients as connections. */
TEST(clients_of_bridges_are_counted)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *b = bridge(f), *p = fix_producer(f);
    es_snapshot snap;
    es_bridge_open(b, ANN, 0, "ann");
    int64_t bob = es_bridge_open(b, BOB, 0, "bob");
    es_bridge_leave(b, (uint32_t)bob, 1);
    es_monitor_observe(p, &snap);
    CHECK_EQ(snap.active_producers, 1);
    CHECK_EQ(snap.active_remotes, 1);
    CHECK_EQ(snap.refused_remotes, 0);
    CHECK_EQ(es_bridge_count(b, 0, 1000, 2), ES_OK);
    CHECK_EQ(es_bridge_count(b, 0, 10, 1), ES_OK);
    CHECK_EQ(es_bridge_count_refused(b), ES_OK);
    CHECK_EQ(es_bridge_count_refused(b), ES_OK);
    es_remote_info info;
    REQUIRE_EQ(es_monitor_next_remote(p, 0, &info), 0);
    CHECK_EQ(info.bytes, 1010);
    CHECK_EQ(info.frames, 3);
    es_api_detach(b);
    es_monitor_observe(p, &snap);
    CHECK_EQ(snap.active_remotes, 0);
    CHECK_EQ(snap.refused_remotes, 2);
    fix_free(f);
}

/* Only a producer can be a bridge. Only the bridge that serves a client can send for it. */
TEST(others_cannot_bridge)
{
    es_fix *f = fix_new(4, 2, 0);
    es_ring *b = bridge(f), *l = fix_learner(f), *p = fix_producer(f);
    CHECK_EQ(es_bridge_begin(l), ES_EDETACHED);
    CHECK_EQ(es_bridge_open(b, ANN, 0, "ann"), 0);
    CHECK_EQ(send_block(p, 0, 0, 1, false), ES_ESTALE);
    CHECK_EQ(send_block(b, FIX_REMOTES, 0, 1, false), ES_ESTALE);
    CHECK_EQ(send_block(b, 1, 0, 1, false), ES_ESTALE);
    fix_free(f);
}

/* A learner that attaches beside another leaves it a batch for which it may wait. A bridge's learner needs none. */
TEST(nothing_is_left_to_a_bridges_learner)
{
    for (int bridges = 0; bridges < 2; bridges++) {
        es_fix *f = fix_new(1, 3, 0);
        es_ring *p = fix_producer(f), *first = fix_learner(f);
        uint64_t round;
        CHECK_EQ(es_bridge_learn(p), ES_EDETACHED);
        if (bridges)
            CHECK_EQ(es_bridge_learn(first), ES_OK);
        for (uint64_t i = 0; i < 3; i++)
            CHECK_EQ(fix_send(p, i), ES_OK);
        CHECK_EQ(fix_take(first, 0, &round), 0);
        es_ring *second = fix_learner(f);
        CHECK_EQ(fix_take(second, 0, &round), 1);
        CHECK_EQ(fix_take(second, 0, &round), bridges ? 2 : ES_EMPTY);
        CHECK_EQ(fix_take(second, ES_TAKE_LAST, &round), bridges ? ES_EMPTY : 2); /* it asks for what is left, too */
        fix_free(f);
    }
}

/* A scribbled journal that names no client, or more slots than exist, does no harm. */
TEST(scribbled_journal_does_no_harm)
{
    es_fix *f = fix_new(2, 2, 0);
    es_ring *dead = bridge(f), *l = fix_learner(f);
    int64_t ann = es_bridge_open(dead, ANN, 5, "ann");
    es_owner *o = &dead->map.owners[dead->me];
    o->journal_remote = 12345;
    es_journal_settle(&l->map, dead->me);
    CHECK_EQ(l->map.remotes[ann].committed, 5);
    o->journal_remote = (uint32_t)ann + 1;
    o->journal_count = o->journal_position = UINT64_MAX;
    o->journal_number = 5;
    es_journal_settle(&l->map, dead->me);
    CHECK(l->map.remotes[ann].committed - 5 <= 4);
    CHECK_EQ(o->journal_remote, 0);
    fix_free(f);
}

/* A producer that gets a bridge's entry counts as a producer. */
TEST(entry_of_a_bridge_becomes_a_producers)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *b = fix_producer(f), *l = fix_learner(f);
    es_snapshot snap;
    CHECK_EQ(es_bridge_begin(b), ES_OK);
    uint32_t index = b->me;
    CHECK_EQ(es_api_detach(b), ES_OK);
    CHECK_EQ(fix_producer(f)->me, index);
    es_monitor_observe(l, &snap);
    CHECK_EQ(snap.active_producers, 1);
    fix_free(f);
}
