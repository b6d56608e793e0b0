#include "es_sample.h"

#include <string.h>

#include "es_random.h"

/* A leaf is an arithmetic progression of 64-bit words, cut to the leaf's size. */
#define STEP UINT64_C(0xd6e8feb86659fd93)

static uint64_t first_word(uint64_t id, uint32_t leaf)
{
    return leaf == 0 ? id : es_random_mix(es_random_mix(id) + leaf);
}

void es_sample_leaf(uint64_t id, uint32_t leaf, uint64_t size, uint8_t *to)
{
    uint64_t first = first_word(id, leaf), words = size / 8, w;
    for (uint64_t i = 0; i < words; i++) {
        w = first + i * STEP;
        memcpy(to + i * 8, &w, 8);
    }
    w = first + words * STEP;
    memcpy(to + words * 8, &w, size % 8);
}

bool es_sample_is_leaf(uint64_t id, uint32_t leaf, uint64_t size, const uint8_t *from)
{
    uint64_t first = first_word(id, leaf), words = size / 8, differs = 0, w;
    for (uint64_t i = 0; i < words; i++) {
        memcpy(&w, from + i * 8, 8);
        differs |= w ^ (first + i * STEP);
    }
    w = first + words * STEP;
    return differs == 0 && memcmp(from + words * 8, &w, size % 8) == 0;
}

/* A version is [first id, cut:52 | n:8]. */
#define ID_BITS 52

static uint64_t cut(uint64_t id)
{
    return id & ((UINT64_C(1) << ID_BITS) - 1);
}

int64_t es_sample_version(uint64_t first, uint64_t n)
{
    return (int64_t)(cut(first) << 8 | n);
}

bool es_sample_is_version(int64_t version, uint64_t id)
{
    return version == ES_SAMPLE_ANY_VERSION || cut(id - ((uint64_t)version >> 8)) < ((uint64_t)version & 255);
}

void es_sample_write(const es_map *map, uint64_t index, uint64_t id)
{
    for (uint32_t l = 0; l < map->num_leaves; l++)
        es_sample_leaf(id, l, map->leaf_size[l], map->leaf_data[l] + index * map->leaf_size[l]);
}

bool es_sample_read(const es_map *map, uint64_t index, uint64_t *id)
{
    bool whole = true;
    memcpy(id, map->leaf_data[0] + index * sizeof *id, sizeof *id);
    for (uint32_t l = 1; l < map->num_leaves; l++)
        whole = es_sample_is_leaf(*id, l, map->leaf_size[l], map->leaf_data[l] + index * map->leaf_size[l]) && whole;
    return whole && (map->versions == NULL || es_sample_is_version(map->versions[index], *id)); /* NULL: weights */
}
