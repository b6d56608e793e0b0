#define _GNU_SOURCE
#include "es_test.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "es_watchdog.h"

#define MAX_TESTS 512
#define WATCHDOG_S 120 /* far more than any test takes on a slow machine under a sanitizer */
#define MAX_REPORTS 8

#ifdef __has_feature /* Clang only */
#define ES_BUILT_WITH(feature) __has_feature(feature)
#else
#define ES_BUILT_WITH(feature) 0
#endif

#if defined(ES_TEST_SCALE) /* percent, from the Makefile */
#define SCALE ES_TEST_SCALE
#elif defined(__SANITIZE_THREAD__) || ES_BUILT_WITH(thread_sanitizer)
#define SCALE 12
#elif defined(__SANITIZE_ADDRESS__) || ES_BUILT_WITH(address_sanitizer)
#define SCALE 30
#elif defined(ES_WAIT_POLL)
#define SCALE 35
#else
#define SCALE 100
#endif

static struct test {
    const char *file, *name;
    es_test_function *run;
    enum es_test_kind kind;
} tests[MAX_TESTS];
static int num_tests;

static const struct test *volatile current;
static atomic_uint failures;
static uint64_t seed;
static bool verbose; /* report the failed checks of wanted tests */

void es_test_add(const char *file, const char *name, es_test_function *run, enum es_test_kind kind)
{
    if (num_tests == MAX_TESTS)
        abort();
    const char *base = strrchr(file, '/');
    tests[num_tests++] = (struct test){base ? base + 1 : file, name, run, kind};
}

unsigned es_test_failures(void)
{
    return atomic_load(&failures);
}

static bool report_this_one(const char *file, int line)
{
    if (atomic_fetch_add(&failures, 1) >= MAX_REPORTS ||
        (current != NULL && current->kind == TEST_IS_WANTED && !verbose))
        return false;
    const char *base = strrchr(file, '/');
    fprintf(stderr, "  %s:%d: %s: ", base ? base + 1 : file, line, current ? current->name : "?");
    return true;
}

bool es_test_check(const char *file, int line, const char *what, bool ok)
{
    if (!ok && report_this_one(file, line))
        fprintf(stderr, "%s\n", what);
    return ok;
}

bool es_test_check_eq(const char *file, int line, const char *what, long long got, long long want)
{
    if (got != want && report_this_one(file, line))
        fprintf(stderr, "%s: got %lld (0x%llx), want %lld (0x%llx)\n", what, got, (unsigned long long)got, want,
                (unsigned long long)want);
    return got == want;
}

bool es_test_check_str(const char *file, int line, const char *what, const char *got, const char *want)
{
    bool same = got == want || (got != NULL && want != NULL && strcmp(got, want) == 0);
    if (!same && report_this_one(file, line))
        fprintf(stderr, "%s: got \"%s\", want \"%s\"\n", what, got ? got : "(null)", want ? want : "(null)");
    return same;
}

es_random es_random_new(uint64_t salt)
{
    return es_random_of(seed, salt);
}

uint64_t es_test_scaled(uint64_t n)
{
    uint64_t scaled = n * SCALE / 100;
    return scaled > 0 ? scaled : 1;
}

static bool chosen(const struct test *test, int argc, char **argv)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-')
            continue;
        any = true;
        if (strstr(test->name, argv[i]) != NULL || strstr(test->file, argv[i]) != NULL)
            return true;
    }
    return !any;
}

/* Whether the test had the expected result. */
static bool run_one(const struct test *test)
{
    current = test;
    atomic_store(&failures, 0);
    es_watchdog_start(test->name, WATCHDOG_S, NULL);
    test->run();
    es_watchdog_stop();
    bool held = es_test_failures() == 0, wanted = test->kind == TEST_IS_WANTED;
    if (wanted)
        printf(held ? "WANTED AND HELD %s %s: make it a TEST\n" : "wanted %s %s\n", test->file, test->name);
    else if (!held)
        printf("FAIL %s %s\n", test->file, test->name);
    fflush(stdout);
    return held != wanted;
}

/* --- several processes --------------------------------------------------------- */

static struct share {
    _Atomic int next, passed, failed;
} * all; /* shared by the processes */
static int worker = -1;

int es_test_worker(void)
{
    return worker;
}

static void run_and_count(const struct test *test)
{
    atomic_fetch_add(run_one(test) ? &all->passed : &all->failed, 1);
}

/* Takes the next test until none is left. */
static void run_shares(int argc, char **argv)
{
    for (int i; (i = atomic_fetch_add(&all->next, 1)) < num_tests;)
        if (tests[i].kind != TEST_IS_LAST && chosen(&tests[i], argc, argv))
            run_and_count(&tests[i]);
}

static void run_all(int jobs, int argc, char **argv)
{
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        abort();
    for (int i = 0; i < jobs && jobs > 1; i++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            worker = i;
            run_shares(argc, argv);
            exit(0);
        }
    if (jobs == 1)
        run_shares(argc, argv);
    for (int status; wait(&status) > 0;)
        if (status != 0) {
            printf("FAIL: a process that ran tests ended with wait status 0x%x\n", (unsigned)status);
            atomic_fetch_add(&all->failed, 1);
            if (WIFEXITED(status))
                exit(WEXITSTATUS(status));
        }
    for (int i = 0; i < num_tests; i++)
        if (tests[i].kind == TEST_IS_LAST && chosen(&tests[i], argc, argv))
            run_and_count(&tests[i]);
}

int main(int argc, char **argv)
{
    const char *given = getenv("ES_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    verbose = getenv("ES_TEST_VERBOSE") != NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "-l") == 0) {
        for (int i = 0; i < num_tests; i++)
            if (chosen(&tests[i], argc, argv))
                printf("%s %s\n", tests[i].file, tests[i].name);
        return 0;
    }
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    int jobs = argc > 1 && strncmp(argv[1], "-j", 2) == 0 ? atoi(argv[1] + 2) : 1;
    run_all(jobs > 0 ? jobs : 1, argc, argv);
    printf("%d passed, %d failed\n", all->passed, all->failed);
    return all->failed != 0 || all->passed == 0;
}
