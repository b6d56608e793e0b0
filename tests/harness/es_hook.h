/* Hooks before atomic operations: builds in which a test decides what happens between two steps of the core.
 *
 * The compiler includes this header before every core file (-include). Each atomic operation of the file then calls a
 * hook_ function. There are two kinds of builds:
 *
 *   stepped    The hook calls es_step(), which the program defines, and then does the operation. Memory is
 *              sequentially consistent because one thread plays all parts. A fence is not a step. The stepped tests
 *              (tests/c) and the words target of the fuzzer use this build.
 *   recorded   ES_HOOK_SITES is defined. The program defines the hook_ functions itself. Each operation in the source
 *              has a record with its function, its name and its memory order. The program may replace the order by a
 *              weaker one. The records are in a section of their own, so all are known before the core runs. Mutexes
 *              and naps are hooked as well. The explorer uses this build.
 */
#ifndef ES_HOOK_H
#define ES_HOOK_H

/* Clang's stdatomic.h includes headers of the C library, so this must come first: a core file would define it too late.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A locked operation writes *word = op(*word, operand). */
enum hook_op { HOOK_XCHG, HOOK_ADD, HOOK_SUB, HOOK_OR };

#ifdef ES_HOOK_SITES

#include <pthread.h>
#include <time.h>

typedef struct hook_site {
    const char *file;
    const char *function;
    const char *op;
    int line;
    int order; /* as written */
    int now;   /* in this run: the same, or weaker */
    bool reached;
} hook_site;

/* Those that return a value return the old value of *word. */
uint64_t hook_load(hook_site *site, void *word, unsigned size);
uint64_t hook_rmw(hook_site *site, void *word, unsigned size, enum hook_op op, uint64_t operand);
void hook_store(hook_site *site, void *word, unsigned size, uint64_t value);
bool hook_cas(hook_site *site, void *word, unsigned size, uint64_t *expected, uint64_t value);
void hook_fence(hook_site *site);
void hook_mutex_lock(pthread_mutex_t *mutex);
void hook_mutex_unlock(pthread_mutex_t *mutex);
int hook_nap(const struct timespec *time, struct timespec *left);

#define HOOK_HERE(name, o)                                                                  \
    static hook_site hook_here __attribute__((section("hook_sites"), used, aligned(8))) = { \
        __FILE__, __func__, name, __LINE__, (o), (o), false};                               \
    hook_here.reached = true
#define HOOK_AT &hook_here,

#undef atomic_thread_fence
#define atomic_thread_fence(o)  \
    ({                          \
        HOOK_HERE("fence", o);  \
        hook_fence(&hook_here); \
    })
#define nanosleep(time, left) hook_nap(time, left)
#define pthread_mutex_lock(m) hook_mutex_lock(m)
#define pthread_mutex_unlock(m) hook_mutex_unlock(m)

#else

/* Another party may run here, or the caller may die here. */
void es_step(void);

/* Does an operation on a word of this size. The builtins need a plain integer type of that size. */
#define HOOK_BY_SIZE(word, size, operation) \
    switch (size) {                         \
    case 1: {                               \
        uint8_t *at = (word);               \
        operation;                          \
    }                                       \
    case 4: {                               \
        uint32_t *at = (word);              \
        operation;                          \
    }                                       \
    default: {                              \
        uint64_t *at = (word);              \
        operation;                          \
    }                                       \
    }

static inline uint64_t hook_load(void *word, unsigned size)
{
    es_step();
    HOOK_BY_SIZE(word, size, return __atomic_load_n(at, __ATOMIC_SEQ_CST))
}

static inline void hook_store(void *word, unsigned size, uint64_t value)
{
    es_step();
    HOOK_BY_SIZE(word, size, __atomic_store_n(at, (__typeof__(*at))value, __ATOMIC_SEQ_CST); return )
}

static inline uint64_t hook_rmw(void *word, unsigned size, enum hook_op op, uint64_t operand)
{
    es_step();
    switch (op) {
    case HOOK_XCHG:
        HOOK_BY_SIZE(word, size, return __atomic_exchange_n(at, (__typeof__(*at))operand, __ATOMIC_SEQ_CST))
    case HOOK_ADD:
        HOOK_BY_SIZE(word, size, return __atomic_fetch_add(at, (__typeof__(*at))operand, __ATOMIC_SEQ_CST))
    case HOOK_SUB:
        HOOK_BY_SIZE(word, size, return __atomic_fetch_sub(at, (__typeof__(*at))operand, __ATOMIC_SEQ_CST))
    default:
        HOOK_BY_SIZE(word, size, return __atomic_fetch_or(at, (__typeof__(*at))operand, __ATOMIC_SEQ_CST))
    }
}

static inline bool hook_cas(void *word, unsigned size, uint64_t *expected, uint64_t value)
{
    es_step();
    HOOK_BY_SIZE(word, size, __typeof__(*at) seen = (__typeof__(*at))*expected;
                 bool won = __atomic_compare_exchange_n(at, &seen, (__typeof__(*at))value, 0, __ATOMIC_SEQ_CST,
                                                        __ATOMIC_SEQ_CST);
                 *expected = seen; return won)
}

#define HOOK_HERE(name, o) ((void)(o))
#define HOOK_AT

#endif

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_exchange_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub_explicit
#undef atomic_fetch_or_explicit
#undef atomic_compare_exchange_strong
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak_explicit

/* The type of a word without its _Atomic. */
#define HOOK_TYPE(p) __typeof__((void)0, *(p))

#define atomic_load_explicit(p, o)                                 \
    ({                                                             \
        HOOK_HERE("load", o);                                      \
        (HOOK_TYPE(p)) hook_load(HOOK_AT(void *)(p), sizeof *(p)); \
    })
#define atomic_load(p) atomic_load_explicit(p, memory_order_seq_cst)
#define atomic_store_explicit(p, v, o)                              \
    ({                                                              \
        HOOK_HERE("store", o);                                      \
        hook_store(HOOK_AT(void *)(p), sizeof *(p), (uint64_t)(v)); \
    })
#define HOOK_RMW(name, op, p, v, o)                                                  \
    ({                                                                               \
        HOOK_HERE(name, o);                                                          \
        (HOOK_TYPE(p)) hook_rmw(HOOK_AT(void *)(p), sizeof *(p), op, (uint64_t)(v)); \
    })
#define atomic_exchange_explicit(p, v, o) HOOK_RMW("exchange", HOOK_XCHG, p, v, o)
#define atomic_fetch_add_explicit(p, v, o) HOOK_RMW("fetch_add", HOOK_ADD, p, v, o)
#define atomic_fetch_add(p, v) atomic_fetch_add_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_sub_explicit(p, v, o) HOOK_RMW("fetch_sub", HOOK_SUB, p, v, o)
#define atomic_fetch_or_explicit(p, v, o) HOOK_RMW("fetch_or", HOOK_OR, p, v, o)
/* The failure order is always relaxed, as everywhere in the core. A weak exchange never fails spuriously here. */
#define atomic_compare_exchange_strong_explicit(p, e, v, s, f)                                       \
    ({                                                                                               \
        HOOK_HERE("cas", s);                                                                         \
        _Static_assert((f) == memory_order_relaxed || (s) == memory_order_seq_cst, "failure order"); \
        __typeof__(e) hook_expected = (e);                                                           \
        uint64_t hook_seen = (uint64_t)*hook_expected;                                               \
        bool hook_won = hook_cas(HOOK_AT(void *)(p), sizeof *(p), &hook_seen, (uint64_t)(v));        \
        if (!hook_won)                                                                               \
            *hook_expected = (HOOK_TYPE(hook_expected))hook_seen;                                    \
        hook_won;                                                                                    \
    })
#define atomic_compare_exchange_strong(p, e, v) \
    atomic_compare_exchange_strong_explicit(p, e, v, memory_order_seq_cst, memory_order_seq_cst)
#define atomic_compare_exchange_weak_explicit(p, e, v, s, f) atomic_compare_exchange_strong_explicit(p, e, v, s, f)

#endif
