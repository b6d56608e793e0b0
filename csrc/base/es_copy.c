#include "base/es_copy.h"

#include <string.h>

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
