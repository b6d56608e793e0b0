#include "fuzz_image.h"

#include <stdlib.h>
#include <string.h>

/* The end of a raw image that is also the program that uses it. */
#define PROGRAM 256

#define SEEDS 64

uint8_t *fuzz_resized(uint8_t *base, uint64_t *size, uint64_t to)
{
    uint8_t *other = fuzz_block(to);
    memcpy(other, base, *size < to ? *size : to);
    free(base);
    *size = to;
    return other;
}

uint8_t *fuzz_repaired(uint8_t *base, uint64_t *size, bool offsets, uint64_t most)
{
    uint64_t total = fuzz_target.repair(base, *size, offsets);
    return total == 0 || total == *size || total > most ? base : fuzz_resized(base, size, total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_in in = {data, data + n};
    uint8_t mode = fuzz_byte(&in);
    fuzz_target.read_races(&in);
    uint64_t size = (uint64_t)(in.end - in.at);
    uint8_t *base;
    if (mode & RAW) {
        base = fuzz_block(size);
        if (size > 0)
            memcpy(base, in.at, size);
        in.at += size > PROGRAM ? size - PROGRAM : 0;
    } else {
        base = fuzz_target.damaged(&in, mode, &size);
    }
    fuzz_target.use(base, size, &in, mode);
    free(base);
    return 0;
}

/* Raw images that are mutated byte by byte would never pass the hash. So half of the time this damages fields, as a
 * program does, and three times in four it makes the hash fit. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned seed)
{
    const size_t body_at = fuzz_target.body_at;
    const uint64_t header = fuzz_target.header;
    uint64_t random = seed;
    uint8_t draws[96];
    for (size_t i = 0; i < sizeof draws; i += 8) {
        uint64_t r = fuzz_random(&random);
        memcpy(draws + i, &r, 8);
    }
    if (n <= body_at || !(data[0] & RAW) || draws[0] < 64)
        return LLVMFuzzerMutate(data, n, max);
    if (draws[0] < 96) /* mode and races */
        LLVMFuzzerMutate(data, body_at, body_at);
    uint64_t size = n - body_at;
    uint8_t *base = fuzz_block(size);
    memcpy(base, data + body_at, size);
    if (draws[1] < 64 && size > header)
        LLVMFuzzerMutate(base, header, header);
    fuzz_in in = {draws + 2, draws + sizeof draws};
    for (uint32_t edits = fuzz_below(&in, fuzz_target.max_edits); edits > 0; edits--)
        fuzz_target.edit(&in, base, size);
    uint32_t repair = fuzz_below(&in, 4);
    if (repair > 0)
        base = fuzz_repaired(base, &size, repair > 1, max - body_at);
    memcpy(data + body_at, base, size);
    free(base);
    return body_at + size;
}

void fuzz_seeds(fuzz_seed_sink *sink)
{
    uint64_t random = 1;
    for (uint32_t i = 0; i < SEEDS; i++) {
        uint8_t draws[640];
        for (size_t d = 0; d < sizeof draws; d++)
            draws[d] = (uint8_t)fuzz_random(&random);
        char name[] = "seed-000";
        name[5] = i % 2 ? 'r' : 'p'; /* r: raw, p: a program */
        name[6] = (char)('0' + i / 10), name[7] = (char)('0' + i % 10);
        draws[0] = (uint8_t)((draws[0] & ~RAW) | (i % 2 ? RAW : 0));
        if (i % 2 == 0) {
            size_t n = fuzz_target.body_at + 8 + (size_t)i * fuzz_target.program_step;
            sink(name, draws, n < sizeof draws ? n : sizeof draws);
            continue;
        }
        fuzz_in in = {draws + fuzz_target.body_at, draws + sizeof draws};
        uint64_t size;
        uint8_t *base = fuzz_target.good(&in, &size);
        uint8_t *raw = fuzz_block(fuzz_target.body_at + size);
        memcpy(raw, draws, fuzz_target.body_at);
        memcpy(raw + fuzz_target.body_at, base, size);
        sink(name, raw, fuzz_target.body_at + size);
        free(base);
        free(raw);
    }
}
