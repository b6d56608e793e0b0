/* Put before es_layout.c and es_ring.c in the attach target: between any two of the steps that
 * read a foreign header, fuzz_race() may change it, as a hostile process could. */
#ifndef FUZZ_RACE_H
#define FUZZ_RACE_H

#include <stdlib.h>
#include <string.h>

void fuzz_race(void);

#undef memcpy
#undef memcmp
#undef memset
#define memcpy(to, from, n) (fuzz_race(), memcpy((to), (from), (n)))
#define memcmp(a, b, n) (fuzz_race(), memcmp((a), (b), (n)))
#define memset(to, c, n) (fuzz_race(), memset((to), (c), (n)))
#define malloc(n) (fuzz_race(), malloc(n))
#define calloc(n, size) (fuzz_race(), calloc((n), (size)))
#define __builtin_add_overflow(a, b, out) (fuzz_race(), __builtin_add_overflow((a), (b), (out)))
#define __builtin_mul_overflow(a, b, out) (fuzz_race(), __builtin_mul_overflow((a), (b), (out)))

#endif
