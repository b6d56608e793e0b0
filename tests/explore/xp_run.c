/* Runs executions, one after the other. */
#include "xp_schedule.h"

#include <stdio.h>

#include "es_watchdog.h"

#define MAX_ROUNDS 60
#define WATCHDOG_S 120 /* per 1024 executions, each of which takes milliseconds */

/* To call when no thread can run. Lets the parked threads time out. Unless a process died, a thread that has
 * something to do must not sleep. Returns whether any thread was parked. */
static bool wake_by_time(int round)
{
    xp_memory_join_all(0);
    if (!xp_any(XP_PARKED)) {
        if (xp_any(XP_BLOCKED))
            xp_violation("threads wait for each other's mutex");
        return false;
    }
    /* After a death a thread may sleep for one reap interval. */
    if (!xp.killed || xp.rounds_since_kill > 0)
        xp_stage_nobody_oversleeps();
    else
        xp_stage_reap();
    xp.rounds_since_kill++;
    if (round == MAX_ROUNDS)
        xp_violation("a thread waits forever");
    xp_time_out_all();
    return true;
}

static void run_once(void)
{
    xp.violation = NULL;
    xp.preemptions = xp.budget->preemptions;
    xp.stale = xp.budget->stale;
    xp.kills = xp.budget->kills;
    xp.steps = 0;
    xp.now_ns = 1000;
    xp.killed = false;
    xp_replay_path();
    xp_stage_restore();
    xp_memory_begin(xp.scene, xp.budget->memory);
    xp_stage_cast(xp.scene);
    xp_start_threads();
    for (int round = 0; xp.violation == NULL; round++) {
        xp_give_way();
        if (xp.violation == NULL && !wake_by_time(round))
            break;
    }
    if (xp.violation == NULL)
        xp_stage_settle();
}

xp_outcome xp_explore(const xp_scene *scene, const xp_budget *budget)
{
    xp_outcome out = {0};
    xp.scene = scene;
    xp.budget = budget;
    xp_forget_path();
    xp.now_ns = 1000;
    xp_stage_set(scene);
    while (out.executions < budget->executions) {
        if (out.executions % 1024 == 0)
            es_watchdog_start(scene->name, WATCHDOG_S, NULL);
        if (xp_at_random())
            xp_draw_manners(out.executions);
        run_once();
        out.executions++;
        out.steps += xp.steps;
        out.longest = xp.steps > out.longest ? xp.steps : out.longest;
        out.violation = xp.violation;
        if (out.violation != NULL)
            break;
        if (!xp_at_random() && !xp_next_path()) {
            out.complete = true;
            break;
        }
    }
    if (out.violation != NULL && budget->trace) {
        xp.tracing = true; /* the same path again */
        run_once();
        printf("\n");
        xp.tracing = false;
    }
    es_watchdog_stop();
    xp_memory_end();
    xp_stage_clear();
    return out;
}
