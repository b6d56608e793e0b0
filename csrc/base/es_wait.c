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

static bool any_changed(const es_wait_word *words, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        /* acquire: what the waker did before it changed the word is visible here, as after a futex
         * call. */
        if (atomic_load_explicit(words[i].word, memory_order_acquire) != words[i].seen)
            return true;
    return false;
}

/* Every wake-up in the ring changes the word before it wakes, so it is enough to watch the words.
 * Naps double from least_ns to most_ns. */
static int nap_until_changed(const es_wait_word *words, uint32_t n, uint64_t timeout_ns, uint64_t least_ns,
                             uint64_t most_ns)
{
    uint64_t deadline = deadline_after(timeout_ns), nap = least_ns;
    for (bool slept = false;; slept = true) {
        if (any_changed(words, n))
            return slept ? ES_OK : -EAGAIN;
        uint64_t now = es_clock_ns();
        if (now >= deadline)
            return ES_TIMEOUT;
        struct timespec ts = to_timespec(nap < deadline - now ? nap : deadline - now);
        if (nanosleep(&ts, NULL) != 0)
            return -errno;
        nap = nap * 2 < most_ns ? nap * 2 : most_ns;
    }
}

/* Between two looks at several words, where no system call waits for them. */
#define SEVERAL_NAP_NS UINT64_C(500000)

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

/* futex_waitv() is younger (Linux 5.16) than the headers and the kernels that the core is built for. Its number is
 * the same on both processors. */
#if defined(SYS_futex_waitv)
#define FUTEX_WAITV SYS_futex_waitv
#elif defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__))
#define FUTEX_WAITV 449
#endif

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

int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, es_wait_turn turn)
{
    (void)turn;
    return nap_until_changed(&(es_wait_word){word, seen}, 1, timeout_ns, 20000, 1000000);
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

/* As the kernel defines them. */
typedef struct waiter {
    uint64_t val, uaddr;
    uint32_t flags, reserved;
} waiter;
typedef struct deadline {
    int64_t s, ns;
} deadline;
#define WORD_OF_32_BITS 2u /* FUTEX_32; and not FUTEX_PRIVATE_FLAG, as above */

/* The kernel queues the sleeper at one word after the other, compares each under the lock of its
 * queue, and returns 0 or more if any wake-up came since, even if a later word has changed. A wake-up
 * removes the sleeper from that word's queue only. Until the sleeper runs, it can use up one of each
 * other word. It has all turns' bits (FUTEX_BITSET_MATCH_ANY), so every wake-up finds it. */
static int wait_in_kernel(const es_wait_word *words, uint32_t n, uint64_t timeout_ns)
{
#ifdef FUTEX_WAITV
    waiter waiters[ES_WATCH_MOST];
    uint64_t end_ns = deadline_after(timeout_ns);
    deadline end = {.s = (int64_t)(end_ns / 1000000000u), .ns = (int64_t)(end_ns % 1000000000u)};
    for (uint32_t i = 0; i < n; i++)
        waiters[i] = (waiter){words[i].seen, (uintptr_t)words[i].word, WORD_OF_32_BITS, 0};
    if (syscall(FUTEX_WAITV, waiters, n, 0, &end, CLOCK_MONOTONIC) >= 0)
        return ES_OK;
    return errno == ETIMEDOUT ? ES_TIMEOUT : -errno;
#else
    (void)words;
    (void)n;
    (void)timeout_ns;
    return -ENOSYS;
#endif
}

int es_wait_several(const es_wait_word *words, uint32_t n, uint64_t timeout_ns)
{
    int rc = wait_in_kernel(words, n, timeout_ns);
    /* Another system, an older kernel, or a filter of system calls that does not know this one. A
     * process that naps uses up no wake-up: nobody finds it asleep. */
    bool absent = rc == -ENOSYS || rc == -EPERM;
    return absent ? nap_until_changed(words, n, timeout_ns, SEVERAL_NAP_NS, SEVERAL_NAP_NS) : rc;
}
