/* Runs a target without libFuzzer. No coverage guides it, but it works with any compiler.
 *
 *   program [-seconds=S] [-runs=N] [-seed=S] [file ...]     runs random inputs, or those in the files (.hex: as text)
 *   program -seeds=DIR                                      writes the first inputs of a corpus
 *
 * A random input that fails is left in ./failed-input.hex.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "es_watchdog.h"

#define MAX_INPUT (UINT64_C(1) << 16)
#define POOL 256
#define WATCHDOG_S 20 /* for one input; far more than any input needs */

static uint64_t random_state;
static uint8_t input[MAX_INPUT];
static size_t input_size;
static const char *input_file; /* NULL: a random input */

static struct kept {
    uint8_t *data;
    size_t size;
} pool[POOL];
static int pooled;

static uint64_t below(uint64_t n)
{
    return fuzz_random(&random_state) % n;
}

/* Some of the changes that libFuzzer makes. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max)
{
    for (uint64_t changes = 1 + below(4); changes > 0; changes--) {
        uint64_t kind = below(5), at = size > 0 ? below(size) : 0;
        if (kind == 0 && size > 1) {
            uint64_t n = 1 + below(size - at < 16 ? size - at : 16);
            memmove(data + at, data + at + n, size - at - n);
            size -= n;
        } else if (kind == 1 && size < max) {
            uint64_t n = 1 + below(max - size < 16 ? max - size : 16);
            memmove(data + at + n, data + at, size - at);
            for (uint64_t i = 0; i < n; i++)
                data[at + i] = (uint8_t)fuzz_random(&random_state);
            size += n;
        } else if (size > 0) {
            data[at] = kind == 2   ? (uint8_t)fuzz_random(&random_state)
                       : kind == 3 ? data[at] ^ (uint8_t)(1u << below(8))
                                   : (uint8_t)(data[at] + 1);
        }
    }
    return size;
}

static void keep(const char *name, const uint8_t *data, size_t size)
{
    (void)name;
    if (pooled == POOL || size > MAX_INPUT)
        return;
    pool[pooled] = (struct kept){malloc(size + 1), size};
    memcpy(pool[pooled++].data, data, size);
}

static const char *seeds_folder;

static void write_seed(const char *name, const uint8_t *data, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", seeds_folder, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

/* --- the input that fails ------------------------------------------------------ */

static void write_failed(void)
{
    static const char path[] = "failed-input.hex";
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return;
    for (size_t i = 0; i < input_size; i++)
        fprintf(file, "%02x%s", input[i], i % 32 == 31 ? "\n" : "");
    fprintf(file, "\n");
    fclose(file);
    fprintf(stderr, "the input is in %s\n", path);
}

static void on_failure(int number)
{
    /* stdio is not safe here. The program is lost already, and the input is worth the try. */
    signal(number, SIG_DFL);
    fprintf(stderr, "failed\n");
    if (input_file != NULL)
        fprintf(stderr, "the input is %s\n", input_file);
    else
        write_failed();
    raise(number);
}

static void run_input(void)
{
    /* A copy of its own, so that a sanitizer sees a read past it. */
    uint8_t *exact = malloc(input_size > 0 ? input_size : 1);
    memcpy(exact, input, input_size);
    es_watchdog_start("an input", WATCHDOG_S, NULL);
    LLVMFuzzerTestOneInput(exact, input_size);
    es_watchdog_stop();
    free(exact);
}

static bool run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return false;
    size_t length = strlen(path);
    input_file = path;
    input_size = 0;
    if (length > 4 && strcmp(path + length - 4, ".hex") == 0) {
        unsigned byte;
        for (int c; (c = fgetc(file)) != EOF;)
            if (c == '#') /* a comment, to the end of its line */
                while ((c = fgetc(file)) != EOF && c != '\n')
                    ;
            else if (isxdigit(c) && ungetc(c, file) == c && fscanf(file, "%2x", &byte) == 1 && input_size < MAX_INPUT)
                input[input_size++] = (uint8_t)byte;
    } else {
        input_size = fread(input, 1, MAX_INPUT, file);
    }
    fclose(file);
    run_input();
    return true;
}

static void draw_input(void)
{
    const struct kept *from = &pool[below((uint64_t)pooled)];
    if (below(4) == 0) {
        input_size = below(512);
        for (size_t i = 0; i < input_size; i++)
            input[i] = (uint8_t)fuzz_random(&random_state);
        return;
    }
    memcpy(input, from->data, from->size);
    input_size = from->size;
    for (uint64_t n = 1 + below(6); n > 0; n--)
        input_size = LLVMFuzzerCustomMutator(input, input_size, MAX_INPUT, (unsigned)fuzz_random(&random_state));
}

int main(int argc, char **argv)
{
    uint64_t seed = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid(), runs = UINT64_MAX, seconds = UINT64_MAX;
    int files = 0;
    signal(SIGABRT, on_failure);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "-seeds=", 7) == 0) {
            seeds_folder = argv[i] + 7;
            fuzz_seeds(write_seed);
            return 0;
        } else if (sscanf(argv[i], "-seconds=%lu", &seconds) == 0 && sscanf(argv[i], "-runs=%lu", &runs) == 0 &&
                   sscanf(argv[i], "-seed=%lu", &seed) == 0) {
            files++;
            if (!run_file(argv[i])) {
                perror(argv[i]);
                return 1;
            }
        }
    if (files > 0) {
        printf("%d inputs\n", files);
        return 0;
    }
    printf("seed %lu\n", (unsigned long)seed);
    fflush(stdout);
    random_state = seed;
    fuzz_seeds(keep);
    time_t end = time(NULL) + (time_t)(seconds < 1000000 ? seconds : 1000000);
    uint64_t done = 0;
    for (; done < runs && (done % 64 != 0 || time(NULL) < end); done++) {
        draw_input();
        run_input();
    }
    printf("%lu inputs\n", (unsigned long)done);
    return 0;
}
