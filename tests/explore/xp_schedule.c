/* Who goes on: coroutines, the choices of an execution, and the way from one execution to the next. */
#define _GNU_SOURCE
#include "xp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "es_wait.h"
#include "xp_words.h"

#undef pthread_mutex_lock
#undef pthread_mutex_unlock
#undef nanosleep

#define STACK (256 * 1024)
#define MAX_CHOICES 100000
#define MAX_STEPS 20000
#define MAX_ROUNDS 60

enum state { ABSENT, READY, PARKED, BLOCKED, DONE, DEAD };

typedef struct thread {
    ucontext_t context; /* where it starts */
    jmp_buf left_at;    /* where it goes on */
    bool started;
    void *stack;
    enum state state;
    const void *waits_for; /* PARKED: a futex word; BLOCKED: a mutex */
    bool timed_out;
    uint64_t ran; /* its last step */
} thread;

typedef struct choice {
    uint16_t taken, of;
} choice;

static struct {
    const xp_scene *scene;
    const xp_budget *budget;
    xp_stage *stage;
    thread threads[XP_THREADS];
    int running;
    int preemptions, stale, kills; /* left */
    uint64_t now_ns, steps;
    bool killed, tracing;
    int rounds_since_kill;
    const char *violation;
    /* the path: replayed up to depth, then new */
    choice path[MAX_CHOICES];
    int depth, length;
    /* at random: percent */
    uint64_t random;
    unsigned switches, olds;
} xp;

/* --- saying ------------------------------------------------------------------- */

void xp_violation(const char *what)
{
    if (xp.violation == NULL)
        xp.violation = what;
}

void xp_trace(const char *format, ...)
{
    va_list args;
    if (!xp.tracing || xp.running == 0)
        return;
    va_start(args, format);
    printf(" ");
    vprintf(format, args);
    va_end(args);
}

int xp_running(void)
{
    return xp.running;
}

int xp_me(void)
{
    return xp.running;
}

bool xp_killed_any(void)
{
    return xp.killed;
}

/* --- choosing ------------------------------------------------------------------- */

static unsigned random_below(unsigned n)
{
    xp.random ^= xp.random << 13;
    xp.random ^= xp.random >> 7;
    xp.random ^= xp.random << 17;
    return (unsigned)(xp.random >> 33) % n;
}

/* 0 .. n-1: depth first the next on the path, else what the caller drew. */
static int choose(int n, int drawn)
{
    if (n == 1)
        return 0;
    if (xp.depth < xp.length)
        return xp.path[xp.depth++].taken;
    if (xp.length == MAX_CHOICES) {
        xp_violation("an execution has more choices than the explorer keeps");
        return 0;
    }
    xp.path[xp.length++] = (choice){(uint16_t)drawn, (uint16_t)n};
    return xp.path[xp.depth++].taken;
}

/* Turns the path into that of the next execution, depth first: whether there is one. */
static bool next_path(void)
{
    while (xp.length > 0 && xp.path[xp.length - 1].taken + 1 == xp.path[xp.length - 1].of)
        xp.length--;
    if (xp.length == 0)
        return false;
    xp.path[xp.length - 1].taken++;
    return true;
}

static bool at_random(void)
{
    return xp.budget->seed != 0;
}

int xp_choose_stale(int n)
{
    if (xp.running == 0 || xp.stale == 0)
        return 0;
    int drawn = at_random() && n > 1 && random_below(100) < xp.olds ? 1 + (int)random_below((unsigned)n - 1) : 0;
    int taken = choose(n, drawn);
    xp.stale -= taken != 0;
    return taken;
}

/* --- switching ------------------------------------------------------------------- */

static void resume(int t)
{
    int me = xp.running;
    xp.running = t;
    if (t == me)
        return;
    /* swapcontext() would ask the kernel for the signal mask each time. */
    if (_setjmp(xp.threads[me].left_at) != 0)
        return;
    if (t == 0 || xp.threads[t].started)
        _longjmp(xp.threads[t].left_at, 1);
    xp.threads[t].started = true;
    setcontext(&xp.threads[t].context);
}

/* The threads that could go on, others than me. */
static int others_ready(int me, int *ready)
{
    int n = 0;
    for (int t = 1; t < XP_THREADS; t++)
        if (t != me && xp.threads[t].state == READY)
            ready[n++] = t;
    return n;
}

/* The running thread cannot go on: somebody else does, or the stage. */
static void give_way(void)
{
    int ready[XP_THREADS], n = others_ready(xp.running, ready);
    if (n == 0 || xp.violation != NULL)
        resume(0);
    else
        resume(ready[choose(n, at_random() ? (int)random_below((unsigned)n) : 0)]);
}

static unsigned process_of(int t)
{
    unsigned all = 1u << t;
    for (int u = t; u > 1 && (xp.scene->together >> (u - 1) & 1); u--)
        all |= 1u << (u - 1);
    for (int u = t + 1; u < XP_THREADS && (xp.scene->together >> (u - 1) & 1); u++)
        all |= 1u << u;
    return all;
}

static void die(void)
{
    unsigned process = process_of(xp.running);
    xp_trace("KILLED");
    xp.kills--;
    xp.rounds_since_kill = 0;
    xp.killed = true;
    for (int t = 1; t < XP_THREADS; t++)
        if ((process >> t & 1) && xp.threads[t].state != ABSENT)
            xp.threads[t].state = DEAD;
    xp_memory_death(process);
    give_way();
}

/* What may happen before the step under way. */
enum event { GO_ON, SWITCH, FLUSH, KILL };

static enum event next_event(int *whom)
{
    int ready[XP_THREADS], n = 1, switches, flushes = 0, pending[XP_THREADS];
    switches = xp.preemptions > 0 ? others_ready(xp.running, ready) : 0;
    for (int t = 1; t < XP_THREADS && xp.preemptions > 0; t++)
        if (xp_memory_pending(t) > 0)
            pending[flushes++] = t;
    bool mortal = xp.kills > 0 && (xp.scene->mortal >> (xp.running - 1) & 1);
    n += switches + flushes + mortal;
    int drawn = 0;
    if (at_random() && n > 1) {
        if (mortal && random_below(100) < 2)
            drawn = n - 1;
        else if (switches + flushes > 0 && random_below(100) < xp.switches)
            drawn = 1 + (int)random_below((unsigned)(switches + flushes));
    }
    int taken = choose(n, drawn);
    if (taken == 0)
        return GO_ON;
    if (taken <= switches) {
        *whom = ready[taken - 1];
        return SWITCH;
    }
    if (taken <= switches + flushes) {
        *whom = pending[taken - switches - 1];
        return FLUSH;
    }
    return KILL;
}

void xp_step(const xp_site *site, const void *word)
{
    int whom = 0;
    if (xp.running == 0)
        return;
    xp.threads[xp.running].ran = xp.steps;
    if (++xp.steps > MAX_STEPS)
        xp_violation("an execution does not end");
    for (enum event e = FLUSH; e == FLUSH && xp.violation == NULL;) {
        e = next_event(&whom);
        xp.preemptions -= e == SWITCH || e == FLUSH;
        if (e == SWITCH)
            resume(whom);
        else if (e == FLUSH)
            xp_memory_flush_one(whom);
        else if (e == KILL)
            die();
    }
    if (xp.violation != NULL)
        resume(0); /* for good */
    if (xp.tracing)
        printf("\n  %d  %-12s %-10s %-18s %s:%d", xp.running, site == NULL ? "yield" : site->function,
               site == NULL ? "" : site->op, word == NULL ? "" : xp_word_name(word),
               site == NULL ? "" : strrchr(site->file, '/') != NULL ? strrchr(site->file, '/') + 1 : site->file,
               site == NULL ? 0 : site->line);
}

void xp_yield(void)
{
    xp_step(NULL, NULL);
}

/* --- what threads wait for ----------------------------------------------------------- */

/* Mutexes are private to a process; the real one says whether it is held. */
void xp_mutex_lock(pthread_mutex_t *mutex)
{
    thread *me = &xp.threads[xp.running];
    while (pthread_mutex_trylock(mutex) != 0) {
        if (xp.running == 0)
            xp_die("the stage waits for a mutex");
        me->state = BLOCKED;
        me->waits_for = mutex;
        give_way();
        if (xp.violation != NULL)
            resume(0);
    }
    xp_memory_acquire(xp.running, mutex);
}

void xp_mutex_unlock(pthread_mutex_t *mutex)
{
    xp_memory_release(xp.running, mutex);
    pthread_mutex_unlock(mutex);
    for (int t = 1; t < XP_THREADS; t++)
        if (xp.threads[t].state == BLOCKED && xp.threads[t].waits_for == mutex)
            xp.threads[t].state = READY;
}

int xp_nap(const struct timespec *time, struct timespec *left)
{
    int ready[XP_THREADS], n = others_ready(xp.running, ready), next = 0;
    (void)time;
    (void)left;
    /* Whoever has waited longest, so that two who nap in turns cannot keep a third away. */
    for (int i = 1; i < n; i++)
        if (xp.threads[ready[i]].ran < xp.threads[ready[next]].ran)
            next = i;
    if (xp.running != 0 && n > 0)
        resume(ready[next]);
    if (xp.violation != NULL && xp.running != 0)
        resume(0);
    return 0;
}

uint64_t es_now_ns(void)
{
    return ++xp.now_ns;
}

int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    thread *me = &xp.threads[xp.running];
    xp_step(NULL, (const void *)word);
    if (xp.running == 0) {
        xp.now_ns += timeout_ns;
        return ES_TIMEOUT;
    }
    /* The kernel compares under a lock of its own, with what is there now. */
    while (xp_memory_pending(xp.running) > 0)
        xp_memory_flush_one(xp.running);
    if ((uint32_t)xp_memory_latest((const void *)word, sizeof *word) != seen)
        return ES_OK;
    me->state = PARKED;
    me->waits_for = (const void *)word;
    me->timed_out = false;
    xp_trace("parks");
    give_way();
    if (xp.violation != NULL)
        resume(0);
    if (!me->timed_out)
        return ES_OK;
    xp.now_ns += timeout_ns;
    return ES_TIMEOUT;
}

void es_wake_all(_Atomic uint32_t *word)
{
    xp_step(NULL, (const void *)word);
    while (xp.running != 0 && xp_memory_pending(xp.running) > 0)
        xp_memory_flush_one(xp.running);
    for (int t = 1; t < XP_THREADS; t++)
        if (xp.threads[t].state == PARKED && xp.threads[t].waits_for == (const void *)word)
            xp.threads[t].state = READY;
    xp_trace("wakes");
}

const char *es_wait_kind(void)
{
    return "explored";
}

/* --- one execution ---------------------------------------------------------------------- */

static void thread_main(int t)
{
    xp.scene->threads[t - 1]();
    xp.threads[t].state = DONE;
    give_way();
}

static void start_thread(int t)
{
    thread *c = &xp.threads[t];
    if (c->stack == NULL)
        c->stack = malloc(STACK);
    c->state = READY;
    c->started = false;
    getcontext(&c->context);
    c->context.uc_stack.ss_sp = c->stack;
    c->context.uc_stack.ss_size = STACK;
    c->context.uc_link = NULL;
    makecontext(&c->context, (void (*)(void))thread_main, 1, t);
}

static void start_threads(void)
{
    for (int t = 1; t < XP_THREADS; t++)
        if (xp.scene->threads[t - 1] != NULL)
            start_thread(t);
        else
            xp.threads[t].state = ABSENT;
}

/* Everybody sleeps. Time passes for those who wait in vain; without a crash nobody
 * may sleep who has something to do. Returns whether anybody is left. */
static bool wake_by_time(int round)
{
    bool any = false;
    xp_memory_join_all(0);
    for (int t = 1; t < XP_THREADS; t++)
        any = any || xp.threads[t].state == PARKED;
    if (!any)
        return false;
    /* After a death they may, once, for a reap interval. */
    if (!xp.killed || xp.rounds_since_kill > 0)
        xp_stage_nobody_oversleeps(xp.scene);
    else
        xp_stage_reap();
    xp.rounds_since_kill++;
    if (round == MAX_ROUNDS)
        xp_violation("somebody waits for ever");
    for (int t = 1; t < XP_THREADS; t++)
        if (xp.threads[t].state == PARKED) {
            xp.threads[t].timed_out = true;
            xp.threads[t].state = READY;
        }
    return true;
}

bool xp_parked_on(int t, const void *word)
{
    return xp.threads[t].state == PARKED && xp.threads[t].waits_for == word;
}

bool xp_dead(int t)
{
    return xp.threads[t].state == DEAD;
}

void xp_pass(uint64_t ns)
{
    xp.now_ns += ns;
}

static void run_once(void)
{
    xp.violation = NULL;
    xp.preemptions = xp.budget->preemptions;
    xp.stale = xp.budget->stale;
    xp.kills = xp.budget->kills;
    xp.depth = 0;
    xp.steps = 0;
    xp.now_ns = 1000;
    xp.killed = false;
    xp_stage_restore();
    xp_memory_begin(xp.scene, xp.budget->memory, xp.stage);
    xp_stage_cast(xp.scene);
    start_threads();
    for (int round = 0; xp.violation == NULL; round++) {
        int ready[XP_THREADS], n = others_ready(0, ready);
        if (n > 0)
            resume(ready[choose(n, at_random() ? (int)random_below((unsigned)n) : 0)]);
        xp.running = 0;
        if (xp.violation == NULL && others_ready(0, ready) == 0 && !wake_by_time(round))
            break;
    }
    if (xp.violation == NULL)
        xp_stage_settle(xp.scene);
}

static void draw_manners(uint64_t n)
{
    xp.random = (xp.budget->seed + n) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    random_below(2);
    const unsigned switches[] = {2, 10, 30, 60}, olds[] = {2, 10, 40};
    xp.switches = switches[random_below(4)];
    xp.olds = olds[random_below(3)];
    xp.length = 0;
}

xp_outcome xp_explore(const xp_scene *scene, const xp_budget *budget)
{
    xp_outcome out = {0};
    xp.scene = scene;
    xp.budget = budget;
    xp.length = 0;
    xp.stage = xp_stage_set(scene);
    while (out.executions < budget->executions) {
        if (at_random())
            draw_manners(out.executions);
        run_once();
        out.executions++;
        out.steps += xp.steps;
        out.longest = xp.steps > out.longest ? xp.steps : out.longest;
        out.violation = xp.violation;
        if (out.violation != NULL)
            break;
        if (!at_random() && !next_path()) {
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
    xp_memory_end();
    xp_stage_clear();
    return out;
}
