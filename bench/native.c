/* What the machine can do at best: bytes copied by memcpy, a sleeper woken by a futex, memory accessed at random. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "replay/es_prefix_tree.h"
#include "replay/es_record.h"

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

void bench_copy(uint8_t *to, const uint8_t *from, uint64_t n)
{
    memcpy(to, from, n);
}

void bench_copy_leaves(uint8_t *const *to, const uint8_t *const *from, const uint64_t *n, uint64_t leaves)
{
    for (uint64_t l = 0; l < leaves; l++)
        memcpy(to[l], from[l], n[l]);
}

typedef uint64_t words __attribute__((vector_size(32), aligned(1), may_alias));

#ifdef __x86_64__
#define ANY_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define ANY_PROCESSOR
#endif

/* Reads n bytes, a multiple of 128, and does no more with them than it must. */
ANY_PROCESSOR uint64_t bench_read(const uint8_t *from, uint64_t n)
{
    const words *at = (const words *)from;
    words a = {0}, b = {0}, c = {0}, d = {0};
    for (uint64_t i = 0; i < n / sizeof *at; i += 4)
        a ^= at[i], b ^= at[i + 1], c ^= at[i + 2], d ^= at[i + 3];
    a ^= b ^ c ^ d;
    return a[0] ^ a[1] ^ a[2] ^ a[3];
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

/* --- random accesses ------------------------------------------------------------- */

#define MANY 256

/* An array, and what a call touches of its elements. Neighbouring items may have one in common. */
typedef struct bench_part {
    uint8_t *memory;   /* of element 0 */
    uint64_t distance; /* from one element to the next, in bytes */
    uint64_t bytes;    /* touched, from the element's first on */
    uint64_t shift;    /* item i has element i >> shift */
    uint64_t writes;   /* whether it writes to what it has read */
} bench_part;

/* Sizes in the core, so that nobody repeats them: of an item's record, of a tree's node, and of what a node keeps of
 * each kind. */
void bench_sizes(uint64_t *record, uint64_t *node, uint64_t *kind)
{
    *record = sizeof(es_item_record);
    *node = sizeof(es_prefix_node);
    *kind = sizeof((es_prefix_node *)0)->begin;
}

/* 0 <= i < items, evenly. */
static uint32_t draw(uint64_t *random, uint64_t items)
{
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    z ^= z >> 32;
    return (uint32_t)(((z >> 32) * items) >> 32);
}

static inline uint8_t *element(const bench_part *part, uint32_t item)
{
    return part->memory + (item >> part->shift) * part->distance;
}

/* Into the second cache: there are few buffers for lines on their way to the first one. */
static inline void fetch(const bench_part *part, uint32_t item)
{
    const uint8_t *at = element(part, item);
    for (uint64_t i = 0; i < part->bytes; i += 64)
        __builtin_prefetch(at + i, 0, 2);
    __builtin_prefetch(at + part->bytes - 1, 0, 2);
    __asm__ volatile(""); /* GCC 12 drops calls of a function that only prefetches */
}

static inline void touch(const bench_part *part, uint32_t item)
{
    volatile uint8_t *at = element(part, item);
    for (uint64_t i = 0; i < part->bytes; i += 64) {
        uint8_t byte = at[i];
        if (part->writes)
            at[i] = byte;
    }
    (void)at[part->bytes - 1];
}

/* Calls a second that draw n items, at most MANY, and touch every line of their elements, part by part, and do nothing
 * else. All addresses are known from the start. Lines come into the cache some elements ahead. */
double bench_accesses(const bench_part *parts, uint64_t num_parts, uint64_t items, uint64_t n, uint64_t ahead,
                      int64_t ns)
{
    uint64_t random = 0, calls = 0;
    uint32_t drawn[MANY];
    int64_t start = now_ns(), now;
    do {
        for (uint64_t i = 0; i < n; i++)
            drawn[i] = draw(&random, items);
        for (uint64_t i = 0; i < ahead && i < n; i++)
            fetch(&parts[0], drawn[i]);
        for (uint64_t p = 0; p < num_parts; p++)
            for (uint64_t i = 0; i < n; i++) {
                if (i + ahead < n)
                    fetch(&parts[p], drawn[i + ahead]);
                else if (p + 1 < num_parts)
                    fetch(&parts[p + 1], drawn[i + ahead - n]);
                touch(&parts[p], drawn[i]);
            }
        calls++;
        now = now_ns();
    } while (now - start < ns);
    return (double)calls * 1e9 / (double)(now - start);
}
