/* Replays that are killed while they use what rings bring, connect to them, and let go of them. */
#include <math.h>
#include <string.h>

#include "es_configs.h"
#include "es_feed.h"
#include "replay/es_source.h"

#define HIGHEST -1 /* the table's own */
#define KEY(i) (UINT64_C(1) << 32 | (i))

static void turn(es_feed *f)
{
    feed_turn(f);
}

static void connect_and_turn(es_feed *f)
{
    feed_connect(f);
    feed_turn(f);
}

static void add_two(es_vault *v)
{
    vault_add_some(v, 2);
}

static void add_four(es_vault *v)
{
    vault_add_some(v, 4);
}

/* --- steps ---------------------------------------------------------------------------- */

static void send_three(es_feed *f)
{
    feed_step(f, 0, (const double[]){5, 0.5});
    feed_step(f, ES_STEP_TERMINATED, (const double[]){HIGHEST, NAN});
    feed_step(f, 0, (const double[]){0, 2});
}

/* Both tables are full, and then the store is. */
FEED_EVERYWHERE(steps_come_and_others_go,
                .tables = {TABLE("a", ES_PRIORITIZED, ES_FIFO, 4), TABLE("b", ES_UNIFORM, ES_UNIFORM, 3)},
                .num_tables = 2, .capacity = 4, .slots = 4, .before = add_four, .send = send_three, .act = turn,
                .through = "es_replay_turn es_inbox_store store_step es_source_next take_more es_group_take "
                           "es_consumer_look_on es_source_used es_source_release es_group_release es_lease_end "
                           "es_insert_step es_table_evict es_table_leave");

static void send_four(es_feed *f)
{
    for (int i = 0; i < 4; i++)
        feed_step(f, 0, (const double[]){1 + i, 3 - i});
}

/* The first one enters, two park in one of the tables, and the last one stays in its ring. */
FEED_EVERYWHERE(steps_park_and_wait,
                .tables = {CONFIG("a", ES_UNIFORM, ES_FIFO, ANY, 1, .max_diff = 3, .max_parked = 2),
                           TABLE("b", ES_FIFO, ES_FIFO, 3)},
                .num_tables = 2, .capacity = 5, .slots = 4, .before = add_two, .send = send_four, .act = turn,
                .through = "es_inbox_store es_table_note_park es_table_can_park es_source_release");

static void send_impossible(es_feed *f)
{
    feed_step(f, 0, (const double[]){1});
    feed_step(f, 0, (const double[]){INFINITY});
    feed_step(f, 0, (const double[]){2});
}

/* The second one has a priority that its writer should not have sent. */
FEED_EVERYWHERE(step_is_passed_over, .tables = {TABLE("a", ES_PRIORITIZED, ES_FIFO, 2)}, .num_tables = 1, .capacity = 3,
                .slots = 3, .before = add_two, .send = send_impossible, .act = turn,
                .through = "es_inbox_store pass_over");

/* --- updates --------------------------------------------------------------------------- */

/* One key comes twice, and one is unknown. */
static const uint64_t keys[] = {KEY(0), KEY(2), KEY(9), KEY(0)};
static const double priorities[] = {7, 0.25, 3, 0.5};

static void send_priorities(es_feed *f)
{
    feed_updates(f, 0, ES_UPDATE_PRIORITIES, 4, keys, priorities);
    feed_step(f, 0, (const double[]){HIGHEST, 1});
}

/* Two change together: the third key that there is was one of theirs. */
static void update_first(es_feed *f, uint32_t n)
{
    vault_update(&f->v, 0, keys, priorities, 2 * n);
}

FEED_EVERYWHERE(priorities_change,
                .tables = {TABLE("a", ES_MAX_HEAP, ES_PRIORITIZED, 4), TABLE("b", ES_FIFO, ES_MIN_HEAP, 3)},
                .num_tables = 2, .capacity = 5, .slots = 2, .before = add_four, .send = send_priorities, .act = turn,
                .parts = 2, .part = update_first,
                .through = "es_inbox_update make_update es_table_update note_priority pass_over");

static void send_deletions(es_feed *f)
{
    feed_updates(f, 0, 7, 1, keys, priorities);
    feed_updates(f, 0, ES_UPDATE_DELETE, 4, keys, priorities);
    feed_step(f, 0, (const double[]){HIGHEST, 1});
}

/* The first block is none. */
FEED_EVERYWHERE(items_are_deleted, .tables = {TABLE("a", ES_UNIFORM, ES_MAX_HEAP, 4), TABLE("b", ES_LIFO, ES_FIFO, 2)},
                .num_tables = 2, .capacity = 5, .slots = 2, .before = add_four, .send = send_deletions, .act = turn,
                .through = "es_inbox_update block_is_possible make_update es_table_remove pass_over");

/* Two items that came before any update, and one after each of two. */
static void grow_old(es_vault *v)
{
    for (int i = 0; i < 4; i++) {
        vault_add(v, 0, (const double[]){i, 1});
        if (i > 0 && i < 3)
            CHECK_EQ(vault_learned(v, 0), ES_OK);
    }
}

static void send_learned(es_feed *f)
{
    feed_updates(f, 1, ES_UPDATE_LEARNED, 0, keys, priorities);
    feed_updates(f, 0, ES_UPDATE_LEARNED, 0, keys, priorities);
    feed_updates(f, 0, ES_UPDATE_LEARNED, 0, keys, priorities);
    feed_step(f, 0, (const double[]){HIGHEST, 1});
}

/* Each of two updates of the learner counts once: the clock is a word of the store. In the second table items do not
 * age. */
FEED_EVERYWHERE(updates_of_the_learner_are_counted,
                .tables = {HOT_AND_COLD("a", ES_MIN_HEAP, 9, 0), TABLE("b", ES_FIFO, ES_FIFO, 3)}, .num_tables = 2,
                .capacity = 9, .slots = 2, .before = grow_old, .send = send_learned, .act = turn,
                .through = "es_inbox_update block_is_possible make_update es_table_age es_hot_cold_advance "
                           "es_table_remove_aged pass_over");

/* --- connecting ------------------------------------------------------------------------ */

static void send_to_new_rings(es_feed *f)
{
    feed_updates(f, 0, ES_UPDATE_PRIORITIES, 1, keys, priorities);
    feed_step(f, 0, (const double[]){3, 1});
    feed_step(f, 0, (const double[]){4, 2});
}

static void update_one(es_feed *f, uint32_t n)
{
    vault_update(&f->v, 0, keys, priorities, n);
}

/* The store says of each slot of the rings before that it was used once. */
FEED_EVERYWHERE(new_rings, .tables = {TABLE("a", ES_PRIORITIZED, ES_FIFO, ANY), TABLE("b", ES_FIFO, ES_FIFO, 3)},
                .num_tables = 2, .capacity = 8, .slots = 3, .before = add_four, .known = true,
                .send = send_to_new_rings, .connects = true, .act = connect_and_turn, .parts = 1, .part = update_one,
                .through = "es_replay_connect_inbox es_replay_connect_updates es_inbox_open_steps "
                           "es_inbox_open_updates es_source_open fits es_known_adopt");

/* A replay has used two steps, has taken the third, and has died before it released any. */
FEED_EVERYWHERE(same_rings_again, .tables = {TABLE("a", ES_PRIORITIZED, ES_FIFO, 4), TABLE("b", ES_FIFO, ES_FIFO, 3)},
                .num_tables = 2, .capacity = 5, .slots = 5, .before = add_two, .send = send_four, .used = 2,
                .connects = true, .act = connect_and_turn,
                .through = "es_source_open es_known_adopt es_source_next es_source_used");

static void send_a_group(es_feed *f)
{
    for (int i = 0; i < ES_GROUP_MOST + 1; i++)
        feed_step(f, 0, (const double[]){i});
}

/* As many are used up as are released at once: the last one of them is new. */
FEED_EVERYWHERE(steps_are_released_in_groups, .tables = {TABLE("a", ES_FIFO, ES_FIFO, 2)}, .num_tables = 1,
                .capacity = 3, .slots = ES_GROUP_MOST + 2, .send = send_a_group, .used = ES_GROUP_MOST - 1,
                .connects = true, .act = connect_and_turn, .through = "es_source_used es_source_release");

/* --- batches --------------------------------------------------------------------------- */

static void send_one(es_feed *f)
{
    feed_step(f, 0, (const double[]){3, 1});
}

static void add_four_of_different_weights(es_vault *v)
{
    vault_add_some(v, 4);
    vault_update(v, 0, (const uint64_t[]){KEY(0), KEY(2)}, (const double[]){5, 0.25}, 2);
}

/* Four draws, in two batches. */
FEED_EVERYWHERE(batches_are_drawn, .tables = {TABLE("a", ES_PRIORITIZED, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 8,
                .slots = 2, .boxes = {{0, 2, 2}}, .before = add_four_of_different_weights, .act = turn,
                .through = "es_replay_turn fill_outboxes es_outbox_fill fill_some es_draw draw_independent note_draws "
                           "es_gather_near es_api_reserve_many es_api_commit_many");

static const uint64_t large_leaves[] = {8, 4200};

/* The same past the caches. */
FEED_EVERYWHERE(large_batches_are_drawn, .tables = {TABLE("a", ES_PRIORITIZED, ES_FIFO, ANY)}, .num_tables = 1,
                .capacity = 8, .leaf_sizes = large_leaves, .slots = 2, .boxes = {{0, 2, 2, .streams = true}},
                .before = add_four_of_different_weights, .act = turn, .through = "copy_large es_copy_stream");

/* Six draws, one batch after the other, into two rings that take turns; the second one is smaller. */
FEED_EVERYWHERE(batches_in_turns, .tables = {TABLE("a", ES_PRIORITIZED, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 8,
                .slots = 2, .boxes = {{0, 2, 2, 0, 2}, {0, 2, 1, 1, 2}}, .before = add_four_of_different_weights,
                .act = turn, .through = "fill_outboxes es_outbox_fill_group whose_turn es_outbox_fill");

/* Two rings share a table whose items go with their draws: both batches of one, and what is left in the other. */
FEED_EVERYWHERE(items_go_into_batches,
                .tables = {ONCE("a", ES_FIFO, ES_FIFO, ANY), ONCE("b", ES_PRIORITIZED, ES_FIFO, ANY)}, .num_tables = 2,
                .capacity = 8, .slots = 2, .boxes = {{1, 2, 1}, {1, 3, 2}}, .before = add_four, .act = turn,
                .through = "es_outbox_fill draw_one es_table_leave");

/* Each item once before any again: rounds begin and end within a batch. */
FEED_EVERYWHERE(rounds_in_batches, .tables = {ROUNDS("a", ES_UNIFORM, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 8,
                .slots = 2, .boxes = {{0, 3, 1}}, .before = add_two, .act = turn,
                .through = "es_outbox_fill draw_one begin_round");

/* The limiter allows three draws, and more only with the next steps. */
FEED_EVERYWHERE(batch_is_cut_short, .tables = {MATCHED("a", ES_UNIFORM, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 8,
                .slots = 3, .boxes = {{0, 4, 2}}, .before = add_two, .send = send_one, .act = turn,
                .through = "es_outbox_fill es_draw_allowed draw_independent");

/* Items of another replay, whose bytes count up. */
static void put_three(es_feed *f)
{
    static uint8_t bytes[3 * 64];
    const void *leaves[VAULT_LEAVES + ES_BATCH_COLUMNS];
    for (uint32_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)i;
    for (uint32_t i = 0; i < VAULT_LEAVES + ES_BATCH_COLUMNS; i++)
        leaves[i] = bytes;
    CHECK_EQ(es_replay_put(f->v.r, 0, 3, leaves), ES_OK);
}

/* They come before all draws. The next replay puts those that are missing. */
FEED_EVERYWHERE(items_are_put_first, .tables = {ONCE("a", ES_FIFO, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 8,
                .slots = 2, .boxes = {{0, 2, 3}}, .before = add_four, .act = put_three, .again = put_three,
                .through = "es_replay_put es_outbox_put write_items es_api_reserve_many es_api_commit_many");

/* The store knows two other rings. */
FEED_EVERYWHERE(new_rings_of_batches, .tables = {TABLE("a", ES_UNIFORM, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 8,
                .slots = 2, .boxes = {{0, 2, 1}, {0, 1, 1}}, .before = add_four, .known = true, .send = send_one,
                .connects = true, .act = connect_and_turn,
                .through = "es_replay_connect_batches es_outbox_open words_of es_known_adopt deliver_drawn");

/* A replay has drawn two of three places that it had claimed, and has died. */
FEED_EVERYWHERE(drawn_by_the_dead, .tables = {ONCE("a", ES_PRIORITIZED, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 8,
                .slots = 2, .boxes = {{0, 4, 2}}, .before = add_four, .send = send_one, .drawn = 2, .connects = true,
                .act = connect_and_turn,
                .through = "deliver_drawn es_api_reserve es_api_commit es_api_abort fill_some");

/* The same in the first of two rings that take turns: its batch is completed before the other one's is begun. */
FEED_EVERYWHERE(drawn_by_the_dead_in_turns, .tables = {ONCE("a", ES_PRIORITIZED, ES_FIFO, ANY)}, .num_tables = 1,
                .capacity = 8, .slots = 2, .boxes = {{0, 3, 1, 0, 2}, {0, 3, 1, 1, 2}}, .before = add_four,
                .send = send_one, .drawn = 2, .connects = true, .act = connect_and_turn,
                .through = "has_its_rank deliver_drawn es_outbox_fill_group es_api_reserve es_api_commit fill_some");

/* --- letting go ------------------------------------------------------------------------- */

static void send_six(es_feed *f)
{
    for (int i = 0; i < 6; i++)
        feed_step(f, 0, (const double[]){1 + i});
}

/* Steps wait for room among parked ones: they were taken, and are given back. */
FEED_EVERYWHERE(rings_are_left, .tables = {PARKED("a", ES_UNIFORM, ES_FIFO, ANY)}, .num_tables = 1, .capacity = 8,
                .slots = 6, .before = add_two, .send = send_six, .prepare = turn, .act = feed_leave, .leaves = true,
                .everywhere = true,
                .through = "es_replay_disconnect es_inbox_close es_source_close es_api_give_back es_api_detach");
