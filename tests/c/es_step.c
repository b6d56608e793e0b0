#include "es_step.h"

#include <setjmp.h>
#include <stdio.h>

#include "es_core.h"
#include "es_fixture.h"
#include "es_test.h"

#define MAX_PARKED 16
#define MAX_STEPS 5000

static const es_step_case *running; /* NULL: nobody is interrupted */
static long step, stop_at;
static jmp_buf killed;
static uint64_t now_ns = 1000;

static struct parked {
    _Atomic uint32_t *word;
    uint32_t seen;
} parked[MAX_PARKED];
static int num_parked;

void es_step(void);
void es_step(void)
{
    if (running == NULL || step++ != stop_at)
        return;
    const es_step_case *c = running;
    running = NULL; /* meanwhile() runs to its end */
    if (c->meanwhile != NULL)
        c->meanwhile();
    if (c->kill)
        longjmp(killed, 1);
    running = c;
}

/* The kernel's locks are steps as well. */
int __real_fcntl(int fd, int command, void *arg);
int __wrap_fcntl(int fd, int command, void *arg);
int __wrap_fcntl(int fd, int command, void *arg)
{
    es_step();
    return __real_fcntl(fd, command, arg);
}

/* One run, interrupted before step n: whether act() had that many. */
static bool run_to(const es_step_case *c, long n)
{
    num_parked = 0;
    c->before();
    step = 0;
    stop_at = n;
    if (setjmp(killed) == 0) {
        running = c;
        c->act();
        running = NULL;
        if (step <= stop_at && c->meanwhile != NULL)
            c->meanwhile(); /* after the end of act() */
    }
    running = NULL;
    bool reached = step > stop_at;
    c->after();
    return reached;
}

void es_step_each(const es_step_case *c)
{
    long n = 0;
    unsigned before = es_test_failures();
    while (run_to(c, n) && CHECK(n < MAX_STEPS)) {
        if (es_test_failures() != before) {
            printf("  \"%s\" interrupted before its step %ld\n", c->name, n);
            return;
        }
        n++;
    }
    if (es_test_failures() != before)
        printf("  \"%s\" run one after the other\n", c->name);
}

long es_step_count(const es_step_case *c)
{
    long n = 0;
    while (run_to(c, n))
        n++;
    return n;
}

bool es_step_parked(const void *word)
{
    for (int i = 0; i < num_parked; i++)
        if ((const void *)parked[i].word == word && atomic_load(parked[i].word) == parked[i].seen)
            return true;
    return false;
}

void es_step_advance(uint64_t ns)
{
    now_ns += ns;
}

/* --- in place of es_wait.c ------------------------------------------------- */

uint64_t es_clock_ns(void)
{
    return ++now_ns;
}

int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    if (atomic_load(word) != seen)
        return ES_OK;
    if (num_parked < MAX_PARKED)
        parked[num_parked++] = (struct parked){word, seen};
    now_ns += timeout_ns;
    return ES_TIMEOUT;
}

void es_wait_wake(_Atomic uint32_t *word)
{
    (void)word; /* the word has changed: es_step_parked() sees that */
}

const char *es_wait_kind(void)
{
    return "stepped";
}
