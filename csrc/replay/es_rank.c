#include "replay/es_rank.h"

#include <stdlib.h>
#include <string.h>

#include "base/es_memory.h"
#include "base/es_prefetch.h"

/* The bits lie in words of 64. A near node counts 32 words, a far node 16 nodes of the level below. A count is that of
 * the members in all children before one. So the child of the k-th member is the last one whose count is at most k. */
#define WORD 64
#define NEAR 32
#define FAR 16
#define ABREAST 16 /* queries at a time */

_Static_assert(UINT64_C(64) * 32 << 4 * ES_RANK_LEVELS >> 32 > 0,
               "the levels have all numbers that a uint32_t can name");

typedef struct es_rank_near {
    uint16_t before[NEAR];
} near_node;

typedef struct es_rank_far {
    uint32_t before[FAR];
} far_node;

es_rank *es_rank_new(uint64_t limit)
{
    uint64_t near = (limit + WORD * NEAR - 1) / (WORD * NEAR), far[ES_RANK_LEVELS];
    uint64_t size = near * (sizeof(near_node) + NEAR * sizeof(uint64_t)) + ES_CACHE_LINE;
    es_rank *s = malloc(sizeof *s);
    if (s == NULL)
        return NULL;
    *s = (es_rank){.limit = limit, .dense = true};
    for (uint64_t n = near; n > 1; size += n * sizeof(far_node)) {
        n = (n + FAR - 1) / FAR;
        far[s->levels++] = n;
    }
    s->memory = es_memory_new(1, size);
    if (s->memory == NULL) {
        free(s);
        return NULL;
    }
    s->bytes = sizeof *s + size;
    s->near = (near_node *)(((uintptr_t)s->memory + ES_CACHE_LINE - 1) & -(uintptr_t)ES_CACHE_LINE);
    far_node *next = (far_node *)(s->near + near);
    for (uint32_t l = 0; l < s->levels; l++) {
        s->far[l] = next;
        next += far[l];
    }
    s->word = (uint64_t *)next;
    return s;
}

void es_rank_free(es_rank *s)
{
    if (s == NULL)
        return;
    free(s->memory);
    free(s);
}

/* A window on this at NEAR - 1 - i has ones above i. */
static const uint16_t near_ones[2 * NEAR] = {[NEAR] = 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                             1,          1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static const uint32_t far_ones[2 * FAR] = {[FAR] = 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

void es_rank_add(es_rank *s, uint32_t number)
{
    uint32_t i = number / WORD;
    if (number == s->hole)
        s->hole = (uint32_t)s->count + 1;
    else
        s->dense = s->dense && number == s->count + 1;
    s->count++;
    s->word[i] |= UINT64_C(1) << number % WORD;
    uint16_t *near = s->near[i / NEAR].before;
    const uint16_t *near_one = near_ones + NEAR - 1 - i % NEAR;
    for (uint32_t j = 0; j < NEAR; j++)
        near[j] += near_one[j];
    i /= NEAR;
    for (uint32_t l = 0; l < s->levels; l++, i /= FAR) {
        uint32_t *far = s->far[l][i / FAR].before;
        const uint32_t *far_one = far_ones + FAR - 1 - i % FAR;
        for (uint32_t j = 0; j < FAR; j++)
            far[j] += far_one[j];
    }
}

void es_rank_remove(es_rank *s, uint32_t number)
{
    uint32_t i = number / WORD;
    if (s->hole == s->count)
        s->hole = number;
    else
        s->dense = s->dense && number == s->count;
    s->count--;
    if (s->count == 0)
        s->dense = true, s->hole = 0;
    s->word[i] &= ~(UINT64_C(1) << number % WORD);
    uint16_t *near = s->near[i / NEAR].before;
    const uint16_t *near_one = near_ones + NEAR - 1 - i % NEAR;
    for (uint32_t j = 0; j < NEAR; j++)
        near[j] -= near_one[j];
    i /= NEAR;
    for (uint32_t l = 0; l < s->levels; l++, i /= FAR) {
        uint32_t *far = s->far[l][i / FAR].before;
        const uint32_t *far_one = far_ones + FAR - 1 - i % FAR;
        for (uint32_t j = 0; j < FAR; j++)
            far[j] -= far_one[j];
    }
}

uint64_t es_rank_count(const es_rank *s)
{
    return s->count;
}

#define EACH_BYTE UINT64_C(0x0101010101010101)

/* In how many bytes of sums, each at most 64, lies at most k < 64. The sums never fall from byte to byte. */
static inline uint32_t bytes_up_to(uint64_t sums, uint32_t k)
{
    return (uint32_t)(((((k * EACH_BYTE) | (EACH_BYTE << 7)) - sums) >> 7 & EACH_BYTE) * EACH_BYTE >> 56);
}

/* The number of the k-th set bit. The multiplications add up all bytes below each byte. */
static inline uint32_t bit_of(uint64_t word, uint32_t k)
{
    uint64_t sums = word - (word >> 1 & UINT64_C(0x5555555555555555));
    sums = (sums & UINT64_C(0x3333333333333333)) + (sums >> 2 & UINT64_C(0x3333333333333333));
    sums = ((sums + (sums >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f)) * EACH_BYTE;
    uint32_t shift = bytes_up_to(sums, k) * 8;
    k -= (uint32_t)((sums << 8) >> shift & 0xff);
    uint64_t bits = (word >> shift & 0xff) * EACH_BYTE & UINT64_C(0x8040201008040201); /* bit i alone in byte i */
    bits = ((bits + EACH_BYTE * 0x7f) >> 7 & EACH_BYTE) * EACH_BYTE;
    return shift + bytes_up_to(bits, k);
}

/* The child of the k-th member of a node. No branch, because it is random. */
static inline uint32_t far_child(const uint32_t *before, uint32_t k)
{
    uint32_t j = (uint32_t)(before[8] <= k) * 8;
    j += (uint32_t)(before[j + 4] <= k) * 4;
    j += (uint32_t)(before[j + 2] <= k) * 2;
    return j + (before[j + 1] <= k);
}

static inline uint32_t near_child(const uint16_t *before, uint32_t k)
{
    uint32_t j = (uint32_t)(before[16] <= k) * 16;
    j += (uint32_t)(before[j + 8] <= k) * 8;
    j += (uint32_t)(before[j + 4] <= k) * 4;
    j += (uint32_t)(before[j + 2] <= k) * 2;
    return j + (before[j + 1] <= k);
}

/* One step down for each of some, whose cache misses then overlap. */
static inline void members(const es_rank *s, const uint64_t *k, uint32_t *numbers, uint32_t n)
{
    uint32_t rest[ABREAST], *i = numbers;
    for (uint32_t q = 0; q < n; q++)
        rest[q] = (uint32_t)k[q], i[q] = 0;
    for (uint32_t l = s->levels; l-- > 0;)
        for (uint32_t q = 0; q < n; q++) {
            const uint32_t *before = s->far[l][i[q]].before;
            uint32_t j = far_child(before, rest[q]);
            rest[q] -= before[j];
            i[q] = i[q] * FAR + j;
            es_prefetch(l > 0 ? (const void *)&s->far[l - 1][i[q]] : &s->near[i[q]]);
        }
    for (uint32_t q = 0; q < n; q++) {
        const uint16_t *before = s->near[i[q]].before;
        uint32_t j = near_child(before, rest[q]);
        rest[q] -= before[j];
        i[q] = i[q] * NEAR + j;
        es_prefetch(&s->word[i[q]]);
    }
    for (uint32_t q = 0; q < n; q++)
        numbers[q] = i[q] * WORD + bit_of(s->word[i[q]], rest[q]);
}

uint32_t es_rank_member(const es_rank *s, uint64_t k)
{
    uint32_t number;
    es_rank_members(s, &k, &number, 1);
    return number;
}

void es_rank_members(const es_rank *s, const uint64_t *k, uint32_t *numbers, uint64_t n)
{
    bool full = s->count == s->limit;
    uint64_t hole = full ? s->limit : s->dense ? s->hole : es_rank_lowest_absent(s);
    if (full || s->dense || hole == s->count) {
        for (uint64_t q = 0; q < n; q++)
            numbers[q] = (uint32_t)k[q] + (k[q] >= hole);
        return;
    }
    for (; n >= ABREAST; n -= ABREAST, k += ABREAST, numbers += ABREAST)
        members(s, k, numbers, ABREAST);
    if (n > 0)
        members(s, k, numbers, (uint32_t)n);
}

uint32_t es_rank_lowest_absent(const es_rank *s)
{
    if (s->dense)
        return s->hole;
    /* The last child before which all numbers are members. */
    uint32_t i = 0;
    uint64_t span = WORD * NEAR;
    for (uint32_t l = 1; l < s->levels; l++)
        span *= FAR;
    for (uint32_t l = s->levels; l-- > 0; span /= FAR) {
        const uint32_t *before = s->far[l][i].before;
        uint32_t j = 0;
        for (uint32_t half = FAR / 2; half > 0; half /= 2)
            j += (uint32_t)(before[j + half] == (j + half) * span) * half;
        i = i * FAR + j;
    }
    const uint16_t *before = s->near[i].before;
    uint32_t j = 0;
    for (uint32_t half = NEAR / 2; half > 0; half /= 2)
        j += (uint32_t)(before[j + half] == (j + half) * WORD) * half;
    i = i * NEAR + j;
    return i * WORD + (uint32_t)__builtin_ctzll(~s->word[i]);
}

void es_rank_copy(const es_rank *s, uint64_t *words)
{
    memcpy(words, s->word, (s->limit + WORD - 1) / WORD * sizeof *words);
}

uint64_t es_rank_bytes(const es_rank *s)
{
    return s->bytes;
}
