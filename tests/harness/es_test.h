/* The test runner: TEST registers, CHECK reports and goes on, REQUIRE reports and leaves.
 *
 *   program [-l] [name-part ...]
 *
 * ES_TEST_SEED=n repeats a run's random choices. ES_TEST_VERBOSE=1 says why the wanted tests do not hold.
 * Each test has a watchdog (es_watchdog.h).
 */
#ifndef ES_TEST_H
#define ES_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "es_random.h"

typedef void es_test_function(void);

void es_test_add(const char *file, const char *name, es_test_function *run, bool wanted);
bool es_test_check(const char *file, int line, const char *what, bool ok);
bool es_test_check_eq(const char *file, int line, const char *what, long long got, long long want);
bool es_test_check_str(const char *file, int line, const char *what, const char *got, const char *want);

#define ES_TEST_REGISTER(name, wanted)                                \
    static void name(void);                                           \
    __attribute__((constructor)) static void es_register_##name(void) \
    {                                                                 \
        es_test_add(__FILE__, #name, name, wanted);                   \
    }                                                                 \
    static void name(void)

#define TEST(name) ES_TEST_REGISTER(name, false)
/* States what should hold and does not yet: its failure is listed and not
 * counted, its success is a failure, so that it is turned into a TEST. */
#define TEST_WANTED(name) ES_TEST_REGISTER(name, true)

#define CHECK(cond) es_test_check(__FILE__, __LINE__, #cond, (cond))
#define CHECK_EQ(got, want) es_test_check_eq(__FILE__, __LINE__, #got " == " #want, (long long)(got), (long long)(want))
#define CHECK_STR(got, want) es_test_check_str(__FILE__, __LINE__, #got, (got), (want))

#define REQUIRE(cond)     \
    do {                  \
        if (!CHECK(cond)) \
            return;       \
    } while (0)
#define REQUIRE_EQ(got, want)     \
    do {                          \
        if (!CHECK_EQ(got, want)) \
            return;               \
    } while (0)

/* Failed checks of the running test so far, in any thread. */
unsigned es_test_failures(void);

/* A stream of its own for each salt, all from the printed seed. */
es_random es_random_new(uint64_t salt);

/* Scales the work down under sanitizers: percent of n, at least 1. */
uint64_t es_test_scaled(uint64_t n);

#endif
