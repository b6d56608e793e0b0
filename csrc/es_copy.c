#include "es_copy.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

/* Stores past the caches. A ring larger than the last-level cache has lost a
 * slot's lines long before the slot comes round again: an ordinary store would
 * first read them back from memory, only to overwrite them. */
static void stream(uint8_t *to, const uint8_t *from, uint64_t n)
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
    /* Streaming stores are not ordered by the commit's release. */
    _mm_sfence();
}
#else
static void stream(uint8_t *to, const uint8_t *from, uint64_t n)
{
    memcpy(to, from, n);
}
#endif

/* Below this a copy ends before streaming pays for its fence. */
#define ES_STREAM_FROM 4096

static void copy(const es_map *map, uint8_t *to, const uint8_t *from, uint64_t n)
{
    if (n == 0) /* a leaf without bytes may come with a null pointer */
        return;
    if (n >= ES_STREAM_FROM && map->streams)
        stream(to, from, n);
    else
        memcpy(to, from, n);
}

void es_copy_sample(const es_map *map, uint64_t pos, void *const *leaves)
{
    uint64_t index = pos % map->capacity;
    for (uint32_t l = 0; l < map->num_leaves; l++) {
        uint64_t size = map->leaf_size[l];
        uint8_t *to = map->leaf_data[l] + index * size;
        /* A constant size lets the compiler use one load and one store. */
        switch (size) {
        case 1:
            memcpy(to, leaves[l], 1);
            break;
        case 4:
            memcpy(to, leaves[l], 4);
            break;
        case 8:
            memcpy(to, leaves[l], 8);
            break;
        default:
            copy(map, to, leaves[l], size);
        }
    }
}

void es_copy_run(const es_map *map, uint64_t pos, uint64_t n, void *const *leaves, uint64_t first)
{
    uint64_t index = pos % map->capacity;
    for (uint32_t l = 0; l < map->num_leaves; l++) {
        uint64_t size = map->leaf_size[l];
        copy(map, map->leaf_data[l] + index * size, (const uint8_t *)leaves[l] + first * size, n * size);
    }
}
