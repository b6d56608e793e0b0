/* Makes the choices of an execution, and moves from one execution to the next. */
#include "xp_schedule.h"

#include <stdarg.h>
#include <stdio.h>

#define MAX_CHOICES 100000

typedef struct choice {
    uint16_t taken, of;
} choice;

struct xp_execution xp;

/* The choices of this execution: the first `length` are known, `depth` of them are made. Later choices are new. */
static choice path[MAX_CHOICES];
static int depth, length;
/* At random: `switches` is how often to preempt, `olds` how often to read an old value, in percent. */
static uint64_t random_state;
static unsigned switches, olds;

/* --- reporting ---------------------------------------------------------------- */

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

/* --- choosing ------------------------------------------------------------------- */

bool xp_at_random(void)
{
    return xp.budget->seed != 0;
}

unsigned xp_random_below(unsigned n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned)(random_state >> 33) % n;
}

bool xp_draws_switch(void)
{
    return xp_random_below(100) < switches;
}

int xp_choose(int n, int drawn)
{
    if (n == 1)
        return 0;
    if (depth < length && path[depth].of != n)
        xp_die("an execution took another course when it was repeated");
    if (depth < length)
        return path[depth++].taken;
    if (length == MAX_CHOICES) {
        xp_violation("an execution has more choices than the explorer keeps");
        return 0;
    }
    path[length++] = (choice){(uint16_t)drawn, (uint16_t)n};
    return path[depth++].taken;
}

int xp_choose_stale(int n)
{
    if (xp.running == 0 || xp.stale == 0 || xp.budget->memory == XP_SC)
        return 0;
    int drawn = xp_at_random() && n > 1 && xp_random_below(100) < olds ? 1 + (int)xp_random_below((unsigned)n - 1) : 0;
    int taken = xp_choose(n, drawn);
    xp.stale -= taken != 0;
    return taken;
}

/* --- from one execution to the next ------------------------------------------------- */

void xp_forget_path(void)
{
    length = 0;
}

void xp_replay_path(void)
{
    depth = 0;
}

bool xp_next_path(void)
{
    while (length > 0 && path[length - 1].taken + 1 == path[length - 1].of)
        length--;
    if (length == 0)
        return false;
    path[length - 1].taken++;
    return true;
}

void xp_draw_manners(uint64_t n)
{
    random_state = (xp.budget->seed + n) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    xp_random_below(2);
    const unsigned some_switches[] = {2, 10, 30, 60}, some_olds[] = {2, 10, 40};
    switches = some_switches[xp_random_below(4)];
    olds = some_olds[xp_random_below(3)];
    length = 0;
}
