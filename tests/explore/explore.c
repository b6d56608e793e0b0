/* Explores scenes; see usage below. The exit status is 1 when a scene was violated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xp.h"

static const char usage[] =
    "explore [--memory sc|tso|c11] [--preemptions N] [--stale N] [--kills N] [--executions N] [--seed N]\n"
    "        [--list] [--quiet] [name part]\n"
    "explore --orders [name part]\n"
    "\n"
    "Explores the scenes whose name contains the part, depth first within the budget of preemptions, stale\n"
    "reads (tso: delayed stores) and kills, or at random with --seed; at most N executions of each scene.\n"
    "Prints a violation with its execution, step by step. The same command shows it again.\n"
    "--orders weakens each memory order of the core and says which scene catches it.\n";

typedef struct options {
    xp_budget budget;
    const char *part;
    bool list, orders, quiet;
} options;

static void complain(const char *what, const char *got)
{
    fprintf(stderr, "explore: %s, not %s\n\n%s", what, got, usage);
    exit(2);
}

static uint64_t number(const char *text)
{
    char *end;
    uint64_t n = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0')
        complain("expected a number", *text == '\0' ? "nothing" : text);
    return n;
}

static enum xp_memory memory_named(const char *name)
{
    static const char *const memories[] = {"sc", "tso", "c11"};
    for (int i = 0; i < 3; i++)
        if (strcmp(memories[i], name) == 0)
            return (enum xp_memory)i;
    complain("expected --memory sc, tso or c11", name);
    return XP_SC;
}

/* Whether the option used its value. */
static bool read_option(options *o, const char *name, const char *value)
{
    if (strcmp(name, "--list") == 0)
        return !(o->list = true);
    if (strcmp(name, "--orders") == 0)
        return !(o->orders = true);
    if (strcmp(name, "--quiet") == 0)
        return !(o->quiet = true);
    if (strcmp(name, "--memory") == 0)
        o->budget.memory = memory_named(value);
    else if (strcmp(name, "--preemptions") == 0)
        o->budget.preemptions = (int)number(value);
    else if (strcmp(name, "--stale") == 0)
        o->budget.stale = (int)number(value);
    else if (strcmp(name, "--kills") == 0)
        o->budget.kills = (int)number(value);
    else if (strcmp(name, "--executions") == 0)
        o->budget.executions = number(value);
    else if (strcmp(name, "--seed") == 0)
        o->budget.seed = number(value);
    else
        complain("expected one of the options below", name);
    return true;
}

/* What the exploring processes share. */
typedef struct tally {
    const options *o;
    _Atomic uint64_t executions;
    _Atomic int scenes, complete, violated;
} tally;

static void run_scene(int number, void *arg)
{
    tally *t = arg;
    const xp_scene *s = xp_scene_at(number);
    if (strstr(s->name, t->o->part) == NULL)
        return;
    xp_outcome out = xp_explore(s, &t->o->budget);
    t->executions += out.executions;
    t->scenes++;
    t->complete += out.complete;
    t->violated += out.violation != NULL;
    if (!t->o->quiet || out.violation != NULL)
        printf("%-38s %9llu executions, %4llu steps at most, %s\n", s->name, (unsigned long long)out.executions,
               (unsigned long long)out.longest,
               out.violation != NULL ? out.violation
               : out.complete        ? "complete"
                                     : "stopped at the limit");
}

/* A quiet run without a violation prints one line for all scenes. */
static bool run_scenes(const options *o)
{
    tally *t = xp_shared_memory(sizeof *t);
    t->o = o;
    bool done = xp_share_out(xp_count_scenes(), run_scene, t);
    printf("%d scenes, %llu executions, %d explored completely within the budget, %d violated\n", t->scenes,
           (unsigned long long)t->executions, t->complete, t->violated);
    return done && t->scenes > 0 && t->violated == 0;
}

int main(int argc, char **argv)
{
    options o = {
        .budget = {.memory = XP_C11, .preemptions = 2, .stale = 1, .kills = 1, .executions = UINT64_MAX, .trace = true},
        .part = ""};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (argv[i][0] != '-')
            o.part = argv[i];
        else
            i += read_option(&o, argv[i], i + 1 < argc ? argv[i + 1] : "");
    }
    if (o.orders)
        return xp_try_orders(o.part) ? 0 : 1;
    if (!o.list)
        return run_scenes(&o) ? 0 : 1;
    for (int n = 0; n < xp_count_scenes(); n++)
        printf("%s\n", xp_scene_at(n)->name);
    return 0;
}
