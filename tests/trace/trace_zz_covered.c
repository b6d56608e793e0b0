/* The last test: names the functions of the core in which no process was killed. It runs after all scenarios. */
#include "es_cover.h"
#include "es_kill.h"
#include "es_test.h"

#include <stddef.h>

static const char *const covered[] = {
    "es_clock.c",    "es_copy.c",    "es_wait.c",    "es_leaves.c",  "es_locks.c",    "es_owner.c",
    "es_ring.c",     "es_wake.c",    "es_slots.c",   "es_lease.c",   "es_producer.c", "es_consumer.c",
    "es_drain.c",    "es_partial.c", "es_journal.c", "es_reap.c",    "es_repair.c",   "es_invariant.c",
    "es_blocking.c", "es_api.c",     "es_bridge.c",  "es_monitor.c", "es_sweep.c",    NULL};

#define FORWARDS "one jump to the function that it stands for; processes are killed there"

/* Functions in which no process needs to be killed, and why. */
static const es_excuse excused[] = {
    {"before_fork", "runs in fork() and writes nothing that another process sees"},
    {"in_parent", "as before_fork"},
    {"in_child", "as before_fork"},
    {"watch_forks", "as before_fork; runs once in a process, before the first scenario"},
    {"es_api_fork_generation", FORWARDS},
    {"es_api_segment_size", FORWARDS},
    {"es_api_format", FORWARDS},
    {"es_api_check", FORWARDS},
    {"es_api_describe", FORWARDS},
    {"es_api_locks_new", FORWARDS},
    {"es_api_locks_free", FORWARDS},
    {"es_api_locks_drop", FORWARDS},
    {"es_api_shape", "reads this process's own map and nothing in the segment"},
    {"nap_until_changed", "stands in for futex_waitv(), which this kernel has; reads words and writes none"},
    {"any_changed", "as nap_until_changed"},
    {NULL, NULL},
};

TEST_LAST(every_function_was_killed_in)
{
    if (kill_every_nth() == 1)
        CHECK_EQ(cover_report(covered, excused), 0);
}
