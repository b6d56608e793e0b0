#include "replay/es_gather.h"

#include <string.h>

#include "base/es_copy.h"

/* Rows that are fetched ahead. */
#define AHEAD 12

#define ROW(i) (rows + (which == NULL ? (i) : which[i]) * store->row_size)

static void fetch(const uint8_t *row, uint64_t size)
{
    /* The processor itself fetches what follows. */
    for (uint64_t at = 0; at < size && at < 4 * ES_CACHE_LINE; at += ES_CACHE_LINE)
        __builtin_prefetch(row + at);
    __builtin_prefetch(row + size - 1);
}

static inline __attribute__((always_inline)) void copy_fixed(const es_store *store, const uint8_t *rows,
                                                             const uint32_t *which, uint64_t n, uint8_t *to,
                                                             uint64_t offset, uint64_t size)
{
    for (uint64_t i = 0; i < n; i++)
        memcpy(to + i * size, ROW(i) + offset, size);
}

/* A leaf of some rows whose lines are in the cache. Small sizes are known to the compiler: no call for each. */
static void copy_leaf(const es_store *store, const uint8_t *rows, const uint32_t *which, uint64_t n, uint8_t *to,
                      const es_store_leaf *leaf)
{
    uint64_t offset = leaf->offset;
    switch (leaf->size) {
    case 1:
        copy_fixed(store, rows, which, n, to, offset, 1);
        break;
    case 2:
        copy_fixed(store, rows, which, n, to, offset, 2);
        break;
    case 4:
        copy_fixed(store, rows, which, n, to, offset, 4);
        break;
    case 8:
        copy_fixed(store, rows, which, n, to, offset, 8);
        break;
    case 16:
        copy_fixed(store, rows, which, n, to, offset, 16);
        break;
    case 32:
        copy_fixed(store, rows, which, n, to, offset, 32);
        break;
    default:
        copy_fixed(store, rows, which, n, to, offset, leaf->size);
    }
}

void es_gather(const es_store *store, const uint8_t *rows, const uint32_t *which, uint64_t n, void *const *leaves,
               uint64_t first)
{
    if (store->row_size <= 8 * ES_CACHE_LINE) {
        /* Small rows: some at a time, leaf by leaf, while the next ones come. */
        for (uint64_t i = 0; i < n && i < AHEAD; i++)
            fetch(ROW(i), store->row_size);
        for (uint64_t done = 0; done < n; done += AHEAD) {
            uint64_t some = n - done < AHEAD ? n - done : AHEAD;
            for (uint64_t i = done + AHEAD; i < n && i < done + 2 * AHEAD; i++)
                fetch(ROW(i), store->row_size);
            for (uint32_t j = 0; j < store->num_leaves; j++)
                copy_leaf(store, which == NULL ? rows + done * store->row_size : rows,
                          which == NULL ? NULL : which + done, some,
                          (uint8_t *)leaves[j] + (first + done) * store->leaves[j].size, &store->leaves[j]);
        }
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        if (i + 1 < n)
            fetch(ROW(i + 1), store->row_size);
        for (uint32_t j = 0; j < store->num_leaves; j++) {
            uint64_t size = store->leaves[j].size;
            uint8_t *to = (uint8_t *)leaves[j] + (first + i) * size;
            const uint8_t *from = ROW(i) + store->leaves[j].offset;
            memcpy(to, from, size);
        }
    }
}

void es_gather_into_row(const es_store *store, uint8_t *row, const void *const *leaves, uint64_t i)
{
    for (uint32_t j = 0; j < store->num_leaves; j++) {
        const es_store_leaf *leaf = &store->leaves[j];
        const uint8_t *from = (const uint8_t *)leaves[j] + i * leaf->size;
        uint8_t *to = row + leaf->offset;
        if (leaf->size == 4)
            memcpy(to, from, 4);
        else if (leaf->size == 16)
            memcpy(to, from, 16);
        else if (leaf->size >= ES_COPY_STREAM_FROM)
            es_copy_stream(to, from, leaf->size);
        else
            memcpy(to, from, leaf->size);
    }
}
