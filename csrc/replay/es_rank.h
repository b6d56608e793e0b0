/* A set of small numbers that knows its k-th member and its lowest absent number: a bitmap with counts. */
#ifndef ES_RANK_H
#define ES_RANK_H

#include "base/es_base.h"
#include "base/es_prefetch.h"

#define ES_RANK_LEVELS 6

typedef struct es_rank {
    uint64_t *word; /* a bit for each number */
    uint64_t limit, count, bytes;
    bool dense;    /* the members are 0 .. count, without the hole; if not set, they may be nevertheless */
    uint32_t hole; /* count, if the members are 0 .. count - 1 */
    uint32_t levels;
    struct es_rank_near *near;
    struct es_rank_far *far[ES_RANK_LEVELS];
    void *memory;
} es_rank;

/* An empty set of numbers below limit; limit at least 1. NULL without memory. */
es_rank *es_rank_new(uint64_t limit);
void es_rank_free(es_rank *s);

/* The number is below limit, and is absent. */
void es_rank_add(es_rank *s, uint32_t number);
/* The number is a member. */
void es_rank_remove(es_rank *s, uint32_t number);
static inline bool es_rank_has(const es_rank *s, uint32_t number)
{
    return s->word[number / 64] >> number % 64 & 1;
}
/* Has what es_rank_has() reads come into the cache. */
static inline void es_rank_fetch(const es_rank *s, uint32_t number)
{
    es_prefetch(&s->word[number / 64]);
}
uint64_t es_rank_count(const es_rank *s);
/* The k-th member from below, k from 0, below count. */
uint32_t es_rank_member(const es_rank *s, uint64_t k);
/* The same for many, faster: cache misses overlap. */
void es_rank_members(const es_rank *s, const uint64_t *k, uint32_t *numbers, uint64_t n);
/* The lowest number below limit that is absent; there must be one: count < limit. */
uint32_t es_rank_lowest_absent(const es_rank *s);
/* Copies the members as bits of (limit + 63) / 64 words. */
void es_rank_copy(const es_rank *s, uint64_t *words);
uint64_t es_rank_bytes(const es_rank *s);

#endif
