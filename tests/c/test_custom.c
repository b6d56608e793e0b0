/* Custom selectors: whoever has the store open chooses, and may fail at any of its calls. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/es_base.h"
#include "es_items.h"
#include "es_test.h"
#include "replay/es_replay.h"

#define MOST 4
#define ROOM 300
#define NEVER 1000

/* Chooses the member that was inserted first, until it fails. */
typedef struct chooser {
    uint64_t keys[MOST + 1];
    uint32_t count;
    uint32_t *left; /* calls before one fails */
    bool *closed;   /* one has, which cannot be tried again */
    bool is_remover;
    bool odd; /* draws what is no member */
    uint32_t refused;
} chooser;

/* Of a call that may be tried again, or not. */
static int answer(chooser *c, bool again)
{
    CHECK(!*c->closed);
    bool fails = (*c->left)-- == 0;
    *c->closed = fails && !again;
    return fails;
}

static int insert(void *self, uint64_t key, double priority)
{
    chooser *c = self;
    CHECK(priority >= 0 && c->count <= MOST);
    c->keys[c->count++] = key;
    return answer(c, false);
}

static uint32_t place_of(const chooser *c, uint64_t key)
{
    uint32_t i = 0;
    while (i < c->count && c->keys[i] != key)
        i++;
    CHECK(i < c->count);
    return i;
}

static int update(void *self, uint64_t key, double priority)
{
    CHECK(priority >= 0);
    place_of(self, key);
    return answer(self, false);
}

static int remove_key(void *self, uint64_t key)
{
    chooser *c = self;
    for (uint32_t i = place_of(c, key); i + 1 < c->count; i++)
        c->keys[i] = c->keys[i + 1];
    c->count--;
    return answer(c, false);
}

static int draw(void *self, const double *numbers, uint64_t n, uint64_t *keys, double *probabilities)
{
    chooser *c = self;
    CHECK(c->count > 0);
    for (uint64_t i = 0; i < n; i++) {
        CHECK(numbers[i] >= 0 && numbers[i] < 1);
        keys[i] = c->odd ? c->keys[0] + (UINT64_C(1) << 32) : c->keys[0];
        probabilities[i] = 1;
    }
    return answer(c, !c->is_remover);
}

static int probability(void *self, uint64_t key, double *to)
{
    *to = place_of(self, key) == 0;
    return answer(self, true);
}

static void refuse(void *self, uint64_t key)
{
    chooser *c = self;
    CHECK_EQ(key, c->keys[0] + (UINT64_C(1) << 32));
    c->refused++;
}

/* A replay of one table, which holds up to MOST - 1 items. */
typedef struct fixture {
    void *base;
    uint64_t size;
    uint32_t left;
    bool closed;
    chooser choosers[2];
    es_replay *r;
    uint64_t value[ROOM], key[ROOM];
    double probability[ROOM], priority[ROOM], weight[ROOM];
    int64_t times_sampled[ROOM], table_size[ROOM], age[ROOM], version[ROOM];
} fixture;

static int open_with(fixture *f, uint32_t left)
{
    es_custom_selector calls[2];
    es_trouble why;
    int error;
    f->left = left;
    f->closed = false;
    for (int i = 0; i < 2; i++) {
        f->choosers[i] = (chooser){.left = &f->left, .closed = &f->closed, .is_remover = i == 1};
        calls[i] = (es_custom_selector){&f->choosers[i], insert, update, remove_key, draw, probability, refuse};
    }
    f->r = es_replay_open(f->base, f->size, 1, calls, 2, &error, &why);
    CHECK_EQ(f->r != NULL, error == ES_OK);
    return error;
}

static fixture fixture_of(bool rounds, es_item_config item)
{
    static const uint64_t leaf_size = 8;
    static const uint8_t uuid[16] = "sixteen bytes..";
    fixture f = {.base = NULL};
    es_store_geometry geo = {.capacity = 9, .max_items = 9, .num_leaves = 1, .num_tables = 1};
    es_table_config table = {.name = "a",
                             .sampler.kind = ES_CUSTOM,
                             .remover.kind = ES_CUSTOM,
                             .max_size = MOST - 1,
                             .min_size = 1,
                             .ratio = 1,
                             .min_diff = -INFINITY,
                             .max_diff = INFINITY,
                             .replacement = !rounds,
                             .item = item};
    es_output outputs[ES_ITEMS_OUTPUTS(1)];
    es_items_fill(&table, 1, &leaf_size, 1, outputs);
    es_store_parts parts = {&leaf_size, &table, outputs, ""};
    f.size = es_replay_store_size(&geo, &parts);
    f.base = aligned_alloc(ES_PAGE, f.size);
    memset(f.base, 0, f.size);
    CHECK_EQ(es_replay_format(f.base, f.size, &geo, &parts, uuid, 1, 1), ES_OK);
    return f;
}

/* rounds: each item is drawn once before any again. */
static fixture new_fixture(bool rounds)
{
    return fixture_of(rounds, es_items_steps(1));
}

static int add(fixture *f, uint64_t value)
{
    es_trouble why;
    return es_replay_add(f->r, (const void *[]){&value}, 0, (const double[]){1}, &why);
}

static es_batch_arrays arrays(fixture *f, void **leaf)
{
    *leaf = f->value;
    return (es_batch_arrays){leaf,          f->key, f->probability, f->priority, f->weight, f->times_sampled,
                             f->table_size, f->age, f->version};
}

static int sample(fixture *f, uint64_t n)
{
    void *leaf;
    es_batch_arrays out = arrays(f, &leaf);
    return es_replay_sample(f->r, 0, n, NAN, &out);
}

/* Everything that asks selectors. Returns the last thing that was wrong. */
static int64_t use_all(fixture *f)
{
    static const double twos[] = {2, 2};
    void *leaf;
    es_batch_arrays out = arrays(f, &leaf);
    es_trouble why;
    es_turn turn;
    int64_t code, bad = ES_OK;
#define USE(call)                                  \
    do {                                           \
        if ((code = call) < 0)                     \
            bad = code;                            \
        CHECK(!f->closed || code == ES_ESELECTOR); \
    } while (0)
    for (uint64_t i = 0; i < MOST + 1; i++)
        USE(add(f, i));
    USE(sample(f, 2));
    uint64_t keys[2] = {f->key[0], f->key[1]};
    USE(es_replay_update(f->r, 0, keys, twos, 2, &why));
    USE(sample(f, 2)); /* the second of them begins a round */
    if ((code = es_replay_get(f->r, 0, keys, 1, NAN, &out, &why)) < 0)
        bad = code;
    USE(es_replay_delete(f->r, 0, keys, 1));
    es_replay_turn(f->r, 1, &turn);
    USE(es_replay_reset(f->r, 0));
    USE(add(f, 9));
#undef USE
    return bad;
}

TEST(a_custom_selector_chooses)
{
    fixture f = new_fixture(true);
    CHECK_EQ(open_with(&f, NEVER), ES_OK);
    for (uint64_t i = 0; i < MOST + 1; i++)
        CHECK_EQ(add(&f, i), ES_OK);
    CHECK_EQ(sample(&f, MOST), ES_OK);
    for (uint64_t i = 0; i < MOST; i++) /* the oldest ones were evicted, and a round begins after the last */
        CHECK_EQ(f.value[i], 2 + i % (MOST - 1));
    es_replay_free(f.r);
    CHECK_EQ(open_with(&f, NEVER), ES_OK);
    CHECK_EQ(f.choosers[0].count, MOST - 2); /* one is set aside */
    CHECK_EQ(f.choosers[1].count, MOST - 1);
    CHECK_EQ(sample(&f, 1), ES_OK);
    CHECK_EQ(f.value[0], 3);
    es_replay_free(f.r);
    free(f.base);
}

TEST(a_custom_selector_may_fail_anywhere)
{
    uint32_t closed = 0, unopened = 0, calls = NEVER;
    for (uint32_t k = 0; k < calls; k++) {
        fixture f = new_fixture(true);
        es_table_info info;
        if (k == 0) {
            CHECK_EQ(open_with(&f, NEVER), ES_OK);
            CHECK_EQ(use_all(&f), ES_OK);
            calls = NEVER - f.left;
            es_replay_free(f.r);
            free(f.base);
            f = new_fixture(true);
        }
        CHECK_EQ(open_with(&f, k), ES_OK);
        closed += use_all(&f) == ES_ESELECTOR;
        es_replay_free(f.r);
        for (uint32_t j = 0; j < 2; j++) { /* two calls at least, if there is an item */
            int error = open_with(&f, j);
            CHECK(error == ES_ESELECTOR || error == ES_OK);
            unopened += error == ES_ESELECTOR;
            if (error == ES_OK)
                es_replay_free(f.r);
        }
        CHECK_EQ(open_with(&f, NEVER), ES_OK);
        es_replay_info(f.r, 0, &info);
        CHECK(info.size < MOST);
        CHECK_EQ(use_all(&f), ES_OK);
        es_replay_free(f.r);
        free(f.base);
    }
    CHECK(closed > calls / 2);
    CHECK(unopened > 0);
}

/* The step that completes them stays all the same, and whoever opens the store next makes the others. */
TEST(a_custom_selector_may_fail_while_items_are_made)
{
    const es_item_config item = {.kind = ES_ITEM_N_STEP, .length = 6, .period = 1};
    const uint64_t step = 7;
    const void *leaves[] = {&step};
    int code = ES_ESELECTOR;
    for (uint32_t k = 0; code == ES_ESELECTOR && k < NEVER; k++) {
        fixture f = fixture_of(false, item);
        es_table_info info;
        es_trouble why;
        CHECK_EQ(open_with(&f, NEVER), ES_OK);
        for (uint64_t i = 0; i < 12; i++)
            CHECK_EQ(add(&f, i), ES_OK);
        f.left = k;
        code = es_replay_add(f.r, leaves, ES_STEP_TERMINATED, (const double[]){1}, &why);
        CHECK_EQ(code, f.closed ? ES_ESELECTOR : ES_OK);
        es_replay_free(f.r);
        REQUIRE_EQ(open_with(&f, NEVER), ES_OK);
        es_replay_info(f.r, 0, &info);
        CHECK_EQ(info.inserted, 6 + 7);
        CHECK_EQ(info.size, MOST - 1);
        es_replay_free(f.r);
        free(f.base);
    }
    CHECK_EQ(code, ES_OK);
}

TEST(a_custom_round_goes_on_after_a_draw_that_fails)
{
    fixture f = new_fixture(true);
    CHECK_EQ(open_with(&f, NEVER), ES_OK);
    for (uint64_t i = 0; i < MOST - 1; i++)
        CHECK_EQ(add(&f, i), ES_OK);
    CHECK_EQ(sample(&f, MOST - 1), ES_OK);
    f.left = MOST - 1; /* all members come again, and then the draw fails */
    CHECK_EQ(sample(&f, 1), ES_ESELECTOR);
    CHECK_EQ(sample(&f, 1), ES_OK);
    es_replay_free(f.r);
    CHECK_EQ(open_with(&f, NEVER), ES_OK);
    CHECK_EQ(f.choosers[0].count, MOST - 2); /* one is set aside, and not all */
    es_replay_free(f.r);
    free(f.base);
}

TEST(what_a_custom_selector_drew_before_it_failed_is_kept)
{
    for (int rounds = 0; rounds < 2; rounds++) {
        fixture f = new_fixture(rounds);
        CHECK_EQ(open_with(&f, NEVER), ES_OK);
        CHECK_EQ(add(&f, 1), ES_OK);
        f.left = rounds ? 6 : 1; /* the second part of a batch, or its third round */
        CHECK_EQ(sample(&f, ROOM), ES_SHORT);
        es_table_info info;
        es_replay_info(f.r, 0, &info);
        CHECK(info.drawn_before > 0 && info.drawn_before < ROOM);
        CHECK_EQ(info.drawn_before, info.sampled);
        CHECK_EQ(sample(&f, ROOM), ES_OK);
        CHECK_EQ(f.times_sampled[ROOM - 1], ROOM);
        es_replay_free(f.r);
        free(f.base);
    }
}

TEST(a_custom_selector_draws_members_only)
{
    fixture f = new_fixture(true);
    CHECK_EQ(open_with(&f, NEVER), ES_OK);
    CHECK_EQ(add(&f, 1), ES_OK);
    f.choosers[0].odd = true;
    CHECK_EQ(sample(&f, 1), ES_ESELECTOR);
    CHECK_EQ(f.choosers[0].refused, 1);
    f.choosers[0].odd = false;
    CHECK_EQ(sample(&f, 1), ES_OK);
    f.choosers[1].odd = true;
    for (uint64_t i = 0; i < MOST - 2; i++)
        CHECK_EQ(add(&f, i), ES_OK);
    CHECK_EQ(add(&f, 5), ES_ESELECTOR); /* it is stored, and none can go */
    CHECK_EQ(f.choosers[1].refused, 1);
    CHECK_EQ(add(&f, 6), ES_ESELECTOR); /* not stored: there is no record for it */
    CHECK_EQ(es_replay_num_steps(f.r), MOST);
    es_replay_free(f.r);
    free(f.base);
}

TEST(a_custom_selector_must_be_there)
{
    fixture f = new_fixture(true);
    int error;
    es_trouble why;
    CHECK(es_replay_open(f.base, f.size, 1, NULL, 0, &error, &why) == NULL);
    CHECK_EQ(error, ES_ENOSELECTOR);
    es_custom_selector none[2] = {{.self = &f}};
    CHECK(es_replay_open(f.base, f.size, 1, none, 2, &error, &why) == NULL);
    CHECK_EQ(error, ES_ENOSELECTOR);
    free(f.base);
}
