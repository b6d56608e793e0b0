/* Included before the files of the core that read a foreign header, in the attach target. Between any two of their
 * steps fuzz_race() may change the header, as a hostile process can. */
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
