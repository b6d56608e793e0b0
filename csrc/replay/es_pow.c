#include "replay/es_pow.h"

#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* GCC contracts nothing under -std=c11 */
#endif

/* Beyond it the C library's power has to do. Nobody has such an exponent. */
#define LARGEST_EXPONENT 1024

#define LANES(name) name##_plain
#define TARGET
#define WIDTH 2
#include "replay/es_pow_lanes.h"
#undef LANES
#undef TARGET
#undef WIDTH

#ifdef __x86_64__

#define LANES(name) name##_avx2
#define TARGET ES_LANES_TARGET_avx2
#define WIDTH 4
#include "replay/es_pow_lanes.h"
#undef LANES
#undef TARGET
#undef WIDTH

#define LANES(name) name##_avx512
#define TARGET ES_LANES_TARGET_avx512
#define WIDTH 8
#include "replay/es_pow_lanes.h"
#undef LANES
#undef TARGET
#undef WIDTH

#endif

static void (*const powers[ES_LANES_KINDS])(double *x, uint64_t n, double y) = {
    [ES_LANES_PLAIN] = power_plain,
#ifdef __x86_64__
    [ES_LANES_AVX2] = power_avx2,
    [ES_LANES_AVX512] = power_avx512,
#endif
};

void es_pow_many(es_lanes_kind kind, double *x, uint64_t n, double y)
{
    if (y == 1)
        return;
    if (fabs(y) <= LARGEST_EXPONENT) {
        powers[kind](x, n, y);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        x[i] = x[i] == 0 ? 0 : pow(x[i], y);
}
