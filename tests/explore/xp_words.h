/* Put before every core file of this build: each atomic operation becomes a call
 * of the explorer, with a record of where it stands and which memory order it asks
 * for. The records are collected in a section of their own, so that all of them
 * are known without running anything. */
#ifndef XP_WORDS_H
#define XP_WORDS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef struct xp_site {
    const char *file;
    const char *function;
    const char *op;
    int line;
    int order; /* as written */
    int now;   /* as tried: the same, or weaker */
    bool reached;
} xp_site;

uint64_t xp_load(xp_site *site, void *word, unsigned size);
void xp_store(xp_site *site, void *word, unsigned size, uint64_t value);
/* Writes *word = op(*word), and returns what it was. */
enum xp_op { XP_XCHG, XP_ADD, XP_SUB, XP_OR };
uint64_t xp_rmw(xp_site *site, void *word, unsigned size, enum xp_op op, uint64_t operand);
bool xp_cas(xp_site *site, void *word, unsigned size, uint64_t *expected, uint64_t value);
void xp_fence(xp_site *site);

void xp_mutex_lock(pthread_mutex_t *mutex);
void xp_mutex_unlock(pthread_mutex_t *mutex);

/* A nap: everybody else goes first. */
int xp_nap(const struct timespec *time, struct timespec *left);

#define XP_SITE(name, o)                                                              \
    static xp_site xp_here __attribute__((section("xp_sites"), used, aligned(8))) = { \
        __FILE__, __func__, name, __LINE__, (o), (o), false};                         \
    xp_here.reached = true
#define XP_TYPE(p) __typeof__((void)0, *(p))

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
#undef atomic_thread_fence

#define atomic_load_explicit(p, o)                        \
    ({                                                    \
        XP_SITE("load", o);                               \
        (XP_TYPE(p)) xp_load(&xp_here, (p), sizeof *(p)); \
    })
#define atomic_load(p) atomic_load_explicit(p, memory_order_seq_cst)
#define atomic_store_explicit(p, v, o)                       \
    ({                                                       \
        XP_SITE("store", o);                                 \
        xp_store(&xp_here, (p), sizeof *(p), (uint64_t)(v)); \
    })
#define XP_RMW(name, op, p, v, o)                                           \
    ({                                                                      \
        XP_SITE(name, o);                                                   \
        (XP_TYPE(p)) xp_rmw(&xp_here, (p), sizeof *(p), op, (uint64_t)(v)); \
    })
#define atomic_exchange_explicit(p, v, o) XP_RMW("exchange", XP_XCHG, p, v, o)
#define atomic_fetch_add_explicit(p, v, o) XP_RMW("fetch_add", XP_ADD, p, v, o)
#define atomic_fetch_add(p, v) atomic_fetch_add_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_sub_explicit(p, v, o) XP_RMW("fetch_sub", XP_SUB, p, v, o)
#define atomic_fetch_or_explicit(p, v, o) XP_RMW("fetch_or", XP_OR, p, v, o)
/* A failure is always relaxed here, as it is throughout the core. */
#define atomic_compare_exchange_strong_explicit(p, e, v, s, f)                                       \
    ({                                                                                               \
        XP_SITE("cas", s);                                                                           \
        _Static_assert((f) == memory_order_relaxed || (s) == memory_order_seq_cst, "failure order"); \
        __typeof__(e) xp_expected = (e);                                                             \
        uint64_t xp_seen = (uint64_t)*xp_expected;                                                   \
        bool xp_won = xp_cas(&xp_here, (p), sizeof *(p), &xp_seen, (uint64_t)(v));                   \
        if (!xp_won)                                                                                 \
            *xp_expected = (XP_TYPE(xp_expected))xp_seen;                                            \
        xp_won;                                                                                      \
    })
#define atomic_compare_exchange_strong(p, e, v) \
    atomic_compare_exchange_strong_explicit(p, e, v, memory_order_seq_cst, memory_order_seq_cst)
#define atomic_compare_exchange_weak_explicit(p, e, v, s, f) atomic_compare_exchange_strong_explicit(p, e, v, s, f)
#define atomic_thread_fence(o) \
    ({                         \
        XP_SITE("fence", o);   \
        xp_fence(&xp_here);    \
    })

#define nanosleep(time, left) xp_nap(time, left)
#define pthread_mutex_lock(m) xp_mutex_lock(m)
#define pthread_mutex_unlock(m) xp_mutex_unlock(m)

#endif
