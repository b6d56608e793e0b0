#include "base/es_copy.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Of a last-level cache that says nothing of itself (bytes). */
#define USUAL_CACHE (UINT64_C(32) << 20)

/* What Linux says of the cache that the first processor shares: "32768K". sysconf() says less: on some processors it adds
 * up the caches of all cores, of which each uses its own. */
static uint64_t last_level_cache(void)
{
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    unsigned long long kib = 0;
    if (file != NULL) {
        if (fscanf(file, "%lluK", &kib) != 1)
            kib = 0;
        fclose(file);
    }
    if (kib > 0)
        return (uint64_t)kib << 10;
    long size = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    size = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return size > 0 ? (uint64_t)size : USUAL_CACHE;
}

bool es_copy_outgrows_caches(uint64_t bytes)
{
    static _Atomic uint64_t known; /* relaxed: whoever does not see it finds the same */
    uint64_t cache = atomic_load_explicit(&known, memory_order_relaxed);
    if (cache == 0) {
        cache = last_level_cache();
        atomic_store_explicit(&known, cache, memory_order_relaxed);
    }
    return bytes > cache;
}

#ifdef __SSE2__
#include <emmintrin.h>

/* Stores past the caches. When a ring is larger than the last-level cache, a slot's lines leave
 * the cache long before the slot is used again. An ordinary store would first read them back from
 * memory, only to overwrite them. */
void es_copy_stream(uint8_t *to, const uint8_t *from, uint64_t n)
{
    uint64_t lead = -(uintptr_t)to & 15;
    memcpy(to, from, lead);
    to += lead, from += lead, n -= lead;
    for (; n >= 64; to += 64, from += 64, n -= 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)from), b = _mm_loadu_si128((const __m128i *)from + 1);
        __m128i c = _mm_loadu_si128((const __m128i *)from + 2), d = _mm_loadu_si128((const __m128i *)from + 3);
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)to + 1, b);
        _mm_stream_si128((__m128i *)to + 2, c);
        _mm_stream_si128((__m128i *)to + 3, d);
    }
    memcpy(to, from, n);
    /* The commit's release does not order streaming stores. */
    _mm_sfence();
}

#else

void es_copy_stream(uint8_t *to, const uint8_t *from, uint64_t n)
{
    memcpy(to, from, n);
}

#endif
