/* Replaces everything that a thread can wait for: es_wait.c, and the mutexes and naps of the C library. */
#include "xp_schedule.h"

#include <pthread.h>

#include "es_core.h"
#include "es_hook.h"

#undef pthread_mutex_lock
#undef pthread_mutex_unlock
#undef nanosleep

/* Mutexes are private to a process. The real mutex keeps whether it is held. */
void hook_mutex_lock(pthread_mutex_t *mutex)
{
    while (pthread_mutex_trylock(mutex) != 0) {
        if (xp.running == 0)
            xp_die("the stage waits for a mutex");
        xp_wait_for(XP_BLOCKED, mutex);
    }
    xp_memory_acquire(xp.running, mutex);
}

void hook_mutex_unlock(pthread_mutex_t *mutex)
{
    xp_memory_release(xp.running, mutex);
    pthread_mutex_unlock(mutex);
    xp_wake(XP_BLOCKED, mutex);
}

int hook_nap(const struct timespec *time, struct timespec *left)
{
    (void)time;
    (void)left;
    xp_let_others();
    return 0;
}

uint64_t es_clock_ns(void)
{
    return ++xp.now_ns;
}

void xp_pass(uint64_t ns)
{
    xp.now_ns += ns;
}

int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, es_wait_turn turn)
{
    (void)turn;
    xp_step(NULL, (const void *)word);
    if (xp.running == 0) {
        xp.now_ns += timeout_ns;
        return ES_TIMEOUT;
    }
    /* The kernel compares under its own lock, with the current value. */
    while (xp_memory_pending(xp.running) > 0)
        xp_memory_flush_one(xp.running);
    if ((uint32_t)xp_memory_latest((const void *)word, sizeof *word) != seen)
        return -EAGAIN;
    xp_trace("parks");
    if (!xp_wait_for(XP_PARKED, (const void *)word))
        return ES_OK;
    xp.now_ns += timeout_ns;
    return ES_TIMEOUT;
}

/* A system call orders memory. */
static void enter_kernel(const void *word)
{
    xp_step(NULL, word);
    while (xp.running != 0 && xp_memory_pending(xp.running) > 0)
        xp_memory_flush_one(xp.running);
}

void es_wait_wake(_Atomic uint32_t *word)
{
    enter_kernel((const void *)word);
    xp_wake(XP_PARKED, (const void *)word);
    xp_trace("wakes");
}

/* Any of the sleepers: nothing but fairness depends on which. */
bool es_wait_wake_one(_Atomic uint32_t *word, es_wait_turn turn)
{
    (void)turn;
    enter_kernel((const void *)word);
    bool woken = xp_wake_any((const void *)word);
    xp_trace(woken ? "wakes one" : "wakes nobody");
    return woken;
}

void es_wait_yield(void)
{
}

const char *es_wait_kind(void)
{
    return "explored";
}
