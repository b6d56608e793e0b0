#include "es_step.h"

#include <setjmp.h>
#include <stdio.h>

#include "es_test.h"

#define MAX_STEPS 5000

static const es_step_case *running; /* NULL: nobody is interrupted */
static long step, stop_at;
static jmp_buf killed;

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
    es_still_begin();
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
