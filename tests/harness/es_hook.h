/* Put before every core file of the stepped build: each atomic operation first
 * calls es_step(), where a test may let somebody else run, or end the caller. */
#ifndef ES_STEP_WORDS_H
#define ES_STEP_WORDS_H

/* Clang's stdatomic.h brings in the C library before a core file can ask for this. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

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

/* The types are _Atomic: GCC's builtins take them, Clang has others that do. */
#ifdef __clang__
#define ES_LOAD(p, o) __c11_atomic_load((p), (o))
#define ES_STORE(p, v, o) __c11_atomic_store((p), (v), (o))
#define ES_EXCHANGE(p, v, o) __c11_atomic_exchange((p), (v), (o))
#define ES_FETCH(op, p, v, o) __c11_atomic_fetch_##op((p), (v), (o))
#define ES_CAS(p, e, v, s, f) __c11_atomic_compare_exchange_strong((p), (e), (v), (s), (f))
#else
#define ES_LOAD(p, o) __atomic_load_n((p), (o))
#define ES_STORE(p, v, o) __atomic_store_n((p), (v), (o))
#define ES_EXCHANGE(p, v, o) __atomic_exchange_n((p), (v), (o))
#define ES_FETCH(op, p, v, o) __atomic_fetch_##op((p), (v), (o))
#define ES_CAS(p, e, v, s, f) __atomic_compare_exchange_n((p), (e), (v), 0, (s), (f))
#endif

#define atomic_load_explicit(p, o) (es_step(), ES_LOAD(p, o))
#define atomic_load(p) atomic_load_explicit(p, memory_order_seq_cst)
#define atomic_store_explicit(p, v, o) (es_step(), ES_STORE(p, v, o))
#define atomic_exchange_explicit(p, v, o) (es_step(), ES_EXCHANGE(p, v, o))
#define atomic_fetch_add_explicit(p, v, o) (es_step(), ES_FETCH(add, p, v, o))
#define atomic_fetch_add(p, v) atomic_fetch_add_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_sub_explicit(p, v, o) (es_step(), ES_FETCH(sub, p, v, o))
#define atomic_fetch_or_explicit(p, v, o) (es_step(), ES_FETCH(or, p, v, o))
#define atomic_compare_exchange_strong_explicit(p, e, v, s, f) (es_step(), ES_CAS(p, e, v, s, f))
#define atomic_compare_exchange_strong(p, e, v) \
    atomic_compare_exchange_strong_explicit(p, e, v, memory_order_seq_cst, memory_order_seq_cst)
#define atomic_compare_exchange_weak_explicit(p, e, v, s, f) atomic_compare_exchange_strong_explicit(p, e, v, s, f)

#endif
