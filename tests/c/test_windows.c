/* Items of several steps: which there are, what they give to a batch, and which steps stay, against a model that looks
 * at all steps that live, and recomputes everything. What a death leaves is in tests/trace. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "es_items.h"
#include "es_test.h"
#include "replay/es_insert.h"
#include "replay/es_outputs.h"
#include "replay/es_replay.h"
#include "replay/es_tables.h"

#define ANY 1000
#define LEAVES 3
#define TABLES 3
#define MOST_STEPS 4096 /* that a test stores */
#define MOST_LIVING 512
#define MOST_NEW 64 /* items of a table that one step completes */
#define ITEM 2048   /* bytes that an item gives to an output, at most */
#define STREAM 7    /* of es_replay_add(); of one that is opened later, a higher one */

/* A double, two floats, and the number of the step among all that the test stored. */
static const uint64_t sizes[LEAVES] = {8, 8, 4};
static const uint8_t uuid[16] = "sixteen bytes..";

enum ending { GOES_ON, TERMINATED, TRUNCATED, FINAL_TERMINATED, FINAL_TRUNCATED, END_EPISODE, LOST, ENDINGS };

typedef struct step {
    es_step_head head;
    double priorities[TABLES];
} step;

/* What the model says of an item: places of its steps among all that were stored. */
typedef struct item {
    uint32_t steps[128]; /* those before it, and its own */
    uint32_t before, length;
    bool next, terminated;
} item;

typedef struct world {
    es_store_geometry geo;
    es_table_config tables[TABLES];
    es_output outputs[TABLES * ES_ITEMS_OUTPUTS(LEAVES)];
    void *base;
    uint64_t size;
    es_replay *r;
    step steps[MOST_STEPS];
    uint32_t made;
    es_step_head own;                                                /* of the next one that es_replay_add() stores */
    bool was_full;                                                   /* steps that a stream keeps may have gone */
    uint64_t inserted[TABLES], parkings[TABLES], num_parked[TABLES]; /* so far, of each table; and those parked now */
    item expected[TABLES][MOST_NEW];                                 /* what the last step completed */
    uint32_t num_expected[TABLES];
    item *items[TABLES]; /* by record: what the model says of the item that lives there */
    uint64_t *keys[TABLES];
    struct came {
        uint64_t key;
        item item;
    } * came[TABLES]; /* all that ever lived */
    uint32_t num_came[TABLES];
} world;

static world the_world;

/* A replay begins with its tables. */
static es_tables *tables_of(world *w)
{
    return (es_tables *)w->r;
}

static es_table *table_of(world *w, uint32_t t)
{
    return &tables_of(w)->table[t];
}

/* --- worlds ------------------------------------------------------------------------ */

static es_table_config table(es_item_config item)
{
    es_table_config t = {
        .name = "a",
        .sampler = {.kind = ES_FIFO},
        .remover = {.kind = ES_FIFO},
        .max_size = ANY,
        .min_size = 1,
        .ratio = 1,
        .min_diff = -INFINITY,
        .max_diff = INFINITY,
        .replacement = 1,
        .item = item,
    };
    return t;
}

static es_item_config single(void)
{
    return es_items_steps(LEAVES);
}

static es_item_config n_step(uint32_t n, uint32_t stack)
{
    return (es_item_config){.kind = ES_ITEM_N_STEP, .length = n, .period = 1, .before = stack - 1, .gamma = 0.5};
}

static es_item_config sequence(uint32_t length, uint32_t period, uint32_t padded)
{
    return (es_item_config){.kind = ES_ITEM_SEQUENCE, .length = length, .period = period, .padded = padded};
}

static void open_world(world *w)
{
    es_trouble why;
    int error;
    w->r = es_replay_open(w->base, w->size, w->own.stream, NULL, 0, &error, &why);
    CHECK_EQ(error, ES_OK);
}

static world *new_world(uint64_t capacity, uint64_t max_items, const es_table_config *tables, uint32_t num_tables)
{
    world *w = &the_world;
    *w = (world){.geo = {.capacity = capacity,
                         .max_items = max_items,
                         .num_leaves = LEAVES,
                         .num_tables = num_tables,
                         .inbox_slots = 1},
                 .own = {.stream = STREAM}};
    memcpy(w->tables, tables, num_tables * sizeof *tables);
    es_items_fill(w->tables, num_tables, sizes, LEAVES, w->outputs);
    /* and the return of floats instead of one of the others */
    es_output *o = w->outputs;
    for (uint32_t t = 0; t < num_tables; o += w->tables[t++].item.num_outputs)
        for (uint32_t i = 0; i < w->tables[t].item.num_outputs && t % 2 == 1; i++)
            if (o[i].kind == ES_OUTPUT_RETURN)
                o[i].leaf = 1, o[i].width = 4;
    es_store_parts parts = {sizes, w->tables, w->outputs, ""};
    w->size = es_replay_store_size(&w->geo, &parts);
    CHECK(w->size > 0);
    w->base = aligned_alloc(ES_PAGE, w->size);
    memset(w->base, 0, w->size);
    CHECK_EQ(es_replay_format(w->base, w->size, &w->geo, &parts, uuid, 1, 1), ES_OK);
    open_world(w);
    for (uint32_t t = 0; t < num_tables; t++) {
        w->items[t] = calloc(table_of(w, t)->slots, sizeof *w->items[t]);
        w->keys[t] = calloc(table_of(w, t)->slots, sizeof *w->keys[t]);
        w->came[t] = calloc(MOST_STEPS, sizeof *w->came[t]);
    }
    return w;
}

static void destroy(world *w)
{
    es_replay_free(w->r);
    free(w->base);
    for (uint32_t t = 0; t < w->geo.num_tables; t++) {
        free(w->items[t]);
        free(w->keys[t]);
        free(w->came[t]);
    }
}

/* --- rows --------------------------------------------------------------------------- */

static double reward_of(uint32_t step)
{
    return 1 + step % 29;
}

static float small_reward_of(uint32_t step, uint32_t i)
{
    return (float)(step % 23) - (float)i;
}

typedef struct row {
    double reward;
    float small[2];
    uint32_t step;
} row;

static row row_of(uint32_t step)
{
    return (row){reward_of(step), {small_reward_of(step, 0), small_reward_of(step, 1)}, step};
}

static void leaves_of(const row *r, const void **leaves)
{
    leaves[0] = &r->reward, leaves[1] = r->small, leaves[2] = &r->step;
}

static void write_leaf(uint32_t leaf, uint32_t step, uint8_t *to)
{
    const void *leaves[LEAVES];
    row r = row_of(step);
    leaves_of(&r, leaves);
    memcpy(to, leaves[leaf], sizes[leaf]);
}

/* --- the model: items ------------------------------------------------------------------- */

static bool is_final(uint32_t flags)
{
    return flags & ES_STEP_FINAL;
}

/* Which of the steps that were stored is in that record. */
static uint32_t step_in(world *w, uint32_t record)
{
    const es_store *s = &tables_of(w)->store;
    uint32_t step;
    memcpy(&step, es_store_at(s, &s->leaves[2], record), sizeof step);
    return step;
}

/* All that live. */
static uint32_t living(world *w, uint32_t *steps)
{
    uint32_t n = 0;
    const es_steps *s = &tables_of(w)->steps;
    for (uint32_t i = 0; i < tables_of(w)->store.step_slots; i++)
        if (es_rank_has(s->living, i) && CHECK(n < MOST_LIVING))
            steps[n++] = step_in(w, i);
    return n;
}

static bool same_stream(const es_step_head *a, const es_step_head *b)
{
    return a->stream == b->stream && a->environment == b->environment;
}

/* A run: steps of an episode with numbers that follow each other, the last one last. */
typedef struct run {
    uint32_t steps[MOST_LIVING], n;
} run;

/* The run of living steps that ends with the living step of that number; the youngest if there are several. */
static void find_run(world *w, const es_step_head *of, uint64_t number, const uint32_t *steps, uint32_t n, run *r)
{
    uint32_t found[MOST_LIVING];
    const es_step_head *after = NULL;
    r->n = 0;
    for (;; number--) {
        int64_t best = -1;
        bool twice = false;
        for (uint32_t i = 0; i < n; i++)
            if (same_stream(&w->steps[steps[i]].head, of) && w->steps[steps[i]].head.number == number) {
                twice |= best >= 0;
                best = steps[i] > best ? steps[i] : best;
            }
        if (best < 0 || (after != NULL && after->episode != w->steps[best].head.episode))
            break;
        after = &w->steps[best].head;
        found[r->n++] = (uint32_t)best;
        if (twice || number == 0)
            break;
    }
    for (uint32_t i = 0; i < r->n; i++)
        r->steps[i] = found[r->n - 1 - i];
}

/* Expects an item of the steps first to last of a run. */
static void expect(world *w, uint32_t t, const run *r, uint32_t first, uint32_t last, bool next, bool terminated)
{
    uint32_t before = w->tables[t].item.before < first ? w->tables[t].item.before : first;
    if (!CHECK(w->num_expected[t] < MOST_NEW))
        return;
    item *i = &w->expected[t][w->num_expected[t]++];
    *i = (item){.before = before, .length = last - first + 1, .next = next, .terminated = terminated};
    for (uint32_t k = first - before; k <= last; k++)
        i->steps[k - (first - before)] = r->steps[k];
}

/* Whether a transition can start there: all frames of its stack are there, or the episode has no others. */
static bool can_start(world *w, uint32_t t, const run *r, int64_t first)
{
    bool from_the_start = r->n > 0 && w->steps[r->steps[0]].head.index == 0;
    return first >= 0 && (from_the_start || first >= w->tables[t].item.before);
}

/* The last step of the run has come. */
static void expect_transitions(world *w, uint32_t t, const run *r, uint32_t flags)
{
    int64_t n = w->tables[t].item.length, k = (int64_t)r->n - 1;
    bool cut = is_final(flags) || flags & (ES_STEP_TRUNCATED | ES_STEP_LOST), terminated = flags & ES_STEP_TERMINATED;
    if (terminated && !is_final(flags))
        cut = false;
    for (int64_t first = k - n; first < (cut ? k : k - n + 1); first++) /* those that bootstrap from it */
        if (can_start(w, t, r, first))
            expect(w, t, r, (uint32_t)first, (uint32_t)k, true, terminated && is_final(flags));
    for (int64_t first = k - n + 1; first <= k && terminated && !is_final(flags); first++)
        if (can_start(w, t, r, first))
            expect(w, t, r, (uint32_t)first, (uint32_t)k, false, true);
}

/* Of a run that another episode has followed. */
static void expect_left_transitions(world *w, uint32_t t, const run *r)
{
    int64_t n = w->tables[t].item.length, k = (int64_t)r->n - 1;
    for (int64_t first = k - n + 1; first < k; first++)
        if (can_start(w, t, r, first))
            expect(w, t, r, (uint32_t)first, (uint32_t)k, true, false);
}

/* Of a run, by the windows of its episode. came: its last step has just come. ends: it is the last one. */
static void expect_windows(world *w, uint32_t t, const run *r, bool came, bool ends)
{
    const es_item_config *c = &w->tables[t].item;
    if (r->n == 0)
        return;
    int64_t first_index = w->steps[r->steps[0]].head.index, last_index = first_index + r->n - 1;
    for (int64_t start = 0; start <= last_index; start += c->period) {
        int64_t end = start + c->length - 1, before = start - c->period + c->length - 1;
        bool whole = end == last_index && came;
        /* the first window that does not fit, unless the one before ends with the episode */
        bool rest = ends && c->padded && end > last_index && (start == 0 || before < last_index);
        if (start < first_index)
            continue;
        if (whole || rest)
            expect(w, t, r, (uint32_t)(start - first_index), (uint32_t)(last_index - first_index), false, false);
        if (end > last_index)
            break;
    }
}

/* What a step completes that is about to be stored, from the steps that live now. */
static void expect_items(world *w, uint32_t step_number)
{
    static uint32_t steps[MOST_LIVING + 1];
    static run own, left;
    const step *s = &w->steps[step_number];
    const es_step_head *h = &s->head;
    uint32_t n = living(w, steps);
    bool late = false;
    int64_t before = -1;
    for (uint32_t i = 0; i < n; i++)
        if (same_stream(&w->steps[steps[i]].head, h)) {
            late |= w->steps[steps[i]].head.number > h->number;
            if (w->steps[steps[i]].head.number == h->number - 1 && h->number > 0)
                before = steps[i] > before ? steps[i] : before;
        }
    for (uint32_t i = 0; i < n; i++)
        late |= same_stream(&w->steps[steps[i]].head, h) && w->steps[steps[i]].head.number == h->number;
    own = (run){.n = 0}, left = (run){.n = 0};
    if (before >= 0 && !late) {
        bool same = w->steps[before].head.episode == h->episode;
        find_run(w, h, h->number - 1, steps, n, same ? &own : &left);
        uint32_t flags = w->steps[before].head.flags;
        if (!same && flags & (ES_STEP_TERMINATED | ES_STEP_TRUNCATED | ES_STEP_LOST | ES_STEP_FINAL))
            left.n = 0;
    }
    if (CHECK(own.n < MOST_LIVING))
        own.steps[own.n++] = step_number;
    for (uint32_t t = 0; t < w->geo.num_tables; t++) {
        uint32_t kind = w->tables[t].item.kind;
        run real = own;
        real.n -= is_final(h->flags);
        w->num_expected[t] = 0;
        if (isnan(s->priorities[t]))
            continue;
        if (kind == ES_ITEM_STEP && !is_final(h->flags))
            expect(w, t, &own, own.n - 1, own.n - 1, false, false);
        if (kind == ES_ITEM_N_STEP && left.n > 0)
            expect_left_transitions(w, t, &left);
        if (kind == ES_ITEM_N_STEP)
            expect_transitions(w, t, &own, h->flags);
        if (kind == ES_ITEM_SEQUENCE && left.n > 0)
            expect_windows(w, t, &left, false, true);
        if (kind == ES_ITEM_SEQUENCE)
            expect_windows(w, t, &real, !is_final(h->flags), h->flags != 0);
    }
}

/* --- the model: contents ------------------------------------------------------------------ */

static void expect_steps(const item *it, const es_output *o, int64_t first, uint8_t *to)
{
    int64_t all = it->before + it->length;
    for (uint32_t i = 0; i < o->count; i++, to += sizes[o->leaf]) {
        int64_t at = first + o->from + i;
        memset(to, 0, sizes[o->leaf]);
        if (at < all && (at >= 0 || o->repeat))
            write_leaf(o->leaf, it->steps[at < 0 ? 0 : at], to);
    }
}

static void expect_output(world *w, uint32_t t, const item *it, const es_output *o, uint8_t *to)
{
    double gamma = w->tables[t].item.gamma, sum[2] = {0, 0};
    int64_t all = it->before + it->length, length = it->length - it->next;
    float single[2];
    switch (o->kind) {
    case ES_OUTPUT_STEPS:
        expect_steps(it, o, it->before, to);
        break;
    case ES_OUTPUT_NEXT:
        expect_steps(it, o, all - 1, to);
        break;
    case ES_OUTPUT_RETURN:
        for (int64_t k = 0; k < length; k++) {
            uint32_t s = it->steps[it->before + k];
            for (uint32_t e = 0; e < 2; e++)
                sum[e] += pow(gamma, (double)k) * (o->width == 8 ? reward_of(s) : small_reward_of(s, e));
        }
        single[0] = (float)sum[0], single[1] = (float)sum[1];
        memcpy(to, o->width == 8 ? (void *)sum : (void *)single, sizes[o->leaf]);
        break;
    case ES_OUTPUT_DISCOUNT:
        sum[0] = it->terminated ? 0 : pow(gamma, (double)length);
        single[0] = (float)sum[0];
        memcpy(to, o->width == 8 ? (void *)sum : (void *)single, o->width);
        break;
    case ES_OUTPUT_MASK:
        for (uint32_t i = 0; i < o->count; i++)
            to[i] = i < length;
        break;
    default:
        memcpy(to, &length, sizeof length);
    }
}

static es_batch_arrays arrays_for(uint64_t n)
{
    static uint8_t outputs[ES_ITEMS_OUTPUTS(LEAVES)][8 * ITEM];
    static void *leaves[ES_ITEMS_OUTPUTS(LEAVES)];
    static uint64_t key[8];
    static double probability[8], priority[8], weight[8];
    static int64_t times_sampled[8], table_size[8], age[8];
    CHECK(n <= 8);
    memset(outputs, 0xee, sizeof outputs);
    for (uint32_t o = 0; o < ES_ITEMS_OUTPUTS(LEAVES); o++)
        leaves[o] = outputs[o];
    return (es_batch_arrays){leaves, key, probability, priority, weight, times_sampled, table_size, age};
}

/* Whether the i-th item of these arrays is that one, byte by byte. */
static bool contents_are(world *w, uint32_t t, const es_batch_arrays *a, uint64_t i, const item *it)
{
    const es_output *o = w->outputs;
    uint8_t want[ITEM];
    bool same = true;
    for (uint32_t before = 0; before < t; before++)
        o += w->tables[before].item.num_outputs;
    for (uint32_t j = 0; j < w->tables[t].item.num_outputs; j++) {
        uint64_t size = es_replay_output_size(w->r, t, j);
        if (!CHECK(size <= ITEM))
            return false;
        expect_output(w, t, it, &o[j], want);
        if (memcmp(want, (uint8_t *)a->leaves[j] + i * size, size) != 0) {
            fprintf(stderr, "    table %u, output %u (kind %u, leaf %u) of an item of %u steps\n", t, j, o[j].kind,
                    o[j].leaf, it->length);
            same = false;
        }
    }
    return same;
}

/* --- the model: what there is -------------------------------------------------------------- */

/* Takes note of what has changed. Items that came must be those that were expected, in their order. What parks comes
 * after what does not. */
static void note_items(world *w, uint32_t t)
{
    es_table *table = table_of(w, t);
    es_trouble why;
    uint64_t to_park = table->words->parkings - w->parkings[t], entered = w->num_expected[t] - to_park;
    uint64_t came_in = w->num_parked[t] + to_park - table->parked.count;
    REQUIRE(to_park <= w->num_expected[t]);
    CHECK_EQ(table->words->inserted, w->inserted[t] + entered + came_in);
    for (uint32_t i = 0; i < table->slots; i++) {
        const es_item_record *r = &table->items[i];
        uint64_t key = (uint64_t)es_record_generation(r->word) << 32 | i;
        bool parked = es_rank_has(table->used, i) && !es_rank_has(table->members, i);
        if (!es_rank_has(table->used, i)) {
            w->keys[t][i] = 0;
            continue;
        }
        if (w->keys[t][i] != key) {
            uint64_t place = parked ? entered + r->inserted - w->parkings[t] : r->inserted - w->inserted[t];
            REQUIRE(place < w->num_expected[t]);
            w->keys[t][i] = key;
            w->items[t][i] = w->expected[t][place];
            w->came[t][w->num_came[t]++] = (struct came){key, w->items[t][i]};
            double given = w->steps[w->made - 1].priorities[t];
            CHECK(given < 0 ? r->priority >= 1 && r->priority <= table->highest : r->priority == given);
        }
        if (parked)
            continue;
        es_batch_arrays out = arrays_for(1);
        REQUIRE_EQ(es_replay_get(w->r, t, &key, 1, NAN, &out, &why), ES_OK);
        if (!CHECK(contents_are(w, t, &out, 0, &w->items[t][i])))
            fprintf(stderr, "    item %u of table %u, after step %u\n", i, t, w->made - 1);
    }
    w->inserted[t] = table->words->inserted;
    w->parkings[t] = table->words->parkings;
    w->num_parked[t] = table->parked.count;
    w->num_expected[t] = 0;
}

static bool has_step(const item *it, uint32_t step)
{
    for (uint32_t i = 0; i < it->before + it->length; i++)
        if (it->steps[i] == step)
            return true;
    return false;
}

/* How many items refer to a step: those of tables of several steps, and the others. */
static uint32_t count_uses(world *w, uint32_t step, uint32_t *single_uses)
{
    uint32_t many = 0;
    *single_uses = 0;
    for (uint32_t t = 0; t < w->geo.num_tables; t++)
        for (uint32_t i = 0; i < table_of(w, t)->slots; i++)
            if (w->keys[t][i] != 0 && has_step(&w->items[t][i], step))
                *(w->tables[t].item.kind == ES_ITEM_STEP ? single_uses : &many) += 1;
    return many;
}

/* Whether the stream of a living step keeps it. */
static bool is_kept(world *w, uint32_t step, const uint32_t *steps, uint32_t n)
{
    const es_step_head *h = &w->steps[step].head;
    uint64_t last = h->number;
    for (uint32_t i = 0; i < n; i++)
        if (same_stream(&w->steps[steps[i]].head, h) && w->steps[steps[i]].head.number > last)
            last = w->steps[steps[i]].head.number;
    return last - h->number < tables_of(w)->store.keep;
}

static bool is_in(const es_order *order, uint32_t number)
{
    for (uint32_t i = order->first; i != ES_ORDER_NONE; i = es_order_next(order, i))
        if (i == number)
            return true;
    return false;
}

/* Whether items that are not protected, parked ones included, end with the step in that record. */
static bool can_lose_items(world *w, uint32_t record)
{
    for (uint32_t t = 0; t < w->geo.num_tables; t++)
        for (uint32_t i = 0; i < table_of(w, t)->slots && !w->tables[t].is_protected; i++)
            if (es_rank_has(table_of(w, t)->used, i) && table_of(w, t)->items[i].step == record)
                return true;
    return false;
}

/* All that follows from the store, and that steps have in private memory. */
static void check_links(world *w, uint32_t *steps, uint32_t n)
{
    es_steps *s = &tables_of(w)->steps;
    static run r;
    for (uint32_t i = 0; i < tables_of(w)->store.step_slots; i++) {
        if (!es_rank_has(s->living, i))
            continue;
        uint32_t step = step_in(w, i), in_single, uses = count_uses(w, step, &in_single);
        bool bare = uses + in_single == 0, kept = is_kept(w, step, steps, n);
        CHECK(!bare || kept);
        if (s->links != NULL) {
            CHECK_EQ(s->links[i].uses, uses);
            CHECK_EQ(s->links[i].kept, kept);
            find_run(w, &w->steps[step].head, w->steps[step].head.number, steps, n, &r);
            if (es_steps_last(s, w->steps[step].head.stream, w->steps[step].head.environment) == i)
                CHECK_EQ(es_steps_run(s, i), r.n < tables_of(w)->store.keep ? r.n : tables_of(w)->store.keep);
        }
        CHECK_EQ(is_in(&s->open, i), can_lose_items(w, i));
        CHECK_EQ(is_in(&s->bare, i), bare);
    }
    const es_order *orders[] = {&s->open, &s->bare};
    for (int o = 0; o < 2; o++)
        for (uint32_t i = orders[o]->first, next; i != ES_ORDER_NONE; i = next) {
            next = es_order_next(orders[o], i);
            CHECK(next == ES_ORDER_NONE ||
                  tables_of(w)->store.steps[i].arrival < tables_of(w)->store.steps[next].arrival);
        }
}

static bool nothing_can_go(world *w)
{
    for (uint32_t t = 0; t < w->geo.num_tables; t++)
        if (!w->tables[t].is_protected && es_table_size(table_of(w, t)) > 0)
            return false;
    return tables_of(w)->steps.bare.count == 0;
}

static void check_room(world *w)
{
    CHECK(es_replay_num_steps(w->r) <= w->geo.capacity || nothing_can_go(w));
}

/* Whether a step is not kept because of another one of its stream. */
static bool is_behind(world *w, uint32_t step, uint32_t other)
{
    const es_step_head *h = &w->steps[step].head, *o = &w->steps[other].head;
    uint32_t keep = tables_of(w)->store.keep;
    if (!same_stream(h, o) || o->number < h->number)
        return false;
    return o->number - h->number >= keep || (keep == 1 && o->number == h->number && other > step);
}

/* What nothing needs has gone, and nothing else. */
static void check_steps(world *w)
{
    static uint32_t steps[MOST_LIVING];
    uint32_t n = living(w, steps), needed = 0, single_uses;
    CHECK_EQ(es_replay_num_steps(w->r), n);
    for (uint32_t i = 0; i < w->made; i++) {
        bool lives = false, used = count_uses(w, i, &single_uses) + single_uses > 0, kept = true;
        for (uint32_t k = 0; k < n; k++)
            lives |= steps[k] == i;
        for (uint32_t k = 0; k < w->made && kept; k++)
            kept = !is_behind(w, i, k);
        CHECK(!used || lives);
        if (!w->was_full && !CHECK_EQ(lives, used || kept))
            fprintf(stderr, "    step %u of %u, stream %d, number %d\n", i, w->made, (int)w->steps[i].head.stream,
                    (int)w->steps[i].head.number);
        needed += used;
    }
    CHECK(needed <= n);
    check_links(w, steps, n);
}

static void check_world(world *w)
{
    for (uint32_t t = 0; t < w->geo.num_tables; t++)
        note_items(w, t);
    check_steps(w);
}

static void reopen(world *w)
{
    es_replay_free(w->r);
    w->own = (es_step_head){.stream = STREAM + w->made};
    open_world(w);
    check_world(w);
}

/* --- storing -------------------------------------------------------------------------------- */

/* A step that came through a ring, whose head says everything. */
static int bring(world *w, const es_step_head *head, const double *priorities)
{
    const void *leaves[LEAVES];
    uint32_t number = w->made;
    row r = row_of(number);
    es_trouble why;
    es_origin origin = {&tables_of(w)->store.inbox[0], number};
    leaves_of(&r, leaves);
    w->steps[number] = (step){.head = *head};
    memcpy(w->steps[number].priorities, priorities, w->geo.num_tables * sizeof *priorities);
    expect_items(w, number);
    w->was_full |= es_replay_num_steps(w->r) + 1 >= w->geo.capacity;
    int code = es_insert_step(tables_of(w), head, leaves, 0, priorities, &origin, &why);
    if (code == ES_OK)
        w->made++, check_room(w);
    else
        memset(w->num_expected, 0, sizeof w->num_expected);
    check_world(w);
    return code;
}

/* The next step of the replay itself. */
static int add(world *w, uint32_t flags, const double *priorities)
{
    const void *leaves[LEAVES];
    uint32_t number = w->made;
    row r = row_of(number);
    es_trouble why;
    leaves_of(&r, leaves);
    w->own.flags = flags;
    w->steps[number] = (step){.head = w->own};
    memcpy(w->steps[number].priorities, priorities, w->geo.num_tables * sizeof *priorities);
    expect_items(w, number);
    w->was_full |= es_replay_num_steps(w->r) + 1 >= w->geo.capacity;
    int code = es_replay_add(w->r, leaves, flags, priorities, &why);
    if (code == ES_OK) {
        check_room(w);
        w->made++, w->own.number++, w->own.index++;
        if (flags != 0)
            w->own.episode++, w->own.index = 0;
    } else {
        memset(w->num_expected, 0, sizeof w->num_expected);
    }
    check_world(w);
    return code;
}

/* Expects what two steps complete, although the model sees the second one only when the first one lives: so the first
 * one is brought in a twin of the store. */
static int add_last(world *w, uint32_t flags, const double *priorities)
{
    const void *leaves[LEAVES], *final[LEAVES];
    uint32_t number = w->made;
    row r = row_of(number), last = row_of(number + 1);
    es_trouble why;
    leaves_of(&r, leaves), leaves_of(&last, final);
    es_insert_unpark(tables_of(w)); /* as whoever opens the twin does */
    check_world(w);
    w->own.flags = 0;
    es_step_head head = w->own, end = w->own;
    end.number++, end.index++, end.flags = flags | ES_STEP_FINAL;
    w->steps[number] = (step){.head = head}, w->steps[number + 1] = (step){.head = end};
    for (int i = 0; i < 2; i++)
        memcpy(w->steps[number + i].priorities, priorities, w->geo.num_tables * sizeof *priorities);
    w->was_full |= es_replay_num_steps(w->r) + 2 >= w->geo.capacity;
    void *before = malloc(w->size), *after = malloc(w->size);
    uint64_t arrivals = tables_of(w)->store.hdr->arrivals;
    memcpy(before, w->base, w->size);
    int code = es_replay_add_last(w->r, leaves, final, flags, priorities, &why);
    if (code != ES_OK) {
        CHECK_EQ(tables_of(w)->store.hdr->arrivals, arrivals); /* both or none */
    } else {
        /* again, in two steps of the same stream */
        es_replay *whole = w->r;
        memcpy(after, w->base, w->size);
        memcpy(w->base, before, w->size);
        open_world(w);
        expect_items(w, number);
        CHECK_EQ(es_insert_step(tables_of(w), &head, leaves, 0, priorities, NULL, &why), ES_OK);
        w->made++;
        check_world(w);
        expect_items(w, number + 1);
        CHECK_EQ(es_insert_step(tables_of(w), &end, final, 0, priorities, NULL, &why), ES_OK);
        w->made++;
        check_world(w);
        CHECK_EQ(memcmp(w->base, after, w->size), 0);
        es_replay_free(w->r);
        w->r = whole;
        w->own.number += 2, w->own.index = 0, w->own.episode++;
    }
    free(before);
    free(after);
    check_world(w);
    return code;
}

static void end_episode(world *w)
{
    es_replay_end_episode(w->r);
    w->own.episode += w->own.index > 0;
    w->own.index = 0;
}

static const double ones[TABLES] = {1, 2, 3};

/* --- every border ------------------------------------------------------------------------------ */

/* An episode of so many steps of the replay itself. */
static void play(world *w, uint32_t length, enum ending ending)
{
    static const uint32_t flags[ENDINGS] = {
        0, ES_STEP_TERMINATED, ES_STEP_TRUNCATED, ES_STEP_TERMINATED, ES_STEP_TRUNCATED, 0, ES_STEP_LOST};
    for (uint32_t i = 0; i + 1 < length; i++)
        CHECK_EQ(add(w, 0, ones), ES_OK);
    if (ending == FINAL_TERMINATED || ending == FINAL_TRUNCATED)
        CHECK_EQ(add_last(w, flags[ending], ones), ES_OK);
    else
        CHECK_EQ(add(w, flags[ending], ones), ES_OK);
    if (ending == END_EPISODE)
        end_episode(w);
}

/* The same, of two writers whose steps alternate. */
static void play_two(world *w, uint32_t length, enum ending ending)
{
    static const uint32_t flags[ENDINGS] = {0, ES_STEP_TERMINATED, ES_STEP_TRUNCATED, 0, 0, 0, ES_STEP_LOST};
    static es_step_head heads[2];
    bool final = ending == FINAL_TERMINATED || ending == FINAL_TRUNCATED;
    if (w->made == 0) {
        heads[0] = (es_step_head){.stream = 3, .environment = 5};
        heads[1] = (es_step_head){.stream = 3, .environment = 6, .number = 9, .episode = 2};
    }
    for (uint32_t i = 0; i < length + final; i++)
        for (uint32_t k = 0; k < 2; k++) {
            heads[k].flags = i + 1 == length ? flags[ending] : 0;
            if (i == length)
                heads[k].flags = ES_STEP_FINAL | (ending == FINAL_TERMINATED ? ES_STEP_TERMINATED : ES_STEP_TRUNCATED);
            CHECK_EQ(bring(w, &heads[k], ones), ES_OK);
            heads[k].number++, heads[k].index++;
        }
    for (uint32_t k = 0; k < 2 && ending != GOES_ON; k++)
        heads[k].index = 0, heads[k].episode++;
}

/* Episodes of 1 to 2 L + 1 steps with each ending, one after the other. */
static void every_episode(const es_item_config *items, uint32_t n, uint32_t longest,
                          void (*episode)(world *w, uint32_t length, enum ending ending))
{
    es_table_config tables[TABLES];
    for (uint32_t t = 0; t < n; t++)
        tables[t] = table(items[t]);
    for (uint32_t ending = GOES_ON; ending < ENDINGS; ending++) {
        world *w = new_world(400, ANY, tables, n);
        for (uint32_t length = 1; length <= longest && es_test_failures() == 0; length++)
            episode(w, length, ending);
        episode(w, 2, TERMINATED); /* something follows */
        reopen(w);
        CHECK(!w->was_full);
        destroy(w);
    }
}

TEST(every_transition)
{
    for (uint32_t n = 1; n <= 4; n++)
        for (uint32_t stack = 1; stack <= 3 && es_test_failures() == 0; stack++) {
            const es_item_config items[] = {n_step(n, stack), n_step(n, 1), single()};
            every_episode(items, 2, n + stack + 2, play);
            every_episode(items, 3, n + 2, play_two);
        }
}

TEST(every_sequence)
{
    for (uint32_t length = 1; length <= 4; length++)
        for (uint32_t period = 1; period <= length && es_test_failures() == 0; period++) {
            const es_item_config items[] = {sequence(length, period, 1), sequence(length, period, 0), single()};
            every_episode(items, 2, 2 * length + 2, play);
            every_episode(items, 3, length + 2, play_two);
        }
}

/* --- steps that are missing, or late --------------------------------------------------------------- */

static es_step_head head_of(uint64_t number, uint32_t index, uint32_t episode, uint32_t flags)
{
    return (es_step_head){.stream = 3, .number = number, .index = index, .episode = episode, .flags = flags};
}

static world *world_of(es_item_config first, es_item_config second, uint64_t capacity)
{
    es_table_config tables[] = {table(first), table(second)};
    return new_world(capacity, ANY, tables, 2);
}

static void bring_number(world *w, uint64_t number)
{
    es_step_head head = head_of(number, (uint32_t)number, 0, 0);
    CHECK_EQ(bring(w, &head, ones), ES_OK);
}

static uint64_t size_of(world *w, uint32_t t)
{
    return es_table_size(table_of(w, t));
}

/* Where a step is missing, nothing reaches across: windows begin anew behind it, stacked ones with all their frames. */
TEST(nothing_reaches_across_a_gap)
{
    for (uint64_t gap = 1; gap <= 6; gap++) {
        world *w = world_of(n_step(2, 3), sequence(3, 2, 1), 100);
        for (uint64_t number = 0; number < 14; number++)
            if (number != gap)
                bring_number(w, number);
        es_step_head last = head_of(14, 14, 0, ES_STEP_TERMINATED);
        CHECK_EQ(bring(w, &last, ones), ES_OK);
        CHECK(size_of(w, 0) < 14 && size_of(w, 1) < 7);
        reopen(w);
        destroy(w);
    }
}

/* A step that comes behind a younger one completes nothing but what it is alone. */
TEST(a_late_step_completes_no_window)
{
    static const uint32_t flags[] = {0, ES_STEP_TERMINATED, ES_STEP_TRUNCATED, ES_STEP_FINAL | ES_STEP_TERMINATED};
    for (uint32_t f = 0; f < 4; f++)
        for (uint64_t late = 0; late < 4; late++) {
            world *w = world_of(n_step(2, 1), sequence(3, 1, 1), 100);
            for (uint64_t number = 0; number < 9; number++)
                if (number != late)
                    bring_number(w, number);
            es_step_head head = head_of(late, (uint32_t)late, 0, flags[f]);
            uint64_t before = size_of(w, 0) + size_of(w, 1);
            CHECK_EQ(bring(w, &head, ones), ES_OK);
            CHECK(size_of(w, 0) + size_of(w, 1) <= before + 2);
            bring_number(w, 9);
            reopen(w);
            destroy(w);
        }
}

/* One that its stream does not keep completes an item in each table, and the first of them goes at once. */
TEST(a_step_stays_while_its_items_are_made)
{
    es_table_config tables[] = {table(n_step(2, 1)), table(n_step(2, 1)), table(sequence(3, 1, 1))};
    tables[0].max_size = 1, tables[0].remover.kind = ES_LIFO;
    world *w = new_world(100, ANY, tables, 3);
    for (uint64_t number = 20; number < 26; number++) {
        es_step_head head = head_of(number, (uint32_t)number, 2, 0);
        CHECK_EQ(bring(w, &head, ones), ES_OK);
    }
    es_step_head late = head_of(3, 0, 0, ES_STEP_TERMINATED);
    CHECK_EQ(bring(w, &late, ones), ES_OK);
    CHECK_EQ(size_of(w, 1), 4 + 1);
    reopen(w);
    destroy(w);
}

/* The number behind the greatest is not 0. */
TEST(numbers_do_not_wrap)
{
    world *w = world_of(n_step(1, 1), sequence(2, 1, 1), 100);
    es_step_head first = head_of(UINT64_MAX, 0, 0, 0), second = head_of(0, 1, 0, 0), third = head_of(1, 2, 0, 0);
    CHECK_EQ(bring(w, &first, ones), ES_OK);
    CHECK_EQ(bring(w, &second, ones), ES_OK);
    CHECK_EQ(bring(w, &third, ones), ES_OK);
    CHECK_EQ(size_of(w, 0) + size_of(w, 1), 0);
    destroy(w);
}

/* --- room --------------------------------------------------------------------------------------- */

/* The last step of an episode and what it ends with are stored both or not at all. */
TEST(no_room_for_what_an_episode_ends_with)
{
    for (uint64_t capacity = 5; capacity < 10; capacity++) {
        es_table_config tables[] = {table(single()), table(n_step(1, 1))};
        tables[0].is_protected = tables[1].is_protected = 1;
        world *w = new_world(capacity, ANY, tables, 2);
        int code = ES_OK;
        while (code == ES_OK && w->made < 2 * capacity)
            code = add_last(w, ES_STEP_TERMINATED, ones);
        CHECK_EQ(code, ES_NO_ROOM);
        CHECK(es_replay_num_steps(w->r) <= capacity);
        reopen(w);
        destroy(w);
    }
}

/* --- all at once, at random ------------------------------------------------------------------------ */

#define REMEMBERED 12
#define WRITERS 4

typedef struct writer {
    es_step_head head;
    uint64_t first;               /* number */
    es_step_head old[REMEMBERED]; /* by number: stored, or lost so far */
} writer;

static es_item_config draw_item(es_random *random)
{
    uint32_t length = 1 + es_random_below(random, 4);
    switch (es_random_below(random, 4)) {
    case 0:
        return single();
    case 1:
        return sequence(length, 1 + es_random_below(random, length), es_random_below(random, 2));
    default:
        return n_step(length, 1 + es_random_below(random, 3));
    }
}

/* Whether that step lives. */
static bool is_there(world *w, const es_step_head *h)
{
    static uint32_t steps[MOST_LIVING];
    uint32_t n = living(w, steps);
    for (uint32_t i = 0; i < n; i++)
        if (same_stream(&w->steps[steps[i]].head, h) && w->steps[steps[i]].head.number == h->number)
            return true;
    return false;
}

/* odd: writers whose steps are lost, come late, come twice, or say anything. */
static void bring_some(world *w, es_random *random, writer *writers, bool odd)
{
    writer *from = &writers[es_random_below(random, WRITERS)];
    static const uint32_t endings[] = {ES_STEP_TERMINATED, ES_STEP_TRUNCATED, ES_STEP_LOST,
                                       ES_STEP_FINAL | ES_STEP_TERMINATED, ES_STEP_FINAL | ES_STEP_TRUNCATED};
    double priorities[TABLES];
    for (uint32_t t = 0; t < TABLES; t++)
        priorities[t] = es_random_below(random, 8) == 0 ? NAN : (double)es_random_below(random, 5) - 1;
    es_step_head head = from->head;
    head.flags = es_random_below(random, 5) == 0 ? endings[es_random_below(random, 5)] : 0;
    if (head.flags & ES_STEP_FINAL && head.index == 0)
        head.flags = 0;
    uint64_t trick = odd ? es_random_below(random, 10) : 9;
    if (trick == 1 && head.number >= REMEMBERED + from->first) { /* an old one, late or again */
        head = from->old[es_random_below(random, REMEMBERED)];
        bool again = tables_of(w)->store.keep > 1 && is_there(w, &head);
        CHECK_EQ(bring(w, &head, priorities) == ES_ETWICE, again);
        return;
    }
    from->old[head.number % REMEMBERED] = head;
    if (trick != 0) /* otherwise it is late, or lost */
        bring(w, &head, priorities);
    from->head.number++, from->head.index++;
    if (head.flags != 0 || es_random_below(random, 12) == 0)
        from->head.index = 0, from->head.episode++;
}

/* One that lives, or was drawn. */
static const item *item_with(world *w, uint32_t t, uint64_t key)
{
    uint32_t i = 0;
    while (i < w->num_came[t] && w->came[t][i].key != key)
        i++;
    CHECK(i < w->num_came[t]);
    return &w->came[t][i].item;
}

/* short_batches: what is drawn for one that is cut short is forgotten when the store is closed. */
static void change_some(world *w, es_random *random, bool short_batches)
{
    es_trouble why;
    uint32_t t = es_random_below(random, w->geo.num_tables);
    uint64_t keys[1];
    es_table *table = table_of(w, t);
    if (es_table_size(table) == 0)
        return;
    uint32_t i = es_rank_member(table->members, es_random_below(random, es_table_size(table)));
    keys[0] = w->keys[t][i];
    switch (es_random_below(random, 3)) {
    case 0:
        CHECK_EQ(es_replay_delete(w->r, t, keys, 1), 1);
        break;
    case 1:
        CHECK_EQ(es_replay_update(w->r, t, keys, (const double[]){1}, 1, &why), 1);
        break;
    default: {
        if (es_table_size(table) < 2 && !short_batches)
            return;
        es_batch_arrays out = arrays_for(2);
        int code = es_replay_sample(w->r, t, 2, NAN, &out);
        for (uint64_t k = 0; k < 2 && code == ES_OK; k++)
            CHECK(contents_are(w, t, &out, k, item_with(w, t, out.key[k])));
    }
    }
    check_world(w);
}

/* parks: items may, which come in whenever the store is opened. */
static world *draw_world(es_random *random, bool parks)
{
    es_table_config tables[TABLES];
    uint32_t n = 1 + es_random_below(random, TABLES);
    for (uint32_t t = 0; t < n; t++) {
        tables[t] = table(draw_item(random));
        tables[t].max_size = es_random_below(random, 2) ? ANY : 1 + es_random_below(random, 9);
        tables[t].remover.kind = es_random_below(random, 2) ? ES_FIFO : ES_LIFO;
        tables[t].max_times_sampled = es_random_below(random, 3) == 0;
        tables[t].is_protected = es_random_below(random, 6) == 0;
        tables[t].max_parked = es_random_below(random, 3) || !parks ? 0 : 8;
        tables[t].max_diff = es_random_below(random, 4) || !parks ? INFINITY : 20;
    }
    uint64_t capacity = 8 + es_random_below(random, es_random_below(random, 2) ? 12 : 200);
    return new_world(capacity, es_random_below(random, 2) ? ANY : 3 + es_random_below(random, 20), tables, n);
}

static void draw_writers(writer *writers)
{
    for (uint32_t i = 0; i < WRITERS; i++)
        writers[i] = (writer){{.stream = 3 + i / 2, .environment = i % 2, .number = 10 * i}, .first = 10 * i};
}

static void play_at_random(es_random *random, bool odd)
{
    world *w = draw_world(random, true);
    writer writers[WRITERS];
    draw_writers(writers);
    for (int i = 0; i < 120 && es_test_failures() == 0; i++) {
        uint32_t kind = es_random_below(random, 24);
        if (kind == 0)
            reopen(w);
        else if (kind < 5)
            change_some(w, random, true);
        else if (kind < 9)
            add(w, es_random_below(random, 4) == 0 ? ES_STEP_TERMINATED : 0, ones);
        else if (kind == 9)
            add_last(w, es_random_below(random, 2) ? ES_STEP_TERMINATED : ES_STEP_TRUNCATED, ones);
        else if (kind == 10)
            end_episode(w);
        else
            bring_some(w, random, writers, odd);
    }
    destroy(w);
}

TEST(many_writers_and_small_stores)
{
    es_random random = es_random_new(1);
    for (uint64_t i = 0; i < es_test_scaled(40) && es_test_failures() == 0; i++)
        play_at_random(&random, false);
}

TEST(odd_writers_and_small_stores)
{
    es_random random = es_random_new(2);
    for (uint64_t i = 0; i < es_test_scaled(40) && es_test_failures() == 0; i++)
        play_at_random(&random, true);
}

/* Which items go, and which steps, follows from the store alone: one replay is opened again before each step, another
 * one never is. */
TEST(opening_it_again_changes_nothing)
{
    for (uint64_t i = 0; i < es_test_scaled(40) && es_test_failures() == 0; i++) {
        void *stores[2];
        uint64_t size = 0;
        for (int again = 0; again < 2; again++) {
            es_random random = es_random_new(100 + i);
            world *w = draw_world(&random, false);
            writer writers[WRITERS];
            draw_writers(writers);
            for (int k = 0; k < 80 && es_test_failures() == 0; k++) {
                if (again)
                    reopen(w);
                if (es_random_below(&random, 6) == 0)
                    change_some(w, &random, false);
                else
                    bring_some(w, &random, writers, i % 2);
            }
            size = w->size;
            stores[again] = w->base;
            w->base = NULL;
            destroy(w);
        }
        CHECK_EQ(memcmp(stores[0], stores[1], size), 0);
        free(stores[0]);
        free(stores[1]);
    }
}
