/* Which prefix of a sequence of tokens is cached: a radix tree over blocks of tokens.
 *
 * A block is block_size tokens, and the index holds a number for each block that is cached. What is here counts in
 * blocks. A use of a prefix is a use of each block of it. What was used longest ago is evicted first, but never a block
 * that another one continues, and never one that is leased or leads to one that is. */
#ifndef ES_PREFIX_INDEX_H
#define ES_PREFIX_INDEX_H

#include "base/es_types.h"

typedef struct es_prefix_index es_prefix_index;

/* What an insertion did. */
typedef struct es_prefix_insertion {
    uint64_t known;   /* blocks that were cached before */
    uint64_t taken;   /* blocks after those that are cached now */
    uint64_t evicted; /* blocks that went */
    uint32_t end;     /* where what is cached of the sequence ends: for es_prefix_index_lease() */
    uint32_t zero;
} es_prefix_insertion;

/* Both at least 1. NULL without memory. */
es_prefix_index *es_prefix_index_new(uint64_t block_size, uint64_t capacity);
void es_prefix_index_free(es_prefix_index *x);

/* Uses the longest cached prefix of so many blocks of tokens, and writes the numbers of its blocks. Returns how many
 * they are, or -ENOMEM. *end is where it ends: until the next call, or for as long as it is leased. */
int64_t es_prefix_index_match(es_prefix_index *x, const int64_t *tokens, uint64_t blocks, int64_t *numbers,
                              uint32_t *end);
/* A prefix may be leased many times. */
void es_prefix_index_lease(es_prefix_index *x, uint32_t end);
/* Ends one lease, and uses the prefix. */
void es_prefix_index_release(es_prefix_index *x, uint32_t end);

/* Caches so many blocks of tokens under these numbers, as far as there is room. Blocks that are cached keep their
 * numbers, which come into the place of those given. evicted has room for as many as blocks. Returns ES_OK, or -ENOMEM:
 * then nothing was cached or evicted. */
int es_prefix_index_insert(es_prefix_index *x, const int64_t *tokens, uint64_t blocks, int64_t *numbers,
                           es_prefix_insertion *done, int64_t *evicted);
/* Evicts so many blocks, or all that can go. Returns how many went, and writes their numbers. */
uint64_t es_prefix_index_evict(es_prefix_index *x, uint64_t blocks, int64_t *numbers);
/* How many are cached. */
uint64_t es_prefix_index_blocks(const es_prefix_index *x);

#endif
