/* What the machine can do at best: bytes copied by memcpy, a sleeper woken by a futex. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Samples a second, copied one behind the other into a region, over and over,
 * for at least that many nanoseconds. The first lap is not counted. */
double bench_memcpy(uint8_t *region, uint64_t size, const uint8_t *sample, uint64_t n, int64_t ns)
{
    uint64_t slots = size / n, copied = 0, slot = 0;
    int64_t start, now;
    for (uint64_t i = 0; i < slots; i++)
        memcpy(region + i * n, sample, n);
    start = now_ns();
    do {
        for (int i = 0; i < 256; i++, slot = slot + 1 == slots ? 0 : slot + 1)
            memcpy(region + slot * n, sample, n);
        copied += 256;
        now = now_ns();
    } while (now - start < ns);
    return (double)copied * 1e9 / (double)(now - start);
}

/* Sleeps until *word is no longer seen: when this ran on after it. */
int64_t bench_wait(_Atomic uint32_t *word, uint32_t seen)
{
    while (atomic_load_explicit(word, memory_order_acquire) == seen)
        syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, seen, NULL, NULL, 0);
    return now_ns();
}

/* Adds one to *word and wakes who sleeps on it: when this began. */
int64_t bench_wake(_Atomic uint32_t *word)
{
    int64_t before = now_ns();
    atomic_fetch_add_explicit(word, 1, memory_order_release);
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, 1, NULL, NULL, 0);
    return before;
}
