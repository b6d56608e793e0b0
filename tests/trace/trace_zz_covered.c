/* The last test: names the functions of the core in which no process was killed. It runs after all scenarios. */
#include "es_cover.h"
#include "es_kill.h"
#include "es_test.h"

#include <stddef.h>

static const char *const covered[] = {"es_clock.c",  "es_copy.c",      "es_wait.c",     "es_leaves.c",
                                      "es_locks.c",  "es_owner.c",     "es_ring.c",     "es_wake.c",
                                      "es_slots.c",  "es_lease.c",     "es_producer.c", "es_consumer.c",
                                      "es_drain.c",  "es_partial.c",   "es_journal.c",  "es_reap.c",
                                      "es_repair.c", "es_invariant.c", "es_blocking.c", "es_api.c",
                                      "es_call.c",   "es_segment.c",   "es_bridge.c",   "es_monitor.c",
                                      "es_sweep.c",  "es_version.c",   "es_weights.c",  "es_group.c",
                                      NULL};

static const char *const replays[] = {"es_source.c",
                                      "es_inbox.c",
                                      "es_outbox.c",
                                      "es_redo.c",
                                      "es_store.c",
                                      "es_steps.c",
                                      "es_streams.c",
                                      "es_table.c",
                                      "es_table_recover.c",
                                      "es_draw.c",
                                      "es_recover.c",
                                      "es_insert.c",
                                      "es_room.c",
                                      "es_window.c",
                                      "es_outputs.c",
                                      "es_drawn.c",
                                      "es_gather.c",
                                      "es_replay.c",
                                      "es_rings.c",
                                      "es_rank.c",
                                      "es_sort.c",
                                      "es_selector.c",
                                      "es_uniform.c",
                                      "es_fifo.c",
                                      "es_heap.c",
                                      "es_prioritized.c",
                                      "es_softmax.c",
                                      "es_prefix_tree.c",
                                      "es_softmax_tree.c",
                                      "es_store_layout.c",
                                      "es_hold.c",
                                      "es_snapshot.c",
                                      "es_table_update.c",
                                      "es_own.c",
                                      "es_hot_cold.c",
                                      "es_table_age.c",
                                      "es_table_tune.c",
                                      "es_temperature.c",
                                      "es_notes.c",
                                      "es_implicit.c",
                                      "es_table_reset.c",
                                      "es_table_limits.c",
                                      NULL};

#define FORWARDS "one jump to the function that it stands for; processes are killed there"

/* Functions in which no process needs to be killed, and why. */
static const es_excuse excused[] = {
    {"before_fork", "runs in fork() and writes nothing that another process sees"},
    {"in_parent", "as before_fork"},
    {"in_child", "as before_fork"},
    {"watch_forks", "as before_fork; runs once in a process, before the first scenario"},
    {"es_api_fork_generation", FORWARDS},
    {"es_segment_size", FORWARDS},
    {"es_segment_format", FORWARDS},
    {"es_segment_check", FORWARDS},
    {"es_segment_describe", FORWARDS},
    {"es_segment_locks_new", FORWARDS},
    {"es_segment_locks_free", FORWARDS},
    {"es_segment_locks_drop", FORWARDS},
    {"nap_until_changed", "stands in for futex_waitv(), which this kernel has; reads words and writes none"},
    {"any_changed", "as nap_until_changed"},
    {"last_level_cache", "reads what the system says, and writes nothing that another process sees"},
    {"is_bridges", "reads a word and writes none; processes are killed in its caller"},
    {"es_weights_holder", "reads a word and writes none"},
    {"es_weights_word", "a computation"},
    {"es_monitor_places", "a computation"},
    {NULL, NULL},
};

#define PRIVATE "concerns private memory alone, which dies with the process"
#define FOREIGN "looks at a store that nobody has open, and writes nothing"
#define SAVED "belongs to checkpoints, which change no store that is in use: test_killed_checkpoints.py kills there"

#define IN_FILES "of a store in files: test_killed_files.py kills there"

static const es_excuse excused_in_replays[] = {
    {"es_replay_store_size", "a computation"},
    {"es_store_size", "a computation"},
    {"es_replay_check", FOREIGN},
    {"es_store_check", FOREIGN},
    {"es_replay_describe", FOREIGN},
    {"es_store_describe", FOREIGN},
    {"check_extent", FOREIGN},
    {"es_replay_peek", "looks at a store, and writes nothing"},
    {"es_peek", "looks at a store, and writes nothing"},
    {"es_store_check_records", FOREIGN},
    {"es_store_map_records", FOREIGN},
    {"es_recover_open_records", SAVED},
    {"take_note", SAVED},
    {"let_go", SAVED},
    {"draw_none", SAVED},
    {"know_nothing", SAVED},
    {"hear_nothing", SAVED},
    {"es_rank_copy", SAVED},
    {"es_drawn_write", SAVED},
    {"es_drawn_read", SAVED},
    {"es_store_map_filling", SAVED},
    {"es_store_fill", SAVED},
    {"es_store_filled", SAVED},
    {"es_gather_unpack", SAVED},
    {"es_store_fetch_leaves", IN_FILES},
    {"copy_some_columns", IN_FILES},
    {"es_replay_records_size", IN_FILES},
    {"es_replay_arrivals", IN_FILES},
    {"es_replay_shape", PRIVATE},
    {"es_replay_version", PRIVATE},
    {"es_replay_leaf_size", PRIVATE},
    {"es_replay_end_episodes", PRIVATE},
    {"es_replay_environments", PRIVATE},
    {"es_own_end_some", PRIVATE},
    {"es_own_free", PRIVATE},
    {"es_own_go_on", SAVED},
    {"es_replay_free", PRIVATE},
    {"es_replay_list_steps", "reads what is stored, and writes nothing"},
    {"es_replay_read_steps", "reads what is stored, and writes nothing"},
    {"es_replay_weigh", PRIVATE},
    {"es_replay_put_back", PRIVATE},
    {"es_replay_num_outputs", PRIVATE},
    {"es_replay_output_size", PRIVATE},
    {"es_outputs_free", PRIVATE},
    {"es_streams_free", PRIVATE},
    {"es_outbox_close", PRIVATE},
    {"es_recover_close", PRIVATE},
    {"es_table_free", PRIVATE},
    {"es_implicit_free", PRIVATE},
    {"free_remover", PRIVATE},
    {"remover_bytes", "a computation"},
    {"es_implicit_bytes", "a computation"},
    {"es_hold_free", PRIVATE},
    {"es_steps_free", PRIVATE},
    {"es_store_unmap", PRIVATE},
    {"es_rank_free", PRIVATE},
    {"es_selector_free", PRIVATE},
    {"free_uniform", PRIVATE},
    {"free_fifo", PRIVATE},
    {"free_heap", PRIVATE},
    {"free_prioritized", PRIVATE},
    {"free_softmax", PRIVATE},
    {"free_hot_cold", PRIVATE},
    {"es_prefix_tree_free", PRIVATE},
    {"es_softmax_tree_free", PRIVATE},
    {"es_softmax_tree_any", PRIVATE},
    {"es_softmax_tree_find", PRIVATE},
    {"es_prefix_tree_find", PRIVATE},
    {"parents_of_many", PRIVATE},
    {"far_child", PRIVATE},
    {NULL, NULL},
};

TEST_LAST(every_function_was_killed_in)
{
    if (es_everywhere_nth() == 1)
        CHECK_EQ(cover_report("the ring", covered, excused, 85), 0);
}

TEST_LAST(every_function_of_a_replay_was_killed_in)
{
    if (es_everywhere_nth() == 1)
        CHECK_EQ(cover_report("the replay", replays, excused_in_replays, 78), 0);
}
