/* What every other C file may rely on. */
#ifndef ES_BASE_H
#define ES_BASE_H

#include <errno.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/es_types.h"

#define ES_CACHE_LINE 64
#define ES_PAGE 4096

/* Unrelated processes map the words. A lock hidden inside an atomic would be
 * private to each of them. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "32-bit atomics must be lock-free");
_Static_assert(sizeof(_Atomic uint64_t) == 8 && sizeof(_Atomic uint32_t) == 4,
               "atomics must be laid out as plain integers");

/* Keeps the compiler from moving stores across it. That is enough where only the
 * writer's death makes anybody read them: what a dead process has stored is a
 * prefix of its program, and the kernel's lock makes it visible. */
#define ES_COMPILER_BARRIER() atomic_signal_fence(memory_order_seq_cst)

#endif
