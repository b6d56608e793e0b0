/* exp(x) for x <= 0, the same on every machine and with every C library. */
#ifndef ES_EXP_H
#define ES_EXP_H

#include <string.h>

#include "base/es_base.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* GCC contracts nothing under -std=c11 */
#endif

/* 2^k, for a normal result. */
static inline double es_exp_power(int64_t k)
{
    uint64_t bits = (uint64_t)(k + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* Within 1 ulp; 0 where float64 has nothing smaller, and for what is no number. x = k ln 2 + r with |r| <= ln 2 / 2, and
 * a power series for exp(r). 2^k is multiplied in two halves, so that the result is rounded once when it is subnormal. */
static inline double es_exp(double x)
{
    const double to_integer = 0x1.8p52; /* adding it rounds to an integer, which the low bits then hold */
    x = x > -746 ? x : -746;
    double shifted = x * 0x1.71547652b82fep0 + to_integer, k = shifted - to_integer;
    /* The first part of ln 2 has so few bits that k times it is exact. */
    double r = (x - k * 0x1.62e42fefa0000p-1) - k * 0x1.cf79abc9e3b3ap-40;
    double y = 1.0 / 6227020800;
    y = y * r + 1.0 / 479001600;
    y = y * r + 1.0 / 39916800;
    y = y * r + 1.0 / 3628800;
    y = y * r + 1.0 / 362880;
    y = y * r + 1.0 / 40320;
    y = y * r + 1.0 / 5040;
    y = y * r + 1.0 / 720;
    y = y * r + 1.0 / 120;
    y = y * r + 1.0 / 24;
    y = y * r + 1.0 / 6;
    y = y * r + 0.5;
    y = y * (r * r) + r + 1;
    int64_t whole = (int64_t)k, half = whole >> 1;
    return y * es_exp_power(half) * es_exp_power(whole - half);
}

#endif
