#define _GNU_SOURCE
#include "base/es_wait.h"

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

#ifdef ES_HAVE_FUTEX

int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec ts = to_timespec(timeout_ns);
    /* Not FUTEX_PRIVATE: the sleepers are in other processes. */
    if (syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, seen, &ts, NULL, 0) == 0 || errno == EAGAIN)
        return ES_OK;
    return errno == ETIMEDOUT ? ES_TIMEOUT : -errno;
}

void es_wait_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

const char *es_wait_kind(void)
{
    return "futex";
}

#else

/* Every wake-up in the ring changes the word before it wakes, so it is enough to watch the word.
 * Sleeps double from 20 us to 1 ms. */
int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    uint64_t start = es_clock_ns(), deadline = start + timeout_ns < start ? UINT64_MAX : start + timeout_ns;
    uint64_t nap = 20000;
    for (;;) {
        /* acquire: what the waker did before it changed the word is visible here, as after a futex
         * call. */
        if (atomic_load_explicit(word, memory_order_acquire) != seen)
            return ES_OK;
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

const char *es_wait_kind(void)
{
    return "poll";
}

#endif
