/* Replays that are killed while they make items of several steps, and while these go. One step completes many: whoever
 * opens the store makes those that are missing. */
#include "es_configs.h"
#include "es_feed.h"
#include "es_revive.h"

/* The deepest stack, three steps, and the next one: each stream keeps one more than these six. */
#define DEEP(name, sampler, remover, size) CONFIG(name, sampler, remover, size, 1, FREELY, N_STEPS(3, 3))
#define PADDED(name, sampler, remover, size) CONFIG(name, sampler, remover, size, 1, FREELY, SEQUENCES(3, 2, 1))

static void add_five(es_vault *v)
{
    vault_add_some(v, 5);
}

/* An episode, and five steps of the next one. */
static void add_eight(es_vault *v)
{
    vault_add_episode(v, 3);
    add_five(v);
}

/* --- steps that complete items -------------------------------------------------------- */

static int64_t terminate(es_vault *v, uint64_t parts)
{
    (void)parts;
    return vault_add(v, ES_STEP_TERMINATED, (const double[]){5, 0.5, -1});
}

/* Four transitions, a window, and a single step. Each table is full, and its remover picks. */
REVIVE_EVERYWHERE(
    episode_ends_in_three_tables,
    .tables = {DEEP("a", ES_PRIORITIZED, ES_FIFO, 3), PADDED("b", ES_UNIFORM, ES_UNIFORM, 1),
               TABLE("c", ES_FIFO, ES_MIN_HEAP, 4)},
    .num_tables = 3, .capacity = 12, .max_items = ANY, .before = add_eight, .act = terminate, .parts = 1, .twice = true,
    .through = "es_insert_step note_making make_items es_window_arrival es_window_nth transition "
               "sequences es_room_settle_items es_table_evict es_steps_link es_steps_unlink es_steps_trim "
               "es_steps_drop_unused count_runs es_steps_use es_steps_stop_using");

/* The items of the table that comes last have the table's highest priority, which those before have raised. */
static int64_t truncate_higher(es_vault *v, uint64_t parts)
{
    (void)parts;
    return vault_add(v, ES_STEP_TRUNCATED, (const double[]){7, 9, NAN});
}

REVIVE_EVERYWHERE(cut_off_in_two_tables,
                  .tables = {DEEP("a", ES_MAX_HEAP, ES_LIFO, ANY), PADDED("b", ES_SOFTMAX, ES_FIFO, 2),
                             DEEP("c", ES_UNIFORM, ES_FIFO, ANY)},
                  .num_tables = 3, .capacity = 12, .max_items = ANY, .before = add_eight, .act = truncate_higher,
                  .parts = 1, .where_it_writes = true, .through = "es_insert_step make_items");

/* Items go for want of room while others are made, the oldest first, and steps with them. */
REVIVE_EVERYWHERE(items_go_while_others_are_made,
                  .tables = {DEEP("a", ES_UNIFORM, ES_FIFO, ANY), PADDED("b", ES_FIFO, ES_FIFO, ANY),
                             TABLE("c", ES_FIFO, ES_FIFO, ANY)},
                  .num_tables = 3, .capacity = 8, .max_items = 9, .before = add_eight, .act = terminate, .parts = 1,
                  .where_it_writes = true,
                  .through = "make_items es_room_settle_items oldest_that_can_go es_steps_drop_unused unchain");

static int64_t end_with_observations(es_vault *v, uint64_t parts)
{
    const double priorities[] = {5, 0.5, -1};
    const void *leaves[VAULT_LEAVES];
    es_trouble why;
    if (parts > 1)
        return vault_add_last(v, ES_STEP_TERMINATED, priorities);
    es_replay_set_version(v->r, vault_version(v), true);
    vault_make(v, 1, leaves); /* its first part is a step of an episode that goes on */
    return es_replay_add(v->r, leaves, 0, priorities, &why);
}

/* The step, and then what follows it: windows end with the one, transitions with the other. */
REVIVE_EVERYWHERE(ends_with_observations,
                  .tables = {DEEP("a", ES_PRIORITIZED, ES_FIFO, 4), PADDED("b", ES_UNIFORM, ES_FIFO, ANY),
                             TABLE("c", ES_FIFO, ES_FIFO, ANY)},
                  .num_tables = 3, .capacity = 9, .max_items = ANY, .before = add_eight, .act = end_with_observations,
                  .parts = 2, .where_it_writes = true,
                  .through = "es_replay_add_last es_insert_can_end es_room_was_found make_items");

static void leave_an_episode(es_vault *v)
{
    add_five(v);
    es_replay_end_episode(v->r);
}

static int64_t add_one(es_vault *v, uint64_t parts)
{
    (void)parts;
    return vault_add(v, 0, (const double[]){5, 0.5, -1});
}

/* The first step of an episode shows that the one before is over. */
REVIVE_EVERYWHERE(next_episode_begins,
                  .tables = {DEEP("a", ES_PRIORITIZED, ES_FIFO, ANY), PADDED("b", ES_UNIFORM, ES_FIFO, ANY)},
                  .num_tables = 2, .capacity = 9, .max_items = ANY, .before = leave_an_episode, .act = add_one,
                  .parts = 1, .through = "es_window_arrival make_items");

static int64_t extend(es_vault *v, uint64_t parts)
{
    return vault_extend(v, parts, (const uint8_t[]){0, ES_STEP_TERMINATED, 0}, (const double[]){2, 1, -1, NAN, 0.5, 3});
}

REVIVE_EVERYWHERE(extend_over_an_end,
                  .tables = {DEEP("a", ES_UNIFORM, ES_FIFO, 4), PADDED("b", ES_MAX_HEAP, ES_MIN_HEAP, 2)},
                  .num_tables = 2, .capacity = 9, .max_items = ANY, .before = add_five, .act = extend, .parts = 3,
                  .want = 3, .where_it_writes = true, .through = "es_replay_extend make_items");

/* The second row's step is a part of its own, as is what its episode ends with. */
static int64_t step_three(es_vault *v, uint64_t parts)
{
    const uint8_t ends[] = {0, parts > 2, 0};
    return vault_add_vector(v, parts < 3 ? parts : parts - 1, ends, true,
                            (const double[]){2, 1, -1, -1, 0.5, 3, 1, 1, 1});
}

/* The first environment is in an episode, and the others begin. */
REVIVE_EVERYWHERE(three_environments_step,
                  .tables = {DEEP("a", ES_PRIORITIZED, ES_FIFO, 4), PADDED("b", ES_UNIFORM, ES_FIFO, ANY),
                             TABLE("c", ES_FIFO, ES_MIN_HEAP, 4)},
                  .num_tables = 3, .capacity = 9, .max_items = ANY, .before = add_eight, .act = step_three, .parts = 4,
                  .want = 3, .where_it_writes = true,
                  .through = "es_replay_add_vector add_row add_last es_insert_can_end make_items");

/* Another stream has an item, and keeps one step more, its last one. */
static void fill_with_protected(es_vault *v)
{
    for (uint64_t number = 0; number < 3; number++) {
        es_step_head head = {.stream = 9, .number = number, .index = (uint32_t)number};
        CHECK_EQ(vault_send(v, &head, (const double[]){number < 2 ? 1 : NAN}), ES_OK);
    }
    vault_add_some(v, 2);
}

REVIVE_EVERYWHERE(last_step_of_a_stream_goes,
                  .tables = {CONFIG("a", ES_UNIFORM, ES_FIFO, ANY, 1, FREELY, .is_protected = 1, N_STEPS(1, 1))},
                  .num_tables = 1, .capacity = 5, .max_items = ANY, .before = fill_with_protected, .act = add_one,
                  .parts = 1, .sends = true, .through = "kept_longer_than es_steps_drop unchain keep_older");

/* --- steps that workers send ------------------------------------------------------------ */

static es_step_head sent(uint64_t number, uint32_t flags)
{
    return (es_step_head){.stream = 9, .number = number, .index = (uint32_t)number, .flags = flags};
}

/* The third one is missing. */
static void send_some(es_vault *v)
{
    for (uint64_t number = 0; number < 7; number++) {
        es_step_head head = sent(number, 0);
        if (number != 2)
            CHECK_EQ(vault_send(v, &head, (const double[]){-1, 2, -1}), ES_OK);
    }
}

static int64_t send_late(es_vault *v, uint64_t parts)
{
    es_step_head late = sent(2, ES_STEP_TERMINATED), next = sent(7, ES_STEP_LOST);
    int64_t code = vault_send(v, &late, (const double[]){3, 1, -1});
    return parts > 1 && code == ES_OK ? vault_send(v, &next, (const double[]){3, 1, -1}) : code;
}

REVIVE_EVERYWHERE(step_comes_late,
                  .tables = {CONFIG("a", ES_UNIFORM, ES_FIFO, ANY, 1, FREELY, N_STEPS(2, 1)),
                             PADDED("b", ES_FIFO, ES_FIFO, ANY)},
                  .num_tables = 2, .capacity = 8, .max_items = ANY, .before = send_some, .act = send_late, .parts = 2,
                  .sends = true, .where_it_writes = true, .through = "es_window_arrival chain make_items");

static int64_t send_last(es_vault *v, uint64_t parts)
{
    es_step_head last = sent(7, ES_STEP_TERMINATED);
    (void)parts;
    return vault_send(v, &last, (const double[]){3, 1, -1});
}

/* Some enter, and the others park, while items of another table come and go. */
REVIVE_EVERYWHERE(transitions_park,
                  .tables = {CONFIG("a", ES_UNIFORM, ES_FIFO, ANY, 1, .max_diff = 4, .max_parked = 5, N_STEPS(3, 1)),
                             PADDED("b", ES_FIFO, ES_FIFO, 1)},
                  .num_tables = 2, .capacity = 8, .max_items = ANY, .before = send_some, .act = send_last, .parts = 1,
                  .parks = true, .where_it_writes = true, .through = "es_table_note_park make_items");

static void park_some(es_vault *v)
{
    send_some(v);
    CHECK_EQ(send_last(v, 1), ES_OK);
}

static int64_t sample_and_turn(es_vault *v, uint64_t parts)
{
    int64_t code = ES_OK;
    for (uint64_t i = 0; i < parts && code == ES_OK; i++)
        code = vault_sample(v, 0, 1);
    vault_turn(v);
    return code;
}

REVIVE_EVERYWHERE(parked_transitions_come_in,
                  .tables = {CONFIG("a", ES_UNIFORM, ES_FIFO, 2, 1, .max_diff = 2, .max_parked = 5, N_STEPS(3, 1)),
                             PADDED("b", ES_FIFO, ES_FIFO, 1)},
                  .num_tables = 2, .capacity = 8, .max_items = ANY, .before = park_some, .act = sample_and_turn,
                  .parts = 2, .parks = true, .where_it_writes = true, .through = "es_insert_unpark es_table_unpark");

/* --- items that workers describe ------------------------------------------------------------ */

static void send_and_describe(es_vault *v)
{
    send_some(v);
    CHECK_EQ(vault_describe(v, 0, 9, 5, 3, 2), ES_OK);
    CHECK_EQ(vault_describe(v, 0, 9, 6, 1, 4), ES_OK);
}

static int64_t describe(es_vault *v, uint64_t parts)
{
    int64_t code = vault_describe(v, 0, 9, 6, 4, -1);
    return parts > 1 && code == ES_OK ? vault_describe(v, 0, 9, 6, 2, 0.5) : code;
}

REVIVE_EVERYWHERE(items_are_described,
                  .tables = {CONFIG("a", ES_PRIORITIZED, ES_FIFO, 2, 1, FREELY, EXPLICIT(4)),
                             PADDED("b", ES_FIFO, ES_FIFO, ANY)},
                  .num_tables = 2, .capacity = 8, .max_items = ANY, .before = send_and_describe, .act = describe,
                  .parts = 2, .sends = true, .through = "es_insert_item es_outputs_can_have es_table_evict");

static int64_t sample(es_vault *v, uint64_t parts)
{
    return vault_sample(v, 0, parts);
}

REVIVE_EVERYWHERE(sample_what_was_described,
                  .tables = {CONFIG("a", ES_FIFO, ES_FIFO, ANY, 1, FREELY, .max_times_sampled = 1, EXPLICIT(4))},
                  .num_tables = 1, .capacity = 8, .max_items = ANY, .before = send_and_describe, .act = sample,
                  .parts = 2, .sends = true, .where_it_writes = true,
                  .through = "draw_one write_column es_steps_unlink es_steps_drop_unused");

/* --- drawing and removing ------------------------------------------------------------------- */

/* A sequence goes when it is drawn, with the steps that it alone refers to. */
REVIVE_EVERYWHERE(sample_each_sequence_once,
                  .tables = {CONFIG("a", ES_UNIFORM, ES_FIFO, ANY, 1, FREELY, .max_times_sampled = 1,
                                    SEQUENCES(2, 1, 1)),
                             DEEP("b", ES_FIFO, ES_FIFO, 2)},
                  .num_tables = 2, .capacity = 9, .max_items = ANY, .before = add_eight, .act = sample, .parts = 3,
                  .through = "draw_one es_outputs_find_far es_outputs_write es_table_leave es_steps_unlink "
                             "es_steps_drop_unused");

static int64_t sample_lists(es_vault *v, uint64_t parts)
{
    return vault_sample(v, 0, parts > 1 ? ES_STORE_DRAWS + 2 : ES_STORE_DRAWS);
}

REVIVE_EVERYWHERE(sample_transitions, .tables = {DEEP("a", ES_PRIORITIZED, ES_FIFO, ANY)}, .num_tables = 1,
                  .capacity = 9, .max_items = ANY, .before = add_eight, .act = sample_lists, .parts = 2,
                  .where_it_writes = true, .through = "draw_independent find_steps write_returns write_discounts");

static void add_and_draw(es_vault *v)
{
    add_eight(v);
    CHECK_EQ(vault_sample(v, 0, 2), ES_OK);
}

static int64_t delete_two(es_vault *v, uint64_t parts)
{
    return vault_delete(v, 0, v->keys, parts);
}

REVIVE_EVERYWHERE(delete_sequences,
                  .tables = {CONFIG("a", ES_LIFO, ES_FIFO, ANY, 0, FREELY, SEQUENCES(3, 1, 0)),
                             DEEP("b", ES_FIFO, ES_FIFO, ANY)},
                  .num_tables = 2, .capacity = 9, .max_items = ANY, .before = add_and_draw, .act = delete_two,
                  .parts = 2, .want = 2, .where_it_writes = true, .through = "es_table_remove es_steps_unlink");

static int64_t reset(es_vault *v, uint64_t parts)
{
    (void)parts;
    return es_replay_reset(v->r, 0);
}

REVIVE_EVERYWHERE(reset_transitions, .tables = {DEEP("a", ES_FIFO, ES_FIFO, ANY), PADDED("b", ES_FIFO, ES_FIFO, 2)},
                  .num_tables = 2, .capacity = 9, .max_items = ANY, .before = add_eight, .act = reset, .parts = 1,
                  .where_it_writes = true, .through = "es_table_reset es_steps_drop_unused");

/* --- rings ------------------------------------------------------------------------------------ */

static void turn(es_feed *f)
{
    feed_turn(f);
}

/* The last one is what the episode ends with. */
static void send_an_episode(es_feed *f)
{
    static const double priorities[] = {-1, 0.5};
    for (int i = 0; i < 4; i++)
        feed_step(f, 0, priorities);
    feed_step(f, ES_STEP_FINAL | ES_STEP_TRUNCATED, priorities);
    feed_step(f, 0, priorities);
}

static void add_two(es_vault *v)
{
    vault_add_some(v, 2);
}

static void add_six(es_vault *v)
{
    vault_add_some(v, 6);
}

/* Each window goes into a batch with its draw. */
FEED_EVERYWHERE(episodes_come_and_batches_go,
                .tables = {DEEP("a", ES_PRIORITIZED, ES_FIFO, 5),
                           CONFIG("b", ES_FIFO, ES_FIFO, ANY, 1, FREELY, .max_times_sampled = 1, SEQUENCES(3, 2, 1))},
                .num_tables = 2, .capacity = 8, .slots = 6, .boxes = {{0, 2, 1}, {1, 1, 2}}, .before = add_six,
                .send = send_an_episode, .act = turn,
                .through = "es_inbox_store make_items es_outbox_fill draw_one es_outputs_write es_table_leave");

/* The second one goes farther back than the worker's steps do. */
static void send_steps_and_items(es_feed *f)
{
    static const double priorities[] = {NAN, 0.5};
    for (int i = 0; i < 3; i++)
        feed_step(f, 0, priorities);
    feed_item(f, 0, 2, 4);
    feed_item(f, 0, 4, 4);
    feed_step(f, 0, priorities);
    feed_item(f, 0, 3, -1);
}

FEED_EVERYWHERE(items_come_with_their_steps,
                .tables = {CONFIG("a", ES_PRIORITIZED, ES_FIFO, 2, 1, FREELY, EXPLICIT(4)),
                           TABLE("b", ES_FIFO, ES_FIFO, ANY)},
                .num_tables = 2, .capacity = 8, .slots = 8, .before = add_two, .send = send_steps_and_items,
                .act = turn, .through = "es_inbox_store store_item es_insert_item pass_over");
