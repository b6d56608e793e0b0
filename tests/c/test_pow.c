/* Powers against those of long double, for each kind of instructions that this processor has. */
#include <math.h>
#include <string.h>

#include "es_test.h"
#include "replay/es_lanes.h"
#include "replay/es_pow.h"

#define MANY 19 /* two full vectors of the widest kind, and some */

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double unit(es_random *r)
{
    return (es_random_below(r, 1 << 26) * 0x1p27 + es_random_below(r, 1 << 27)) * 0x1p-53;
}

/* One of any size, subnormal ones and 0 included, or one near 1. */
static double any(es_random *r)
{
    if (es_random_below(r, 2))
        return 2 * unit(r);
    return of_bits((uint64_t)es_random_below(r, 0x7ff) << 52 | (uint64_t)es_random_below(r, 1 << 20) << 32 |
                   es_random_below(r, UINT32_MAX));
}

/* What x to the power of y should be, and how far from that it may be. */
static void check_power(double x, double y, double got)
{
    double right = x == 0 ? 0 : (double)powl(x, y);
    if (isinf(right)) {
        CHECK(isinf(got));
        return;
    }
    double ulp = right >= 0x1p-1022 ? of_bits(bits_of(right) + 1) - right : 0x1p-1074;
    CHECK(fabs(got - right) <= (fabs(y) + 2) * ulp);
}

/* Each kind gives the same bits, and they are right. What is beside the n numbers stays. */
TEST(pow_of_many)
{
    static const double exponents[] = {0.6, 0.4, -0.4, 0.5, 0.01, -1, 2, 3.7, -100};
    es_random r = es_random_new(1);
    for (uint64_t round = es_test_scaled(4000); round-- > 0;) {
        double x[MANY + 1], first[MANY + 1], got[MANY + 1];
        double y = es_random_below(&r, 3) ? exponents[es_random_below(&r, 9)] : 2 * unit(&r);
        uint32_t n = 1 + es_random_below(&r, MANY);
        for (uint32_t i = 0; i <= MANY; i++)
            x[i] = any(&r);
        for (uint32_t kind = 0; kind <= es_lanes_best(); kind++) {
            memcpy(got, x, sizeof x);
            es_pow_many(kind, got, n, y);
            if (kind == 0)
                memcpy(first, got, sizeof got);
            CHECK(memcmp(first, got, sizeof got) == 0);
        }
        CHECK(memcmp(first + n, x + n, (MANY + 1 - n) * sizeof *x) == 0);
        for (uint32_t i = 0; i < n; i++) {
            check_power(x[i], y, first[i]);
            CHECK(es_pow(x[i], y) == first[i]);
        }
    }
}

/* What weights rely on, to the bit. */
TEST(pow_of_special_numbers)
{
    static const double exponents[] = {0.6, 1, -0.4, 0, -0.0, 7, 1000, -2000};
    for (uint32_t i = 0; i < 8; i++) {
        double y = exponents[i];
        CHECK(es_pow(1, y) == 1);
        CHECK(bits_of(es_pow(0, y)) == 0);
        CHECK(y != 0 || es_pow(3, y) == 1);
    }
    CHECK(es_pow(0x1.23456789abcdep-300, 1) == 0x1.23456789abcdep-300);
    CHECK(es_pow(INFINITY, -0.5) == 0x1p-512 && es_pow(INFINITY, 0) == 1);
    CHECK(es_pow(0x1p-1074, 0.5) == 0x1p-537 && es_pow(0x1p-537, 2) == 0x1p-1074);
    CHECK(isinf(es_pow(2, 1024)) && es_pow(2, -1080) == 0 && isinf(es_pow(0.5, -3000)));
}

/* The same on every machine: the bits of many results, mixed. */
TEST(pow_is_the_same_everywhere)
{
    uint64_t all = 0;
    for (double x = 0x1p-60; x < 0x1p60; x *= 1.37)
        all = es_random_mix(all ^ bits_of(es_pow(x, 0.6)) ^ bits_of(es_pow(x, -0.4)));
    CHECK_EQ(all, 0x8a6f4dafc4e91784);
}
