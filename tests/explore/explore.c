/* explore [--memory sc|tso|c11] [--preemptions N] [--stale N] [--kills N] [--executions N] [--seed N] [--list] [name part]
 *
 * Explores the scenes whose name has that part in it: depth first within the
 * budget, or with --seed at random. Prints a line for each; at a violation the execution,
 * step by step, and how to see it again. Status 1 when there was one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xp.h"

static const char *const memories[] = {"sc", "tso", "c11"};

static int memory_named(const char *name)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(memories[i], name) == 0)
            return i;
    fprintf(stderr, "explore: --memory is sc, tso or c11, not %s\n", name);
    exit(2);
}

static bool run(const xp_scene *scene, const xp_budget *budget)
{
    xp_outcome out = xp_explore(scene, budget);
    printf("%-38s %9llu executions, %4llu steps at most, %s\n", scene->name, (unsigned long long)out.executions,
           (unsigned long long)out.longest,
           out.violation != NULL ? out.violation : out.complete ? "complete" : "stopped at the limit");
    fflush(stdout);
    return out.violation == NULL;
}

int main(int argc, char **argv)
{
    xp_budget budget = {.memory = XP_C11, .preemptions = 2, .stale = 1, .kills = 1, .executions = UINT64_MAX, .trace = true};
    const char *part = "";
    bool list = false, orders = false, ok = true;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool takes_value = strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i], "--list") != 0 &&
                           strcmp(argv[i], "--orders") != 0;
        if (strcmp(argv[i], "--memory") == 0)
            budget.memory = (enum xp_memory)memory_named(value);
        else if (strcmp(argv[i], "--preemptions") == 0)
            budget.preemptions = atoi(value);
        else if (strcmp(argv[i], "--stale") == 0)
            budget.stale = atoi(value);
        else if (strcmp(argv[i], "--kills") == 0)
            budget.kills = atoi(value);
        else if (strcmp(argv[i], "--executions") == 0)
            budget.executions = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            budget.seed = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--list") == 0)
            list = true;
        else if (strcmp(argv[i], "--orders") == 0)
            orders = true;
        else
            part = argv[i];
        i += takes_value;
    }
    if (orders)
        return xp_try_orders(part) ? 0 : 1;
    for (const xp_scene *s = xp_scenes; s->name != NULL; s++)
        if (strstr(s->name, part) != NULL) {
            if (list)
                printf("%s\n", s->name);
            else
                ok = run(s, &budget) && ok;
        }
    return ok ? 0 : 1;
}
