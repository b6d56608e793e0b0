/* Items of several steps: which there are, what they give to a batch, and which steps stay. es_world.c has the model. What
 * a death leaves is in tests/trace. */
#include <stdlib.h>
#include <string.h>

#include "es_world.h"

enum ending { GOES_ON, TERMINATED, TRUNCATED, FINAL_TERMINATED, FINAL_TRUNCATED, END_EPISODE, LOST, ENDINGS };

static const double ones[TABLES] = {1, 2, 3};

/* --- every border ------------------------------------------------------------------------------ */

/* An episode of so many steps of the replay itself. */
static void play(world *w, uint32_t length, enum ending ending)
{
    static const uint32_t flags[ENDINGS] = {
        0, ES_STEP_TERMINATED, ES_STEP_TRUNCATED, ES_STEP_TERMINATED, ES_STEP_TRUNCATED, 0, ES_STEP_LOST};
    for (uint32_t i = 0; i + 1 < length; i++)
        CHECK_EQ(world_add(w, 0, ones), ES_OK);
    if (ending == FINAL_TERMINATED || ending == FINAL_TRUNCATED)
        CHECK_EQ(world_add_last(w, flags[ending], ones), ES_OK);
    else
        CHECK_EQ(world_add(w, flags[ending], ones), ES_OK);
    if (ending == END_EPISODE)
        world_end_episode(w);
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
            CHECK_EQ(world_bring(w, &heads[k], ones), ES_OK);
            heads[k].number++, heads[k].index++;
        }
    for (uint32_t k = 0; k < 2 && ending != GOES_ON; k++)
        heads[k].index = 0, heads[k].episode++;
}

static uint32_t sampler = ES_FIFO;

/* Episodes of 1 to 2 L + 1 steps with each ending, one after the other. */
static void every_episode(const es_item_config *items, uint32_t n, uint32_t longest,
                          void (*episode)(world *w, uint32_t length, enum ending ending))
{
    es_table_config tables[TABLES];
    for (uint32_t t = 0; t < n; t++)
        tables[t] = table(items[t]), tables[t].sampler.kind = sampler;
    for (uint32_t ending = GOES_ON; ending < ENDINGS; ending++) {
        world *w = world_new(400, ANY, tables, n);
        for (uint32_t length = 1; length <= longest && es_test_failures() == 0; length++)
            episode(w, length, ending);
        episode(w, 2, TERMINATED); /* something follows */
        world_reopen(w);
        CHECK(!w->was_full);
        world_free(w);
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

/* The same without records of them. */
TEST(every_implicit_sequence)
{
    sampler = ES_UNIFORM;
    for (uint32_t length = 1; length <= 4 && es_test_failures() == 0; length++) {
        const es_item_config items[] = {sequence(length, 1, 1), sequence(length, 1, 0), single()};
        every_episode(items, 2, 2 * length + 2, play);
        every_episode(items, 3, length + 2, play_two);
    }
    sampler = ES_FIFO;
}

/* Items of up to L steps with every length and every column, across episodes, whether its steps are there or not. */
TEST(every_described_item)
{
    for (uint32_t most = 1; most <= 4; most++) {
        es_table_config tables[] = {table(described(most)), table(described(2)), table(n_step(2, 1))};
        world *w = world_new(100, ANY, tables, 3);
        uint64_t fitted = 0;
        for (uint64_t number = 0; number < 9; number++) {
            es_step_head head = {.stream = 3,
                                 .number = number,
                                 .index = (uint32_t)number % 4,
                                 .episode = (uint32_t)number / 4,
                                 .flags = number % 4 == 3 ? ES_STEP_TERMINATED : 0};
            if (number == 5)
                continue;
            CHECK_EQ(world_bring(w, &head, ones), ES_OK);
            for (uint32_t length = 0; length <= most + 1; length++)
                for (uint32_t back = 0; back <= length; back++)
                    for (uint32_t ago = 0; ago < 7; ago++) {
                        const es_item_column columns[] = {{back, 1}, {0, 1 + back % 2}, {0, 1}};
                        fitted += world_describe(w, 0, &head, number - ago, length, columns, 1) == ES_OK;
                    }
        }
        CHECK(fitted >= 8);
        world_reopen(w);
        CHECK(!w->was_full);
        world_free(w);
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
    return world_new(capacity, ANY, tables, 2);
}

static void bring_number(world *w, uint64_t number)
{
    es_step_head head = head_of(number, (uint32_t)number, 0, 0);
    CHECK_EQ(world_bring(w, &head, ones), ES_OK);
}

static uint64_t size_of(world *w, uint32_t t)
{
    return es_table_size(world_table(w, t));
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
        CHECK_EQ(world_bring(w, &last, ones), ES_OK);
        CHECK(size_of(w, 0) < 14 && size_of(w, 1) < 7);
        world_reopen(w);
        world_free(w);
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
            CHECK_EQ(world_bring(w, &head, ones), ES_OK);
            CHECK(size_of(w, 0) + size_of(w, 1) <= before + 2);
            bring_number(w, 9);
            world_reopen(w);
            world_free(w);
        }
}

/* One that its stream does not keep completes an item in each table, and the first of them goes at once. */
TEST(a_step_stays_while_its_items_are_made)
{
    es_table_config tables[] = {table(n_step(2, 1)), table(n_step(2, 1)), table(sequence(3, 1, 1))};
    tables[0].max_size = 1, tables[0].remover.kind = ES_LIFO;
    world *w = world_new(100, ANY, tables, 3);
    for (uint64_t number = 20; number < 26; number++) {
        es_step_head head = head_of(number, (uint32_t)number, 2, 0);
        CHECK_EQ(world_bring(w, &head, ones), ES_OK);
    }
    es_step_head late = head_of(3, 0, 0, ES_STEP_TERMINATED);
    CHECK_EQ(world_bring(w, &late, ones), ES_OK);
    CHECK_EQ(size_of(w, 1), 4 + 1);
    world_reopen(w);
    world_free(w);
}

/* The number behind the greatest is not 0. */
TEST(numbers_do_not_wrap)
{
    world *w = world_of(n_step(1, 1), sequence(2, 1, 1), 100);
    es_step_head first = head_of(UINT64_MAX, 0, 0, 0), second = head_of(0, 1, 0, 0), third = head_of(1, 2, 0, 0);
    CHECK_EQ(world_bring(w, &first, ones), ES_OK);
    CHECK_EQ(world_bring(w, &second, ones), ES_OK);
    CHECK_EQ(world_bring(w, &third, ones), ES_OK);
    CHECK_EQ(size_of(w, 0) + size_of(w, 1), 0);
    world_free(w);
}

/* --- room --------------------------------------------------------------------------------------- */

/* The last step of an episode and what it ends with are stored both or not at all. */
TEST(no_room_for_what_an_episode_ends_with)
{
    for (uint64_t capacity = 5; capacity < 10; capacity++) {
        es_table_config tables[] = {table(single()), table(n_step(1, 1))};
        tables[0].is_protected = tables[1].is_protected = 1;
        world *w = world_new(capacity, ANY, tables, 2);
        int code = ES_OK;
        while (code == ES_OK && w->made < 2 * capacity)
            code = world_add_last(w, ES_STEP_TERMINATED, ones);
        CHECK_EQ(code, ES_NO_ROOM);
        CHECK(es_replay_num_steps(w->r) <= capacity);
        world_reopen(w);
        world_free(w);
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
    switch (es_random_below(random, 5)) {
    case 4:
        return described(length);
    case 0:
        return single();
    case 1:
        return sequence(length, es_random_below(random, 2) ? 1 : 1 + es_random_below(random, length),
                        es_random_below(random, 2));
    default:
        return n_step(length, 1 + es_random_below(random, 3));
    }
}

/* Whether that step lives. */
static bool is_there(world *w, const es_step_head *h)
{
    static uint32_t steps[MOST_LIVING];
    uint32_t n = world_living(w, steps);
    for (uint32_t i = 0; i < n; i++)
        if (same_stream(&w->steps[steps[i]].head, h) && w->steps[steps[i]].head.number == h->number)
            return true;
    return false;
}

/* An item of the last steps of a writer, in any table of such items. Some do not fit, or are of steps that have gone. */
static void describe_some(world *w, es_random *random, const writer *from)
{
    es_item_column columns[LEAVES];
    uint32_t t = es_random_below(random, w->geo.num_tables), length = es_random_below(random, 6);
    uint64_t number = from->head.number - es_random_below(random, 6);
    for (uint32_t l = 0; l < LEAVES; l++)
        columns[l] = (es_item_column){es_random_below(random, 3),
                                      es_random_below(random, 12) == 0 ? 0 : 1 + es_random_below(random, 2)};
    if (w->tables[t].item.kind == ES_ITEM_EXPLICIT)
        world_describe(w, t, &from->head, number, length, columns, (double)es_random_below(random, 5) - 1);
}

/* odd: writers whose steps are lost, come late, come twice, or say anything. */
static void bring_some(world *w, es_random *random, writer *writers, bool odd)
{
    writer *from = &writers[es_random_below(random, WRITERS)];
    if (es_random_below(random, 4) == 0)
        describe_some(w, random, from);
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
        bool again = world_tables(w)->store.keep > 1 && is_there(w, &head);
        CHECK_EQ(world_bring(w, &head, priorities) == ES_ETWICE, again);
        return;
    }
    from->old[head.number % REMEMBERED] = head;
    if (trick != 0) /* otherwise it is late, or lost */
        world_bring(w, &head, priorities);
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
    es_table *table = world_table(w, t);
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
        es_batch_arrays out = world_arrays(2);
        int code = es_replay_sample(w->r, t, 2, NAN, &out);
        for (uint64_t k = 0; k < 2 && code == ES_OK; k++)
            CHECK(world_contents_are(w, t, &out, k, item_with(w, t, out.key[k])));
    }
    }
    world_check(w);
}

/* parks: items may, which come in whenever the store is opened. */
static world *draw_world(es_random *random, bool parks)
{
    es_table_config tables[TABLES];
    uint32_t n = 1 + es_random_below(random, TABLES);
    for (uint32_t t = 0; t < n; t++) {
        tables[t] = table(draw_item(random));
        tables[t].sampler.kind = es_random_below(random, 3) ? ES_UNIFORM : ES_FIFO;
        tables[t].max_size = es_random_below(random, 2) ? ANY : 1 + es_random_below(random, 9);
        tables[t].remover.kind = es_random_below(random, 3) ? ES_FIFO : ES_LIFO;
        tables[t].max_times_sampled = es_random_below(random, 3) == 0;
        tables[t].is_protected = es_random_below(random, 6) == 0;
        tables[t].max_parked = es_random_below(random, 3) || !parks ? 0 : 8;
        tables[t].max_diff = es_random_below(random, 4) || !parks ? INFINITY : 20;
    }
    uint64_t capacity = 8 + es_random_below(random, es_random_below(random, 2) ? 12 : 200);
    return world_new(capacity, es_random_below(random, 2) ? ANY : 3 + es_random_below(random, 20), tables, n);
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
            world_reopen(w);
        else if (kind < 5)
            change_some(w, random, true);
        else if (kind < 9)
            world_add(w, es_random_below(random, 4) == 0 ? ES_STEP_TERMINATED : 0, ones);
        else if (kind == 9)
            world_add_last(w, es_random_below(random, 2) ? ES_STEP_TERMINATED : ES_STEP_TRUNCATED, ones);
        else if (kind == 10)
            world_end_episode(w);
        else
            bring_some(w, random, writers, odd);
    }
    world_free(w);
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
                    world_reopen(w);
                if (es_random_below(&random, 6) == 0)
                    change_some(w, &random, false);
                else
                    bring_some(w, &random, writers, i % 2);
            }
            size = w->size;
            stores[again] = w->base;
            w->base = NULL;
            world_free(w);
        }
        CHECK_EQ(memcmp(stores[0], stores[1], size), 0);
        free(stores[0]);
        free(stores[1]);
    }
}
