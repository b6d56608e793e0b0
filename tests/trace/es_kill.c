/* Kills a process at every instruction of a scenario.
 *
 * A first run executes the scenario's operation in single steps (ptrace) and records
 * the program counter before each instruction, from the entry of an API function to
 * its return. This includes the C library and the vDSO. A system call counts as one
 * instruction. Then the scenario is repeated once per instruction, with a fresh ring
 * and fresh processes. Each time the process is killed (SIGKILL) just before that
 * instruction, and the last time just after the operation.
 *
 * Another process, with its own descriptor of the lock file, sweeps the ring. The ring
 * must then be in a state that a run without a death could reach. It is valid. The dead
 * process leaves no claim, lease, entry or lock byte behind. All space is there. Two
 * more laps succeed, the stream ends, and every committed sample is delivered once and
 * whole.
 *
 * What this proves: in these scenarios, on this processor, with the code that this
 * compiler makes of the core at -O2, a process can die before any instruction. The
 * kernel acts on SIGKILL between two instructions, never within one. (Each round of a
 * repeated string instruction counts. A system call that sleeps has not done anything
 * yet.) So these are all points at which a process of these runs can die.
 *
 * What this does not prove: anything about other compilers, and little about a death
 * while another process is in the middle of an operation. The exceptions are sleepers,
 * which are asleep, and the few scenarios in which the tracer acts at one point of the
 * operation. The stepped tests in ../c and the kill storms cover the other cases.
 *
 * How the n-th instruction is reached: the process runs to a breakpoint and executes
 * the last few instructions in single steps. Both are planned from the recorded path.
 * A run that leaves this path, for example because it repeats a clock read, is
 * detected, discarded and repeated. After STRAYS such runs the process is killed after
 * n single steps, wherever that is. With ES_TRACE_STEP=1 every kill is done this way.
 * With ES_TRACE_EVERY=n only every n-th instruction is tried, and no function has to
 * be visited: a quick look, no proof.
 */
#define _GNU_SOURCE
#include "es_kill.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "es_after.h"
#include "es_cover.h"
#include "es_tracee.h"
#include "es_watchdog.h"

#define MAX_INSTRUCTIONS 60000u
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

/* For the watchdog: which kill hangs. */
static uint32_t current_kill;
static void say_kill(void)
{
    say_where(&the_path, current_kill);
}

/* --- the tracee ------------------------------------------------------------- */

static void be_killed(es_world *w)
{
    const es_scenario *s = w->scenario;
    tracee_begin();
    world_enter(w, s->role);
    for (uint32_t i = 0; i < s->sends; i++)
        w->side->sent[ID_TRACEE + i] = SENT_MAYBE;
    world_fill(w, ID_TRACEE, s->sends > 0 ? s->sends : 1);
    if (s->prepare != NULL)
        s->prepare(w);
    raise(SIGSTOP);
    w->side->phase = PHASE_INSIDE;
    w->side->rc = s->act(w);
    w->side->phase = PHASE_OVER;
    raise(SIGSTOP);
    for (;;)
        pause();
}

static void wake_it(void *arg)
{
    es_world *w = arg;
    w->slept = true;
    w->scenario->when_asleep(w);
}

static bool start(es_world *w, es_tracee *t, const es_scenario *s)
{
    es_watchdog_start(s->name, WATCHDOG_S, say_kill);
    world_open(w, s);
    if (s->before != NULL)
        s->before(w);
    pid_t child = fork();
    if (child == 0)
        be_killed(w);
    w->tracee = child;
    if (!CHECK(tracee_attach(t, child)))
        return false;
    if (s->when_asleep != NULL) {
        t->when_asleep = wake_it;
        t->arg = w;
    }
    if (s->between != NULL)
        s->between(w);
    return true;
}

/* A reaper may look at any time, so a registered, living process must hold its lock byte. */
static void living_holds_its_byte(es_world *w)
{
    es_map *m = &w->l->map;
    for (uint32_t i = 0; i < m->num_owners; i++)
        if (atomic_load(&m->owners[i].state) == ES_OWNER_LIVE && atomic_load(&m->owners[i].pid) == w->tracee)
            CHECK_EQ(es_locks_held(w->locks, i), 1);
}

/* Kills the tracee where it is and checks what is left. */
static unsigned finish(es_world *w, es_tracee *t)
{
    const es_scenario *s = w->scenario;
    unsigned outcomes = 0;
    if (!s->drops_locks)
        living_holds_its_byte(w);
    CHECK(!s->must_not_sleep || !w->slept);
    if (w->side->phase == PHASE_OVER) {
        CHECK_EQ(w->side->rc, s->want);
        for (uint32_t i = 0; i < s->sends; i++)
            w->side->sent[ID_TRACEE + i] = s->want >= 0 ? SENT_OK : SENT_NOT;
    } else {
        tracee_kill(t);
    }
    after_note_releases(w);
    if (w->side->phase == PHASE_OVER) {
        /* No process has died yet: only the operation itself can have woken the sleeper. */
        if (w->sleeper != 0 && world_sleeper_due(w))
            world_sleeper_await(w);
        if (s->alive != NULL)
            s->alive(w);
        tracee_kill(t);
    }
    for (uint32_t i = 0; i < w->side->num_takes; i++)
        outcomes |= w->released[i] ? RELEASED : GIVEN_BACK;
    outcomes |= after_death(w);
    world_close(w);
    return outcomes;
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
static bool reach(es_world *w, es_tracee *t, const path *p, uint32_t n)
{
    enum es_stop stop;
    if (p->meddle < n) {
        if (advance(t, p, &p->from_start, 0, p->meddle) != ES_STOP_TRAP)
            return false;
        w->scenario->meddle(w);
        stop = advance(t, p, &p->from_meddle, p->meddle, n);
    } else {
        stop = advance(t, p, &p->from_start, 0, n);
    }
    return stop == ES_STOP_TRAP && tracee_pc(t) == p->pc[n] && (w->side->phase == PHASE_OVER) == (n == p->end);
}

/* Whether the tracer acts before the instruction at pc. */
static bool meddles(const es_scenario *s, es_world *w, uint64_t pc, uint32_t *skip)
{
    if (s->meddle == NULL || w->side->phase != PHASE_INSIDE)
        return false;
    if (s->meddle_when != NULL)
        return s->meddle_when(w);
    const es_place *place = cover_place(pc);
    if (place == NULL)
        return false;
    if (s->meddle_at != NULL)
        return strcmp(place->function, s->meddle_at) == 0;
    return place->exchange && strcmp(place->function, s->meddle_in) == 0 && (*skip)-- == 0;
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
static bool walk(es_world *w, es_tracee *t, path *p, uint32_t n)
{
    const es_scenario *s = w->scenario;
    uint32_t skip = s->meddle_skip;
    p->entry = p->meddle = NEVER;
    for (p->end = 0;; p->end++) {
        p->pc[p->end] = tracee_pc(t);
        if (n == NEVER)
            p->end = cut_repeated_reads(p);
        if (p->entry == NEVER && w->side->phase == PHASE_INSIDE)
            p->entry = p->end;
        if (w->side->phase == PHASE_OVER || p->end == n)
            return true;
        if (p->meddle == NEVER && meddles(s, w, p->pc[p->end], &skip)) {
            p->meddle = p->end;
            s->meddle(w);
        }
        if (p->end + 1 == MAX_INSTRUCTIONS || tracee_step(t) != ES_STOP_TRAP)
            return false;
    }
}

/* Steps through the whole operation and kills the process after its end. */
static bool record(const es_scenario *s, path *p, unsigned *outcomes)
{
    es_world w;
    es_tracee t;
    if (!start(&w, &t, s))
        return false;
    if (!CHECK(walk(&w, &t, p, NEVER)) || !CHECK(s->meddle == NULL || p->meddle != NEVER)) {
        tracee_kill(&t);
        world_abandon(&w);
        return false;
    }
    *outcomes |= finish(&w, &t);
    return true;
}

/* Kills the process n instructions after the start of the path. */
static bool kill_at(const es_scenario *s, path *p, uint32_t n, bool by_steps, unsigned *outcomes)
{
    es_world w;
    es_tracee t;
    if (!start(&w, &t, s))
        return false;
    if (by_steps ? !walk(&w, &t, &scratch, n) : !reach(&w, &t, p, n)) {
        tracee_kill(&t);
        world_abandon(&w);
        return false;
    }
    cover_kill(tracee_pc(&t));
    was_over = w.side->phase == PHASE_OVER;
    *outcomes |= finish(&w, &t);
    return true;
}

static void surely_kill_at(const es_scenario *s, path *p, uint32_t n, unsigned *outcomes)
{
    for (int i = 0; i < STRAYS && !only_steps; i++) {
        if (kill_at(s, p, n, false, outcomes))
            return;
        strays++;
    }
    elsewhere++;
    CHECK(kill_at(s, p, n, true, outcomes));
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

static void check_scenario(const es_scenario *s, unsigned outcomes)
{
    char names[512];
    snprintf(names, sizeof names, "%s", s->through);
    for (char *name = strtok(names, " "); name != NULL; name = strtok(NULL, " "))
        if (!CHECK(cover_visited(name)))
            fprintf(stderr, "    no kill in %s\n", name);
    if (!CHECK_EQ(outcomes & s->outcomes, s->outcomes))
        fprintf(stderr, "    expected outcomes that did not occur: 0x%x\n", s->outcomes & ~outcomes);
}

uint32_t kill_every_nth(void)
{
    const char *text = getenv("ES_TRACE_EVERY");
    unsigned long n = text == NULL ? 1 : strtoul(text, NULL, 10);
    return n >= 1 && n <= MAX_INSTRUCTIONS ? (uint32_t)n : 1;
}

void kill_everywhere(const es_scenario *s)
{
    static cpu_set_t all;
    path *p = &the_path;
    unsigned outcomes = 0, bad = 0, instructions, functions;
    tracee_require_ptrace();
    only_steps = getenv("ES_TRACE_STEP") != NULL;
    uint32_t every = kill_every_nth();
    if (CPU_COUNT(&all) == 0)
        sched_getaffinity(0, sizeof all, &all);
    stay_here(&all);
    current_kill = p->entry = p->end = 0;
    uint64_t began = es_clock_ns();
    cover_scenario();
    strays = elsewhere = 0;
    if (!record(s, p, &outcomes))
        return;
    make_plan(p, 0, &p->from_start);
    if (p->meddle != NEVER)
        make_plan(p, p->meddle, &p->from_meddle);
    was_over = false;
    for (uint32_t n = p->entry; !(only_steps ? was_over : n > p->end) && bad < MAX_BAD_KILLS; n += every) {
        unsigned failures = es_test_failures();
        current_kill = n;
        surely_kill_at(s, p, n, &outcomes);
        if (es_test_failures() != failures) {
            say_where(p, n);
            bad++;
        }
    }
    if (bad == 0 && every == 1)
        check_scenario(s, outcomes);
    cover_counts(&instructions, &functions);
    printf("  %-36s %5u kills, %4u instructions of %2u functions, %4.1f s, outcomes 0x%03x", s->name,
           (p->end - p->entry) / every + 1, instructions, functions, (double)(es_clock_ns() - began) / 1e9, outcomes);
    printf(strays + elsewhere > 0 ? ", %u strays, %u elsewhere\n" : "\n", strays, elsewhere);
}
