#include "planning/es_plan.h"

#include <math.h>
#include <string.h>

#include "replay/es_lanes.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* GCC contracts nothing under -std=c11 */
#endif

/* Partial sums of a block, and numbers of a block. */
#define ES_PLAN_LANES 32
#define ES_PLAN_BLOCK 512
/* How many bytes ahead plans come into the cache. */
#define ES_PLAN_AHEAD 1024

/* Between numbers and doubles. */
#define WIDE(v, type) __builtin_convertvector(v, type)
#define NARROW(v, type) __builtin_convertvector(v, type)

/* For each kind and type: fused() is x * x + sum, rounded once. sum() adds the upper half of a register to the lower one,
 * until one number is left. */
typedef float four __attribute__((vector_size(16)));
typedef double two __attribute__((vector_size(16)));

static inline four fused_f32_plain(four x, four sum)
{
    for (int j = 0; j < 4; j++)
        sum[j] = fmaf(x[j], x[j], sum[j]);
    return sum;
}

static inline two fused_f64_plain(two x, two sum)
{
    return (two){fma(x[0], x[0], sum[0]), fma(x[1], x[1], sum[1])};
}

static inline float sum_f32_plain(four v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

static inline double sum_f64_plain(two v)
{
    return v[0] + v[1];
}

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

#define ES_PLAN_TARGET __attribute__((target("avx2,fma")))

ES_PLAN_TARGET static inline __m256 fused_f32_avx2(__m256 x, __m256 sum)
{
    return _mm256_fmadd_ps(x, x, sum);
}

ES_PLAN_TARGET static inline __m256d fused_f64_avx2(__m256d x, __m256d sum)
{
    return _mm256_fmadd_pd(x, x, sum);
}

ES_PLAN_TARGET static inline float sum_f32_avx2(__m256 v)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

ES_PLAN_TARGET static inline double sum_f64_avx2(__m256d v)
{
    __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

#define LANES(name) name##_f64_avx2
#define TARGET ES_PLAN_TARGET
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
#ifdef __x86_64__
    if (es_lanes_best() != ES_LANES_PLAIN && __builtin_cpu_supports("fma"))
        return ES_LANES_AVX2; /* which keeps up with memory */
#endif
    return ES_LANES_PLAIN;
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

static inline uint64_t score(double distance, double reward, double plan_weight, double reward_weight, double *to)
{
    *to = plan_weight * distance + reward_weight * fabs(reward);
    return isfinite(*to) != 0;
}

uint64_t es_plan_surprise_f32(uint32_t kind, const float *plans, const float *ema, uint64_t n, uint64_t dim,
                              const double *rewards, uint64_t stride, double plan_weight, double reward_weight,
                              double *scores)
{
    uint64_t finite = 0;
    for (uint64_t i = 0; i < n; i++)
        finite += score(kinds[kind].distance_f32(plans + i * dim, ema, dim), rewards[i * stride], plan_weight,
                        reward_weight, &scores[i]);
    return finite;
}

uint64_t es_plan_surprise_f64(uint32_t kind, const double *plans, const double *ema, uint64_t n, uint64_t dim,
                              const double *rewards, uint64_t stride, double plan_weight, double reward_weight,
                              double *scores)
{
    uint64_t finite = 0;
    for (uint64_t i = 0; i < n; i++)
        finite += score(kinds[kind].distance_f64(plans + i * dim, ema, dim), rewards[i * stride], plan_weight,
                        reward_weight, &scores[i]);
    return finite;
}

uint64_t es_plan_scores(double *distances, const double *rewards, uint64_t stride, uint64_t n, double plan_weight,
                        double reward_weight)
{
    uint64_t finite = 0;
    for (uint64_t i = 0; i < n; i++)
        finite += score(distances[i], rewards[i * stride], plan_weight, reward_weight, &distances[i]);
    return finite;
}
