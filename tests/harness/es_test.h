/* The test runner. TEST registers a test. CHECK reports a failure and continues. REQUIRE reports it and returns.
 *
 *   program [-l] [-jN] [name-part ...]
 *
 * -l lists the tests. -jN shares them among N processes. ES_TEST_SEED=n repeats a run's random choices.
 * ES_TEST_VERBOSE=1 reports the failed checks of wanted tests. Each test has a watchdog (es_watchdog.h).
 */
#ifndef ES_TEST_H
#define ES_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "es_random.h"

typedef void es_test_function(void);

enum es_test_kind { TEST_IS_USUAL, TEST_IS_WANTED, TEST_IS_LAST };
void es_test_add(const char *file, const char *name, es_test_function *run, enum es_test_kind kind);
bool es_test_check(const char *file, int line, const char *what, bool ok);
bool es_test_check_eq(const char *file, int line, const char *what, long long got, long long want);
bool es_test_check_str(const char *file, int line, const char *what, const char *got, const char *want);

#define ES_TEST_REGISTER(name, kind)                                  \
    static void name(void);                                           \
    __attribute__((constructor)) static void es_register_##name(void) \
    {                                                                 \
        es_test_add(__FILE__, #name, name, kind);                     \
    }                                                                 \
    static void name(void)

#define TEST(name) ES_TEST_REGISTER(name, TEST_IS_USUAL)
/* States what should hold but does not yet. Its failure is listed but not counted. Its success counts as a failure: it
 * should then become a TEST. */
#define TEST_WANTED(name) ES_TEST_REGISTER(name, TEST_IS_WANTED)
/* Runs after all others. */
#define TEST_LAST(name) ES_TEST_REGISTER(name, TEST_IS_LAST)

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

/* The number of failed checks so far in the current test, in all threads. */
unsigned es_test_failures(void);

/* A separate stream for each salt. All follow from the printed seed. */
es_random es_random_new(uint64_t salt);

/* The number of this process among those that share the tests, or -1. */
int es_test_worker(void);

/* Scales n down in slow builds, such as sanitizers. Returns at least 1. */
uint64_t es_test_scaled(uint64_t n);

#endif
