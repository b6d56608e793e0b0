/* Replaces es_leaves.c and es_copy.c. A sample is one leaf of 8 bytes, and its version. A write takes two steps, and the
 * explorer is told about it.
 *
 * The bytes of weights are two words, which are explored as relaxed atomics: somebody may copy them while they are
 * written, and throw the copy away. */
#include <string.h>

#include "base/es_copy.h"
#include "es_core.h"
#include "es_hook.h"
#include "xp.h"

static _Atomic uint32_t *words_of(const es_map *map, uint64_t index)
{
    return (_Atomic uint32_t *)(void *)(map->leaf_data[0] + index * sizeof(uint64_t));
}

static void write_weights(const es_map *map, uint64_t index, uint64_t value)
{
    _Atomic uint32_t *words = words_of(map, index);
    xp_data_write(map, index);
    atomic_store_explicit(&words[0], (uint32_t)value, memory_order_relaxed);
    atomic_store_explicit(&words[1], (uint32_t)(value >> 32), memory_order_relaxed);
}

void es_leaves_read(const es_map *map, uint64_t pos, void *const *leaves)
{
    _Atomic uint32_t *words = words_of(map, pos % map->capacity);
    uint32_t halves[2];
    halves[0] = atomic_load_explicit(&words[0], memory_order_relaxed);
    halves[1] = atomic_load_explicit(&words[1], memory_order_relaxed);
    memcpy(leaves[0], halves, sizeof halves);
}

uint64_t es_leaves_bytes(const es_map *map, uint64_t n)
{
    (void)map;
    return n * sizeof(uint64_t);
}

static void write_one(const es_map *map, uint64_t index, uint64_t value)
{
    uint64_t *leaf = (uint64_t *)(void *)map->leaf_data[0] + index, half = ~value;
    xp_data_write(map, index);
    if (xp_has_left())
        xp_violation("a thread writes a slot after its attachment was detached");
    memcpy(leaf, &half, sizeof half);
    xp_yield();
    memcpy(leaf, &value, sizeof value);
}

void es_leaves_write(const es_map *map, uint64_t pos, void *const *leaves)
{
    uint64_t value;
    memcpy(&value, leaves[0], sizeof value);
    if (map->weights != NULL)
        write_weights(map, pos % map->capacity, value);
    else
        write_one(map, pos % map->capacity, value);
}

void es_leaves_write_run(const es_map *map, uint64_t pos, uint64_t n, void *const *leaves, uint64_t first)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t value;
        memcpy(&value, (const uint8_t *)leaves[0] + (first + i) * sizeof value, sizeof value);
        write_one(map, (pos + i) % map->capacity, value);
    }
}

void es_leaves_stamp(const es_map *map, uint64_t pos, uint64_t n, int64_t version)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t index = (pos + i) % map->capacity;
        xp_data_write(map, index);
        if (xp_has_left())
            xp_violation("a thread writes a slot's version after its attachment was detached");
        map->versions[index] = version;
    }
}

/* No copy here has a size that matters. */
bool es_copy_outgrows_caches(uint64_t bytes)
{
    (void)bytes;
    return false;
}
