/* Replays that are killed while windows without records come, go, and are drawn: their marks and their table's counters
 * change together. */
#include "es_configs.h"
#include "es_feed.h"
#include "es_revive.h"

#define WINDOWS(name, steps, size) CONFIG(name, ES_UNIFORM, ES_FIFO, size, 1, FREELY, SEQUENCES(steps, 1, 1))

static void add_five(es_vault *v)
{
    vault_add_some(v, 5);
}

/* An episode that is shorter than most windows, and five steps of the next one. */
static void add_seven(es_vault *v)
{
    vault_add_episode(v, 2);
    add_five(v);
}

/* --- steps that complete windows ------------------------------------------------------------ */

/* The second one is meant for one table alone. */
static int64_t add_three(es_vault *v, uint64_t parts)
{
    const double priorities[] = {2, 1, -1, NAN, 0.5, NAN, -1, 3, 1};
    return vault_extend(v, parts, (const uint8_t[]){0, 0, ES_STEP_TERMINATED}, priorities);
}

REVIVE_EVERYWHERE(windows_come_and_go,
                  .tables = {WINDOWS("a", 3, 2), WINDOWS("b", 2, ANY), TABLE("c", ES_FIFO, ES_FIFO, 3)},
                  .num_tables = 3, .capacity = 8, .max_items = ANY, .before = add_seven, .act = add_three, .parts = 3,
                  .want = 3, .twice = true,
                  .through = "make_items es_implicit_can_have es_implicit_note es_implicit_use note_row change_uses "
                             "next_member es_table_evict remove_item member_from es_implicit_let_go "
                             "es_steps_stop_using es_steps_drop_unused");

/* Windows go for want of room, with their first steps. */
REVIVE_EVERYWHERE(windows_go_for_want_of_room,
                  .tables = {WINDOWS("a", 3, ANY), WINDOWS("b", 2, ANY), WINDOWS("c", 1, ANY)}, .num_tables = 3,
                  .capacity = 7, .max_items = 12, .before = add_seven, .act = add_three, .parts = 3, .want = 3,
                  .where_it_writes = true, .through = "oldest_that_can_go es_implicit_let_go some_are_members");

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

static void add_an_episode(es_vault *v)
{
    add_seven(v);
    CHECK_EQ(vault_add(v, ES_STEP_LOST, (const double[]){-1, -1, -1}), ES_OK);
}

/* Of an episode of one step, what follows it completes the window. */
REVIVE_EVERYWHERE(a_short_window_ends_with_observations, .tables = {WINDOWS("a", 3, 3), WINDOWS("b", 2, ANY)},
                  .num_tables = 2, .capacity = 9, .max_items = ANY, .before = add_an_episode,
                  .act = end_with_observations, .parts = 2, .where_it_writes = true,
                  .through = "es_replay_add_last make_items es_implicit_use");

static void leave_an_episode(es_vault *v)
{
    vault_add_some(v, 2);
    es_replay_end_episode(v->r);
}

static int64_t end_at_once(es_vault *v, uint64_t parts)
{
    (void)parts;
    return vault_add(v, ES_STEP_TERMINATED, (const double[]){5, 0.5, -1});
}

/* One step completes two windows of a table: that of the episode before, and its own. */
REVIVE_EVERYWHERE(two_windows_of_a_table, .tables = {WINDOWS("a", 3, ANY), WINDOWS("b", 4, 1)}, .num_tables = 2,
                  .capacity = 9, .max_items = ANY, .before = leave_an_episode, .act = end_at_once, .parts = 1,
                  .twice = true, .through = "es_window_arrival make_items es_implicit_note");

static es_step_head sent(uint64_t number, uint32_t index, uint32_t flags)
{
    return (es_step_head){.stream = 9, .number = number, .index = index, .flags = flags};
}

/* Each is an episode, if one believes what it says; but all have the same number. One is missing. */
static void send_some(es_vault *v)
{
    for (uint64_t number = 0; number < 5; number++) {
        es_step_head head = sent(number, 0, ES_STEP_LOST);
        if (number != 2)
            CHECK_EQ(vault_send(v, &head, (const double[]){-1, 2, -1}), ES_OK);
    }
}

static int64_t send_late(es_vault *v, uint64_t parts)
{
    es_step_head late = sent(2, 7, 0), again = sent(5, 1, ES_STEP_FINAL | ES_STEP_TERMINATED);
    int64_t code = vault_send(v, &late, (const double[]){3, 1, -1});
    return parts > 1 && code == ES_OK ? vault_send(v, &again, (const double[]){3, 1, -1}) : code;
}

REVIVE_EVERYWHERE(a_step_comes_between_windows, .tables = {WINDOWS("a", 3, ANY), WINDOWS("b", 2, 3)}, .num_tables = 2,
                  .capacity = 8, .max_items = ANY, .before = send_some, .act = send_late, .parts = 2, .sends = true,
                  .where_it_writes = true, .through = "es_implicit_arrived make_items es_implicit_can_have");

/* --- drawing and removing ------------------------------------------------------------------- */

static int64_t sample(es_vault *v, uint64_t parts)
{
    return vault_sample(v, 0, parts > 1 ? ES_STORE_DRAWS + 2 : ES_STORE_DRAWS);
}

REVIVE_EVERYWHERE(sample_windows, .tables = {WINDOWS("a", 3, ANY)}, .num_tables = 1, .capacity = 9, .max_items = ANY,
                  .before = add_seven, .act = sample, .parts = 2, .where_it_writes = true,
                  .through = "draw_independent fetch_records find_steps note_some note_times describe_implicit");

static void add_and_draw(es_vault *v)
{
    add_seven(v);
    CHECK_EQ(vault_sample(v, 0, 4), ES_OK);
}

static int64_t delete_some(es_vault *v, uint64_t parts)
{
    const double priorities[] = {7, 7, 0.5, 0.5};
    CHECK(vault_update(v, 0, v->keys, priorities, 4) > 0); /* which changes nothing */
    return vault_delete(v, 0, v->keys, parts);
}

REVIVE_EVERYWHERE(delete_windows, .tables = {WINDOWS("a", 3, ANY), WINDOWS("b", 2, ANY)}, .num_tables = 2,
                  .capacity = 9, .max_items = ANY, .before = add_and_draw, .act = delete_some, .parts = 2, .want = 2,
                  .where_it_writes = true,
                  .through = "es_table_update count_different es_table_remove es_implicit_note "
                             "es_implicit_let_go");

static int64_t reset(es_vault *v, uint64_t parts)
{
    (void)parts;
    return es_replay_reset(v->r, 0);
}

REVIVE_EVERYWHERE(reset_windows, .tables = {WINDOWS("a", 3, ANY), WINDOWS("b", 2, 2)}, .num_tables = 2, .capacity = 9,
                  .max_items = ANY, .before = add_seven, .act = reset, .parts = 1, .twice = true,
                  .through = "es_table_reset es_implicit_let_go");

/* --- rings ------------------------------------------------------------------------------------ */

static void turn(es_feed *f)
{
    feed_turn(f);
}

static void send_an_episode(es_feed *f)
{
    static const double priorities[] = {-1, 0.5};
    for (int i = 0; i < 4; i++)
        feed_step(f, 0, priorities);
    feed_step(f, ES_STEP_FINAL | ES_STEP_TRUNCATED, priorities);
    feed_step(f, 0, priorities);
}

static void add_six(es_vault *v)
{
    vault_add_some(v, 6);
}

FEED_EVERYWHERE(windows_come_and_batches_go, .tables = {WINDOWS("a", 3, 5), TABLE("b", ES_FIFO, ES_FIFO, ANY)},
                .num_tables = 2, .capacity = 8, .slots = 6, .boxes = {{0, 2, 1}, {1, 1, 2}}, .before = add_six,
                .send = send_an_episode, .act = turn,
                .through = "es_inbox_store make_items es_implicit_use es_outbox_fill describe_implicit");
