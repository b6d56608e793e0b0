/* Items with large leaves: what is copied past the caches is what is copied through them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/es_copy.h"
#include "es_items.h"
#include "es_test.h"
#include "replay/es_draw.h"
#include "replay/es_replay.h"
#include "replay/es_replay_parts.h"

#define STEPS 8
#define LEAVES 3
#define DRAWS 20

/* The smallest that is streamed; and one at odd addresses, with a rest. */
static const uint64_t sizes[LEAVES] = {8, 4096, 4211};
static const uint8_t uuid[16];

static es_table_config table(es_item_config item)
{
    return (es_table_config){.name = "a",
                             .sampler = {.kind = ES_UNIFORM},
                             .remover = {.kind = ES_FIFO},
                             .max_size = STEPS,
                             .min_size = 1,
                             .ratio = 1,
                             .min_diff = -INFINITY,
                             .max_diff = INFINITY,
                             .replacement = 1,
                             .item = item};
}

static uint8_t byte_of(uint64_t step, uint32_t leaf, uint64_t b)
{
    return (uint8_t)(b * 31 + b / 256 + step * 7 + leaf + 1);
}

/* Whether these bytes are the third leaf of a step. */
static bool is_a_step(const uint8_t *bytes)
{
    for (uint64_t i = 0, b; i < STEPS; i++) {
        for (b = 0; b < sizes[2] && bytes[b] == byte_of(i, 2, b); b++)
            ;
        if (b == sizes[2])
            return true;
    }
    return false;
}

static void fill(es_replay *r)
{
    uint8_t *step = malloc(sizes[0] + sizes[1] + sizes[2]);
    double priority = 1;
    es_trouble why;
    for (uint64_t i = 0; i < STEPS; i++) {
        const void *leaves[LEAVES];
        uint8_t *at = step;
        for (uint32_t l = 0; l < LEAVES; at += sizes[l++]) {
            leaves[l] = at;
            for (uint64_t b = 0; b < sizes[l]; b++)
                at[b] = byte_of(i, l, b);
        }
        CHECK_EQ(es_replay_add(r, leaves, 0, &priority, &why), ES_OK);
    }
    free(step);
}

/* All outputs of the same draws, one after the other. */
static uint8_t *drawn(es_table *t, bool streams)
{
    uint8_t *found = calloc(DRAWS, t->form.size);
    void *leaves[ES_ITEMS_OUTPUTS(LEAVES)];
    uint64_t key[DRAWS];
    double real[3][DRAWS];
    int64_t whole[4][DRAWS];
    es_drawing to = {key, real[0], real[1], real[2], whole[0], whole[1], whole[2], whole[3]};
    for (uint32_t i = 0; i < t->form.num_outputs; i++)
        leaves[i] = found + DRAWS * t->form.offsets[i];
    t->words->random = 5;
    CHECK_EQ(es_draw(t, DRAWS, &to, 0, &(es_draw_into){.leaves = leaves, .beta = NAN, .streams = streams}), DRAWS);
    return found;
}

static void check(es_item_config item)
{
    es_table_config config = table(item);
    es_output outputs[ES_ITEMS_OUTPUTS(LEAVES)];
    es_items_fill(&config, 1, sizes, LEAVES, outputs);
    es_store_parts parts = {sizes, &config, outputs, ""};
    es_store_geometry geo = {.capacity = STEPS, .max_items = STEPS, .num_leaves = LEAVES, .num_tables = 1};
    uint64_t size = (es_replay_store_size(&geo, &parts) + ES_PAGE - 1) & -(uint64_t)ES_PAGE;
    void *store = aligned_alloc(ES_PAGE, size);
    es_trouble why;
    int error;
    memset(store, 0, size);
    REQUIRE(es_replay_format(store, es_replay_store_size(&geo, &parts), &geo, &parts, uuid, 1, 1) == ES_OK);
    es_replay *r = es_replay_open(store, es_replay_store_size(&geo, &parts), 1, NULL, 0, &error, &why);
    REQUIRE(r != NULL);
    fill(r);
    es_table *t = &r->tables.table[0];
    uint8_t *through = drawn(t, false), *past = drawn(t, true);
    CHECK(memcmp(through, past, DRAWS * t->form.size) == 0);
    for (uint64_t i = 0; i < DRAWS; i++)
        CHECK(is_a_step(past + DRAWS * t->form.offsets[2] + (i + 1) * t->form.sizes[2] - sizes[2]));
    free(through);
    free(past);
    es_replay_free(r);
    free(store);
}

TEST(large_steps)
{
    check(es_items_steps(LEAVES));
}

TEST(large_transitions)
{
    check((es_item_config){.kind = ES_ITEM_N_STEP, .length = 2, .period = 1, .before = 1, .gamma = 0.5});
}

TEST(large_sequences)
{
    check((es_item_config){.kind = ES_ITEM_SEQUENCE, .length = 3, .period = 2});
}

/* Little stays in any processor's caches, and a tebibyte in none. */
TEST(what_outgrows_caches)
{
    CHECK(!es_copy_outgrows_caches(1 << 10));
    CHECK(es_copy_outgrows_caches(UINT64_C(1) << 40));
}
