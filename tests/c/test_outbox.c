/* es_outbox: the rings that a replay joins, and those that it refuses. What a death leaves is in tests/trace. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "es_fixture.h"
#include "es_items.h"
#include "es_test.h"
#include "replay/es_replay.h"

#define SIZE 3 /* of a batch */
#define BATCHES 2

static const uint64_t sizes[] = {8};
/* The leaf of a step, and the columns. */
static const uint64_t taken[] = {8, 8, 8, 8, 8, 8, 8, 8, 8};
static const uint8_t names[1][16];

typedef struct world {
    void *store;
    es_replay *r;
    es_fix *fix;
    es_ring *producer, *learner;
} world;

static es_fix *ring(uint32_t num_leaves)
{
    es_geometry geo = fix_geometry(SIZE, BATCHES, 0);
    geo.num_leaves = num_leaves;
    return fix_new_leaves(&geo, taken);
}

static world new_world(void)
{
    es_table_config table = {.name = "a",
                             .sampler = {.kind = ES_PRIORITIZED, .parameter = 1, .beta = 0.5},
                             .remover = {.kind = ES_FIFO},
                             .max_size = 8,
                             .min_size = 1,
                             .ratio = 1,
                             .min_diff = -INFINITY,
                             .max_diff = INFINITY,
                             .replacement = 1,
                             .item = es_items_steps(1)};
    es_store_parts parts = {sizes, &table, &(es_output){.kind = ES_OUTPUT_STEPS, .count = 1}, ""};
    es_store_geometry geo = {.capacity = 8, .max_items = 8, .num_leaves = 1, .num_tables = 1};
    uint64_t size = es_replay_store_size(&geo, &parts);
    world w = {.store = aligned_alloc(ES_PAGE, size), .fix = ring(9)};
    es_trouble why;
    int error;
    memset(w.store, 0, size);
    CHECK_EQ(es_replay_format(w.store, size, &geo, &parts, names[0], 1, 1), ES_OK);
    w.r = es_replay_open(w.store, size, 1, NULL, 0, &error, &why);
    w.producer = fix_producer(w.fix);
    w.learner = fix_learner(w.fix);
    return w;
}

static void destroy(world *w)
{
    es_replay_disconnect(w->r);
    es_replay_free(w->r);
    fix_free(w->fix);
    free(w->store);
}

static int join_as(world *w, uint32_t name)
{
    uint8_t uuid[16] = {(uint8_t)(name + 1)};
    return es_replay_connect_batches(w->r, 0, w->producer, w->fix->base, uuid, 0, 0);
}

static void add(world *w, uint64_t number, double priority)
{
    es_trouble why;
    CHECK_EQ(es_replay_add(w->r, (const void *[]){&number}, 0, &priority, &why), ES_OK);
}

static es_turn turn(world *w, uint64_t *done)
{
    es_turn found;
    *done = es_replay_turn(w->r, 100, &found);
    return found;
}

TEST(fills_until_the_ring_is_full)
{
    world w = new_world();
    uint64_t done;
    CHECK_EQ(join_as(&w, 0), 0);
    CHECK_EQ(turn(&w, &done).batches[0], ES_SHORT);
    CHECK_EQ(done, 0);
    add(&w, 5, 4);
    add(&w, 6, 1);
    es_turn found = turn(&w, &done);
    CHECK_EQ(found.batches[0], ES_FULL);
    CHECK_EQ(found.batches[1], ES_EMPTY);
    CHECK_EQ(done, SIZE * BATCHES);
    es_snapshot snap;
    CHECK_EQ(es_api_take(w.learner, 0, 0, &snap), 0);
    CHECK_EQ(turn(&w, &done).batches[0], ES_FULL);
    CHECK_EQ(es_api_release(w.learner, snap.batch, snap.round), ES_OK);
    turn(&w, &done);
    CHECK_EQ(done, SIZE);
    destroy(&w);
}

/* What is said of an item goes to the place of its row, and the weight has the sampler's exponent. */
TEST(columns_belong_to_their_rows)
{
    world w = new_world();
    uint64_t done;
    es_replay_set_version(w.r, 40, true);
    add(&w, 5, 4);
    es_replay_set_version(w.r, INT64_C(1) << 62, true);
    add(&w, 6, 1);
    CHECK_EQ(join_as(&w, 0), 0);
    turn(&w, &done);
    for (uint64_t i = 0, drawn[2] = {0}; i < SIZE * BATCHES; i++) {
        uint64_t c[9];
        double d[9];
        for (uint32_t l = 0; l < 9; l++) {
            memcpy(&c[l], w.fix->base + es_api_leaf_offset(w.learner, l) + 8 * i, 8);
            memcpy(&d[l], &c[l], 8);
        }
        uint64_t item = c[1] & UINT32_MAX;
        CHECK_EQ(c[0], 5 + item);
        CHECK(d[2] == (item == 0 ? 0.8 : 0.2));
        CHECK(d[3] == (item == 0 ? 0.5 : 1));
        CHECK(d[4] == (item == 0 ? 4 : 1));
        CHECK_EQ(c[5], ++drawn[item]);
        CHECK_EQ(c[6], 2);
        CHECK_EQ(c[7], 1 - item);
        CHECK_EQ(c[8], item == 0 ? 40 : UINT32_MAX);
    }
    destroy(&w);
}

TEST(a_ring_of_another_shape_is_refused)
{
    world w = new_world();
    es_fix *other = ring(8);
    CHECK_EQ(es_replay_connect_batches(w.r, 0, fix_producer(other), other->base, names[0], 0, 0), ES_EGEOMETRY);
    fix_free(other);
    destroy(&w);
}

/* A slot that is re-opened later would be delivered, although nothing was drawn for it. */
TEST(a_ring_is_joined_once_dead_producers_are_reaped)
{
    world w = new_world();
    es_ring *dead = fix_producer(w.fix);
    CHECK_EQ(join_as(&w, 0), 0);
    es_replay_disconnect(w.r);
    CHECK_EQ(fix_reserve(dead, 0), 0);
    CHECK_EQ(join_as(&w, 0), ES_UNSURE);
    fix_die(w.fix, dead);
    CHECK_EQ(join_as(&w, 0), ES_UNSURE);
    CHECK_EQ(fix_sweep(w.learner), 1);
    CHECK_EQ(join_as(&w, 0), 0);
    destroy(&w);
}

TEST(a_ring_that_another_replay_has_filled_is_refused)
{
    world w = new_world(), other = new_world();
    uint64_t done;
    add(&w, 1, 1);
    CHECK_EQ(join_as(&w, 0), 0);
    turn(&w, &done);
    es_replay_disconnect(w.r);
    CHECK_EQ(es_replay_connect_batches(other.r, 0, w.producer, w.fix->base, (const uint8_t[16]){1}, 0, 0), -ESTALE);
    CHECK_EQ(join_as(&w, 0), 0);
    CHECK_EQ(join_as(&w, 1), -ESTALE);
    destroy(&w);
    destroy(&other);
}

/* The words of rings that are gone are used again. */
TEST(so_many_rings_and_no_more)
{
    world w = new_world();
    es_fix *rings[2 * ES_MAX_OUTBOXES];
    for (uint32_t i = 0; i < 2 * ES_MAX_OUTBOXES; i++) {
        uint8_t uuid[16] = {(uint8_t)(i + 1)};
        rings[i] = ring(9);
        if (i == ES_MAX_OUTBOXES) {
            CHECK_EQ(join_as(&w, 99), -ENOSPC);
            es_replay_disconnect(w.r);
        }
        CHECK_EQ(es_replay_connect_batches(w.r, 0, fix_producer(rings[i]), rings[i]->base, uuid, 0, 0),
                 (int)(i % ES_MAX_OUTBOXES));
    }
    es_replay_disconnect(w.r);
    for (uint32_t i = 0; i < 2 * ES_MAX_OUTBOXES; i++)
        fix_free(rings[i]);
    destroy(&w);
}

/* Leaves of items 100, 101 and so on: each column has the item's number. */
static uint64_t leaves_of[7];

static int put(world *w, uint64_t n)
{
    const void *leaves[9];
    for (uint64_t i = 0; i < 7; i++)
        leaves_of[i] = 100 + i;
    for (uint32_t i = 0; i < 9; i++)
        leaves[i] = leaves_of;
    return es_replay_put(w->r, 0, n, leaves);
}

static void expect_first_leaf(world *w, uint32_t leaf, const uint64_t *wanted)
{
    for (uint64_t i = 0; i < SIZE * BATCHES; i++) {
        uint64_t got;
        memcpy(&got, w->fix->base + es_api_leaf_offset(w->learner, leaf) + 8 * i, 8);
        CHECK_EQ(got, wanted[i]);
    }
}

/* Items that another replay has drawn come before all draws. They are no draws here. */
TEST(what_is_put_comes_first)
{
    world w = new_world();
    uint64_t done;
    es_table_info info;
    es_snapshot snap;
    CHECK_EQ(put(&w, 4), -EINVAL); /* there is no ring */
    CHECK_EQ(join_as(&w, 0), 0);
    CHECK_EQ(put(&w, 4), ES_OK);
    es_replay_info(w.r, 0, &info);
    CHECK_EQ(info.sampled, 0);
    CHECK_EQ(es_api_take(w.learner, 0, 0, &snap), 0);
    CHECK_EQ(es_api_take(w.learner, 0, 0, &snap), ES_EMPTY);
    add(&w, 5, 1);
    turn(&w, &done);
    CHECK_EQ(done, 2);
    expect_first_leaf(&w, 0, (const uint64_t[]){100, 101, 102, 103, 5, 5});
    expect_first_leaf(&w, 5, (const uint64_t[]){100, 101, 102, 103, 1, 2}); /* times_sampled */
    CHECK_EQ(es_api_take(w.learner, 0, 0, &snap), 1);
    destroy(&w);
}

/* Whoever was killed in between has put some of them. The next one puts the others, and none twice. */
TEST(what_was_put_is_not_put_again)
{
    world w = new_world();
    uint64_t done;
    CHECK_EQ(join_as(&w, 0), 0);
    CHECK_EQ(put(&w, 2), ES_OK);
    es_replay_disconnect(w.r);
    CHECK_EQ(join_as(&w, 0), 0);
    CHECK_EQ(put(&w, 5), ES_OK);
    CHECK_EQ(put(&w, 5), ES_OK);
    add(&w, 5, 1);
    turn(&w, &done);
    CHECK_EQ(done, 1);
    CHECK_EQ(put(&w, 6), ES_OK);
    expect_first_leaf(&w, 0, (const uint64_t[]){100, 101, 102, 103, 104, 5});
    CHECK_EQ(put(&w, 7), ES_FULL);
    destroy(&w);
}

/* --- groups ------------------------------------------------------------------------- */

typedef struct group {
    world w;
    es_fix *fix[2];
    es_ring *learner[2];
} group;

static int join_group(group *g, uint32_t rank, uint32_t world_size)
{
    uint8_t uuid[16] = {(uint8_t)(rank + 100)};
    return es_replay_connect_batches(g->w.r, 0, fix_producer(g->fix[rank]), g->fix[rank]->base, uuid, rank, world_size);
}

static group new_group(void)
{
    group g = {.w = new_world()};
    for (uint32_t rank = 0; rank < 2; rank++) {
        g.fix[rank] = ring(9);
        g.learner[rank] = fix_learner(g.fix[rank]);
    }
    add(&g.w, 5, 4);
    return g;
}

static void destroy_group(group *g)
{
    es_replay_disconnect(g->w.r);
    for (uint32_t rank = 0; rank < 2; rank++)
        fix_free(g->fix[rank]);
    destroy(&g->w);
}

/* times_sampled of the only item says which draw it was: those of the next batch of a rank. */
static void expect_batch(group *g, uint32_t rank, uint64_t first_draw)
{
    es_snapshot snap;
    CHECK(es_api_take(g->learner[rank], 0, 0, &snap) >= 0);
    const uint8_t *at = g->fix[rank]->base + es_api_leaf_offset(g->learner[rank], 5);
    for (uint64_t i = 0; i < SIZE; i++) {
        uint64_t draw;
        memcpy(&draw, at + 8 * (snap.batch * SIZE + i), 8);
        CHECK_EQ(draw, first_draw + i);
    }
    CHECK_EQ(es_api_release(g->learner[rank], snap.batch, snap.round), ES_OK);
}

TEST(rings_of_a_group_take_turns)
{
    group g = new_group();
    uint64_t done;
    CHECK_EQ(join_group(&g, 0, 2), 0);
    CHECK_EQ(turn(&g.w, &done).batches[0], ES_OK);
    CHECK_EQ(done, 0); /* rank 1 is missing */
    CHECK_EQ(join_group(&g, 1, 2), 1);
    es_turn found = turn(&g.w, &done);
    CHECK_EQ(done, 2 * SIZE * BATCHES);
    CHECK_EQ(found.batches[0], ES_FULL);
    CHECK_EQ(found.batches[1], ES_OK);
    expect_batch(&g, 1, 1 + SIZE);
    turn(&g.w, &done);
    CHECK_EQ(done, 0); /* rank 0 is slow, and it is its turn */
    expect_batch(&g, 0, 1);
    turn(&g.w, &done);
    CHECK_EQ(done, 2 * SIZE);
    expect_batch(&g, 0, 1 + 2 * SIZE);
    expect_batch(&g, 1, 1 + 3 * SIZE);
    expect_batch(&g, 0, 1 + 4 * SIZE);
    expect_batch(&g, 1, 1 + 5 * SIZE);
    destroy_group(&g);
}

/* A turn that may draw only a few items goes on in the middle of a batch. */
TEST(a_batch_of_a_group_is_completed_before_the_next)
{
    group g = new_group();
    es_turn found;
    CHECK_EQ(join_group(&g, 1, 2), 0);
    CHECK_EQ(join_group(&g, 0, 2), 1);
    for (uint64_t drawn = 0; drawn < 2 * SIZE * BATCHES; drawn += 2)
        CHECK_EQ(es_replay_turn(g.w.r, 2, &found), 2);
    CHECK_EQ(es_replay_turn(g.w.r, 2, &found), 0);
    for (uint32_t i = 0; i < 2 * BATCHES; i++)
        expect_batch(&g, i % 2, 1 + i * SIZE);
    destroy_group(&g);
}

TEST(a_group_has_one_ring_of_each_rank)
{
    group g = new_group();
    CHECK_EQ(join_group(&g, 1, 1), ES_EGEOMETRY);
    CHECK_EQ(join_group(&g, 1, 2), 0);
    CHECK_EQ(join_group(&g, 1, 2), ES_EGEOMETRY);
    CHECK_EQ(join_group(&g, 1, 3), 1);
    destroy_group(&g);
}
