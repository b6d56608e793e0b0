/* Replays that are killed: while they insert, evict, draw, update, delete, reset, and recover. */
#include <math.h>
#include <string.h>

#include "es_configs.h"
#include "es_revive.h"
#include "replay/es_store.h"

/* --- inserting ---------------------------------------------------------------------- */

static int64_t add_one(es_vault *v, uint64_t parts)
{
    (void)parts;
    return vault_add(v, 0, (const double[]){5, 0.5, -1});
}

static void add_four(es_vault *v)
{
    vault_add_some(v, 4);
}

REVIVE_EVERYWHERE(first_step, .tables = {TABLE("a", ES_UNIFORM, ES_FIFO, 4)}, .num_tables = 1, .capacity = 4,
                  .max_items = ANY, .act = add_one, .parts = 1, .where_it_writes = true,
                  .through = "es_steps_reserve es_table_reserve es_gather_into_step");

/* Each table is full, and its remover picks. */
REVIVE_EVERYWHERE(insert_into_three_tables,
                  .tables = {TABLE("a", ES_PRIORITIZED, ES_FIFO, 4), TABLE("b", ES_UNIFORM, ES_UNIFORM, 3),
                             PROTECTED("c", ES_LIFO, ES_MIN_HEAP, 3)},
                  .num_tables = 3, .capacity = 6, .max_items = ANY, .before = add_four, .act = add_one, .parts = 1,
                  .through = "es_replay_add es_insert_step note_step es_table_note_insert es_redo_commit apply "
                             "es_table_evict es_table_remove es_table_leave es_steps_drop es_room_settle");

/* The remover draws, so the generator's state changes with what it picks. */
REVIVE_EVERYWHERE(remover_draws_by_weight,
                  .tables = {TABLE("a", ES_FIFO, ES_PRIORITIZED, 3), TABLE("b", ES_MIN_HEAP, ES_LIFO, 2)},
                  .num_tables = 2, .capacity = 6, .max_items = ANY, .before = add_four, .act = add_one, .parts = 1,
                  .where_it_writes = true, .through = "es_table_evict draw es_prefix_tree_find_many");

static void add_four_apart(es_vault *v)
{
    vault_add(v, 0, (const double[]){NAN, 1});
    vault_add(v, 0, (const double[]){1, NAN});
    vault_add(v, 0, (const double[]){NAN, 2});
    vault_add(v, 0, (const double[]){2, NAN});
}

/* Room for a step is made by the items of the oldest one. */
REVIVE_EVERYWHERE(oldest_step_goes,
                  .tables = {TABLE("a", ES_UNIFORM, ES_FIFO, ANY), TABLE("b", ES_FIFO, ES_MAX_HEAP, ANY)},
                  .num_tables = 2, .capacity = 4, .max_items = ANY, .before = add_four_apart, .act = add_one,
                  .parts = 1, .through = "oldest_that_can_go es_room_settle es_steps_unlink");

/* Room for an item is made by one of the oldest step's, which keeps its others. */
REVIVE_EVERYWHERE(oldest_item_goes, .tables = {TABLE("a", ES_UNIFORM, ES_FIFO, ANY), TABLE("b", ES_FIFO, ES_FIFO, ANY)},
                  .num_tables = 2, .capacity = 8, .max_items = 9, .before = add_four, .act = add_one, .parts = 1,
                  .through = "oldest_that_can_go es_room_settle");

/* Three streams have written. The first two keep their last steps, to which no item refers. All items are protected. */
static void fill_with_kept_steps(es_vault *v)
{
    for (uint64_t stream = 1; stream <= 3; stream++) {
        vault_close(v);
        vault_open(v, stream == 3 ? VAULT_STREAM : stream);
        if (stream > 1)
            vault_add(v, 0, (const double[]){1, NAN});
        vault_add(v, 0, (const double[]){stream < 3 ? NAN : 2, NAN});
    }
}

static int64_t add_protected(es_vault *v, uint64_t parts)
{
    int64_t code = ES_OK;
    for (uint64_t i = 0; i < parts && code == ES_OK; i++)
        code = vault_add(v, 0, (const double[]){4, NAN});
    return code;
}

/* Nothing else can go: the stream that was idle longest loses the step that it kept, then the next one. One of them has
 * another step, which it keeps from then on. */
REVIVE_EVERYWHERE(kept_steps_go, .tables = {PROTECTED("a", ES_UNIFORM, ES_FIFO, 5), TABLE("b", ES_FIFO, ES_FIFO, 5)},
                  .num_tables = 2, .capacity = 5, .max_items = ANY, .before = fill_with_kept_steps,
                  .act = add_protected, .parts = 2,
                  .through = "kept_longer_than es_steps_drop free_stream last_of es_room_settle");

static int64_t extend(es_vault *v, uint64_t parts)
{
    return vault_extend(v, parts, (const uint8_t[]){0, ES_STEP_TERMINATED, 0}, (const double[]){2, 1, -1, NAN, 0.5, 3});
}

/* An episode ends within the block, and old items go. */
REVIVE_EVERYWHERE(extend_by_three,
                  .tables = {TABLE("a", ES_UNIFORM, ES_FIFO, 4), TABLE("b", ES_MAX_HEAP, ES_MIN_HEAP, 3)},
                  .num_tables = 2, .capacity = 4, .max_items = ANY, .before = add_four, .act = extend, .parts = 3,
                  .want = 3, .where_it_writes = true, .through = "es_replay_extend es_steps_enter");

static int64_t end_episodes(es_vault *v, uint64_t parts)
{
    int code = vault_add(v, ES_STEP_TRUNCATED, (const double[]){1});
    if (parts > 1 && code == ES_OK)
        code = vault_add(v, ES_STEP_LOST, (const double[]){2});
    return code;
}

REVIVE_EVERYWHERE(episodes_end, .tables = {TABLE("a", ES_FIFO, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 5,
                  .max_items = ANY, .before = add_four, .act = end_episodes, .parts = 2,
                  .through = "es_steps_enter es_steps_drop");

/* --- drawing ------------------------------------------------------------------------- */

static int64_t sample(es_vault *v, uint64_t parts)
{
    return vault_sample(v, 0, parts);
}

static void add_different(es_vault *v)
{
    for (int i = 0; i < 4; i++)
        vault_add(v, 0, (const double[]){i, 3 - i, 1});
}

/* Independent draws change the store list by list. */
static int64_t sample_lists(es_vault *v, uint64_t parts)
{
    return vault_sample(v, 0, parts > 1 ? ES_STORE_DRAWS + 2 : ES_STORE_DRAWS);
}

/* There are four items, so each list has some several times. */
REVIVE_EVERYWHERE(sample_by_priority, .tables = {TABLE("a", ES_PRIORITIZED, ES_FIFO, ANY)}, .num_tables = 1,
                  .capacity = 5, .max_items = ANY, .before = add_different, .act = sample_lists, .parts = 2,
                  .through = "es_replay_sample es_draw draw_independent note_some note_draws es_redo_commit "
                             "es_gather_near weigh");

/* Rows larger than a few cache lines are copied one by one, and small leaves by their size. */
static const uint64_t large_leaves[] = {1, 2, 32, 600, 0};

REVIVE_EVERYWHERE(sample_large_steps, .tables = {TABLE("a", ES_SOFTMAX, ES_LIFO, ANY)}, .num_tables = 1, .capacity = 5,
                  .max_items = ANY, .leaf_sizes = large_leaves, .before = add_different, .act = sample_lists,
                  .parts = 2, .through = "es_replay_sample es_gather_near copy_large es_softmax_tree_find_many");

/* Each item goes when it is drawn, with its step unless another table has it. */
REVIVE_EVERYWHERE(sample_each_once, .tables = {ONCE("a", ES_UNIFORM, ES_FIFO, ANY), TABLE("b", ES_FIFO, ES_FIFO, 2)},
                  .num_tables = 2, .capacity = 5, .max_items = ANY, .before = add_four, .act = sample, .parts = 3,
                  .through = "draw_one note_draws es_gather es_table_note_free es_table_leave es_steps_drop");

static void draw_two_of_three(es_vault *v)
{
    vault_add_some(v, 3);
    CHECK_EQ(vault_sample(v, 0, 2), ES_OK);
}

/* The last item of a round, and two of the next. */
REVIVE_EVERYWHERE(sample_across_rounds, .tables = {ROUNDS("a", ES_UNIFORM, ES_FIFO, ANY)}, .num_tables = 1,
                  .capacity = 5, .max_items = ANY, .before = draw_two_of_three, .act = sample, .parts = 3,
                  .where_it_writes = true, .through = "draw_one begin_round es_selector_set_aside");

static void draw_two_of_four(es_vault *v)
{
    add_different(v);
    CHECK_EQ(vault_sample(v, 0, 2), ES_OK);
    memset(v->keys + 2, 0xff, sizeof v->keys - 16);
}

static int64_t update_one_and_sample(es_vault *v, uint64_t parts)
{
    int64_t there = vault_update(v, 0, v->keys, (const double[]){9}, 1);
    return parts > 1 ? vault_sample(v, 0, 1) : there;
}

/* An item that was drawn in this round gets a priority, which counts from the next round on. */
REVIVE_EVERYWHERE(update_what_was_drawn, .tables = {ROUNDS("a", ES_SOFTMAX, ES_FIFO, ANY)}, .num_tables = 1,
                  .capacity = 5, .max_items = ANY, .before = draw_two_of_four, .act = update_one_and_sample, .parts = 2,
                  .where_it_writes = true, .through = "set_aside es_softmax_tree_set");

REVIVE_EVERYWHERE(update_what_was_drawn_by_weight, .tables = {ROUNDS("a", ES_PRIORITIZED, ES_FIFO, ANY)},
                  .num_tables = 1, .capacity = 5, .max_items = ANY, .before = draw_two_of_four,
                  .act = update_one_and_sample, .parts = 2, .where_it_writes = true,
                  .through = "set_aside es_prefix_tree_set");

static void add_two(es_vault *v)
{
    vault_add_some(v, 2);
}

static void add_two_and_draw(es_vault *v)
{
    add_two(v);
    CHECK_EQ(vault_sample(v, 0, 1), ES_OK);
}

static int64_t sample_too_many(es_vault *v, uint64_t parts)
{
    return vault_sample(v, 0, parts == 2 ? 3 : parts);
}

/* There are two items for a batch of three. They are kept for the next batch, and die with the process. */
REVIVE_EVERYWHERE(batch_cut_short, .tables = {ONCE("a", ES_FIFO, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 5,
                  .max_items = ANY, .before = add_two, .act = sample_too_many, .parts = 2, .want = ES_SHORT,
                  .forgets = true, .through = "es_drawn_insert es_drawn_reserve");

static void cut_a_batch_short(es_vault *v)
{
    add_two(v);
    CHECK_EQ(vault_sample(v, 0, 3), ES_SHORT);
    add_two(v);
}

static int64_t sample_three(es_vault *v, uint64_t parts)
{
    (void)parts;
    return vault_sample(v, 0, 3);
}

/* Two items come from a batch that was cut short, and one is drawn. */
REVIVE_EVERYWHERE(batch_completed, .tables = {ONCE("a", ES_FIFO, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 5,
                  .max_items = ANY, .before = cut_a_batch_short, .act = sample_three, .parts = 1, .forgets = true,
                  .through = "es_drawn_take");

/* --- changing ------------------------------------------------------------------------- */

static void add_and_draw_three(es_vault *v)
{
    add_different(v);
    CHECK_EQ(vault_sample(v, 0, 3), ES_OK);
    for (int i = 0; i < 3; i++)
        v->keys[i] = UINT64_C(1) << 32 | (uint64_t)i;
    memset(v->keys + 3, 0xff, sizeof v->keys - 24);
}

/* The third key is one of those before: the list that has these is carried out first. */
static int64_t update_some(es_vault *v, uint64_t parts)
{
    const uint64_t keys[] = {v->keys[0], v->keys[1], v->keys[0], v->keys[2]};
    return vault_update(v, 0, keys, (const double[]){9, 0.5, 0, 12}, 2 * parts);
}

/* One key comes twice. */
REVIVE_EVERYWHERE(update_with_duplicates,
                  .tables = {TABLE("a", ES_MAX_HEAP, ES_PRIORITIZED, ANY), TABLE("b", ES_FIFO, ES_FIFO, ANY)},
                  .num_tables = 2, .capacity = 5, .max_items = ANY, .before = add_and_draw_three, .act = update_some,
                  .parts = 2, .want = 3, .where_it_writes = true, .through = "es_replay_update es_table_update");

static int64_t update_lists(es_vault *v, uint64_t parts)
{
    uint64_t keys[ES_STORE_UPDATES + 2];
    double priorities[ES_STORE_UPDATES + 2];
    for (uint64_t i = 0; i < ES_STORE_UPDATES + 2; i++)
        keys[i] = UINT64_C(1) << 32 | i, priorities[i] = (double)(i + 2);
    return vault_update(v, 0, keys, priorities, parts > 1 ? ES_STORE_UPDATES + 2 : parts * ES_STORE_UPDATES);
}

static void add_as_many(es_vault *v)
{
    vault_add_some(v, ES_STORE_UPDATES + 2);
}

/* More keys than one list has room for. */
REVIVE_EVERYWHERE(update_lists_of_keys, .tables = {TABLE("a", ES_PRIORITIZED, ES_FIFO, ANY)}, .num_tables = 1,
                  .capacity = ES_STORE_UPDATES + 2, .max_items = ANY, .before = add_as_many, .act = update_lists,
                  .parts = 2, .want = ES_STORE_UPDATES + 2, .where_it_writes = true,
                  .through = "es_table_update note_priority commit_priorities");

static int64_t delete_two(es_vault *v, uint64_t parts)
{
    const uint64_t keys[] = {v->keys[0], v->keys[3], v->keys[2]};
    return vault_delete(v, 0, keys, parts == 2 ? 3 : parts);
}

/* One key is unknown. */
REVIVE_EVERYWHERE(delete_some, .tables = {TABLE("a", ES_UNIFORM, ES_MAX_HEAP, ANY), TABLE("b", ES_LIFO, ES_FIFO, 2)},
                  .num_tables = 2, .capacity = 5, .max_items = ANY, .before = add_and_draw_three, .act = delete_two,
                  .parts = 2, .want = 2, .through = "es_replay_delete es_table_remove es_table_leave");

static int64_t reset(es_vault *v, uint64_t parts)
{
    (void)parts;
    return es_replay_reset(v->r, 0);
}

/* A reset that was begun is finished by whoever opens the store. */
REVIVE_EVERYWHERE(reset_a_table, .tables = {ROUNDS("a", ES_UNIFORM, ES_FIFO, ANY), TABLE("b", ES_FIFO, ES_FIFO, 2)},
                  .num_tables = 2, .capacity = 5, .max_items = ANY, .before = add_and_draw_three, .act = reset,
                  .parts = 1, .through = "es_replay_reset es_table_reset es_table_remove");

static int64_t look_at_all(es_vault *v, uint64_t parts)
{
    (void)parts;
    es_replay_end_episode(v->r);
    for (uint32_t t = 0; t < v->geo.num_tables; t++)
        vault_look(v, t);
    return vault_add(v, 0, (const double[]){INFINITY, 1, 1});
}

/* Reading changes nothing, and so does a step that is refused. */
REVIVE_EVERYWHERE(nothing_changes,
                  .tables = {ROUNDS("a", ES_UNIFORM, ES_FIFO, ANY), TABLE("b", ES_PRIORITIZED, ES_LIFO, ANY),
                             TABLE("c", ES_SOFTMAX, ES_MIN_HEAP, ANY)},
                  .num_tables = 3, .capacity = 5, .max_items = ANY, .before = add_and_draw_three, .act = look_at_all,
                  .want = ES_EPRIORITY, .where_it_writes = true,
                  .through = "es_replay_info es_replay_get es_replay_can_sample es_replay_can_insert "
                             "es_replay_check_priority es_replay_num_steps");

REVIVE_EVERYWHERE(nothing_changes_in_others,
                  .tables = {TABLE("a", ES_FIFO, ES_FIFO, ANY), TABLE("b", ES_MAX_HEAP, ES_LIFO, ANY),
                             TABLE("c", ES_UNIFORM, ES_MIN_HEAP, ANY)},
                  .num_tables = 3, .capacity = 5, .max_items = ANY, .before = add_and_draw_three, .act = look_at_all,
                  .want = ES_EPRIORITY, .where_it_writes = true, .through = "es_replay_info es_replay_get probability");

/* --- ageing --------------------------------------------------------------------------- */

static int64_t learned(es_vault *v, uint64_t parts)
{
    (void)parts;
    return vault_learned(v, 0);
}

/* Two items that came before any update, one after the second one, and one after the third one. */
static void grow_old(es_vault *v)
{
    for (int i = 0; i < 7; i++)
        if (i == 2 || i == 3 || i == 5)
            CHECK_EQ(vault_learned(v, 0), ES_OK);
        else
            vault_add(v, 0, (const double[]){i, 1});
}

/* One item becomes cold, and those go that are too old: one step with it, the other one has an item in another table. */
REVIVE_EVERYWHERE(items_grow_old, .tables = {HOT_AND_COLD("a", ES_MIN_HEAP, 9, 0), TABLE("b", ES_FIFO, ES_FIFO, 3)},
                  .num_tables = 2, .capacity = 9, .max_items = ANY, .before = grow_old, .act = learned, .parts = 1,
                  .through = "es_replay_learned es_table_age es_hot_cold_advance es_table_remove_aged");

static void grow_old_apart(es_vault *v)
{
    for (int i = 0; i < 4; i++) {
        vault_add(v, 0, (const double[]){i, 1});
        CHECK_EQ(vault_learned(v, 0), ES_OK);
    }
}

/* The hot part has room for no more, and the table neither: the item that it loses is a hot one. */
REVIVE_EVERYWHERE(hot_part_is_full, .tables = {HOT_AND_COLD("a", ES_MIN_HEAP, 4, 0.5)}, .num_tables = 1, .capacity = 9,
                  .max_items = ANY, .before = add_four, .act = add_one, .parts = 1, .where_it_writes = true,
                  .twice = true, .through = "es_insert_step es_table_note_cold es_hot_cold_advance es_table_evict");

REVIVE_EVERYWHERE(sample_hot_and_cold, .tables = {HOT_AND_COLD("a", ES_MIN_HEAP, 9, 0.5)}, .num_tables = 1,
                  .capacity = 9, .max_items = ANY, .before = grow_old_apart, .act = sample_lists, .parts = 2,
                  .where_it_writes = true, .through = "es_replay_sample draw_some note_some");

REVIVE_EVERYWHERE(reset_hot_and_cold, .tables = {HOT_AND_COLD("a", ES_FIFO, 9, 0.5)}, .num_tables = 1, .capacity = 9,
                  .max_items = ANY, .before = grow_old_apart, .act = reset, .parts = 1, .where_it_writes = true,
                  .through = "es_table_reset es_hot_cold_begin");

REVIVE_EVERYWHERE(nothing_changes_in_hot_and_cold, .tables = {HOT_AND_COLD("a", ES_FIFO, 9, 0.5)}, .num_tables = 1,
                  .capacity = 9, .max_items = ANY, .before = grow_old_apart, .act = look_at_all, .want = ES_EPRIORITY,
                  .where_it_writes = true, .through = "es_replay_info describe effective bytes");

/* There were 15 changes after this, two of them items that became cold, and temperatures were chosen after the first. */
static void nearly_tune(es_vault *v)
{
    add_four(v);
    CHECK_EQ(vault_learned(v, 0), ES_OK);
    for (uint64_t i = 0; i < 9; i++)
        vault_update(v, 0, (const uint64_t[]){UINT64_C(1) << 32 | i % 4}, (const double[]){(double)(i * i % 19)}, 1);
}

static int64_t update_three(es_vault *v, uint64_t parts)
{
    const uint64_t keys[] = {UINT64_C(1) << 32 | 3, UINT64_C(1) << 32 | 2, UINT64_C(1) << 32 | 3};
    return vault_update(v, 0, keys, (const double[]){4, 30, 7}, parts + 1);
}

/* The third key comes twice, so there are two lists. With either one temperatures are due. */
REVIVE_EVERYWHERE(temperatures_are_chosen, .tables = {HOT_AND_COLD("a", ES_MIN_HEAP, 9, 0.5)}, .num_tables = 1,
                  .capacity = 9, .max_items = ANY, .before = nearly_tune, .act = update_three, .parts = 2, .want = 2,
                  .where_it_writes = true,
                  .through = "es_table_tune es_temperature_choose es_softmax_tree_rescale es_redo_commit");

REVIVE_EVERYWHERE(a_temperature_is_chosen,
                  .tables = {{.name = "a",
                              .sampler = {.kind = ES_SOFTMAX, .parameter = 0.5, .target = 0.3},
                              .remover = {.kind = ES_FIFO},
                              .max_size = ANY,
                              .min_size = 1,
                              .ratio = 1,
                              .replacement = 1,
                              .min_diff = -INFINITY,
                              .max_diff = INFINITY}},
                  .num_tables = 1, .capacity = 9, .max_items = ANY, .act = add_one, .parts = 1, .where_it_writes = true,
                  .through = "es_table_tune");

/* --- notes ------------------------------------------------------------------------------ */

#define NOTES 24

static int64_t keep_notes(es_vault *v, uint64_t parts)
{
    char notes[2][NOTES + 1] = {"the notes that were there", "and those that come now.."};
    (void)parts;
    es_replay_set_notes(v->r, notes[1], NOTES);
    es_replay_notes(v->r, notes[0], NOTES);
    return memcmp(notes[0], notes[1], NOTES);
}

static void keep_others(es_vault *v)
{
    add_four(v);
    es_replay_set_notes(v->r, "the notes that were there", NOTES);
}

/* They are those that were there, or those that come. */
REVIVE_EVERYWHERE(notes_are_kept, .tables = {TABLE("a", ES_UNIFORM, ES_FIFO, 4)}, .num_tables = 1, .capacity = 4,
                  .max_items = ANY, .notes = NOTES, .before = keep_others, .act = keep_notes, .parts = 1,
                  .where_it_writes = true, .through = "es_notes_write");

/* --- parking --------------------------------------------------------------------------- */

static int64_t bring_one(es_vault *v, uint64_t parts)
{
    (void)parts;
    return vault_bring(v, (const double[]){3, 2});
}

/* The store is full, too. */
REVIVE_EVERYWHERE(item_parks, .tables = {PARKED("a", ES_UNIFORM, ES_FIFO, ANY), TABLE("b", ES_FIFO, ES_FIFO, ANY)},
                  .num_tables = 2, .capacity = 2, .max_items = ANY, .before = add_two, .act = bring_one, .parts = 1,
                  .parks = true,
                  .through = "es_insert_step es_table_can_park es_table_note_park es_table_enter_parked");

static void park_two(es_vault *v)
{
    add_two(v);
    CHECK_EQ(bring_one(v, 1), ES_OK);
    CHECK_EQ(bring_one(v, 1), ES_OK);
}

static int64_t sample_and_turn(es_vault *v, uint64_t parts)
{
    int64_t code = ES_OK;
    for (uint64_t i = 0; i < parts && code == ES_OK; i++)
        code = vault_sample(v, 0, 1);
    vault_turn(v);
    return code;
}

/* Each draw lets one in, and another one goes. */
REVIVE_EVERYWHERE(parked_items_come_in,
                  .tables = {PARKED("a", ES_UNIFORM, ES_UNIFORM, 2), TABLE("b", ES_FIFO, ES_FIFO, 3)}, .num_tables = 2,
                  .capacity = 5, .max_items = ANY, .before = park_two, .act = sample_and_turn, .parts = 2,
                  .parks = true, .through = "es_replay_turn es_insert_unpark es_table_unpark es_table_evict");

REVIVE_EVERYWHERE(reset_drops_parked_items,
                  .tables = {PARKED("a", ES_UNIFORM, ES_UNIFORM, 2), TABLE("b", ES_FIFO, ES_FIFO, 3)}, .num_tables = 2,
                  .capacity = 5, .max_items = ANY, .before = park_two, .act = reset, .parts = 1, .parks = true,
                  .through = "es_table_reset drop_parked");

/* --- limits ---------------------------------------------------------------------------- */

/* Each time there is room for one of the items that are parked. */
static int64_t set_limits(es_vault *v, uint64_t parts)
{
    int64_t code = vault_set_limits(v, 0, -7, 3);
    if (parts > 1 && code == ES_OK)
        code = vault_set_limits(v, 0, -INFINITY, 4);
    vault_turn(v);
    return code;
}

/* Both limits change, or none. Whoever is killed meanwhile, or while it opens the store: one item comes in each time, and
 * another one goes. */
REVIVE_EVERYWHERE(
    limits_change, .tables = {PARKED("a", ES_UNIFORM, ES_UNIFORM, 2), TABLE("b", ES_FIFO, ES_FIFO, 3)}, .num_tables = 2,
    .capacity = 5, .max_items = ANY, .before = park_two, .act = set_limits, .parts = 2, .parks = true, .twice = true,
    .through = "es_replay_set_limits es_table_limits_set es_redo_commit es_insert_unpark es_table_unpark");

/* --- opening --------------------------------------------------------------------------- */

/* Whoever recovers is killed, too. */
REVIVE_EVERYWHERE(insert_and_recover,
                  .tables = {ROUNDS("a", ES_UNIFORM, ES_FIFO, 3), TABLE("b", ES_SOFTMAX, ES_MAX_HEAP, 2),
                             TABLE("c", ES_PRIORITIZED, ES_LIFO, 3)},
                  .num_tables = 3, .capacity = 3, .max_items = ANY, .before = add_two_and_draw, .act = add_one,
                  .parts = 1, .where_it_writes = true, .twice = true, .through = "es_replay_add");

static int64_t format(es_vault *v, uint64_t parts)
{
    (void)parts;
    return vault_format(v);
}

/* A store without its magic number is refused. */
REVIVE_EVERYWHERE(format_a_store, .tables = {TABLE("a", ES_FIFO, ES_FIFO, 2)}, .num_tables = 1, .capacity = 3,
                  .max_items = ANY, .act = format, .parts = 1, .formats = true, .where_it_writes = true,
                  .through = "es_replay_format es_store_format");
