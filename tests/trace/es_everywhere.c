/* A first run executes the operation in single steps (ptrace) and records the program
 * counter before each instruction, from the entry of an API function to its return.
 * This includes the C library and the vDSO. A system call counts as one instruction.
 * Then the operation is repeated once per instruction, in a fresh world. Each time the
 * process is killed (SIGKILL) just before that instruction, and the last time just
 * after the operation.
 *
 * What this proves: in these scenarios, on this processor, with the code that this
 * compiler makes of the core at -O2, a process can die before any instruction. The
 * kernel acts on SIGKILL between two instructions, never within one. (Each round of a
 * repeated string instruction counts. A system call that sleeps has not done anything
 * yet.) So these are all points at which a process of these runs can die.
 *
 * What this does not prove: anything about other compilers.
 *
 * How the n-th instruction is reached: the process runs to a breakpoint and executes
 * the last few instructions in single steps. Both are planned from the recorded path.
 * A run that leaves this path, for example because it repeats a clock read, is
 * detected, discarded and repeated. After STRAYS such runs the process is killed after
 * n single steps, wherever that is. With ES_TRACE_STEP=1 every kill is done this way.
 * With ES_TRACE_EVERY=n only every n-th instruction is tried, and no function has to
 * be visited: a quick look, no proof.
 *
 * With ES_TRACE_QUICK=1 the process is not killed where its death leaves what it left
 * one instruction before: where, while the path was recorded, no byte of the memory
 * that processes share had changed, and the last instruction was no system call. Its
 * registers and its own memory die with it. Such instructions count as covered.
 */
#define _GNU_SOURCE
#include "es_everywhere.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/es_clock.h"
#include "es_cover.h"
#include "es_test.h"
#include "es_watchdog.h"

/* Twice the longest path. How long it is depends on the processor, too: the C library picks its copy loops by it. */
#define MAX_INSTRUCTIONS 160000u
#define MAX_BAD_KILLS 3u
#define WATCHDOG_S 30u
/* What a breakpoint's hit and a single step cost, roughly. */
#define HIT 3u
#define STEP 2u
#define VDSO_SIZE 0x4000u
#define NEVER UINT32_MAX
#define STRAYS 8

/* The program counter before each of the tracee's instructions, from the SIGSTOP before the operation on. */
typedef struct path {
    uint64_t pc[MAX_INSTRUCTIONS];
    /* To arrive at i: run to the occurrence[anchor[i]]-th arrival at pc[anchor[i]], then step. */
    struct plan {
        uint32_t occurrence[MAX_INSTRUCTIONS], anchor[MAX_INSTRUCTIONS];
    } from_start, from_meddle;
    uint32_t entry, end; /* the operation is [entry, end) */
    uint32_t meddle;     /* the tracer acts before this instruction */
} path;

static path the_path, scratch;
static bool only_steps;
static bool was_over;      /* at the last kill the operation had ended */
static unsigned strays;    /* runs that left the path */
static unsigned elsewhere; /* kills after the right number of single steps, possibly on another path */

static void say_where(const path *p, uint32_t n)
{
    if (n < p->entry || p->end <= p->entry) {
        fprintf(stderr, "    while its path was recorded\n");
        return;
    }
    const es_place *place = cover_place(p->pc[n]);
    fprintf(stderr, "    killed before instruction %u of %u, at 0x%llx", n - p->entry, p->end - p->entry,
            (unsigned long long)p->pc[n]);
    if (place != NULL)
        fprintf(stderr, ": %s, %s:%u", place->function, place->file, place->line);
    fprintf(stderr, "\n");
}

void es_everywhere_say(uint32_t n)
{
    say_where(&the_path, n);
}

/* For the watchdog: which kill hangs. */
static uint32_t current_kill;
static void say_kill(void)
{
    say_where(&the_path, current_kill);
}

static bool start(const es_everywhere *e, es_tracee *t)
{
    es_watchdog_start(e->name, WATCHDOG_S, say_kill);
    return CHECK(e->start(e->world, t));
}

static bool is_over(const es_everywhere *e)
{
    return e->phase(e->world) == PHASE_OVER;
}

/* --- reaching an instruction -------------------------------------------------- */

/* Plans how to reach each instruction after `from`: by one more step, or by a run of its own, whichever is cheaper. */
static void make_plan(const path *p, uint32_t from, struct plan *plan)
{
    uint32_t cost = 0;
    for (uint32_t i = from + 1; i <= p->end; i++) {
        uint32_t n = 1;
        for (uint32_t k = i - 1; k > from && n == 1; k--)
            if (p->pc[k] == p->pc[i])
                n = plan->occurrence[k] + 1;
        plan->occurrence[i] = n;
        bool run = i == from + 1 || n * HIT <= cost + STEP;
        plan->anchor[i] = run ? i : plan->anchor[i - 1];
        cost = run ? n * HIT : cost + STEP;
    }
}

static enum es_stop advance(es_tracee *t, const path *p, const struct plan *plan, uint32_t from, uint32_t to)
{
    enum es_stop stop = ES_STOP_TRAP;
    uint32_t at = from;
    if (to > from) {
        at = plan->anchor[to];
        stop = tracee_run_to(t, p->pc[at], plan->occurrence[at]);
    }
    for (; at < to && stop == ES_STOP_TRAP; at++)
        stop = tracee_step(t);
    return stop;
}

/* Lets the tracee run up to instruction n of the path. Returns whether it is there. */
static bool reach(const es_everywhere *e, es_tracee *t, const path *p, uint32_t n)
{
    enum es_stop stop;
    if (p->meddle < n) {
        if (advance(t, p, &p->from_start, 0, p->meddle) != ES_STOP_TRAP)
            return false;
        e->meddle(e->world);
        stop = advance(t, p, &p->from_meddle, p->meddle, n);
    } else {
        stop = advance(t, p, &p->from_start, 0, n);
    }
    return stop == ES_STOP_TRAP && tracee_pc(t) == p->pc[n] && is_over(e) == (n == p->end);
}

/* The vDSO repeats a clock read that met an update, which is often the case in single steps. Only the last repetition
 * stays in the path. Returns the index at which the instruction at the end of the path belongs. */
static uint32_t cut_repeated_reads(const path *p)
{
    uint64_t vdso = getauxval(AT_SYSINFO_EHDR), pc = p->pc[p->end];
    for (uint32_t i = p->end; i-- > 0 && p->pc[i] - vdso < VDSO_SIZE;)
        if (pc == p->pc[i])
            return i;
    return p->end;
}

/* Steps until n instructions are done or the operation has ended. Records the path. */
static bool walk(const es_everywhere *e, es_tracee *t, path *p, uint32_t n)
{
    p->entry = p->meddle = NEVER;
    for (p->end = 0;; p->end++) {
        p->pc[p->end] = tracee_pc(t);
        if (n == NEVER)
            p->end = cut_repeated_reads(p);
        if (p->entry == NEVER && e->phase(e->world) == PHASE_INSIDE)
            p->entry = p->end;
        if (e->look != NULL && n == NEVER)
            e->look(e->world, p->end);
        if (is_over(e) || p->end == n)
            return true;
        if (p->meddle == NEVER && e->meddles != NULL && e->meddles(e->world, p->pc[p->end])) {
            p->meddle = p->end;
            e->meddle(e->world);
        }
        if (p->end + 1 == MAX_INSTRUCTIONS) {
            fprintf(stderr, "    %s takes %u instructions and more: see MAX_INSTRUCTIONS\n", e->name, MAX_INSTRUCTIONS);
            return false;
        }
        if (tracee_step(t) != ES_STOP_TRAP) {
            fprintf(stderr, "    %s: the tracee did not stop after instruction %u\n", e->name, p->end);
            return false;
        }
    }
}

static void give_up(const es_everywhere *e, es_tracee *t)
{
    tracee_kill(t);
    e->abandon(e->world);
}

/* --- kills --------------------------------------------------------------------- */

/* Steps through the whole operation and kills the process after its end. */
static bool record(const es_everywhere *e, path *p, unsigned *outcomes)
{
    es_tracee t;
    if (!start(e, &t))
        return false;
    if (!CHECK(walk(e, &t, p, NEVER)) || !CHECK(e->meddles == NULL || p->meddle != NEVER)) {
        give_up(e, &t);
        return false;
    }
    *outcomes |= e->finish(e->world, &t, p->end);
    return true;
}

/* Kills the process n instructions after the start of the path. */
static bool kill_at(const es_everywhere *e, path *p, uint32_t n, bool by_steps, unsigned *outcomes)
{
    es_tracee t;
    if (!start(e, &t))
        return false;
    if (by_steps ? !walk(e, &t, &scratch, n) : !reach(e, &t, p, n)) {
        give_up(e, &t);
        return false;
    }
    cover_kill(tracee_pc(&t));
    was_over = is_over(e);
    *outcomes |= e->finish(e->world, &t, n);
    return true;
}

static void surely_kill_at(const es_everywhere *e, path *p, uint32_t n, unsigned *outcomes)
{
    for (int i = 0; i < STRAYS && !only_steps; i++) {
        if (kill_at(e, p, n, false, outcomes))
            return;
        strays++;
    }
    elsewhere++;
    CHECK(kill_at(e, p, n, true, outcomes));
}

/* The processor on which this worker runs its scenarios. Each worker has its own, if there are enough. */
static size_t processor(const cpu_set_t *all)
{
    int which = es_test_worker() % CPU_COUNT(all);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && which >= 0; cpu++)
        if (CPU_ISSET(cpu, all) && which-- == 0)
            return cpu;
    return (size_t)sched_getcpu();
}

/* Keeps tracer and tracee on one processor. A step is two context switches, which cost more between processors. */
static void stay_here(const cpu_set_t *all)
{
    cpu_set_t here;
    sched_setaffinity(0, sizeof *all, all);
    sched_yield();
    CPU_ZERO(&here);
    CPU_SET(processor(all), &here);
    sched_setaffinity(0, sizeof here, &here);
}

static void check_all(const es_everywhere *e, unsigned outcomes)
{
    char names[512];
    snprintf(names, sizeof names, "%s", e->through);
    for (char *name = strtok(names, " "); name != NULL; name = strtok(NULL, " "))
        if (!CHECK(cover_visited(name)))
            fprintf(stderr, "    no kill in %s\n", name);
    if (!CHECK_EQ(outcomes & e->outcomes, e->outcomes))
        fprintf(stderr, "    expected outcomes that did not occur: 0x%x\n", e->outcomes & ~outcomes);
}

/* Whether a death before the n-th instruction may leave something else than one at the place that was tried before. */
static bool left_more(const es_everywhere *e, const path *p, uint32_t n, uint32_t every)
{
    for (uint32_t i = n - every + 1; i <= n; i++)
        if (i - 1 == p->meddle || tracee_calls_kernel(p->pc[i - 1]) || e->leaves_more(e->world, i))
            return true;
    return false;
}

bool es_everywhere_quick(void)
{
    return getenv("ES_TRACE_QUICK") != NULL;
}

uint32_t es_everywhere_nth(void)
{
    const char *text = getenv("ES_TRACE_EVERY");
    unsigned long n = text == NULL ? 1 : strtoul(text, NULL, 10);
    return n >= 1 && n <= MAX_INSTRUCTIONS ? (uint32_t)n : 1;
}

void es_everywhere_kill(const es_everywhere *e)
{
    static cpu_set_t all;
    path *p = &the_path;
    unsigned outcomes = 0, bad = 0, kills = 0, instructions, functions;
    tracee_require_ptrace();
    only_steps = getenv("ES_TRACE_STEP") != NULL;
    uint32_t every = es_everywhere_nth();
    if (CPU_COUNT(&all) == 0)
        sched_getaffinity(0, sizeof all, &all);
    stay_here(&all);
    current_kill = p->entry = p->end = 0;
    uint64_t began = es_clock_ns();
    cover_scenario();
    strays = elsewhere = 0;
    if (!record(e, p, &outcomes))
        return;
    make_plan(p, 0, &p->from_start);
    if (p->meddle != NEVER)
        make_plan(p, p->meddle, &p->from_meddle);
    was_over = false;
    for (uint32_t n = p->entry; !(only_steps ? was_over : n > p->end) && bad < MAX_BAD_KILLS; n += every) {
        unsigned failures = es_test_failures();
        if (e->leaves_more != NULL && n > p->entry && n < p->end && !left_more(e, p, n, every)) {
            cover_kill(p->pc[n]);
            continue;
        }
        kills++;
        current_kill = n;
        surely_kill_at(e, p, n, &outcomes);
        if (es_test_failures() != failures) {
            say_where(p, n);
            bad++;
        }
    }
    if (bad == 0 && every == 1)
        check_all(e, outcomes);
    cover_counts(&instructions, &functions);
    printf("  %-36s %5u kills, %4u instructions of %2u functions, %4.1f s", e->name, kills, instructions, functions,
           (double)(es_clock_ns() - began) / 1e9);
    if (outcomes != 0)
        printf(", outcomes 0x%03x", outcomes);
    printf(strays + elsewhere > 0 ? ", %u strays, %u elsewhere\n" : "\n", strays, elsewhere);
}
