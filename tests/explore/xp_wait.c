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
        xp_wait_for_mutex(mutex);
    }
    xp_memory_acquire(xp.running, mutex);
}

void hook_mutex_unlock(pthread_mutex_t *mutex)
{
    xp_memory_release(xp.running, mutex);
    pthread_mutex_unlock(mutex);
    xp_wake_blocked(mutex);
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

/* futex_waitv(): queues at one word after the other. Each comparison is a step of its own, and wake-ups may come
 * between two. */
int es_wait_several(const es_wait_word *words, uint32_t n, uint64_t timeout_ns)
{
    for (uint32_t i = 0; i < n; i++) {
        xp_step(NULL, (const void *)words[i].word);
        if (xp.running == 0) {
            xp.now_ns += timeout_ns;
            return ES_TIMEOUT;
        }
        /* The kernel compares under its own lock, with the current value. */
        while (xp_memory_pending(xp.running) > 0)
            xp_memory_flush_one(xp.running);
        if ((uint32_t)xp_memory_latest((const void *)words[i].word, sizeof *words[i].word) != words[i].seen)
            return xp_unqueue() ? ES_OK : -EAGAIN;
        xp_queue((const void *)words[i].word);
    }
    xp_trace("parks");
    bool timed_out = xp_park();
    xp_unqueue();
    if (!timed_out)
        return ES_OK;
    xp.now_ns += timeout_ns;
    return ES_TIMEOUT;
}

int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, es_wait_turn turn)
{
    (void)turn;
    return es_wait_several(&(es_wait_word){word, seen}, 1, timeout_ns);
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
    xp_wake_all((const void *)word);
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
