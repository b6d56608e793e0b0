#include "replay/es_gather.h"

#include <string.h>

#include "base/es_copy.h"

/* Small rows that are copied together. */
#define SOME 16

static void copy_one(uint8_t *to, const uint8_t *from, uint64_t size, bool streams)
{
    if (streams && size >= ES_COPY_STREAM_FROM)
        es_copy_stream(to, from, size);
    else
        memcpy(to, from, size);
}

/* Where a leaf of some steps is: at a place of their rows, whose starts are known; or a stride apart. */
typedef struct leaf_of {
    bool in_rows;
    const uint8_t *const *rows;
    uint64_t offset;
    const uint8_t *first;
    const uint32_t *which;
    uint64_t stride;
} leaf_of;

/* of.in_rows is known to the compiler: a loop of rows does not multiply. */
static inline __attribute__((always_inline)) void copy_fixed(leaf_of of, uint64_t n, uint8_t *to, uint64_t size)
{
    for (uint64_t i = 0; i < n; i++)
        memcpy(to + i * size, of.in_rows ? of.rows[i] + of.offset : of.first + of.which[i] * of.stride, size);
}

/* Small sizes are known to the compiler: no call for each. */
static inline __attribute__((always_inline)) void copy_leaf(leaf_of of, uint64_t n, uint8_t *to, uint64_t size)
{
    switch (size) {
    case 1:
        copy_fixed(of, n, to, 1);
        break;
    case 2:
        copy_fixed(of, n, to, 2);
        break;
    case 4:
        copy_fixed(of, n, to, 4);
        break;
    case 8:
        copy_fixed(of, n, to, 8);
        break;
    case 16:
        copy_fixed(of, n, to, 16);
        break;
    case 32:
        copy_fixed(of, n, to, 32);
        break;
    default:
        copy_fixed(of, n, to, size);
    }
}

void es_gather_leaf(const es_store *store, const es_store_leaf *leaf, const uint32_t *which, uint64_t n, uint8_t *to,
                    bool streams)
{
    if (leaf->size >= ES_COPY_STREAM_FROM) {
        for (uint64_t i = 0; i < n; i++)
            copy_one(to + i * leaf->size, es_store_at(store, leaf, which[i]), leaf->size, streams);
        return;
    }
    leaf_of of = {.in_rows = false, .first = store->rows + leaf->offset, .which = which, .stride = leaf->stride};
    copy_leaf(of, n, to, leaf->size);
}

/* Leaf by leaf, of small steps. */
static void copy_some(const es_store *store, const uint32_t *which, uint64_t n, void *const *leaves, uint64_t first)
{
    const uint8_t *rows[SOME];
    for (uint64_t i = 0; i < n; i++)
        rows[i] = store->rows + which[i] * store->row_size;
    for (uint32_t j = 0; j < store->num_leaves; j++) {
        const es_store_leaf *leaf = &store->leaves[j];
        leaf_of of = {.in_rows = true, .rows = rows, .offset = leaf->offset};
        copy_leaf(of, n, (uint8_t *)leaves[j] + first * leaf->size, leaf->size);
    }
}

static void copy_some_columns(const es_store *store, const uint32_t *which, uint64_t n, void *const *leaves,
                              uint64_t first)
{
    for (uint32_t j = 0; j < store->num_leaves; j++) {
        const es_store_leaf *leaf = &store->leaves[j];
        es_gather_leaf(store, leaf, which, n, (uint8_t *)leaves[j] + first * leaf->size, false); /* they are small */
    }
}

static void copy_large(const es_store *store, uint32_t step, void *const *leaves, uint64_t to, bool streams)
{
    for (uint32_t j = 0; j < store->num_leaves; j++) {
        const es_store_leaf *leaf = &store->leaves[j];
        copy_one((uint8_t *)leaves[j] + to * leaf->size, es_store_at(store, leaf, step), leaf->size, streams);
    }
}

/* How many steps are copied at once. */
static uint64_t together(const es_store *store)
{
    return store->row_size <= 8 * ES_CACHE_LINE ? SOME : 1;
}

void es_gather_near(const es_store *store, const uint32_t *which, uint64_t n, void *const *leaves, uint64_t first,
                    bool streams)
{
    uint64_t most = together(store);
    for (uint64_t done = 0; done < n; done += most, first += most) {
        if (most == 1)
            copy_large(store, which[done], leaves, first, streams);
        else
            (store->is_columns ? copy_some_columns : copy_some)(store, which + done, n - done < SOME ? n - done : SOME,
                                                                leaves, first);
    }
}

void es_gather(const es_store *store, const uint32_t *which, uint64_t n, void *const *leaves, uint64_t first,
               bool streams)
{
    uint64_t most = together(store);
    for (uint64_t i = 0; i < n && i < most; i++)
        es_store_fetch_step(store, which[i]);
    for (uint64_t done = 0; done < n; done += most) {
        for (uint64_t i = done + most; i < n && i < done + 2 * most; i++)
            es_store_fetch_step(store, which[i]);
        es_gather_near(store, which + done, n - done < most ? n - done : most, leaves, first + done, streams);
    }
}

void es_gather_into_step(const es_store *store, uint32_t step, const void *const *leaves, uint64_t i)
{
    for (uint32_t j = 0; j < store->num_leaves; j++) {
        const es_store_leaf *leaf = &store->leaves[j];
        const uint8_t *from = (const uint8_t *)leaves[j] + i * leaf->size;
        uint8_t *to = es_store_at(store, leaf, step);
        if (leaf->size == 4)
            memcpy(to, from, 4);
        else if (leaf->size == 16)
            memcpy(to, from, 16);
        else
            copy_one(to, from, leaf->size, true); /* it is drawn long after, mostly */
    }
}

void es_gather_pack(const es_store *store, uint32_t step, uint8_t *row)
{
    if (!store->is_columns) {
        memcpy(row, store->rows + step * store->row_size, store->row_size);
        return;
    }
    for (uint32_t j = 0; j < store->num_leaves; j++)
        memcpy(row + store->packed[j].offset, es_store_at(store, &store->leaves[j], step), store->leaves[j].size);
}

void es_gather_unpack(const es_store *store, const uint8_t *row, uint32_t step)
{
    if (!store->is_columns) {
        memcpy(store->rows + step * store->row_size, row, store->row_size);
        return;
    }
    for (uint32_t j = 0; j < store->num_leaves; j++)
        memcpy(es_store_at(store, &store->leaves[j], step), row + store->packed[j].offset, store->leaves[j].size);
}
