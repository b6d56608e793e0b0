/* Shared by the fuzz targets: reading an input, values worth trying, and reporting a failure.
 *
 * A target is libFuzzer's LLVMFuzzerTestOneInput(). Its input is a small program. Any bytes are
 * a valid program, and fewer bytes a simpler one. Bytes past the end read as 0.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
/* From libFuzzer or fuzz_driver.c. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

typedef struct fuzz_in {
    const uint8_t *at, *end;
} fuzz_in;

uint8_t fuzz_byte(fuzz_in *in);
uint32_t fuzz_below(fuzz_in *in, uint32_t n);
uint64_t fuzz_u64(fuzz_in *in);
bool fuzz_done(const fuzz_in *in);
/* near: a value for which one or two more or less may be wrong. */
uint64_t fuzz_value(fuzz_in *in, uint64_t near);

/* A failed check ends the program as a crash does, so that the fuzzer sees it. */
#define FUZZ_CHECK(cond) ((cond) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #cond))
_Noreturn void fuzz_fail(const char *file, int line, const char *what);

/* Splitmix64: the next number of a stream. */
uint64_t fuzz_random(uint64_t *state);

/* A block of exactly size bytes, so that the sanitizer sees an access just past them. It is aligned like the
 * structures of a mapping. */
uint8_t *fuzz_block(uint64_t size);

/* Writes the first inputs of the corpus: name, bytes. Each target has its own. */
typedef void fuzz_seed_sink(const char *name, const uint8_t *data, size_t size);
void fuzz_seeds(fuzz_seed_sink *sink);

#endif
