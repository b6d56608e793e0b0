#include "ring/es_leaves.h"

#include <string.h>

#include "base/es_copy.h"

static void copy(const es_map *map, uint8_t *to, const uint8_t *from, uint64_t n)
{
    if (n == 0) /* a leaf without bytes may come with a null pointer */
        return;
    if (n >= ES_COPY_STREAM_FROM && map->streams)
        es_copy_stream(to, from, n);
    else
        memcpy(to, from, n);
}

void es_leaves_write(const es_map *map, uint64_t pos, void *const *leaves)
{
    uint64_t index = pos % map->capacity;
    for (uint32_t l = 0; l < map->num_leaves; l++) {
        uint64_t size = map->leaf_size[l];
        uint8_t *to = map->leaf_data[l] + index * size;
        if (leaves[l] == NULL) /* nobody reads it */
            continue;
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

void es_leaves_write_run(const es_map *map, uint64_t pos, uint64_t n, void *const *leaves, uint64_t first)
{
    uint64_t index = pos % map->capacity;
    for (uint32_t l = 0; l < map->num_leaves; l++) {
        uint64_t size = map->leaf_size[l];
        copy(map, map->leaf_data[l] + index * size, (const uint8_t *)leaves[l] + first * size, n * size);
    }
}

void es_leaves_stamp(const es_map *map, uint64_t pos, uint64_t n, int64_t version)
{
    uint64_t index = pos % map->capacity;
    /* relaxed: the slot's commit publishes it. It is atomic for onlookers alone, which read it while it changes. */
    for (uint64_t i = 0; i < n; i++)
        atomic_store_explicit(&map->versions[index + i], version, memory_order_relaxed);
}

uint64_t es_leaves_bytes(const es_map *map, uint64_t n)
{
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < map->num_leaves; l++)
        bytes += map->leaf_size[l];
    return bytes * n;
}

void es_leaves_read(const es_map *map, uint64_t pos, void *const *leaves)
{
    uint64_t index = pos % map->capacity;
    for (uint32_t l = 0; l < map->num_leaves; l++)
        if (map->leaf_size[l] > 0)
            memcpy(leaves[l], map->leaf_data[l] + index * map->leaf_size[l], map->leaf_size[l]);
}
