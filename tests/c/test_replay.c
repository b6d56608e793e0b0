/* es_replay: stores that are refused, and results that single-stepping does not ask for. */
#include "replay/es_replay.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "es_items.h"
#include "es_test.h"
#include "replay/es_store.h"

#define ANY 1000
#define ROOM 16
#define LEAVES 2

static const uint64_t sizes[LEAVES] = {8, 3};
static const uint8_t uuid[16] = "sixteen bytes..";

static es_table_config table(const char *name, uint32_t sampler, uint32_t remover)
{
    es_table_config t = {
        .sampler = {.kind = sampler, .parameter = 1},
        .remover = {.kind = remover, .parameter = 1},
        .max_size = ANY,
        .min_size = 1,
        .ratio = 1,
        .min_diff = -INFINITY,
        .max_diff = INFINITY,
        .replacement = 1,
        .item = es_items_steps(LEAVES),
    };
    strcpy(t.name, name);
    return t;
}

/* A store in memory of just its size, and a replay that has it open. */
typedef struct fixture {
    es_store_geometry geo;
    es_table_config tables[2];
    es_output outputs[2 * ES_ITEMS_OUTPUTS(LEAVES)];
    void *base, *copy;
    uint64_t size;
    es_replay *r;
    es_trouble why;
    uint64_t made;
    uint8_t first[ROOM * 8], second[ROOM * 3];
    uint64_t key[ROOM];
    double probability[ROOM], priority[ROOM], weight[ROOM];
    int64_t times_sampled[ROOM], table_size[ROOM], age[ROOM], version[ROOM];
} fixture;

static fixture new_fixture(void)
{
    fixture f = {
        .geo = {.capacity = 4, .max_items = ANY, .num_leaves = LEAVES, .num_tables = 2, .schema_size = 5},
        .tables = {table("a", ES_FIFO, ES_FIFO), table("b", ES_PRIORITIZED, ES_FIFO)},
    };
    es_items_fill(f.tables, 2, sizes, LEAVES, f.outputs);
    return f;
}

static es_store_parts parts_of(const fixture *f)
{
    return (es_store_parts){sizes, f->tables, f->outputs, "scheme"};
}

static uint64_t size_of(const fixture *f)
{
    es_store_parts parts = parts_of(f);
    return es_replay_store_size(&f->geo, &parts);
}

static int format_at(const fixture *f, void *base, uint64_t size)
{
    es_store_parts parts = parts_of(f);
    return es_replay_format(base, size, &f->geo, &parts, uuid, 11, 22);
}

static void format(fixture *f)
{
    f->size = size_of(f);
    f->base = aligned_alloc(ES_PAGE, f->size);
    f->copy = malloc(f->size);
    memset(f->base, 0, f->size);
    CHECK_EQ(format_at(f, f->base, f->size), ES_OK);
}

static int open_again(fixture *f)
{
    int error;
    f->r = es_replay_open(f->base, f->size, 1, NULL, 0, &error, &f->why);
    CHECK_EQ(f->r != NULL, error == ES_OK);
    return error;
}

static void make(fixture *f)
{
    format(f);
    CHECK_EQ(open_again(f), ES_OK);
}

static void let_go(fixture *f)
{
    if (f->r != NULL)
        es_replay_free(f->r);
    f->r = NULL;
}

static void destroy(fixture *f)
{
    let_go(f);
    free(f->base);
    free(f->copy);
}

static int add(fixture *f, double a, double b)
{
    uint64_t number = f->made++;
    uint8_t bytes[3] = {(uint8_t)number, 1, 2};
    return es_replay_add(f->r, (const void *[]){&number, bytes}, 0, (const double[]){a, b}, &f->why);
}

static es_batch_arrays arrays(fixture *f)
{
    static void *leaves[2];
    leaves[0] = f->first, leaves[1] = f->second;
    return (es_batch_arrays){leaves,           f->key,        f->probability, f->priority, f->weight,
                             f->times_sampled, f->table_size, f->age,         f->version};
}

static int sample(fixture *f, uint32_t t, uint64_t n)
{
    es_batch_arrays out = arrays(f);
    return es_replay_sample(f->r, t, n, NAN, &out);
}

static uint64_t number_in(const fixture *f, uint64_t i)
{
    uint64_t number;
    memcpy(&number, f->first + i * 8, 8);
    return number;
}

static void remember(fixture *f)
{
    memcpy(f->copy, f->base, f->size);
}

static bool is_unchanged(const fixture *f)
{
    return memcmp(f->copy, f->base, f->size) == 0;
}

static es_table_info info_of(fixture *f, uint32_t t)
{
    es_table_info info;
    es_replay_info(f->r, t, &info);
    return info;
}

/* --- stores ------------------------------------------------------------------------- */

#define BAD(what)                                                     \
    do {                                                              \
        fixture f = new_fixture();                                    \
        what;                                                         \
        CHECK_EQ(size_of(&f), 0);                                     \
        CHECK_EQ(format_at(&f, ground, sizeof ground), ES_EGEOMETRY); \
    } while (0)

TEST(what_is_out_of_range_has_no_store)
{
    static _Alignas(ES_PAGE) uint8_t ground[64 * ES_PAGE];
    BAD(f.geo.capacity = 0);
    BAD(f.geo.capacity = ES_STORE_MAX_STEPS + 1);
    BAD(f.geo.max_items = 0);
    BAD(f.geo.max_items = ES_STORE_MAX_ITEMS + 1);
    BAD(f.geo.num_leaves = 0);
    BAD(f.geo.num_leaves = ES_STORE_MAX_LEAVES + 1);
    BAD(f.geo.num_tables = 0);
    BAD(f.geo.num_tables = ES_MAX_TABLES + 1);
    BAD(f.geo.schema_size = ES_STORE_MAX_SCHEMA + 1);
    BAD(f.geo.columns = 2);
    BAD(f.tables[1].name[0] = 0);
    BAD(memset(f.tables[1].name, 'x', sizeof f.tables[1].name));
    BAD(f.tables[1].sampler.kind = 0);
    BAD(f.tables[1].remover.kind = ES_CUSTOM + 1);
    BAD(f.tables[1].sampler.zero = 1);
    BAD(f.tables[1].sampler.parameter = -1);
    BAD(f.tables[1].sampler.parameter = NAN);
    BAD(f.tables[1].sampler.beta = INFINITY);
    BAD((f.tables[1].sampler = (es_selector_config){.kind = ES_SOFTMAX}));
    BAD(f.tables[1].sampler.target = 0.5); /* of another kind */
    BAD((f.tables[1].sampler = (es_selector_config){.kind = ES_SOFTMAX, .parameter = 1, .target = 1.5}));
    BAD((f.tables[1].remover = (es_selector_config){.kind = ES_SOFTMAX, .parameter = 1, .target = 0.5}));
    BAD((f.tables[1].remover = (es_selector_config){.kind = ES_HOT_COLD, .parameter = 1, .hot_size = 1}));
    BAD((f.tables[1].sampler = (es_selector_config){.kind = ES_HOT_COLD, .parameter = 1}));
    BAD((f.tables[1].sampler = (es_selector_config){.kind = ES_HOT_COLD, .parameter = 1, .hot_size = 1, .share = 2}));
    BAD((f.tables[1].replacement = 0,
         f.tables[1].sampler = (es_selector_config){.kind = ES_HOT_COLD, .parameter = 1, .hot_size = 1}));
    BAD(f.tables[1].max_size = 0);
    BAD(f.tables[1].min_size = 0);
    BAD(f.tables[1].ratio = 0);
    BAD(f.tables[1].ratio = NAN);
    BAD(f.tables[1].min_diff = NAN);
    BAD(f.tables[1].max_diff = NAN);
    BAD(f.tables[1].max_parked = ES_STORE_MAX_ITEMS + 1);
    BAD(f.tables[1].replacement = 2);
    BAD(f.tables[1].is_protected = 2);
    BAD(f.tables[1].item.kind = 0);
    BAD(f.tables[1].item.kind = ES_ITEM_SEQUENCE + 1);
    BAD(f.tables[1].item.length = 0);
    BAD(f.tables[1].item.length = 2);
    BAD(f.tables[1].item.period = 0);
    BAD(f.tables[1].item.period = 2);
    BAD(f.tables[1].item.before = 1);
    BAD(f.tables[1].item.padded = 1);
    BAD(f.tables[1].item.gamma = -0.5);
    BAD(f.tables[1].item.gamma = 1.5);
    BAD(f.tables[1].item.gamma = NAN);
    BAD(f.tables[1].item.num_outputs = 0);
    BAD(f.tables[1].item.num_outputs = 1); /* one for each leaf, in their order */
    BAD(f.outputs[2].leaf = 1);
    BAD(f.outputs[2].leaf = 2);
    BAD(f.outputs[2].count = 2);
    BAD(f.outputs[2].kind = ES_OUTPUT_LENGTH);
    for (uint64_t i = 0; i < sizeof ground; i++)
        REQUIRE_EQ(ground[i], 0);
    fixture f = new_fixture();
    uint64_t size = size_of(&f);
    CHECK(size > 0 && size < sizeof ground);
    CHECK_EQ(format_at(&f, ground, size - 1), ES_EGEOMETRY);
    es_store_parts wide = {(const uint64_t[]){ES_STORE_MAX_ROW, 1}, f.tables, f.outputs, ""};
    CHECK_EQ(es_replay_store_size(&f.geo, &wide), 0);
}

TEST(sizes_that_overflow_have_no_store)
{
    fixture f = new_fixture();
    f.geo.capacity = ES_STORE_MAX_STEPS;
    es_store_parts wide = {(const uint64_t[]){ES_STORE_MAX_ROW - 64, 3}, f.tables, f.outputs, ""};
    CHECK_EQ(es_replay_store_size(&f.geo, &wide), 0);
    f.geo.max_items = ES_STORE_MAX_ITEMS;
    f.tables[0].max_size = f.tables[1].max_size = UINT64_MAX;
    CHECK_EQ(size_of(&f), 0); /* more items than a uint32_t can name */
}

#define WRONG(what, code)                                  \
    do {                                                   \
        remember(&f);                                      \
        what;                                              \
        CHECK_EQ(es_replay_check(f.base, f.size), (code)); \
        CHECK_EQ(open_again(&f), (code));                  \
        memcpy(f.base, f.copy, f.size);                    \
    } while (0)

TEST(check_says_what_is_wrong_with_a_header)
{
    fixture f = new_fixture();
    format(&f);
    es_store_header *hdr = f.base;
    es_table_config *tables = (es_table_config *)((uint8_t *)f.base + hdr->at.tables);
    CHECK_EQ(es_replay_check(f.base, f.size), ES_OK);
    CHECK_EQ(es_replay_check(f.base, sizeof *hdr - 1), ES_ESIZE);
    CHECK_EQ(es_replay_check(f.base, f.size - 1), ES_ESIZE);
    CHECK_EQ(es_replay_check(f.base, sizeof *hdr), ES_EOFFSET);
    WRONG(hdr->magic = 0, ES_EINIT);
    WRONG(hdr->magic ^= 1, ES_EMAGIC);
    WRONG(hdr->version++, ES_EVERSION);
    WRONG(hdr->geo.capacity = 0, ES_EGEOMETRY);
    WRONG(hdr->geo.num_tables = UINT32_MAX, ES_EGEOMETRY);
    WRONG(tables[1].ratio = NAN, ES_EGEOMETRY);
    WRONG(hdr->geo.capacity += ES_PAGE, ES_EOFFSET);
    WRONG(hdr->at.leaves = UINT64_MAX, ES_EOFFSET);
    WRONG(hdr->at.schema = f.size, ES_EOFFSET);
    WRONG(hdr->at.tables = f.size - 8, ES_EOFFSET);
    WRONG(hdr->at.rows += ES_PAGE, ES_EOFFSET);
    WRONG(hdr->at.redo_room++, ES_EOFFSET);
    WRONG(hdr->uuid[3]++, ES_EHASH);
    WRONG(hdr->pid++, ES_EHASH);
    WRONG(hdr->hash++, ES_EHASH);
    WRONG(((char *)f.base)[hdr->at.schema]++, ES_EHASH);
    WRONG(tables[0].max_times_sampled = 3, ES_EHASH);
    destroy(&f);
}

TEST(describe_gives_what_format_was_given)
{
    fixture f = new_fixture();
    es_store_geometry geo;
    es_table_config tables[3];
    uint8_t id[16];
    int64_t pid, created_ns;
    char schema[8] = "";
    format(&f);
    es_replay_describe(f.base, f.size, &geo, id, &pid, &created_ns, schema, 3, tables, 1);
    CHECK_EQ(memcmp(&geo, &f.geo, sizeof geo), 0);
    CHECK_EQ(memcmp(id, uuid, sizeof id), 0);
    CHECK_EQ(pid, 11);
    CHECK_EQ(created_ns, 22);
    CHECK_STR(schema, "sch");
    memset(tables, 0, sizeof tables);
    es_replay_describe(f.base, f.size, &geo, id, &pid, &created_ns, schema, sizeof schema, tables, 3);
    CHECK_STR(schema, "schem");
    CHECK_EQ(memcmp(tables, f.tables, sizeof f.tables), 0);
    CHECK_EQ(tables[2].max_size, 0);
    destroy(&f);
}

/* --- onlookers -------------------------------------------------------------------------- */

TEST(a_peek_finds_living_items_alone_and_changes_nothing)
{
    fixture f = new_fixture();
    double priorities[ROOM];
    es_peeked seen;
    f.geo.capacity = ROOM;
    make(&f);
    for (int i = 0; i < 6; i++)
        CHECK_EQ(add(&f, 1, i), ES_OK);
    CHECK_EQ(sample(&f, 1, 1), ES_OK);
    CHECK_EQ(es_replay_delete(f.r, 1, f.key, 1), 1);
    remember(&f);
    CHECK_EQ(es_replay_peek(f.base, f.size, 1, priorities, ROOM, &seen), ES_OK);
    double sum = f.priority[0];
    for (uint64_t i = 0; i < seen.found; i++)
        sum += priorities[i];
    CHECK_EQ(seen.found, 5);
    CHECK_EQ(sum == 0 + 1 + 2 + 3 + 4 + 5, true);
    CHECK_EQ(es_replay_peek(f.base, f.size, 2, priorities, ROOM, &seen), -EINVAL);
    CHECK_EQ(is_unchanged(&f), true);
    es_store store;
    CHECK_EQ(es_store_map(&store, f.base, f.size), ES_OK);
    es_item_record *items = store.items + store.first_item[1];
    for (int i = 0; i < 6; i++) /* whoever scribbles on priorities */
        items[i].priority = i == 0 ? NAN : i == 1 ? -1 : i == 2 ? INFINITY : 7;
    es_store_unmap(&store);
    CHECK_EQ(es_replay_peek(f.base, f.size, 1, priorities, ROOM, &seen), ES_OK);
    for (uint64_t i = 0; i < seen.found; i++)
        CHECK_EQ(priorities[i] == 7, true);
    ((es_store_header *)f.base)->at.items += 8;
    CHECK_EQ(es_replay_peek(f.base, f.size, 1, priorities, ROOM, &seen), ES_EOFFSET);
    CHECK_EQ(seen.found, 0);
    ((es_store_header *)f.base)->at.items -= 8;
    destroy(&f);
}

/* So many items in a table with room for many more: at first all in front, then all over it. */
TEST(a_peek_into_a_large_table_looks_at_few_records)
{
    fixture f = new_fixture();
    static double priorities[64];
    es_peeked seen;
    f.geo.capacity = 20000, f.geo.max_items = 40000;
    f.tables[0].max_size = f.tables[1].max_size = 20000;
    make(&f);
    for (int i = 0; i < 100; i++)
        CHECK_EQ(add(&f, 1, 3), ES_OK);
    CHECK_EQ(es_replay_peek(f.base, f.size, 1, priorities, 64, &seen), ES_OK);
    CHECK_EQ(seen.looked, 64);
    CHECK_EQ(seen.records < 200, true);
    CHECK_EQ(seen.found >= 32, true);
    for (int i = 100; i < 20000; i++)
        CHECK_EQ(add(&f, 1, i < 10000 ? 3 : 5), ES_OK);
    CHECK_EQ(es_replay_peek(f.base, f.size, 1, priorities, 64, &seen), ES_OK);
    CHECK_EQ(seen.looked == 64 && seen.records == 20001, true);
    uint64_t late = 0;
    for (uint64_t i = 0; i < seen.found; i++)
        late += priorities[i] == 5;
    CHECK_EQ(seen.found, 64);
    CHECK_EQ(late, 32);
    destroy(&f);
}

/* --- impossible records ------------------------------------------------------------------ */

#define IMPOSSIBLE(what, where)                \
    do {                                       \
        memcpy(f.base, whole, f.size);         \
        what;                                  \
        remember(&f);                          \
        CHECK_EQ(open_again(&f), ES_EDAMAGED); \
        CHECK_EQ(f.why.index, (where));        \
        CHECK(is_unchanged(&f));               \
        let_go(&f);                            \
    } while (0)

TEST(open_refuses_impossible_records)
{
    fixture f = new_fixture();
    es_store s;
    make(&f);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(add(&f, NAN, 2), ES_OK); /* item 1 of table b is of step 1 */
    let_go(&f);
    void *whole = malloc(f.size);
    memcpy(whole, f.base, f.size);
    CHECK_EQ(es_store_map(&s, f.base, f.size), ES_OK);
    es_step_record *step = &s.steps[1];
    uint64_t at = s.step_slots + s.first_item[1] + 1;
    es_item_record *item = &s.items[s.first_item[1] + 1];
    es_table_words *words = &s.words[1];
    IMPOSSIBLE(step->word = es_record_word(1, 0, 7), 1);
    IMPOSSIBLE(step->word = es_record_word(1, 0, ES_RECORD_PARKED), 1);
    IMPOSSIBLE(step->arrival = 3, 1);
    IMPOSSIBLE(step->arrival = UINT64_MAX, 1);
    IMPOSSIBLE(step->word = es_record_word(1, 0, ES_RECORD_FREE), at);
    IMPOSSIBLE(item->word = es_record_word(1, 0, 7), at);
    IMPOSSIBLE(item->step = 3, at); /* a free one */
    IMPOSSIBLE(item->step = (uint32_t)s.step_slots, at);
    IMPOSSIBLE(item->step = UINT32_MAX, at);
    IMPOSSIBLE(item->length = 0, at);
    IMPOSSIBLE(item->length = 2, at);
    IMPOSSIBLE(item->priority = -1, at);
    IMPOSSIBLE(item->priority = NAN, at);
    IMPOSSIBLE(item->priority = INFINITY, at);
    IMPOSSIBLE(item->priority = 1e300, at); /* its weight is too large */
    IMPOSSIBLE(item->inserted = 3, at);
    IMPOSSIBLE(item->updated = 3, at);
    IMPOSSIBLE(item->round = 2, at);
    IMPOSSIBLE(words->highest = 0.5, at - 1);
    IMPOSSIBLE(words->highest = NAN, at - 1);
    IMPOSSIBLE(words->highest = INFINITY, at - 1);
    IMPOSSIBLE(words->round = 0, at - 1);
    IMPOSSIBLE(words->cold = 4, at - 1);
    IMPOSSIBLE(words->gone = 4, at - 1);
    IMPOSSIBLE(words->marked = 4, at - 1);
    IMPOSSIBLE(words->temperature[0] = NAN, at - 1);
    IMPOSSIBLE(words->temperature[1] = -1, at - 1);
    IMPOSSIBLE(words->temperature[1] = 1, at - 1); /* without the first one */
    IMPOSSIBLE(words->min_diff = NAN, at - 1);
    IMPOSSIBLE(words->max_diff = NAN, at - 1);
    IMPOSSIBLE(s.redo.log->length = s.redo.room + 1, 0);
    IMPOSSIBLE((s.redo.log->length = 1, s.redo.log->entries[0].offset = 4), 0);
    IMPOSSIBLE((s.redo.log->length = 1, s.redo.log->entries[0].offset = f.size), 0);
    IMPOSSIBLE((s.redo.log->length = 1, s.redo.log->entries[0].offset = UINT64_MAX - 7), 0);
    memcpy(f.base, whole, f.size);
    CHECK_EQ(open_again(&f), ES_OK);
    es_store_unmap(&s);
    free(whole);
    destroy(&f);
}

/* --- limits --------------------------------------------------------------------------------- */

TEST(limits_change_and_outlive_their_process)
{
    fixture f = new_fixture();
    es_table_info info;
    f.tables[0].max_diff = 2;
    make(&f);
    CHECK_EQ(add(&f, 1, 1), ES_OK);
    CHECK_EQ(add(&f, 1, 1), ES_OK);
    remember(&f);
    CHECK_EQ(es_replay_set_limits(f.r, 0, NAN, 3), -EINVAL);
    CHECK_EQ(es_replay_set_limits(f.r, 0, 0, NAN), -EINVAL);
    CHECK_EQ(add(&f, 1, 1), ES_REFUSED);
    CHECK(is_unchanged(&f));
    CHECK_EQ(es_replay_set_limits(f.r, 0, 2.5, 3), ES_OK);
    CHECK_EQ(es_replay_can_insert(f.r, 0, 1), 1);
    CHECK_EQ(es_replay_can_sample(f.r, 0, 1), 0);
    let_go(&f);
    CHECK_EQ(open_again(&f), ES_OK);
    es_replay_info(f.r, 0, &info);
    CHECK(info.min_diff == 2.5 && info.max_diff == 3);
    CHECK(!info.can_sample && info.can_insert);
    CHECK_EQ(add(&f, 1, 1), ES_OK);
    CHECK_EQ(add(&f, 1, 1), ES_REFUSED);
    CHECK_EQ(es_replay_reset(f.r, 0), ES_OK);
    es_replay_info(f.r, 0, &info);
    CHECK(info.min_diff == 2.5 && info.max_diff == 3);
    es_replay_info(f.r, 1, &info);
    CHECK(info.min_diff == -INFINITY && info.max_diff == INFINITY);
    CHECK_EQ(es_replay_set_limits(f.r, 0, -5, -4), ES_OK); /* below what there is: whoever inserts waits */
    CHECK_EQ(add(&f, 1, 1), ES_OK);                        /* up to min_size it is let in */
    CHECK_EQ(add(&f, 1, 1), ES_REFUSED);
    CHECK_EQ(es_replay_can_sample(f.r, 0, 1), 1);
    destroy(&f);
}

/* --- inserting ------------------------------------------------------------------------------ */

TEST(a_step_that_is_not_taken_changes_nothing)
{
    fixture f = new_fixture();
    f.tables[0].max_diff = 2; /* two insertions ahead of samples */
    make(&f);
    remember(&f);
    CHECK_EQ(add(&f, 1, -INFINITY), ES_OK); /* negative: the highest so far */
    CHECK(!is_unchanged(&f));
    remember(&f);
    CHECK_EQ(add(&f, INFINITY, 1), ES_EPRIORITY);
    CHECK_EQ(f.why.table, 0);
    CHECK_EQ(add(&f, 1, 1e300), ES_EPRIORITY);
    CHECK_EQ(f.why.table, 1);
    CHECK(is_unchanged(&f));
    CHECK_EQ(add(&f, NAN, 1), ES_OK);
    CHECK_EQ(add(&f, 1, 1), ES_OK);
    remember(&f);
    CHECK_EQ(add(&f, 1, 1), ES_REFUSED);
    CHECK_EQ(f.why.table, 0);
    CHECK(is_unchanged(&f));
    CHECK_EQ(es_replay_can_insert(f.r, 0, 1), 0);
    CHECK_EQ(es_replay_can_insert(f.r, 1, 1), 1);
    CHECK_EQ(add(&f, NAN, 1), ES_OK); /* no item in the table that refuses */
    destroy(&f);
}

TEST(extend_says_how_many_are_in_and_why_no_more)
{
    fixture f = new_fixture();
    static const uint64_t numbers[4] = {50, 51, 52, 53};
    static const uint8_t bytes[4][3];
    const void *leaves[] = {numbers, bytes};
    int error;
    make(&f);
    CHECK_EQ(
        es_replay_extend(f.r, leaves, 4, NULL, (const double[]){1, 1, 1, 1, 1, -INFINITY, 1, INFINITY}, &error, &f.why),
        3);
    CHECK_EQ(error, ES_EPRIORITY);
    CHECK_EQ(f.why.index, 3);
    CHECK_EQ(f.why.table, 1);
    CHECK_EQ(es_replay_num_steps(f.r), 3);
    CHECK_EQ(es_replay_extend(f.r, leaves, 0, NULL, NULL, &error, &f.why), 0);
    CHECK_EQ(error, ES_OK);
    CHECK_EQ(sample(&f, 0, 3), ES_OK);
    CHECK_EQ(number_in(&f, 0), 50);
    destroy(&f);
}

static int64_t add_vector(fixture *f, const int64_t *environments, const uint8_t *terminated, uint64_t n, int *error)
{
    static const uint64_t numbers[4] = {50, 51, 52, 53};
    static const uint8_t bytes[4][3];
    const void *const leaves[] = {numbers, bytes};
    const es_vector v = {
        .leaves = leaves, .terminated = terminated, .environments = environments, .n = n, .skips_resets = 1};
    return es_replay_add_vector(f->r, &v, 0, error, &f->why);
}

TEST(add_vector_says_which_row_is_wrong)
{
    static const int64_t below[] = {0, -1, 2}, above[] = {0, 1, ES_MAX_ENVIRONMENTS}, twice[] = {0, 7, 0};
    static const uint8_t ends[] = {0, 1, 0};
    static const struct {
        const int64_t *environments;
        uint64_t index;
    } wrong[] = {{below, 1}, {above, 2}, {twice, 2}};
    fixture f = new_fixture();
    int error;
    make(&f);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_EQ(add_vector(&f, wrong[i].environments, NULL, 3, &error), 0);
        CHECK_EQ(error, ES_EENVIRONMENT);
        CHECK_EQ(f.why.index, wrong[i].index);
    }
    CHECK_EQ(add_vector(&f, twice, ends, 2, &error), 2); /* what was refused has left nothing behind */
    CHECK_EQ(error, ES_OK);
    CHECK_EQ(es_replay_num_steps(f.r), 2);
    CHECK_EQ(add_vector(&f, twice, ends, 2, &error), 0);
    CHECK_EQ(error, ES_ERESET);
    CHECK_EQ(f.why.index, 1);
    CHECK_EQ(add_vector(&f, twice, NULL, 2, &error), 2);
    CHECK_EQ(es_replay_num_steps(f.r), 3); /* the second row was a reset */
    destroy(&f);
}

TEST(full_of_protected_steps)
{
    fixture f = new_fixture();
    f.tables[0].is_protected = f.tables[1].is_protected = 1;
    make(&f);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(add(&f, 1, NAN), ES_OK);
    remember(&f);
    CHECK_EQ(add(&f, 1, NAN), ES_NO_ROOM);
    CHECK_EQ(add(&f, NAN, NAN), ES_NO_ROOM);
    CHECK(is_unchanged(&f));
    CHECK_EQ(sample(&f, 0, 1), ES_OK);
    CHECK_EQ(es_replay_delete(f.r, 0, f.key, 1), 1);
    CHECK_EQ(add(&f, 1, NAN), ES_OK);
    destroy(&f);
}

/* A full table makes room for its own items alone. */
TEST(full_of_protected_items)
{
    fixture f = new_fixture();
    f.geo.capacity = 100;
    f.geo.max_items = 6;
    f.tables[0].is_protected = f.tables[1].is_protected = 1;
    f.tables[0].max_size = 2;
    make(&f);
    int in = 0;
    while (in < 50 && add(&f, 1, 1) == ES_OK)
        in++;
    CHECK_EQ(in, 4);
    CHECK_EQ(info_of(&f, 0).size, 2);
    CHECK_EQ(info_of(&f, 1).size, 4);
    CHECK_EQ(add(&f, NAN, 1), ES_NO_ROOM);
    CHECK_EQ(add(&f, 1, NAN), ES_OK);
    let_go(&f);
    CHECK_EQ(open_again(&f), ES_OK);
    CHECK_EQ(add(&f, 1, 1), ES_NO_ROOM);
    destroy(&f);
}

/* --- keys ---------------------------------------------------------------------------------------- */

TEST(a_key_is_never_used_again)
{
    fixture f = new_fixture();
    make(&f);
    CHECK_EQ(add(&f, 1, NAN), ES_OK);
    CHECK_EQ(sample(&f, 0, 1), ES_OK);
    uint64_t old = f.key[0];
    CHECK_EQ(es_replay_delete(f.r, 0, &old, 1), 1);
    CHECK_EQ(es_replay_delete(f.r, 0, &old, 1), 0);
    let_go(&f);
    CHECK_EQ(open_again(&f), ES_OK);
    CHECK_EQ(add(&f, 1, NAN), ES_OK);
    CHECK_EQ(sample(&f, 0, 1), ES_OK);
    CHECK_EQ((uint32_t)f.key[0], (uint32_t)old); /* the same record */
    CHECK(f.key[0] != old);
    es_batch_arrays out = arrays(&f);
    const uint64_t keys[] = {f.key[0], old};
    CHECK_EQ(es_replay_get(f.r, 0, keys, 1, NAN, &out, &f.why), ES_OK);
    CHECK_EQ(es_replay_get(f.r, 0, keys, 2, NAN, &out, &f.why), ES_ENOITEM);
    CHECK_EQ(f.why.index, 1);
    CHECK_EQ(es_replay_update(f.r, 0, &old, (const double[]){3}, 1, &f.why), 0);
    destroy(&f);
}

TEST(update_counts_each_item_once_or_changes_nothing)
{
    fixture f = new_fixture();
    make(&f);
    CHECK_EQ(add(&f, NAN, 1), ES_OK);
    CHECK_EQ(add(&f, NAN, 1), ES_OK);
    const uint64_t first = UINT64_C(1) << 32, second = first | 1, keys[] = {first, second, first, UINT64_MAX, 7};
    remember(&f);
    CHECK_EQ(es_replay_update(f.r, 1, keys, (const double[]){2, 3, 4, 5, -1}, 5, &f.why), ES_EPRIORITY);
    CHECK_EQ(f.why.index, 4);
    CHECK_EQ(f.why.table, 1);
    CHECK(is_unchanged(&f));
    CHECK_EQ(es_replay_update(f.r, 1, keys, (const double[]){2, 3, 4, 5, 6}, 5, &f.why), 2);
    es_batch_arrays out = arrays(&f);
    CHECK_EQ(es_replay_get(f.r, 1, keys, 2, NAN, &out, &f.why), ES_OK);
    CHECK_EQ(f.priority[0], 4); /* the last one counts */
    CHECK_EQ(f.priority[1], 3);
    CHECK_EQ(info_of(&f, 1).highest, 4); /* not of keys that are gone */
    CHECK_EQ(es_replay_update(f.r, 1, keys, (const double[]){7, 0, 5, 9, 9}, 5, &f.why), 2);
    CHECK_EQ(info_of(&f, 1).highest, 5); /* not what did not stay */
    CHECK_EQ(es_replay_update(f.r, 1, keys, (const double[]){8, 6, 0, 9, 9}, 5, &f.why), 2);
    CHECK_EQ(info_of(&f, 1).highest, 6);
    CHECK_EQ(es_replay_delete(f.r, 1, keys, 5), 2);
    destroy(&f);
}

/* --- batches ------------------------------------------------------------------------------------- */

TEST(a_batch_that_was_cut_short_comes_first)
{
    fixture f = new_fixture();
    f.tables[0].max_times_sampled = 1;
    make(&f);
    CHECK_EQ(sample(&f, 0, 1), ES_SHORT); /* empty */
    CHECK_EQ(add(&f, 1, NAN), ES_OK);
    CHECK_EQ(add(&f, 1, NAN), ES_OK);
    CHECK_EQ(sample(&f, 0, 3), ES_SHORT);
    CHECK_EQ(info_of(&f, 0).drawn_before, 2);
    CHECK_EQ(info_of(&f, 0).size, 0);
    CHECK_EQ(es_replay_can_sample(f.r, 0, 2), 1);
    CHECK_EQ(es_replay_can_sample(f.r, 0, 3), 0);
    for (int i = 0; i < 4; i++) /* their records and rows are used again */
        CHECK_EQ(add(&f, 1, NAN), ES_OK);
    CHECK_EQ(sample(&f, 0, 1), ES_OK);
    CHECK_EQ(number_in(&f, 0), 0);
    CHECK_EQ(sample(&f, 0, 2), ES_OK);
    CHECK_EQ(number_in(&f, 0), 1);
    CHECK_EQ(number_in(&f, 1), 2);
    CHECK_EQ(sample(&f, 0, 9), ES_SHORT);
    CHECK_EQ(es_replay_reset(f.r, 0), ES_OK);
    CHECK_EQ(info_of(&f, 0).drawn_before, 0);
    CHECK_EQ(sample(&f, 0, 1), ES_SHORT);
    destroy(&f);
}
