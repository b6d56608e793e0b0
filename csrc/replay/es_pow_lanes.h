/* Powers of WIDTH numbers at a time, compiled once for each kind of instructions: es_pow.c includes this file with
 * LANES(name), TARGET and WIDTH defined. It has no guard for that reason.
 *
 * x = 2^k m with m near 1, so x^y = 2^(y k + y log2(m)). The exponent is kept as a sum of two numbers of which the
 * first, with the leading bits of y, is exact. So little is lost when its whole part is taken off. */

typedef double LANES(numbers) __attribute__((vector_size(8 * WIDTH)));
typedef uint64_t LANES(bits) __attribute__((vector_size(8 * WIDTH)));

/* All ones where i < 0, otherwise 0. A comparison would have GCC make a vector of ones of the last one's register. */
TARGET static inline LANES(bits) LANES(negative)(LANES(bits) i)
{
    return -(i >> 63);
}

/* a where mask is all ones, b where it is 0. */
TARGET static inline LANES(bits) LANES(pick)(LANES(bits) mask, LANES(bits) a, LANES(bits) b)
{
    return (a & mask) | (b & ~mask);
}

/* 2^k, for a normal result. */
TARGET static inline LANES(numbers) LANES(two_to)(LANES(bits) k)
{
    return (LANES(numbers))((k + 1023) << 52);
}

TARGET __attribute__((always_inline)) static inline LANES(numbers) LANES(powers)(LANES(numbers) x, double y)
{
    const uint64_t middle = UINT64_C(0x3fe6a09e667f3bcd), fraction = (UINT64_C(1) << 52) - 1; /* sqrt(1/2) */
    uint64_t leading;
    memcpy(&leading, &y, sizeof y);
    leading &= ~((UINT64_C(1) << 13) - 1);
    double y_begin, y_rest;
    memcpy(&y_begin, &leading, sizeof y);
    y_rest = y - y_begin;

    /* x = 2^k m, sqrt(1/2) <= m < sqrt(2) */
    LANES(bits) none = {0}, given = (LANES(bits))x, small = LANES(negative)(given - (UINT64_C(1) << 52));
    LANES(bits) from = LANES(pick)(small, (LANES(bits))(x * 0x1p54), given) - middle;
    LANES(bits) biased = (from + (UINT64_C(1024) << 52)) >> 52; /* k + 1024 */
    LANES(numbers) k = (LANES(numbers))(biased | UINT64_C(0x4330000000000000)) - (0x1p52 + 1024);
    k -= (LANES(numbers))(small & (LANES(bits))((LANES(numbers)){0} + 54));
    LANES(numbers) m = (LANES(numbers))((from & fraction) + middle);

    /* log2(m) = 2 / ln 2 * (s + s^3 / 3 + s^5 / 5 + ...), s = (m - 1) / (m + 1), so |s| < 0.172 */
    LANES(numbers) s = (m - 1) / (m + 1), s2 = s * s, s4 = s2 * s2;
    LANES(numbers) even = ((((s4 * (1.0 / 21) + 1.0 / 17) * s4 + 1.0 / 13) * s4 + 1.0 / 9) * s4 + 1.0 / 5) * s4;
    LANES(numbers)
    odd = ((((s4 * (1.0 / 23) + 1.0 / 19) * s4 + 1.0 / 15) * s4 + 1.0 / 11) * s4 + 1.0 / 7) * s4 + 1.0 / 3;
    LANES(numbers) log2_m = (s + s * (even + s2 * odd)) * 0x1.71547652b82fep1;

    /* y log2(x) = whole + r, |r| <= 1/2 */
    LANES(numbers) first = y_begin * k, second = y_rest * k + y * log2_m, all = first + second;
    LANES(numbers) shifted = all + 0x1.8p52, whole = shifted - 0x1.8p52;
    LANES(numbers) r = ((first - whole) + second) * 0x1.62e42fefa39efp-1;
    LANES(bits) n = (LANES(bits))shifted - UINT64_C(0x4338000000000000);
    /* Beyond these the result is 0 or infinite. */
    n = LANES(pick)(LANES(negative)(n + 1100), none - 1100, n);
    n = LANES(pick)(LANES(negative)(1040 - n), none + 1040, n);

    /* exp(r), in two halves; 2^n is multiplied in two as well, so that the result is rounded once when it is subnormal */
    LANES(numbers) r2 = r * r;
    even =
        ((((r2 * (1.0 / 479001600) + 1.0 / 3628800) * r2 + 1.0 / 40320) * r2 + 1.0 / 720) * r2 + 1.0 / 24) * r2 + 0.5;
    odd = ((((r2 * (1.0 / 6227020800) + 1.0 / 39916800) * r2 + 1.0 / 362880) * r2 + 1.0 / 5040) * r2 + 1.0 / 120) * r2 +
          1.0 / 6;
    LANES(numbers) exp_r = (even + r * odd) * r2 + r + 1;
    LANES(bits) half = ((n + 2050) >> 1) - 1025;
    LANES(numbers) result = exp_r * LANES(two_to)(half) * LANES(two_to)(n - half);
    return (LANES(numbers))((LANES(bits))result & LANES(negative)(none - given)); /* 0 stays 0 */
}

TARGET static void LANES(power)(double *x, uint64_t n, double y)
{
    LANES(numbers) some = {0};
    for (; n >= WIDTH; n -= WIDTH, x += WIDTH) {
        memcpy(&some, x, sizeof some);
        some = LANES(powers)(some, y);
        memcpy(x, &some, sizeof some);
    }
    if (n == 0)
        return;
    memcpy(&some, x, n * sizeof *x);
    some = LANES(powers)(some, y);
    memcpy(x, &some, n * sizeof *x);
}
