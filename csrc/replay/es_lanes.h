/* Sixteen numbers at a time: what the trees do with the children of a node. In plain C, and with AVX2 and AVX-512,
 * which give the same answers to the bit. No number is negative, nor -0.0. */
#ifndef ES_LANES_H
#define ES_LANES_H

#include <math.h>
#include <string.h>

#include "base/es_base.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* GCC contracts nothing under -std=c11 */
#endif

#define ES_FANOUT 16

/* The instructions to use. */
typedef enum es_lanes_kind { ES_LANES_PLAIN, ES_LANES_AVX2, ES_LANES_AVX512, ES_LANES_KINDS } es_lanes_kind;

/* The best that this processor has. */
static inline es_lanes_kind es_lanes_best(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("popcnt"))
        return ES_LANES_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt"))
        return ES_LANES_AVX2;
#endif
    return ES_LANES_PLAIN;
}

/* --- plain C ------------------------------------------------------------------- */

/* Sixteen numbers, ready to be used. */
typedef struct es_lanes_plain {
    const double *x;
} es_lanes_plain;

static inline es_lanes_plain es_lanes_load_plain(const double *x)
{
    return (es_lanes_plain){x};
}

/* Puts v in the place of x[j], then loads x. The other kinds load first: a load of several numbers has to wait until a
 * store to one of them has left the processor. */
static inline es_lanes_plain es_lanes_put_plain(double *x, uint32_t j, double v)
{
    x[j] = v;
    return (es_lanes_plain){x};
}

static inline void es_lanes_prefix4(const double *x, double *p)
{
    double a = x[0], b = x[1], c = x[2], d = x[3], ab = a + b;
    p[0] = a, p[1] = ab, p[2] = ab + c, p[3] = ab + (c + d);
}

/* p[j] becomes the sum of x[0] .. x[j]; returns p[15]. The order of the additions is fixed: pairs first, then fours,
 * eights and all. Each half is added to the sum of the half before it. So p never falls, p[j] is exactly p[j - 1] where
 * x[j] is 0, and p[15] is the pairwise sum. */
static inline double es_lanes_prefix_plain(const double *x, double *p)
{
    for (uint32_t i = 0; i < ES_FANOUT; i += 4)
        es_lanes_prefix4(x + i, p + i);
    double fourth = p[3], twelfth = p[11];
    for (uint32_t i = 0; i < 4; i++)
        p[4 + i] += fourth, p[12 + i] += twelfth;
    double eighth = p[7];
    for (uint32_t i = 8; i < ES_FANOUT; i++)
        p[i] += eighth;
    return p[ES_FANOUT - 1];
}

/* Where each child begins: b[0] is 0, and b[j] the sum of x[0] .. x[j - 1]. It is infinite if nothing is added from j
 * on, so that nobody gets there, however large. Returns the pairwise sum. */
static inline double es_lanes_begin_plain(es_lanes_plain v, double *b)
{
    double p[ES_FANOUT], total = es_lanes_prefix_plain(v.x, p);
    b[0] = 0;
    for (uint32_t j = 1; j < ES_FANOUT; j++)
        b[j] = p[j - 1] < total ? p[j - 1] : INFINITY;
    return total;
}

static inline double es_lanes_sum4(const double *x)
{
    return (x[0] + x[1]) + (x[2] + x[3]);
}

/* The pairwise sum. */
static inline double es_lanes_sum_plain(es_lanes_plain v)
{
    const double *x = v.x;
    return (es_lanes_sum4(x) + es_lanes_sum4(x + 4)) + (es_lanes_sum4(x + 8) + es_lanes_sum4(x + 12));
}

/* The same of the squares. */
static inline double es_lanes_squares_plain(es_lanes_plain v)
{
    double squares[ES_FANOUT];
    for (uint32_t j = 0; j < ES_FANOUT; j++)
        squares[j] = v.x[j] * v.x[j];
    return es_lanes_sum_plain((es_lanes_plain){squares});
}

/* The least that is positive, or 0 without any. */
static inline double es_lanes_least_plain(es_lanes_plain v)
{
    /* Without signs, numbers are ordered as their bits are. 0 - 1 is the largest. */
    uint64_t least = UINT64_MAX;
    for (uint32_t j = 0; j < ES_FANOUT; j++) {
        uint64_t bits;
        memcpy(&bits, &v.x[j], sizeof bits);
        least = bits - 1 < least ? bits - 1 : least;
    }
    double found;
    least++;
    memcpy(&found, &least, sizeof found);
    return found;
}

/* The child in which at lies: the last one that begins at or before it. Something is added there. */
static inline uint32_t es_lanes_pick_plain(const double *begin, double at)
{
    uint32_t j = (uint32_t)(begin[8] <= at) * 8;
    j += (uint32_t)(begin[j + 4] <= at) * 4;
    j += (uint32_t)(begin[j + 2] <= at) * 2;
    return j + (begin[j + 1] <= at);
}

/* The same from the numbers that are added up. *at is counted from that child on then. */
static inline uint32_t es_lanes_enter_plain(es_lanes_plain v, double *at)
{
    double begin[ES_FANOUT];
    es_lanes_begin_plain(v, begin);
    uint32_t j = es_lanes_pick_plain(begin, *at);
    *at -= begin[j];
    return j;
}

/* The largest number below x. */
static inline double es_lanes_below(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits--;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The same from the numbers themselves. */
static inline uint32_t es_lanes_search_plain(es_lanes_plain v, double at)
{
    double p[ES_FANOUT], total = es_lanes_prefix_plain(v.x, p);
    if (__builtin_expect(!(at < total), 0)) /* rounding has made at too large */
        at = es_lanes_below(total);
    uint32_t j = (uint32_t)(p[7] <= at) * 8;
    j += (uint32_t)(p[j + 3] <= at) * 4;
    j += (uint32_t)(p[j + 1] <= at) * 2;
    return j + (p[j] <= at);
}

#ifdef __x86_64__

#include <immintrin.h>

/* --- AVX2 ---------------------------------------------------------------------- */

#define ES_LANES_TARGET_avx2 __attribute__((target("avx2,popcnt")))

typedef struct es_lanes_avx2 {
    __m256d a, b, c, d;
} es_lanes_avx2;

ES_LANES_TARGET_avx2 static inline es_lanes_avx2 es_lanes_load_avx2(const double *x)
{
    return (es_lanes_avx2){_mm256_loadu_pd(x), _mm256_loadu_pd(x + 4), _mm256_loadu_pd(x + 8), _mm256_loadu_pd(x + 12)};
}

ES_LANES_TARGET_avx2 static inline es_lanes_avx2 es_lanes_put_avx2(double *x, uint32_t j, double put)
{
    const __m256i a = _mm256_setr_epi64x(0, 1, 2, 3), four = _mm256_set1_epi64x(4), place = _mm256_set1_epi64x(j);
    __m256i b = _mm256_add_epi64(a, four), c = _mm256_add_epi64(b, four), d = _mm256_add_epi64(c, four);
    __m256d r = _mm256_set1_pd(put);
    es_lanes_avx2 v = es_lanes_load_avx2(x);
    v.a = _mm256_blendv_pd(v.a, r, _mm256_castsi256_pd(_mm256_cmpeq_epi64(a, place)));
    v.b = _mm256_blendv_pd(v.b, r, _mm256_castsi256_pd(_mm256_cmpeq_epi64(b, place)));
    v.c = _mm256_blendv_pd(v.c, r, _mm256_castsi256_pd(_mm256_cmpeq_epi64(c, place)));
    v.d = _mm256_blendv_pd(v.d, r, _mm256_castsi256_pd(_mm256_cmpeq_epi64(d, place)));
    x[j] = put;
    return v;
}

/* The second half of each pair, then of each four, is added to. */
ES_LANES_TARGET_avx2 static inline __m256d es_lanes_prefix4_avx2(__m256d x)
{
    const __m256d zero = _mm256_setzero_pd();
    x = _mm256_add_pd(x, _mm256_unpacklo_pd(zero, x));
    return _mm256_add_pd(x, _mm256_blend_pd(zero, _mm256_permute4x64_pd(x, 0x55), 12));
}

ES_LANES_TARGET_avx2 static inline es_lanes_avx2 es_lanes_prefix_avx2(es_lanes_avx2 v)
{
    v.a = es_lanes_prefix4_avx2(v.a), v.b = es_lanes_prefix4_avx2(v.b);
    v.c = es_lanes_prefix4_avx2(v.c), v.d = es_lanes_prefix4_avx2(v.d);
    v.b = _mm256_add_pd(v.b, _mm256_permute4x64_pd(v.a, 0xff));
    v.d = _mm256_add_pd(v.d, _mm256_permute4x64_pd(v.c, 0xff));
    __m256d eighth = _mm256_permute4x64_pd(v.b, 0xff);
    v.c = _mm256_add_pd(v.c, eighth), v.d = _mm256_add_pd(v.d, eighth);
    return v;
}

/* p, and infinity from the total on. */
ES_LANES_TARGET_avx2 static inline __m256d es_lanes_end_avx2(__m256d p, __m256d total)
{
    return _mm256_blendv_pd(p, _mm256_set1_pd(INFINITY), _mm256_cmp_pd(p, total, _CMP_GE_OQ));
}

ES_LANES_TARGET_avx2 static inline double es_lanes_begin_avx2(es_lanes_avx2 v, double *b)
{
    v = es_lanes_prefix_avx2(v);
    __m256d total = _mm256_permute4x64_pd(v.d, 0xff), last = es_lanes_end_avx2(v.d, total);
    b[0] = 0;
    _mm256_storeu_pd(b + 1, es_lanes_end_avx2(v.a, total));
    _mm256_storeu_pd(b + 5, es_lanes_end_avx2(v.b, total));
    _mm256_storeu_pd(b + 9, es_lanes_end_avx2(v.c, total));
    _mm_storeu_pd(b + 13, _mm256_castpd256_pd128(last));
    _mm_storel_pd(b + 15, _mm256_extractf128_pd(last, 1));
    return _mm256_cvtsd_f64(total);
}

ES_LANES_TARGET_avx2 static inline double es_lanes_sum_avx2(es_lanes_avx2 v)
{
    /* Pairs: a01 b01 a23 b23, c01 d01 c23 d23. */
    __m256d ab = _mm256_hadd_pd(v.a, v.b), cd = _mm256_hadd_pd(v.c, v.d);
    __m128d low = _mm_add_pd(_mm256_castpd256_pd128(ab), _mm256_extractf128_pd(ab, 1));
    __m128d high = _mm_add_pd(_mm256_castpd256_pd128(cd), _mm256_extractf128_pd(cd, 1));
    __m128d eights = _mm_hadd_pd(low, high);
    return _mm_cvtsd_f64(_mm_hadd_pd(eights, eights));
}

/* x, and infinity for 0. */
ES_LANES_TARGET_avx2 static inline __m256d es_lanes_positive_avx2(__m256d x)
{
    __m256d none = _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_EQ_OQ);
    return _mm256_or_pd(x, _mm256_and_pd(none, _mm256_set1_pd(INFINITY)));
}

ES_LANES_TARGET_avx2 static inline double es_lanes_least_avx2(es_lanes_avx2 v)
{
    __m256d four = _mm256_min_pd(_mm256_min_pd(es_lanes_positive_avx2(v.a), es_lanes_positive_avx2(v.b)),
                                 _mm256_min_pd(es_lanes_positive_avx2(v.c), es_lanes_positive_avx2(v.d)));
    __m128d two = _mm_min_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    double least = _mm_cvtsd_f64(_mm_min_sd(two, _mm_unpackhi_pd(two, two)));
    return least < INFINITY ? least : 0;
}

/* How many are at most at. They never fall. */
ES_LANES_TARGET_avx2 static inline uint32_t es_lanes_count_avx2(es_lanes_avx2 v, double at)
{
    __m256d limit = _mm256_set1_pd(at);
    __m256i ab = _mm256_packs_epi32(_mm256_castpd_si256(_mm256_cmp_pd(v.a, limit, _CMP_LE_OQ)),
                                    _mm256_castpd_si256(_mm256_cmp_pd(v.b, limit, _CMP_LE_OQ)));
    __m256i cd = _mm256_packs_epi32(_mm256_castpd_si256(_mm256_cmp_pd(v.c, limit, _CMP_LE_OQ)),
                                    _mm256_castpd_si256(_mm256_cmp_pd(v.d, limit, _CMP_LE_OQ)));
    return (uint32_t)_mm_popcnt_u32((uint32_t)_mm256_movemask_epi8(_mm256_packs_epi16(ab, cd))) / 2;
}

ES_LANES_TARGET_avx2 static inline uint32_t es_lanes_pick_avx2(const double *begin, double at)
{
    return es_lanes_count_avx2(es_lanes_load_avx2(begin), at) - 1;
}

/* The sums are compared in registers, and stored for one of them. A load of several that were stored apart would wait. */
ES_LANES_TARGET_avx2 static inline uint32_t es_lanes_enter_avx2(es_lanes_avx2 v, double *at)
{
    v = es_lanes_prefix_avx2(v);
    __m256d total = _mm256_permute4x64_pd(v.d, 0xff);
    double begin[ES_FANOUT + 1];
    begin[0] = 0;
    _mm256_storeu_pd(begin + 1, v.a), _mm256_storeu_pd(begin + 5, v.b);
    _mm256_storeu_pd(begin + 9, v.c), _mm256_storeu_pd(begin + 13, v.d);
    v.a = es_lanes_end_avx2(v.a, total), v.b = es_lanes_end_avx2(v.b, total);
    v.c = es_lanes_end_avx2(v.c, total), v.d = es_lanes_end_avx2(v.d, total);
    uint32_t j = es_lanes_count_avx2(v, *at);
    *at -= begin[j];
    return j;
}

ES_LANES_TARGET_avx2 static inline uint32_t es_lanes_search_avx2(es_lanes_avx2 v, double at)
{
    v = es_lanes_prefix_avx2(v);
    uint32_t j = es_lanes_count_avx2(v, at);
    if (__builtin_expect(j == ES_FANOUT, 0)) /* rounding has made at too large */
        return es_lanes_count_avx2(v, es_lanes_below(_mm256_cvtsd_f64(_mm256_permute4x64_pd(v.d, 0xff))));
    return j;
}

/* --- AVX-512 ------------------------------------------------------------------- */

#define ES_LANES_TARGET_avx512 __attribute__((target("avx512f,avx512dq,popcnt")))

typedef struct es_lanes_avx512 {
    __m512d a, b;
} es_lanes_avx512;

ES_LANES_TARGET_avx512 static inline es_lanes_avx512 es_lanes_load_avx512(const double *x)
{
    return (es_lanes_avx512){_mm512_loadu_pd(x), _mm512_loadu_pd(x + 8)};
}

ES_LANES_TARGET_avx512 static inline es_lanes_avx512 es_lanes_put_avx512(double *x, uint32_t j, double put)
{
    __m512d r = _mm512_set1_pd(put);
    uint32_t place = UINT32_C(1) << j;
    es_lanes_avx512 v = es_lanes_load_avx512(x);
    v.a = _mm512_mask_mov_pd(v.a, (__mmask8)place, r), v.b = _mm512_mask_mov_pd(v.b, (__mmask8)(place >> 8), r);
    x[j] = put;
    return v;
}

ES_LANES_TARGET_avx512 static inline __m512d es_lanes_prefix8_avx512(__m512d x)
{
    x = _mm512_mask_add_pd(x, 0xaa, x, _mm512_movedup_pd(x));
    x = _mm512_mask_add_pd(x, 0xcc, x, _mm512_permutex_pd(x, 0x55));
    return _mm512_mask_add_pd(x, 0xf0, x, _mm512_permutexvar_pd(_mm512_set1_epi64(3), x));
}

ES_LANES_TARGET_avx512 static inline __m512d es_lanes_last_avx512(__m512d x)
{
    return _mm512_permutexvar_pd(_mm512_set1_epi64(7), x);
}

ES_LANES_TARGET_avx512 static inline es_lanes_avx512 es_lanes_prefix_avx512(es_lanes_avx512 v)
{
    v.a = es_lanes_prefix8_avx512(v.a), v.b = es_lanes_prefix8_avx512(v.b);
    v.b = _mm512_add_pd(v.b, es_lanes_last_avx512(v.a));
    return v;
}

ES_LANES_TARGET_avx512 static inline double es_lanes_begin_avx512(es_lanes_avx512 v, double *b)
{
    const __m512d infinite = _mm512_set1_pd(INFINITY);
    v = es_lanes_prefix_avx512(v);
    __m512d total = es_lanes_last_avx512(v.b);
    v.a = _mm512_mask_mov_pd(v.a, _mm512_cmp_pd_mask(v.a, total, _CMP_GE_OQ), infinite);
    v.b = _mm512_mask_mov_pd(v.b, _mm512_cmp_pd_mask(v.b, total, _CMP_GE_OQ), infinite);
    __m512i low = _mm512_castpd_si512(v.a), high = _mm512_castpd_si512(v.b);
    _mm512_storeu_si512(b, _mm512_alignr_epi64(low, _mm512_setzero_si512(), 7));
    _mm512_storeu_si512(b + 8, _mm512_alignr_epi64(high, low, 7));
    return _mm512_cvtsd_f64(total);
}

ES_LANES_TARGET_avx512 static inline double es_lanes_sum_avx512(es_lanes_avx512 v)
{
    /* Pairs: a01 b01 a23 b23 a45 b45 a67 b67. */
    __m512d pairs = _mm512_add_pd(_mm512_unpacklo_pd(v.a, v.b), _mm512_unpackhi_pd(v.a, v.b));
    __m512d fours = _mm512_add_pd(pairs, _mm512_permutex_pd(pairs, 0x4e)); /* a b a b in each half */
    __m128d eights = _mm_add_pd(_mm512_castpd512_pd128(fours), _mm512_extractf64x2_pd(fours, 2));
    return _mm_cvtsd_f64(_mm_add_sd(eights, _mm_unpackhi_pd(eights, eights)));
}

ES_LANES_TARGET_avx512 static inline double es_lanes_least_avx512(es_lanes_avx512 v)
{
    const __m512d zero = _mm512_setzero_pd(), infinite = _mm512_set1_pd(INFINITY);
    v.a = _mm512_mask_mov_pd(v.a, _mm512_cmp_pd_mask(v.a, zero, _CMP_EQ_OQ), infinite);
    v.b = _mm512_mask_mov_pd(v.b, _mm512_cmp_pd_mask(v.b, zero, _CMP_EQ_OQ), infinite);
    double least = _mm512_reduce_min_pd(_mm512_min_pd(v.a, v.b));
    return least < INFINITY ? least : 0;
}

ES_LANES_TARGET_avx512 static inline uint32_t es_lanes_count_avx512(es_lanes_avx512 v, double at)
{
    __m512d limit = _mm512_set1_pd(at);
    uint32_t low = _mm512_cmp_pd_mask(v.a, limit, _CMP_LE_OQ), high = _mm512_cmp_pd_mask(v.b, limit, _CMP_LE_OQ);
    return (uint32_t)_mm_popcnt_u32(low | high << 8);
}

ES_LANES_TARGET_avx512 static inline uint32_t es_lanes_pick_avx512(const double *begin, double at)
{
    return es_lanes_count_avx512(es_lanes_load_avx512(begin), at) - 1;
}

/* Where each child begins stays in registers: the sums up to it, but no further than to where something is added. */
ES_LANES_TARGET_avx512 static inline uint32_t es_lanes_enter_avx512(es_lanes_avx512 v, double *at)
{
    v = es_lanes_prefix_avx512(v);
    __m512d limit = _mm512_set1_pd(*at), total = es_lanes_last_avx512(v.b);
    uint32_t low = _mm512_mask_cmp_pd_mask(_mm512_cmp_pd_mask(v.a, limit, _CMP_LE_OQ), v.a, total, _CMP_LT_OQ);
    uint32_t high = _mm512_mask_cmp_pd_mask(_mm512_cmp_pd_mask(v.b, limit, _CMP_LE_OQ), v.b, total, _CMP_LT_OQ);
    uint32_t j = (uint32_t)_mm_popcnt_u32(low | high << 8);
    __m512i before = _mm512_set1_epi64((int64_t)j - 1);
    *at -= _mm512_cvtsd_f64(_mm512_maskz_permutex2var_pd((__mmask8)(j > 0), v.a, before, v.b));
    return j;
}

ES_LANES_TARGET_avx512 static inline uint32_t es_lanes_search_avx512(es_lanes_avx512 v, double at)
{
    v = es_lanes_prefix_avx512(v);
    uint32_t j = es_lanes_count_avx512(v, at);
    if (__builtin_expect(j == ES_FANOUT, 0)) /* rounding has made at too large */
        return es_lanes_count_avx512(v, es_lanes_below(_mm512_cvtsd_f64(es_lanes_last_avx512(v.b))));
    return j;
}

#endif

#endif
