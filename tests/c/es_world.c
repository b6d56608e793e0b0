#include "es_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/es_insert.h"

/* A double, two floats, and the number of the step among all that the test stored. */
static const uint64_t sizes[LEAVES] = {8, 8, 4};
static const uint8_t uuid[16] = "sixteen bytes..";

static world the_world;

/* --- worlds ------------------------------------------------------------------------ */

static void world_open(world *w)
{
    es_trouble why;
    int error;
    w->r = es_replay_open(w->base, w->size, w->own.stream, NULL, 0, &error, &why);
    CHECK_EQ(error, ES_OK);
}

world *world_new(uint64_t capacity, uint64_t max_items, const es_table_config *tables, uint32_t num_tables)
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
    /* and two steps of one leaf */
    o = w->outputs;
    for (uint32_t t = 0; t < num_tables; o += w->tables[t++].item.num_outputs)
        if (w->tables[t].item.kind == ES_ITEM_EXPLICIT && w->tables[t].item.length > 1)
            o[1].count = 2;
    es_store_parts parts = {sizes, w->tables, w->outputs, ""};
    w->size = es_replay_store_size(&w->geo, &parts);
    CHECK(w->size > 0);
    w->base = aligned_alloc(ES_PAGE, w->size);
    memset(w->base, 0, w->size);
    CHECK_EQ(es_replay_format(w->base, w->size, &w->geo, &parts, uuid, 1, 1), ES_OK);
    world_open(w);
    for (uint32_t t = 0; t < num_tables; t++) {
        w->items[t] = calloc(world_table(w, t)->slots, sizeof *w->items[t]);
        w->keys[t] = calloc(world_table(w, t)->slots, sizeof *w->keys[t]);
        w->came[t] = calloc(MOST_STEPS, sizeof *w->came[t]);
    }
    return w;
}

void world_free(world *w)
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
    const es_store *s = &world_tables(w)->store;
    uint32_t step;
    memcpy(&step, es_store_at(s, &s->leaves[2], record), sizeof step);
    return step;
}

/* All that live. */
uint32_t world_living(world *w, uint32_t *steps)
{
    uint32_t n = 0;
    const es_steps *s = &world_tables(w)->steps;
    for (uint32_t i = 0; i < world_tables(w)->store.step_slots; i++)
        if (es_rank_has(s->living, i) && CHECK(n < MOST_LIVING))
            steps[n++] = step_in(w, i);
    return n;
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
    uint32_t n = world_living(w, steps);
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
    case ES_OUTPUT_COLUMN:
        for (uint32_t i = 0; i < o->count; i++) {
            es_item_column c = it->columns[o->leaf];
            int64_t back = c.back + (int64_t)(o->count - 1 - i) * c.stride;
            write_leaf(o->leaf, it->steps[all - 1 - back], to + i * sizes[o->leaf]);
        }
        break;
    case ES_OUTPUT_MASK:
        for (uint32_t i = 0; i < o->count; i++)
            to[i] = i < length;
        break;
    default:
        memcpy(to, &length, sizeof length);
    }
}

es_batch_arrays world_arrays(uint64_t n)
{
    static uint8_t outputs[ES_ITEMS_OUTPUTS(LEAVES)][8 * ITEM];
    static void *leaves[ES_ITEMS_OUTPUTS(LEAVES)];
    static uint64_t key[8];
    static double probability[8], priority[8], weight[8];
    static int64_t times_sampled[8], table_size[8], age[8], version[8];
    CHECK(n <= 8);
    for (uint32_t o = 0; o < ES_ITEMS_OUTPUTS(LEAVES); o++)
        leaves[o] = memset(outputs[o], 0xee, n * ITEM);
    return (es_batch_arrays){leaves, key, probability, priority, weight, times_sampled, table_size, age, version};
}

/* Whether the i-th item of these arrays is that one, byte by byte. */
bool world_contents_are(world *w, uint32_t t, const es_batch_arrays *a, uint64_t i, const item *it)
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

/* What the last step completed that ends with that step, among the expected ones. */
static uint32_t expected_with(world *w, uint32_t t, uint32_t last)
{
    uint32_t i = 0;
    while (i < w->num_expected[t]) {
        const item *it = &w->expected[t][i];
        if (it->steps[it->before + it->length - 1] == last)
            break;
        i++;
    }
    return i;
}

/* Takes note of what has changed. Items that came must be those that were expected, in their order. What parks comes
 * after what does not. */
static void note_items(world *w, uint32_t t)
{
    es_table *table = world_table(w, t);
    es_trouble why;
    uint64_t to_park = table->words->parkings - w->parkings[t], entered = w->num_expected[t] - to_park;
    uint64_t came_in = w->num_parked[t] + to_park - table->parked.count;
    REQUIRE(to_park <= w->num_expected[t]);
    CHECK_EQ(table->words->inserted, w->inserted[t] + entered + came_in);
    for (uint32_t i = 0; i < table->slots; i++) {
        bool implicit = es_table_is_implicit(table);
        const es_item_record one = es_table_record(table, i), *r = &one;
        uint64_t key = es_table_key(table, i);
        bool parked = es_rank_has(table->used, i) && !es_rank_has(table->members, i);
        if (!es_rank_has(table->used, i)) {
            w->keys[t][i] = 0;
            continue;
        }
        if (w->keys[t][i] != key) {
            uint64_t place = parked ? entered + r->inserted - w->parkings[t] : r->inserted - w->inserted[t];
            if (implicit)
                place = expected_with(w, t, step_in(w, i));
            REQUIRE(place < w->num_expected[t]);
            w->keys[t][i] = key;
            w->items[t][i] = w->expected[t][place];
            w->came[t][w->num_came[t]++] = (struct came){key, w->items[t][i]};
            double given = w->describes ? w->described : w->steps[w->made - 1].priorities[t];
            CHECK(implicit    ? r->priority == 1
                  : given < 0 ? r->priority >= 1 && r->priority <= table->highest
                              : r->priority == given);
        }
        if (parked)
            continue;
        es_batch_arrays out = world_arrays(1);
        REQUIRE_EQ(es_replay_get(w->r, t, &key, 1, NAN, &out, &why), ES_OK);
        if (!CHECK(world_contents_are(w, t, &out, 0, &w->items[t][i])))
            fprintf(stderr, "    item %u of table %u, after step %u\n", i, t, w->made - 1);
    }
    w->inserted[t] = table->words->inserted;
    w->parkings[t] = table->words->parkings;
    w->num_parked[t] = table->parked.count;
    w->num_expected[t] = 0;
}

/* How many items refer to a step, which an item does once: those of tables of several steps, of which those that are
 * implicit count once for each table; and the others. */
typedef struct use_counts {
    uint32_t many, single, by[TABLES];
} use_counts;

static void count_uses(world *w, use_counts *of)
{
    memset(of, 0, w->made * sizeof *of);
    for (uint32_t t = 0; t < w->geo.num_tables; t++)
        for (uint32_t i = 0; i < world_table(w, t)->slots; i++) {
            const item *it = &w->items[t][i];
            for (uint32_t k = 0; w->keys[t][i] != 0 && k < it->before + it->length; k++) {
                use_counts *u = &of[it->steps[k]];
                if (es_table_is_implicit(world_table(w, t)) && u->by[t]++ > 0)
                    continue;
                *(w->tables[t].item.kind == ES_ITEM_STEP ? &u->single : &u->many) += 1;
            }
        }
}

/* Whether the stream of a living step keeps it. */
static bool is_kept(world *w, uint32_t step, const uint32_t *steps, uint32_t n)
{
    const es_step_head *h = &w->steps[step].head;
    uint64_t last = h->number;
    for (uint32_t i = 0; i < n; i++)
        if (same_stream(&w->steps[steps[i]].head, h) && w->steps[steps[i]].head.number > last)
            last = w->steps[steps[i]].head.number;
    return last - h->number < world_tables(w)->store.keep;
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
        for (uint32_t i = 0; i < world_table(w, t)->slots && !w->tables[t].is_protected; i++)
            if (es_rank_has(world_table(w, t)->used, i) && es_table_step_of(world_table(w, t), i) == record)
                return true;
    return false;
}

/* All that follows from the store, and that steps have in private memory. */
static void check_links(world *w, const use_counts *uses, uint32_t *steps, uint32_t n)
{
    es_steps *s = &world_tables(w)->steps;
    static run r;
    for (uint32_t i = 0; i < world_tables(w)->store.step_slots; i++) {
        if (!es_rank_has(s->living, i))
            continue;
        uint32_t step = step_in(w, i);
        bool bare = uses[step].many + uses[step].single == 0, kept = is_kept(w, step, steps, n);
        CHECK(!bare || kept);
        if (s->links != NULL) {
            CHECK_EQ(s->links[i].uses, uses[step].many);
            CHECK_EQ(s->links[i].kept, kept);
            find_run(w, &w->steps[step].head, w->steps[step].head.number, steps, n, &r);
            if (es_steps_last(s, w->steps[step].head.stream, w->steps[step].head.environment) == i)
                CHECK_EQ(es_steps_run(s, i), r.n < world_tables(w)->store.keep ? r.n : world_tables(w)->store.keep);
        }
        CHECK_EQ(is_in(&s->open, i), can_lose_items(w, i));
        CHECK_EQ(is_in(&s->bare, i), bare);
    }
    const es_order *orders[] = {&s->open, &s->bare};
    for (int o = 0; o < 2; o++)
        for (uint32_t i = orders[o]->first, next; i != ES_ORDER_NONE; i = next) {
            next = es_order_next(orders[o], i);
            CHECK(next == ES_ORDER_NONE ||
                  world_tables(w)->store.steps[i].arrival < world_tables(w)->store.steps[next].arrival);
        }
}

static bool nothing_can_go(world *w)
{
    for (uint32_t t = 0; t < w->geo.num_tables; t++)
        if (!w->tables[t].is_protected && es_table_size(world_table(w, t)) > 0)
            return false;
    return world_tables(w)->steps.bare.count == 0;
}

static void check_room(world *w)
{
    CHECK(es_replay_num_steps(w->r) <= w->geo.capacity || nothing_can_go(w));
}

/* Whether a step is not kept because of another one of its stream. */
static bool is_behind(world *w, uint32_t step, uint32_t other)
{
    const es_step_head *h = &w->steps[step].head, *o = &w->steps[other].head;
    uint32_t keep = world_tables(w)->store.keep;
    if (!same_stream(h, o) || o->number < h->number)
        return false;
    return o->number - h->number >= keep || (keep == 1 && o->number == h->number && other > step);
}

/* What nothing needs has gone, and nothing else. */
static void check_steps(world *w)
{
    static uint32_t steps[MOST_LIVING];
    static use_counts uses[MOST_STEPS];
    uint32_t n = world_living(w, steps), needed = 0;
    CHECK_EQ(es_replay_num_steps(w->r), n);
    count_uses(w, uses);
    for (uint32_t i = 0; i < w->made; i++) {
        bool lives = false, used = uses[i].many + uses[i].single > 0, kept = true;
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
    check_links(w, uses, steps, n);
}

void world_check(world *w)
{
    for (uint32_t t = 0; t < w->geo.num_tables; t++)
        note_items(w, t);
    check_steps(w);
}

void world_reopen(world *w)
{
    es_replay_free(w->r);
    w->own = (es_step_head){.stream = STREAM + w->made};
    world_open(w);
    world_check(w);
}

/* --- storing -------------------------------------------------------------------------------- */

/* A step that came through a ring, whose head says everything. */
int world_bring(world *w, const es_step_head *head, const double *priorities)
{
    const void *leaves[LEAVES];
    uint32_t number = w->made;
    row r = row_of(number);
    es_trouble why;
    es_origin origin = {&world_tables(w)->store.inbox[0], number};
    leaves_of(&r, leaves);
    w->steps[number] = (step){.head = *head};
    memcpy(w->steps[number].priorities, priorities, w->geo.num_tables * sizeof *priorities);
    expect_items(w, number);
    w->was_full |= es_replay_num_steps(w->r) + 1 >= w->geo.capacity;
    int code = es_insert_step(world_tables(w), head, leaves, 0, priorities, &origin, &why);
    if (code == ES_OK)
        w->made++, check_room(w);
    else
        memset(w->num_expected, 0, sizeof w->num_expected);
    world_check(w);
    return code;
}

/* Expects such an item. Whether all of its steps are there, and fit. */
static bool expect_described(world *w, uint32_t t, const es_step_head *of, uint64_t number, uint32_t length,
                             const es_item_column *columns)
{
    static uint32_t steps[MOST_LIVING];
    uint32_t n = world_living(w, steps), outputs = w->tables[t].item.num_outputs;
    const es_output *o = w->outputs;
    item it = {.length = length};
    for (uint32_t before = 0; before < t; before++)
        o += w->tables[before].item.num_outputs;
    for (uint32_t j = 0; j < outputs; j++) {
        if (columns[j].stride == 0 || columns[j].back + (uint64_t)(o[j].count - 1) * columns[j].stride >= length)
            return false;
        it.columns[o[j].leaf] = columns[j];
    }
    if (length < 1 || length > w->tables[t].item.length || number + 1 < length)
        return false;
    for (uint32_t k = 0; k < length; k++) {
        int64_t found = -1;
        for (uint32_t i = 0; i < n; i++)
            if (same_stream(&w->steps[steps[i]].head, of) && w->steps[steps[i]].head.number == number - k)
                found = steps[i];
        if (found < 0 || (k == 0 && !is_kept(w, (uint32_t)found, steps, n)))
            return false;
        it.steps[length - 1 - k] = (uint32_t)found;
    }
    w->expected[t][w->num_expected[t]++] = it;
    return true;
}

int world_describe(world *w, uint32_t t, const es_step_head *of, uint64_t number, uint32_t length,
                   const es_item_column *columns, double priority)
{
    es_explicit_item one = {.stream = of->stream,
                            .environment = of->environment,
                            .number = number,
                            .table = t,
                            .length = length,
                            .priority = priority,
                            .columns = columns};
    es_origin origin = {&world_tables(w)->store.inbox[0], w->made};
    es_trouble why;
    bool fits = expect_described(w, t, of, number, length, columns);
    w->was_full |= es_replay_num_steps(w->r) + 1 >= w->geo.capacity;
    int code = es_insert_item(world_tables(w), &one, &origin, &why);
    CHECK_EQ(code == ES_EXPIRED, !fits);
    if (code != ES_OK)
        memset(w->num_expected, 0, sizeof w->num_expected);
    w->describes = true, w->described = priority;
    world_check(w);
    w->describes = false;
    return code;
}

/* The next step of the replay itself. */
int world_add(world *w, uint32_t flags, const double *priorities)
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
    world_check(w);
    return code;
}

/* Expects what two steps complete, although the model sees the second one only when the first one lives: so the first
 * one is brought in a twin of the store. */
int world_add_last(world *w, uint32_t flags, const double *priorities)
{
    const void *leaves[LEAVES], *final[LEAVES];
    uint32_t number = w->made;
    row r = row_of(number), last = row_of(number + 1);
    es_trouble why;
    leaves_of(&r, leaves), leaves_of(&last, final);
    es_insert_unpark(world_tables(w)); /* as whoever opens the twin does */
    world_check(w);
    w->own.flags = 0;
    es_step_head head = w->own, end = w->own;
    end.number++, end.index++, end.flags = flags | ES_STEP_FINAL;
    w->steps[number] = (step){.head = head}, w->steps[number + 1] = (step){.head = end};
    for (int i = 0; i < 2; i++)
        memcpy(w->steps[number + i].priorities, priorities, w->geo.num_tables * sizeof *priorities);
    w->was_full |= es_replay_num_steps(w->r) + 2 >= w->geo.capacity;
    void *before = malloc(w->size), *after = malloc(w->size);
    uint64_t arrivals = world_tables(w)->store.hdr->arrivals;
    memcpy(before, w->base, w->size);
    int code = es_replay_add_last(w->r, leaves, final, flags, priorities, &why);
    if (code != ES_OK) {
        CHECK_EQ(world_tables(w)->store.hdr->arrivals, arrivals); /* both or none */
    } else {
        /* again, in two steps of the same stream */
        es_replay *whole = w->r;
        memcpy(after, w->base, w->size);
        memcpy(w->base, before, w->size);
        world_open(w);
        expect_items(w, number);
        CHECK_EQ(es_insert_step(world_tables(w), &head, leaves, 0, priorities, NULL, &why), ES_OK);
        w->made++;
        world_check(w);
        expect_items(w, number + 1);
        CHECK_EQ(es_insert_step(world_tables(w), &end, final, 0, priorities, NULL, &why), ES_OK);
        w->made++;
        world_check(w);
        CHECK_EQ(memcmp(w->base, after, w->size), 0);
        es_replay_free(w->r);
        w->r = whole;
        w->own.number += 2, w->own.index = 0, w->own.episode++;
    }
    free(before);
    free(after);
    world_check(w);
    return code;
}

void world_end_episode(world *w)
{
    es_replay_end_episode(w->r);
    w->own.episode += w->own.index > 0;
    w->own.index = 0;
}
