/* Put before every core file of the stepped build: each atomic operation first
 * calls es_step(), where a test may let somebody else run, or end the caller. */
#ifndef ES_STEP_WORDS_H
#define ES_STEP_WORDS_H

#include <stdatomic.h>

void es_step(void);

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

#define atomic_load_explicit(p, o) (es_step(), __atomic_load_n((p), (o)))
#define atomic_load(p) atomic_load_explicit(p, memory_order_seq_cst)
#define atomic_store_explicit(p, v, o) (es_step(), __atomic_store_n((p), (v), (o)))
#define atomic_exchange_explicit(p, v, o) (es_step(), __atomic_exchange_n((p), (v), (o)))
#define atomic_fetch_add_explicit(p, v, o) (es_step(), __atomic_fetch_add((p), (v), (o)))
#define atomic_fetch_add(p, v) atomic_fetch_add_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_sub_explicit(p, v, o) (es_step(), __atomic_fetch_sub((p), (v), (o)))
#define atomic_fetch_or_explicit(p, v, o) (es_step(), __atomic_fetch_or((p), (v), (o)))
#define atomic_compare_exchange_strong_explicit(p, e, v, s, f) \
    (es_step(), __atomic_compare_exchange_n((p), (e), (v), 0, (s), (f)))
#define atomic_compare_exchange_strong(p, e, v) \
    atomic_compare_exchange_strong_explicit(p, e, v, memory_order_seq_cst, memory_order_seq_cst)
#define atomic_compare_exchange_weak_explicit(p, e, v, s, f) \
    atomic_compare_exchange_strong_explicit(p, e, v, s, f)

#endif
