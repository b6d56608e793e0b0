#include "planning/es_plan.h"

#include <string.h>

#include "replay/es_lanes.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* GCC contracts nothing under -std=c11 */
#endif

/* Partial sums of a block, and numbers of a block. */
#define ES_PLAN_LANES 32
#define ES_PLAN_BLOCK 512
/* How many bytes ahead plans come into the cache. */
#define ES_PLAN_AHEAD 2048

/* Between numbers and doubles. */
#define WIDE(v, type) __builtin_convertvector(v, type)
#define NARROW(v, type) __builtin_convertvector(v, type)

#define LANES(name) name##_f32_plain
#define TARGET
#define BYTES 16
#define NUMBER float
#include "planning/es_plan_lanes.h"
#undef LANES
#undef NUMBER
#define LANES(name) name##_f64_plain
#define NUMBER double
#include "planning/es_plan_lanes.h"
#undef LANES
#undef NUMBER
#undef TARGET
#undef BYTES

#ifdef __x86_64__

#define LANES(name) name##_f64_avx2
#define TARGET ES_LANES_TARGET_avx2
#define BYTES 32
#define NUMBER double
#include "planning/es_plan_lanes.h"
#undef LANES
#undef NUMBER
#undef WIDE
#undef NARROW
#define WIDE(v, type) _mm256_cvtps_pd(v) /* GCC 12 makes two halves of it otherwise */
#define NARROW(v, type) _mm256_cvtpd_ps(v)
#define LANES(name) name##_f32_avx2
#define NUMBER float
#include "planning/es_plan_lanes.h"

#endif

typedef double distance_f32(const float *a, const float *b, uint64_t dim);
typedef double distance_f64(const double *a, const double *b, uint64_t dim);
typedef double take_f32(float *mean, const float *plan, uint64_t dim, double decay);
typedef double take_f64(double *mean, const double *plan, uint64_t dim, double decay);

/* What one row takes, by the kind of instructions. */
static const struct kind {
    distance_f32 *distance_f32;
    distance_f64 *distance_f64;
    take_f32 *take_f32;
    take_f64 *take_f64;
} kinds[ES_LANES_KINDS] = {
    [ES_LANES_PLAIN] = {distance_f32_plain, distance_f64_plain, take_f32_plain, take_f64_plain},
#ifdef __x86_64__
    [ES_LANES_AVX2] = {distance_f32_avx2, distance_f64_avx2, take_f32_avx2, take_f64_avx2},
#endif
};

uint32_t es_plan_best(void)
{
    return es_lanes_best() == ES_LANES_PLAIN ? ES_LANES_PLAIN : ES_LANES_AVX2; /* which keeps up with memory */
}

void es_plan_distances_f32(uint32_t kind, const float *plans, const float *others, uint64_t stride, uint64_t n,
                           uint64_t dim, double *distances)
{
    for (uint64_t i = 0; i < n; i++)
        distances[i] = kinds[kind].distance_f32(plans + i * dim, others + i * stride, dim);
}

void es_plan_distances_f64(uint32_t kind, const double *plans, const double *others, uint64_t stride, uint64_t n,
                           uint64_t dim, double *distances)
{
    for (uint64_t i = 0; i < n; i++)
        distances[i] = kinds[kind].distance_f64(plans + i * dim, others + i * stride, dim);
}

void es_plan_take_f32(uint32_t kind, float *mean, const float *plans, uint64_t n, uint64_t dim, double decay,
                      double *distances)
{
    for (uint64_t i = 0; i < n; i++)
        distances[i] = kinds[kind].take_f32(mean, plans + i * dim, dim, decay);
}

void es_plan_take_f64(uint32_t kind, double *mean, const double *plans, uint64_t n, uint64_t dim, double decay,
                      double *distances)
{
    for (uint64_t i = 0; i < n; i++)
        distances[i] = kinds[kind].take_f64(mean, plans + i * dim, dim, decay);
}
