#define _GNU_SOURCE
#include "base/es_wait.h"

#include <sched.h>
#include <time.h>

#include "base/es_clock.h"

#if defined(__linux__) && !defined(ES_WAIT_POLL)
#define ES_HAVE_FUTEX 1
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static struct timespec to_timespec(uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    return ts;
}

static uint64_t deadline_after(uint64_t timeout_ns)
{
    uint64_t start = es_clock_ns();
    return start + timeout_ns < start ? UINT64_MAX : start + timeout_ns;
}

void es_wait_yield(void)
{
    sched_yield();
}

#ifdef ES_HAVE_FUTEX

/* A sleeper has a bit for each turn in which it is woken; a waker names one bit. The kernel wakes
 * in the order of arrival. */
#define BIT(turn) (UINT32_C(1) << (turn))
#define BITS(turn) (BIT(turn) | BIT(ES_WAIT_IN_TURN))

/* Not FUTEX_PRIVATE: the sleepers are in other processes. */
int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, es_wait_turn turn)
{
    /* FUTEX_WAIT_BITSET takes a time on the clock of es_clock_ns(), not a duration. */
    struct timespec end = to_timespec(deadline_after(timeout_ns));
    if (syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_BITSET, seen, &end, NULL, BITS(turn)) == 0)
        return ES_OK;
    return errno == ETIMEDOUT ? ES_TIMEOUT : -errno;
}

void es_wait_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool es_wait_wake_one(_Atomic uint32_t *word, es_wait_turn turn)
{
    return syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_BITSET, 1, NULL, NULL, BIT(turn)) > 0;
}

const char *es_wait_kind(void)
{
    return "futex";
}

#else

/* Every wake-up in the ring changes the word before it wakes, so it is enough to watch the word.
 * Sleeps double from 20 us to 1 ms. */
int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, es_wait_turn turn)
{
    (void)turn;
    uint64_t deadline = deadline_after(timeout_ns), nap = 20000;
    for (bool slept = false;; slept = true) {
        /* acquire: what the waker did before it changed the word is visible here, as after a futex
         * call. */
        if (atomic_load_explicit(word, memory_order_acquire) != seen)
            return slept ? ES_OK : -EAGAIN;
        uint64_t now = es_clock_ns();
        if (now >= deadline)
            return ES_TIMEOUT;
        struct timespec ts = to_timespec(nap < deadline - now ? nap : deadline - now);
        if (nanosleep(&ts, NULL) != 0)
            return -errno;
        if (nap < 1000000)
            nap *= 2;
    }
}

void es_wait_wake(_Atomic uint32_t *word)
{
    (void)word;
}

bool es_wait_wake_one(_Atomic uint32_t *word, es_wait_turn turn)
{
    (void)word;
    (void)turn;
    return false;
}

const char *es_wait_kind(void)
{
    return "poll";
}

#endif
