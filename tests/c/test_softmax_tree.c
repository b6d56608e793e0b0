/* The softmax tree against sums in extended precision over all leaves. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "es_test.h"
#include "replay/es_exp.h"
#include "replay/es_softmax_tree.h"

static uint32_t find_one(const es_softmax_tree *t, double u)
{
    uint32_t found;
    es_softmax_tree_find_many(t, &u, &found, 1);
    return found;
}

static const uint32_t sizes[] = {1, 15, 16, 17, 255, 256, 257, 4097};
#define NUM_SIZES (sizeof sizes / sizeof sizes[0])
#define LARGEST 4097

enum mood { UNIFORM, INTEGERS, TIES, RARE, TINY, WILD, MOODS };

static const double temperatures[] = {1, 0.01, 30, 1e-300, 5e-324, 1e300, 1e306};
#define NUM_TEMPERATURES (sizeof temperatures / sizeof temperatures[0])

static double unit(es_random *r)
{
    return (es_random_below(r, 1 << 26) * 0x1p27 + es_random_below(r, 1 << 27)) * 0x1p-53;
}

static double of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double priority(es_random *r, enum mood mood)
{
    switch (mood) {
    case INTEGERS:
        return es_random_below(r, 9);
    case TIES:
        return es_random_below(r, 4) > 0 ? 3.5 : -0.0;
    case RARE:
        return es_random_below(r, 20) == 0 ? unit(r) : -INFINITY;
    case TINY:
        return of_bits(es_random_below(r, 4));
    case WILD:
        return es_random_below(r, 5) == 0
                   ? 0x1.fffffffffffffp1023
                   : of_bits((uint64_t)es_random_below(r, 2047) << 52 | (uint64_t)es_random_below(r, UINT32_MAX) << 20);
    default:
        return es_random_below(r, 10) == 0 ? -INFINITY : unit(r);
    }
}

/* exp(x) for x <= 0: the series for what k ln 2 leaves, and a power of 2 that long double has. */
static long double exp_slow(long double x)
{
    if (!(x > -800))
        return 0;
    int k = (int)(-x / 0.6931L);
    long double r = (x + k * 0x1.62e42fefap-1L) + k * 1.64659495828970812809844307550013436e-12L, term = 1, sum = 1;
    for (int i = 1; i < 22; i++) {
        term *= r / i;
        sum += term;
    }
    for (long double power = 0.5L; k > 0; k >>= 1, power *= power)
        sum *= k & 1 ? power : 1;
    return sum;
}

static bool near(double got, long double want)
{
    long double far = got - want;
    return (far < 0 ? -far : far) <= want * 1e-11L + 1e-300L;
}

/* It may be beyond float64, as may what it is the logarithm of. */
static bool near_log(double got, long double want)
{
    return fabsl(want) > DBL_MAX ? got == (want > 0 ? INFINITY : -INFINITY)
                                 : fabsl(got - want) <= 1e-11L * (1 + fabsl(want));
}

/* Each probability, and what follows from them. */
static long double exact[LARGEST], exact_log_sum;

/* Fills both. Returns 1 / the sum of squares, or 0 when no leaf is present. */
static long double softmax_slow(const double *p, uint32_t size, double temperature)
{
    double greatest = -INFINITY;
    long double sum = 0, squares = 0;
    for (uint32_t i = 0; i < size; i++)
        greatest = p[i] > greatest ? p[i] : greatest;
    for (uint32_t i = 0; i < size; i++) {
        exact[i] = p[i] < 0 ? 0 : exp_slow(((long double)p[i] - greatest) / temperature);
        sum += exact[i];
    }
    exact_log_sum = sum > 0 ? (long double)greatest / temperature + logl(sum) : -INFINITY;
    for (uint32_t i = 0; i < size && sum > 0; i++) {
        exact[i] /= sum;
        squares += exact[i] * exact[i];
    }
    return sum > 0 ? 1 / squares : 0;
}

static void check_finds(const es_softmax_tree *t, const double *p, uint32_t size, es_random *r)
{
    static double u[100];
    static uint32_t found[100];
    uint32_t n = 1 + es_random_below(r, 100);
    for (uint32_t i = 0; i < n; i++)
        u[i] = unit(r);
    u[0] = 0, u[n - 1] = 0x1.fffffffffffffp-1;
    es_softmax_tree_find_many(t, u, found, n);
    for (uint32_t i = 0; i < n; i++) {
        REQUIRE(found[i] < size);
        CHECK(p[found[i]] >= 0);
        CHECK_EQ(find_one(t, u[i]), found[i]);
    }
    for (uint32_t i = 0; i < n; i += 1 + n / 4) {
        long double before = 0;
        for (uint32_t leaf = 0; leaf < found[i]; leaf++)
            before += exact[leaf];
        CHECK(before <= u[i] + 1e-11L && u[i] <= before + exact[found[i]] + 1e-11L);
    }
}

static double greatest_of(const double *p, uint32_t size)
{
    double greatest = -INFINITY;
    for (uint32_t i = 0; i < size; i++)
        greatest = p[i] > greatest ? p[i] : greatest;
    return greatest;
}

/* Everything that the tree says. */
static void check(const es_softmax_tree *t, const double *p, uint32_t size, double temperature, es_random *r)
{
    double least = INFINITY;
    long double effective = softmax_slow(p, size, temperature);
    bool any = false;
    for (uint32_t i = 0; i < size; i++) {
        CHECK(es_softmax_tree_get(t, i) == p[i]);
        if (p[i] < 0)
            continue;
        any = true;
        least = p[i] < least ? p[i] : least;
        CHECK(near(es_softmax_tree_probability(t, i), exact[i]));
    }
    CHECK(es_softmax_tree_least(t) == least);
    CHECK(near(es_softmax_tree_effective(t), effective));
    CHECK(near_log(es_softmax_tree_log_sum(t), exact_log_sum));
    if (any)
        check_finds(t, p, size, r);
}

/* Priorities come, change and go at random, at every temperature. */
TEST(softmax_tree_is_what_its_priorities_say)
{
    static double p[LARGEST];
    es_random r = es_random_new(1);
    for (uint32_t s = 0; s < NUM_SIZES; s++)
        for (uint32_t k = 0; k < NUM_TEMPERATURES; k++) {
            uint32_t size = sizes[s];
            es_softmax_tree *t = es_softmax_tree_new(size, temperatures[k]);
            REQUIRE(t != NULL);
            for (uint32_t i = 0; i < size; i++)
                p[i] = -INFINITY;
            check(t, p, size, temperatures[k], &r);
            for (uint64_t round = es_test_scaled(10) + 2; round-- > 0;) {
                enum mood mood = es_random_below(&r, MOODS);
                for (uint32_t n = es_random_below(&r, 400); n-- > 0;) {
                    uint32_t leaf = es_random_below(&r, size);
                    p[leaf] = es_random_below(&r, 4) > 0 ? priority(&r, mood) : -INFINITY;
                    es_softmax_tree_set(t, leaf, p[leaf]);
                }
                check(t, p, size, temperatures[k], &r);
            }
            for (uint32_t i = 0; i < size; i++) {
                p[i] = -INFINITY;
                es_softmax_tree_set(t, i, p[i]);
            }
            check(t, p, size, temperatures[k], &r);
            es_softmax_tree_free(t);
        }
}

/* A tree after a random history, at any temperatures, answers as the tree of its priorities does, to the bit. */
TEST(softmax_tree_forgets_its_history)
{
    es_random r = es_random_new(2);
    for (uint32_t s = 0; s < NUM_SIZES; s++)
        for (uint32_t k = 0; k < NUM_TEMPERATURES; k++) {
            uint32_t size = sizes[s];
            es_softmax_tree *old = es_softmax_tree_new(size, temperatures[k]);
            es_softmax_tree *fresh = es_softmax_tree_new(size, temperatures[k]);
            for (uint64_t n = 200 + es_test_scaled(size); n-- > 0;) {
                if (es_random_below(&r, 50) == 0)
                    es_softmax_tree_rescale(old, temperatures[es_random_below(&r, NUM_TEMPERATURES)]);
                es_softmax_tree_set(old, es_random_below(&r, size), priority(&r, es_random_below(&r, MOODS)));
            }
            es_softmax_tree_rescale(old, temperatures[k]);
            for (uint32_t i = size; i-- > 0;)
                es_softmax_tree_set(fresh, i, es_softmax_tree_get(old, i));
            for (uint32_t i = 0; i < size; i++)
                if (es_softmax_tree_get(old, i) >= 0)
                    CHECK_EQ(bits_of(es_softmax_tree_probability(old, i)),
                             bits_of(es_softmax_tree_probability(fresh, i)));
            CHECK_EQ(bits_of(es_softmax_tree_effective(old)), bits_of(es_softmax_tree_effective(fresh)));
            CHECK_EQ(bits_of(es_softmax_tree_least(old)), bits_of(es_softmax_tree_least(fresh)));
            for (uint32_t i = 0; i < 200 && es_softmax_tree_effective(old) > 0; i++) {
                double u = unit(&r);
                CHECK_EQ(find_one(old, u), find_one(fresh, u));
            }
            es_softmax_tree_free(old);
            es_softmax_tree_free(fresh);
        }
}

/* At the temperature that is chosen the effective sample size is the one that is wanted, within 1 %, or as near to it as
 * equal priorities allow. The temperature is a normal number. */
TEST(softmax_tree_chooses_a_temperature)
{
    static const double shares[] = {1e-4, 0.01, 0.1, 0.5, 0.9, 1};
    static double p[LARGEST];
    es_random r = es_random_new(5);
    for (uint64_t round = es_test_scaled(20) + 6 * MOODS; round-- > 0;) {
        enum mood mood = round % MOODS;
        uint32_t size = sizes[es_random_below(&r, NUM_SIZES)], present = 0, greatest = 0;
        es_softmax_tree *t = es_softmax_tree_new(size, 1);
        for (uint32_t i = 0; i < size; i++) {
            p[i] = priority(&r, mood);
            es_softmax_tree_set(t, i, p[i]);
            present += p[i] >= 0;
        }
        for (uint32_t i = 0; i < size; i++) /* those that no temperature tells apart */
            greatest += p[i] >= 0 && p[i] == greatest_of(p, size);
        for (uint32_t s = 0; s < sizeof shares / sizeof *shares; s++) {
            double chosen = es_softmax_tree_choose(t, shares[s]), wanted = shares[s] * present;
            CHECK_EQ(chosen == 0, present == 0 || greatest == present);
            if (chosen == 0)
                continue;
            double got = (double)softmax_slow(p, size, chosen);
            wanted = wanted < greatest ? greatest : wanted;
            CHECK((got > wanted * 0.99 - 1e-6 || chosen > 1e308) && (got < wanted * 1.01 + 1e-6 || chosen < 0x1p-1021));
        }
        es_softmax_tree_free(t);
    }
}

/* Leaves are drawn as often as the softmax says. The draws are the same in every run. */
TEST(softmax_tree_draws_by_softmax)
{
    enum { LEAVES = 300, DRAWS = 60000 };
    static double p[LEAVES], u[DRAWS];
    static uint32_t leaves[DRAWS], drawn[LEAVES];
    es_random r = es_random_of(12, 6);
    es_softmax_tree *t = es_softmax_tree_new(LEAVES, 2);
    for (uint32_t i = 0; i < LEAVES; i++) {
        p[i] = i % 7 > 0 ? i % 7 + 1e6 : -INFINITY;
        es_softmax_tree_set(t, i, p[i]);
    }
    for (uint32_t i = 0; i < DRAWS; i++)
        u[i] = unit(&r);
    es_softmax_tree_find_many(t, u, leaves, DRAWS);
    for (uint32_t i = 0; i < DRAWS; i++)
        drawn[leaves[i]]++;
    softmax_slow(p, LEAVES, 2);
    double chi2 = 0;
    for (uint32_t i = 0; i < LEAVES; i++)
        if (exact[i] > 0) {
            double expected = (double)exact[i] * DRAWS;
            chi2 += (drawn[i] - expected) * (drawn[i] - expected) / expected;
        } else
            CHECK_EQ(drawn[i], 0);
    CHECK(chi2 > 170 && chi2 < 360); /* 256 degrees of freedom: 4 standard deviations are 91 */
    es_softmax_tree_free(t);
}

/* exp(x) is within one unit in the last place, subnormal results included, and the same on every machine. */
TEST(softmax_exp)
{
    es_random r = es_random_new(4);
    for (uint64_t n = es_test_scaled(200000); n-- > 0;) {
        double x = -unit(&r) * (es_random_below(&r, 2) ? 1 : 746), y = es_exp(x);
        long double far = y - exp_slow(x);
        double ulp = y > 0x1p-1022 ? of_bits(bits_of(y) + 1) - y : 0x1p-1074;
        CHECK((far < 0 ? -far : far) <= ulp);
    }
    CHECK(es_exp(0) == 1 && es_exp(-0.0) == 1);
    CHECK(es_exp(-746) == 0 && es_exp(-INFINITY) == 0 && es_exp(-(double)NAN) == 0);
    uint64_t all = 0;
    for (double x = 0; x > -746; x -= 0.37)
        all = es_random_mix(all ^ bits_of(es_exp(x)));
    CHECK_EQ(all, 0x47058c33d1fc17c0);
}
