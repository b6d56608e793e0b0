/* The last test: in which functions of the core nobody was killed. Runs when all scenarios have. */
#include "es_cover.h"
#include "es_test.h"

#include <stddef.h>

static const char *const covered[] = {"es_ring.c", "es_api_take.c", "es_end.c", "es_reap.c", "es_owner.c", "es_api.c",
                                      "es_watch.c", "es_repair.c", "es_bridge.c", "es_copy.c", "es_wait.c",
                                      NULL};

/* Functions in which nobody need be killed, and why. */
static const es_excuse excused[] = {
    {"before_fork", "runs in fork(), and writes nothing that another process sees"},
    {"in_parent", "as before_fork"},
    {"in_child", "as before_fork"},
    {"watch_forks", "as before_fork; once a process, before the first scenario"},
    {"es_api_shape", "reads this process's own map, nothing of the segment"},
    {NULL, NULL},
};

TEST(every_function_was_killed_in)
{
    CHECK_EQ(cover_report(covered, excused), 0);
}
