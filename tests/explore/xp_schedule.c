/* Chooses the thread that runs: coroutines, and what may happen before each step. */
#define _GNU_SOURCE
#include "xp_schedule.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "es_hook.h"

#define STACK (256 * 1024)
#define MAX_STEPS 20000
#define MAX_QUEUES 4

typedef struct thread {
    ucontext_t context; /* where it starts in the first execution */
    jmp_buf base;       /* where it starts in later executions */
    jmp_buf left_at;    /* where it resumes */
    bool started, based;
    void *stack;
    enum xp_state state;
    const void *mutex;              /* blocked: waits for it */
    const void *queues[MAX_QUEUES]; /* the futex words at which it is queued */
    int num_queues;
    bool woken, timed_out; /* since it queued */
    uint64_t ran;          /* number of its last step */
} thread;

static thread threads[XP_THREADS];

/* --- switching ------------------------------------------------------------------- */

static void resume(int t)
{
    int me = xp.running;
    xp.running = t;
    if (t == me)
        return;
    /* Not swapcontext(): it makes a system call for the signal mask each time. */
    if (_setjmp(threads[me].left_at) != 0)
        return;
    if (t == 0 || threads[t].started)
        _longjmp(threads[t].left_at, 1);
    threads[t].started = true;
    setcontext(&threads[t].context);
}

/* The other threads that can run. */
static int others_ready(int me, int *ready)
{
    int n = 0;
    for (int t = 1; t < XP_THREADS; t++)
        if (t != me && threads[t].state == XP_READY)
            ready[n++] = t;
    return n;
}

void xp_give_way(void)
{
    int ready[XP_THREADS], n = others_ready(xp.running, ready);
    if (n == 0 || xp.violation != NULL)
        resume(0);
    else
        resume(ready[xp_choose(n, xp_at_random() ? (int)xp_random_below((unsigned)n) : 0)]);
}

/* Never returns. The next execution starts the thread again at its base. */
static void thread_main(int number)
{
    volatile int t = number;
    threads[t].based = true;
    _setjmp(threads[t].base);
    xp.scene->threads[t - 1]();
    threads[t].state = XP_DONE;
    xp_give_way();
}

static void start_thread(int t)
{
    thread *c = &threads[t];
    c->state = XP_READY;
    c->num_queues = 0;
    c->woken = false;
    c->ran = 0;     /* it decides who runs in xp_let_others(): every execution starts alike */
    if (c->based) { /* no new context: it would cost two system calls for the signal mask */
        memcpy(&c->left_at, &c->base, sizeof c->base);
        return;
    }
    if (c->stack == NULL)
        c->stack = malloc(STACK);
    c->started = false;
    getcontext(&c->context);
    c->context.uc_stack.ss_sp = c->stack;
    c->context.uc_stack.ss_size = STACK;
    c->context.uc_link = NULL;
    makecontext(&c->context, (void (*)(void))thread_main, 1, t);
}

void xp_start_threads(void)
{
    for (int t = 1; t < XP_THREADS; t++)
        if (xp.scene->threads[t - 1] != NULL)
            start_thread(t);
        else
            threads[t].state = XP_ABSENT;
}

/* --- waiting --------------------------------------------------------------------- */

void xp_let_others(void)
{
    int ready[XP_THREADS], n = others_ready(xp.running, ready), next = 0;
    for (int i = 1; i < n; i++)
        if (threads[ready[i]].ran < threads[ready[next]].ran)
            next = i;
    if (xp.running != 0 && n > 0)
        resume(ready[next]);
    if (xp.violation != NULL && xp.running != 0)
        resume(0);
}

static void wait_as(enum xp_state state)
{
    threads[xp.running].state = state;
    xp_give_way();
    if (xp.violation != NULL)
        resume(0);
}

void xp_wait_for_mutex(const void *mutex)
{
    threads[xp.running].mutex = mutex;
    wait_as(XP_BLOCKED);
}

void xp_wake_blocked(const void *mutex)
{
    for (int t = 1; t < XP_THREADS; t++)
        if (threads[t].state == XP_BLOCKED && threads[t].mutex == mutex)
            threads[t].state = XP_READY;
}

void xp_queue(const void *word)
{
    thread *me = &threads[xp.running];
    if (me->num_queues == MAX_QUEUES)
        xp_die("a thread waits for more words than the explorer keeps");
    me->queues[me->num_queues++] = word;
}

bool xp_park(void)
{
    thread *me = &threads[xp.running];
    me->timed_out = false;
    if (!me->woken)
        wait_as(XP_PARKED);
    return me->timed_out;
}

bool xp_unqueue(void)
{
    thread *me = &threads[xp.running];
    bool woken = me->woken;
    me->num_queues = 0;
    me->woken = false;
    return woken;
}

/* The thread's place in the queue of this word, or -1. */
static int queued_at(int t, const void *word)
{
    for (int i = 0; i < threads[t].num_queues; i++)
        if (threads[t].queues[i] == word)
            return i;
    return -1;
}

static void wake_from(int t, const void *word)
{
    thread *it = &threads[t];
    it->queues[queued_at(t, word)] = it->queues[it->num_queues - 1];
    it->num_queues--;
    it->woken = true;
    if (it->state == XP_PARKED)
        it->state = XP_READY;
}

void xp_wake_all(const void *word)
{
    for (int t = 1; t < XP_THREADS; t++)
        while (queued_at(t, word) >= 0)
            wake_from(t, word);
}

bool xp_wake_any(const void *word)
{
    int queued[XP_THREADS], n = 0;
    for (int t = 1; t < XP_THREADS; t++)
        if (queued_at(t, word) >= 0)
            queued[n++] = t;
    if (n == 0)
        return false;
    /* The stage's own calls come after the execution, so there is no choice to record. */
    int chosen = xp.running == 0 ? 0 : xp_choose(n, xp_at_random() ? (int)xp_random_below((unsigned)n) : 0);
    wake_from(queued[chosen], word);
    return true;
}

bool xp_any(enum xp_state state)
{
    bool any = false;
    for (int t = 1; t < XP_THREADS; t++)
        any = any || threads[t].state == state;
    return any;
}

void xp_time_out_all(void)
{
    for (int t = 1; t < XP_THREADS; t++)
        if (threads[t].state == XP_PARKED) {
            threads[t].timed_out = true;
            threads[t].num_queues = 0;
            threads[t].state = XP_READY;
        }
}

bool xp_parked_on(int t, const void *word)
{
    return xp_parked(t) && queued_at(t, word) >= 0;
}

bool xp_parked(int t)
{
    return threads[t].state == XP_PARKED;
}

bool xp_dead(int t)
{
    return threads[t].state == XP_DEAD;
}

/* --- what may happen before a step -------------------------------------------------- */

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
        if ((process >> t & 1) && threads[t].state != XP_ABSENT) {
            threads[t].state = XP_DEAD;
            threads[t].num_queues = 0;
        }
    xp_memory_death(process);
    xp_give_way();
}

/* What may happen before the current step. */
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
    if (xp_at_random() && n > 1) {
        if (mortal && xp_random_below(100) < 2)
            drawn = n - 1;
        else if (switches + flushes > 0 && xp_draws_switch())
            drawn = 1 + (int)xp_random_below((unsigned)(switches + flushes));
    }
    int taken = xp_choose(n, drawn);
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

void xp_step(const hook_site *site, const void *word)
{
    int whom = 0;
    if (xp.running == 0)
        return;
    threads[xp.running].ran = xp.steps;
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
        resume(0); /* does not return here */
    if (xp.tracing)
        printf("\n  %d  %-12s %-10s %-18s %s:%d", xp.running, site == NULL ? "yield" : site->function,
               site == NULL ? "" : site->op, word == NULL ? "" : xp_word_name(word),
               site == NULL                       ? ""
               : strrchr(site->file, '/') != NULL ? strrchr(site->file, '/') + 1
                                                  : site->file,
               site == NULL ? 0 : site->line);
}

void xp_yield(void)
{
    xp_step(NULL, NULL);
}
