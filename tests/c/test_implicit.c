/* Implicit items, where es_world.c has no say: streams that no episode can be, marks and records on which somebody
 * scribbles, and the same items with records. What a death leaves is in tests/trace. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/es_base.h"
#include "es_items.h"
#include "es_random.h"
#include "es_test.h"
#include "replay/es_insert.h"
#include "replay/es_replay.h"
#include "replay/es_tables.h"

#define TABLES 3
#define MANY 64
#define LENGTH 5

static const uint64_t sizes[] = {8};

/* A replay with tables of windows of 1, 3 and LENGTH steps. Others, if times is not 0: they have records. */
typedef struct fixture {
    es_store_geometry geo;
    es_table_config tables[TABLES];
    es_output outputs[TABLES * ES_ITEMS_OUTPUTS(1)];
    void *base;
    uint64_t size, made;
    es_replay *r;
    es_trouble why;
    uint64_t first[MANY * LENGTH], whole[MANY * LENGTH];
    uint8_t mask[MANY * LENGTH];
    int64_t length[MANY];
    uint64_t key[MANY];
    double probability[MANY], priority[MANY], weight[MANY];
    int64_t times_sampled[MANY], table_size[MANY], age[MANY], version[MANY];
} fixture;

static es_table_config windows(uint32_t length, uint64_t max_size, uint64_t times)
{
    return (es_table_config){
        .name = "a",
        .sampler = {.kind = ES_UNIFORM},
        .remover = {.kind = ES_FIFO},
        .max_size = max_size,
        .max_times_sampled = times,
        .min_size = 1,
        .ratio = 1,
        .min_diff = -INFINITY,
        .max_diff = INFINITY,
        .replacement = 1,
        .item = {.kind = ES_ITEM_SEQUENCE, .length = length, .period = 1, .padded = 1},
    };
}

static int open_it(fixture *f)
{
    int error;
    f->r = es_replay_open(f->base, f->size, 7 + f->made, NULL, 0, &error, &f->why);
    return error;
}

static fixture *made(uint64_t capacity, uint64_t max_size, uint64_t times)
{
    static fixture the_fixture;
    static const uint32_t lengths[TABLES] = {LENGTH, 3, 1};
    fixture *f = &the_fixture;
    *f = (fixture){.geo = {.capacity = capacity,
                           .max_items = 1000,
                           .num_leaves = 1,
                           .num_tables = TABLES,
                           .inbox_slots = 1,
                           .seed = 3}};
    for (uint32_t t = 0; t < TABLES; t++)
        f->tables[t] = windows(lengths[t], max_size, times);
    es_items_fill(f->tables, TABLES, sizes, 1, f->outputs);
    es_store_parts parts = {sizes, f->tables, f->outputs, ""};
    f->size = es_replay_store_size(&f->geo, &parts);
    f->base = aligned_alloc(ES_PAGE, f->size);
    memset(f->base, 0, f->size);
    CHECK_EQ(es_replay_format(f->base, f->size, &f->geo, &parts, (const uint8_t *)"sixteen bytes..", 1, 1), ES_OK);
    CHECK_EQ(open_it(f), ES_OK);
    return f;
}

static void close_it(fixture *f)
{
    es_replay_free(f->r);
    free(f->base);
}

/* A replay begins with its tables. */
static es_tables *tables_of(fixture *f)
{
    return (es_tables *)f->r;
}

static es_table *table_of(fixture *f, uint32_t t)
{
    return &tables_of(f)->table[t];
}

static int bring(fixture *f, const es_step_head *head, const double *priorities)
{
    static const double all[TABLES] = {-1, -1, -1};
    const uint64_t row = f->made++;
    const void *leaves[] = {&row};
    es_origin origin = {&tables_of(f)->store.inbox[0], row};
    return es_insert_step(tables_of(f), head, leaves, 0, priorities == NULL ? all : priorities, &origin, &f->why);
}

static int sample(fixture *f, uint32_t t, uint64_t n)
{
    void *leaves[] = {f->whole, f->first, f->mask, f->length};
    es_batch_arrays out = {leaves,           f->key,        f->probability, f->priority, f->weight,
                           f->times_sampled, f->table_size, f->age,         f->version};
    return es_replay_sample(f->r, t, n, NAN, &out);
}

/* --- which tables they are of -------------------------------------------------------------- */

TEST(one_setting_says_whether_items_have_records)
{
    es_table_config tables[12];
    for (uint32_t i = 0; i < 12; i++)
        tables[i] = windows(4, 9, 0);
    tables[1].item.kind = ES_ITEM_N_STEP;
    tables[2].item.period = 2;
    tables[3].sampler.kind = ES_PRIORITIZED;
    tables[4].sampler.kind = ES_FIFO;
    tables[5].remover.kind = ES_UNIFORM;
    tables[6].remover.kind = ES_LIFO;
    tables[7].max_times_sampled = 9;
    tables[8].replacement = 0;
    tables[9].is_protected = 1;
    tables[10].max_diff = 1e300;
    tables[11].item.kind = ES_ITEM_STEP;
    for (uint32_t i = 0; i < 12; i++)
        CHECK_EQ(es_store_layout_is_implicit(&tables[i]), i == 0);
    es_store_geometry geo = {.capacity = 126, .max_items = 1000};
    CHECK_EQ(es_store_layout_item_slots(&geo, &tables[0]), 128);
    CHECK_EQ(es_store_layout_record_slots(&geo, &tables[0]), 0);
    CHECK_EQ(es_store_layout_mark_words(&geo, &tables[0]), 2);
    CHECK_EQ(es_store_layout_item_slots(&geo, &tables[1]), 10);
    CHECK_EQ(es_store_layout_record_slots(&geo, &tables[1]), 10);
    CHECK_EQ(es_store_layout_mark_words(&geo, &tables[1]), 0);
}

/* --- streams that no episode can be ----------------------------------------------------------- */

/* Whether some item can refer to a step: one that ends less than length steps after it, in the same episode. */
static bool is_referred_to(fixture *f, uint32_t t, uint32_t step)
{
    const es_steps *s = &tables_of(f)->steps;
    for (uint32_t n = 0; n < f->tables[t].item.length && step != ES_STEPS_NONE; n++) {
        if (es_rank_has(table_of(f, t)->members, step))
            return true;
        step = es_steps_next_of_episode(s, step);
    }
    return false;
}

static bool is_in(const es_order *order, uint32_t number)
{
    for (uint32_t i = order->first; i != ES_ORDER_NONE; i = es_order_next(order, i))
        if (i == number)
            return true;
    return false;
}

/* All that is private follows from the marks and the steps. */
static void check_all(fixture *f)
{
    const es_steps *s = &tables_of(f)->steps;
    const es_store *store = &tables_of(f)->store;
    uint32_t oldest[TABLES] = {ES_STEPS_NONE, ES_STEPS_NONE, ES_STEPS_NONE};
    for (uint32_t step = 0; step < store->step_slots; step++) {
        uint32_t uses = 0, ends = 0;
        for (uint32_t t = 0; t < TABLES; t++) {
            const es_implicit *x = &table_of(f, t)->implicit;
            bool member = es_rank_has(x->members, step);
            CHECK_EQ(x->marks[step / 64] >> step % 64 & 1, member);
            CHECK(!member ||
                  (es_rank_has(s->living, step) && es_steps_are_there(s, step, es_implicit_length(x, step), true)));
            if (!es_rank_has(s->living, step))
                continue;
            uses += is_referred_to(f, t, step), ends += member;
            if (member && (oldest[t] == ES_STEPS_NONE || store->steps[step].arrival < store->steps[oldest[t]].arrival))
                oldest[t] = step;
        }
        if (!es_rank_has(s->living, step))
            continue;
        CHECK_EQ(s->links[step].uses, uses);
        CHECK_EQ(is_in(&s->open, step), ends > 0);
        CHECK_EQ(is_in(&s->bare, step), uses == 0);
    }
    for (uint32_t t = 0; t < TABLES; t++)
        CHECK_EQ(table_of(f, t)->implicit.oldest, oldest[t]);
}

/* Anything, of few streams. Mostly a step that could follow. */
static es_step_head draw_head(es_random *random, es_step_head *last)
{
    static const uint32_t ends[] = {ES_STEP_TERMINATED, ES_STEP_TRUNCATED, ES_STEP_LOST,
                                    ES_STEP_FINAL | ES_STEP_TERMINATED, ES_STEP_FINAL | ES_STEP_TRUNCATED};
    es_step_head *mine = &last[es_random_below(random, 2)], h = *mine;
    h.number++, h.index++;
    if (es_random_below(random, 5) == 0)
        h.index = es_random_below(random, 7);
    if (es_random_below(random, 5) == 0)
        h.number = h.number + 5 - es_random_below(random, 12);
    if (es_random_below(random, 8) == 0)
        h.episode = es_random_below(random, 3);
    h.flags = es_random_below(random, 4) == 0 ? ends[es_random_below(random, 5)] : 0;
    if (es_random_below(random, 3) != 0)
        *mine = h;
    return h;
}

static void sample_all(fixture *f)
{
    for (uint32_t t = 0; t < TABLES; t++) {
        if (es_table_size(table_of(f, t)) == 0)
            continue;
        CHECK_EQ(sample(f, t, MANY), ES_OK);
        for (uint32_t i = 0; i < MANY; i++) {
            uint64_t step = f->key[i] & UINT32_MAX;
            CHECK(f->length[i] >= 1 && f->length[i] <= f->tables[t].item.length);
            CHECK(f->priority[i] == 1 && f->times_sampled[i] == -1 && f->weight[i] == 1);
            CHECK_EQ(f->whole[i * f->tables[t].item.length + (uint64_t)f->length[i] - 1],
                     *(uint64_t *)(tables_of(f)->store.rows + step * tables_of(f)->store.row_size));
        }
    }
}

/* Removes some. n: most. */
static void delete_some(fixture *f, es_random *random, uint64_t n)
{
    uint32_t t = es_random_below(random, TABLES);
    if (es_table_size(table_of(f, t)) == 0)
        return;
    CHECK_EQ(sample(f, t, n), ES_OK);
    uint64_t before = es_table_size(table_of(f, t));
    int64_t different = es_replay_update(f->r, t, f->key, f->weight, n, &f->why);
    CHECK(different >= 1 && different <= (int64_t)n);
    CHECK_EQ(es_replay_delete(f->r, t, f->key, n), different);
    CHECK_EQ(es_table_size(table_of(f, t)), before - (uint64_t)different);
    CHECK_EQ(es_replay_update(f->r, t, f->key, f->weight, n, &f->why), 0);
}

static void play(es_random *random)
{
    es_step_head last[2] = {{.stream = 3, .number = 20}, {.stream = 3, .number = 40, .environment = 1}};
    fixture *f = made(7 + es_random_below(random, 20), es_random_below(random, 2) ? 1000 : 4, 0);
    for (uint32_t i = 0; i < 200 && es_test_failures() == 0; i++) {
        double priorities[TABLES];
        for (uint32_t t = 0; t < TABLES; t++)
            priorities[t] = es_random_below(random, 6) == 0 ? NAN : 2;
        es_step_head head = draw_head(random, last);
        uint32_t kind = es_random_below(random, 20);
        if (kind == 0) {
            es_replay_free(f->r);
            CHECK_EQ(open_it(f), ES_OK);
        } else if (kind == 1) {
            delete_some(f, random, 1 + es_random_below(random, 4));
        } else if (kind == 2 && es_random_below(random, 4) == 0) {
            CHECK_EQ(es_replay_reset(f->r, es_random_below(random, TABLES)), ES_OK);
        } else {
            int code = bring(f, &head, priorities);
            CHECK(code == ES_OK || code == ES_ETWICE);
        }
        check_all(f);
        sample_all(f);
    }
    close_it(f);
}

TEST(windows_of_anything)
{
    es_random random = es_random_new(5);
    for (uint64_t i = 0; i < es_test_scaled(60) && es_test_failures() == 0; i++)
        play(&random);
}

/* Of the step before the end, which is sent twice, one item is made, and the others that come with it. */
TEST(no_item_twice)
{
    fixture *f = made(20, 1000, 0);
    es_step_head head = {.stream = 3};
    CHECK_EQ(bring(f, &head, NULL), ES_OK);
    head = (es_step_head){.stream = 3, .number = 1, .index = 1, .flags = ES_STEP_FINAL | ES_STEP_TRUNCATED};
    CHECK_EQ(bring(f, &head, NULL), ES_OK);
    CHECK_EQ(es_table_size(table_of(f, 0)), 1);
    es_steps_drop(&tables_of(f)->steps, 1);
    CHECK_EQ(bring(f, &head, NULL), ES_OK);
    CHECK_EQ(es_table_size(table_of(f, 0)), 1);
    CHECK_EQ(table_of(f, 0)->words->inserted, 1);
    check_all(f);
    close_it(f);
}

/* A step that comes between two others connects them: the item behind it keeps it, and none of those before the first. */
TEST(a_step_between_items)
{
    static const es_step_head heads[] = {{.stream = 3, .number = 19, .flags = ES_STEP_LOST},
                                         {.stream = 3, .number = 20, .flags = ES_STEP_LOST},
                                         {.stream = 3, .number = 22, .flags = ES_STEP_LOST},
                                         {.stream = 3, .number = 23, .index = 1},
                                         {.stream = 3, .number = 24, .index = 2},
                                         {.stream = 3, .number = 21, .index = 9}};
    fixture *f = made(20, 1000, 0);
    for (uint32_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        CHECK_EQ(bring(f, &heads[i], NULL), ES_OK);
        check_all(f);
    }
    CHECK_EQ(es_table_is_in_a_row(table_of(f, 1), 2), false); /* what came last has another record */
    sample_all(f);
    CHECK_EQ(es_replay_reset(f->r, 1), ES_OK);
    check_all(f);
    close_it(f);
}

/* --- marks and records on which somebody scribbles ----------------------------------------------- */

TEST(open_refuses_marks_that_cannot_be)
{
    fixture *f = made(70, 1000, 0);
    for (uint32_t i = 0; i < 8; i++) {
        es_step_head head = {.stream = 3, .number = i, .index = i};
        CHECK_EQ(bring(f, &head, NULL), ES_OK);
    }
    const es_store store = tables_of(f)->store;
    uint64_t slots = store.step_slots, first = slots + store.first_item[1];
    CHECK_EQ(slots, 72);
    es_replay_free(f->r);
    uint64_t *marks = (uint64_t *)((uint8_t *)f->base + ((es_store_header *)f->base)->at.marks) + 2;
    CHECK_EQ(marks[0], 0xfc); /* the third step is the first one that an item ends with */
    static const struct {
        uint32_t bit, index; /* of the step record, what is not there */
    } bad[] = {{8, 0}, {69, 0}, {72, 0}, {127, 0}, {1, 2}};
    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        es_step_record *record = &((es_step_record *)((uint8_t *)f->base + ((es_store_header *)f->base)->at.steps))[1];
        uint64_t before[2] = {marks[0], marks[1]};
        uint32_t index = record->index;
        marks[bad[i].bit / 64] |= UINT64_C(1) << bad[i].bit % 64;
        record->index = bad[i].index;
        CHECK_EQ(open_it(f), ES_EDAMAGED);
        CHECK_EQ(f->why.index, first + bad[i].bit);
        CHECK_EQ(f->why.table, 1);
        marks[0] = before[0], marks[1] = before[1], record->index = index;
    }
    CHECK_EQ(open_it(f), ES_OK);
    check_all(f);
    close_it(f);
}

/* An item that the limiter forbids would be parked, and there is no record for it. */
TEST(the_limiter_of_marks_never_forbids_to_insert)
{
    fixture *f = made(70, 1000, 0);
    CHECK_EQ(es_replay_set_limits(f->r, 1, -INFINITY, 0), -EINVAL);
    CHECK_EQ(es_replay_set_limits(f->r, 1, -INFINITY, INFINITY), -EINVAL);
    uint64_t first = tables_of(f)->store.step_slots + tables_of(f)->store.first_item[1];
    es_replay_free(f->r);
    es_table_words *words = &((es_table_words *)((uint8_t *)f->base + ((es_store_header *)f->base)->at.words))[1];
    words->max_diff = 0;
    CHECK_EQ(open_it(f), ES_EDAMAGED);
    CHECK_EQ(f->why.index, first);
    CHECK_EQ(f->why.table, 1);
    words->max_diff = INFINITY;
    CHECK_EQ(open_it(f), ES_OK);
    words->max_diff = 0; /* somebody scribbles on it now: it is not looked at */
    for (uint32_t i = 0; i < 8; i++) {
        es_step_head head = {.stream = 3, .number = i, .index = i};
        CHECK_EQ(bring(f, &head, NULL), ES_OK);
    }
    CHECK_EQ(es_table_size(&tables_of(f)->table[1]), 6);
    check_all(f);
    close_it(f);
}

/* Nothing in the store finds memory: what is scribbled there can make items wrong, not more. */
TEST(scribbles_on_what_items_follow_from)
{
    es_random random = es_random_new(6);
    for (uint64_t i = 0; i < es_test_scaled(40) && es_test_failures() == 0; i++) {
        fixture *f = made(7 + es_random_below(&random, 20), es_random_below(&random, 2) ? 1000 : 4, 0);
        es_step_head head = {.stream = 3};
        for (uint32_t k = 0; k < 150; k++, head.number++, head.index++) {
            const es_store *store = &tables_of(f)->store;
            es_step_record *record = &store->steps[es_random_below(&random, (uint32_t)store->step_slots)];
            uint32_t kind = es_random_below(&random, 6);
            if (kind == 0)
                record->index = es_random_below(&random, 2) ? UINT32_MAX : es_random_below(&random, 7);
            if (kind == 1)
                record->arrival = es_random_below(&random, 2) ? UINT64_MAX : es_random_below(&random, 100);
            if (kind == 2)
                record->word =
                    es_record_word(es_random_below(&random, 3), es_random_below(&random, 16), ES_RECORD_LIVE);
            if (kind == 3)
                store->marks[es_random_below(&random, TABLES)] = es_random_below(&random, 1u << 31);
            head.flags = es_random_below(&random, 9) == 0 ? ES_STEP_TERMINATED : 0;
            CHECK_EQ(bring(f, &head, NULL), ES_OK);
            if (head.flags != 0)
                head.episode++, head.index = UINT32_MAX;
            for (uint32_t t = 0; t < TABLES; t++) {
                CHECK(es_table_size(table_of(f, t)) <= f->tables[t].max_size);
                if (es_table_size(table_of(f, t)) > 0) {
                    uint32_t oldest = table_of(f, t)->implicit.oldest; /* there is always one that can go */
                    CHECK(oldest != ES_STEPS_NONE && es_rank_has(table_of(f, t)->members, oldest));
                    CHECK_EQ(sample(f, t, MANY), ES_OK);
                }
                if (es_random_below(&random, 8) == 0)
                    es_replay_delete(f->r, t, f->key, 2);
                if (es_random_below(&random, 40) == 0)
                    CHECK_EQ(es_replay_reset(f->r, t), ES_OK);
            }
            CHECK(es_replay_num_steps(f->r) <= f->geo.capacity);
        }
        es_replay_free(f->r);
        int code = open_it(f);
        CHECK(code == ES_OK || code == ES_EDAMAGED);
        if (code == ES_OK)
            es_replay_free(f->r);
        free(f->base);
    }
}

/* Whoever only looks finds as many items as there are, or as it has room for. */
TEST(a_peek_finds_marks)
{
    fixture *f = made(1000, 1000, 0);
    double priorities[MANY];
    es_peeked seen;
    for (uint32_t i = 0; i < 40; i++) {
        es_step_head head = {.stream = 3, .number = i, .index = i};
        CHECK_EQ(bring(f, &head, NULL), ES_OK);
    }
    CHECK_EQ(es_replay_peek(f->base, f->size, 1, priorities, MANY, &seen), ES_OK);
    CHECK_EQ(seen.looked, MANY);
    CHECK(seen.found > 0 && seen.found <= 38);
    for (uint64_t i = 0; i < seen.found; i++)
        CHECK(priorities[i] == 1);
    close_it(f);
}

/* --- the same items with records ------------------------------------------------------------------ */

/* Without what records alone have. */
typedef struct drawn {
    uint64_t whole[TABLES][MANY * LENGTH];
    int64_t length[TABLES][MANY], table_size[TABLES][MANY], age[TABLES][MANY], version[TABLES][MANY];
    double probability[TABLES][MANY], weight[TABLES][MANY];
    uint64_t sampled[TABLES], inserted[TABLES], evicted[TABLES];
} drawn;

static void draw_all(fixture *f, drawn *to)
{
    memset(to, 0, sizeof *to);
    for (uint32_t t = 0; t < TABLES; t++) {
        CHECK_EQ(sample(f, t, MANY), ES_OK);
        memcpy(to->whole[t], f->whole, MANY * f->tables[t].item.length * sizeof *f->whole);
        memcpy(to->length[t], f->length, sizeof f->length);
        memcpy(to->table_size[t], f->table_size, sizeof f->table_size);
        memcpy(to->version[t], f->version, sizeof f->version);
        memcpy(to->probability[t], f->probability, sizeof f->probability);
        memcpy(to->weight[t], f->weight, sizeof f->weight);
        if (t == TABLES - 1) /* where each step is an item, ages are the same */
            memcpy(to->age[t], f->age, sizeof f->age);
        to->sampled[t] = table_of(f, t)->words->sampled;
        to->inserted[t] = table_of(f, t)->words->inserted;
        to->evicted[t] = table_of(f, t)->words->evicted;
    }
}

/* Until records are used again, items have the same order with and without them: so the draws are the same, too. */
TEST(draws_are_those_of_items_with_records)
{
    static drawn draws[2][50];
    for (uint32_t records = 0; records < 2; records++) {
        fixture *f = made(52, 1000, records ? UINT64_C(1) << 40 : 0);
        CHECK_EQ(es_table_is_implicit(table_of(f, 0)), !records);
        es_step_head head = {.stream = 3};
        for (uint32_t i = 0; i < 50; i++, head.number++, head.index++) {
            bool ends = i % 17 == 16 || i == 18;
            head.flags = ends ? ES_STEP_TERMINATED : 0;
            head.version = i / 3;
            CHECK_EQ(bring(f, &head, NULL), ES_OK);
            if (ends)
                head.index = UINT32_MAX, head.episode++;
            if (i >= LENGTH)
                draw_all(f, &draws[records][i]);
        }
        close_it(f);
    }
    for (uint32_t i = LENGTH; i < 50; i++)
        CHECK_EQ(memcmp(&draws[0][i], &draws[1][i], sizeof draws[0][i]), 0);
}
