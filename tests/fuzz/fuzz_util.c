#define _GNU_SOURCE
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "es_random.h"

uint8_t fuzz_byte(fuzz_in *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

uint32_t fuzz_below(fuzz_in *in, uint32_t n)
{
    return fuzz_byte(in) % n;
}

uint64_t fuzz_u64(fuzz_in *in)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)fuzz_byte(in) << 8 * i;
    return value;
}

bool fuzz_done(const fuzz_in *in)
{
    return in->at >= in->end;
}

uint64_t fuzz_value(fuzz_in *in, uint64_t near)
{
    static const uint64_t edges[] = {
        0,
        1,
        2,
        3,
        7,
        8,
        63,
        64,
        65,
        255,
        4095,
        4096,
        4097,
        65535,
        65536,
        UINT64_C(1) << 26,
        UINT64_C(1) << 30,
        UINT32_MAX / 2,
        UINT32_MAX,
        UINT64_C(1) << 32,
        (UINT64_C(1) << 44) - 1,
        UINT64_C(1) << 44,
        UINT64_C(1) << 60,
        INT64_MAX,
        UINT64_C(1) << 63,
        UINT64_MAX - 4095,
        UINT64_MAX - 63,
        UINT64_MAX - 1,
        UINT64_MAX,
    };
    uint32_t kind = fuzz_byte(in);
    if (kind < 96)
        return edges[kind % (sizeof edges / sizeof *edges)];
    if (kind < 160)
        return near + (uint64_t)(int64_t)(int8_t)fuzz_byte(in);
    if (kind < 192)
        return near ^ UINT64_C(1) << fuzz_below(in, 64);
    if (kind < 224)
        return fuzz_byte(in);
    return fuzz_u64(in);
}

void fuzz_fail(const char *file, int line, const char *what)
{
    const char *base = strrchr(file, '/');
    fprintf(stderr, "%s:%d: does not hold: %s\n", base ? base + 1 : file, line, what);
    abort();
}

uint64_t fuzz_random(uint64_t *state)
{
    uint64_t z = es_random_mix(*state);
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return z;
}

uint8_t *fuzz_block(uint64_t size)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, size > 0 ? size : 1) != 0)
        abort();
    memset(p, 0, size);
    return p;
}
