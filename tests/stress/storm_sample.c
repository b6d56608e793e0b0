/* What a sample contains: id, tag, two payloads, sum. Every byte follows from the id, so a sample put together from
 * two, or read while it was written, does not agree with itself. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "storm.h"

/* splitmix64 */
static uint64_t mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

st_random st_random_new(uint64_t seed, uint64_t salt)
{
    return (st_random){mix(seed ^ mix(salt)) | 1};
}

uint32_t st_below(st_random *random, uint32_t n)
{
    uint64_t x = random->state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    random->state = x;
    return (uint32_t)((x >> 32) * n >> 32);
}

uint64_t st_pause_ns(st_random *random, double mean_ns)
{
    double u = (st_below(random, UINT32_MAX) + 1.0) / 4294967296.0;
    return (uint64_t)(-log(u) * mean_ns);
}

void st_nap(uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&ts, NULL);
}

enum { LEAF_ID, LEAF_TAG, LEAF_SUM, LEAF_FIRST, LEAF_SECOND };
#define HEAD_BYTES 20u

void st_shape_init(st_shape *shape, uint64_t bytes)
{
    uint64_t rest = bytes - HEAD_BYTES, first = rest / 3 & ~UINT64_C(7);
    *shape = (st_shape){.num_leaves = rest > 0 ? ST_LEAVES : 3, .size = {8, 4, 8, first, rest - first}};
}

/* The payload is an arithmetic progression from a start that belongs to the id and the leaf. */
#define STEP UINT64_C(0xd6e8feb86659fd93)

static uint64_t fill_payload(uint8_t *to, uint64_t bytes, uint64_t first)
{
    uint64_t sum = 0, words = bytes / 8, w;
    for (uint64_t i = 0; i < words; i++) {
        w = first + i * STEP;
        memcpy(to + i * 8, &w, 8);
        sum += w;
    }
    w = first + words * STEP;
    memcpy(to + words * 8, &w, bytes % 8);
    return sum;
}

static bool payload_whole(const uint8_t *from, uint64_t bytes, uint64_t first, uint64_t *sum)
{
    uint64_t total = 0, differs = 0, words = bytes / 8, w;
    for (uint64_t i = 0; i < words; i++) {
        memcpy(&w, from + i * 8, 8);
        differs |= w ^ (first + i * STEP);
        total += w;
    }
    w = first + words * STEP;
    *sum += total;
    return differs == 0 && memcmp(from + words * 8, &w, bytes % 8) == 0;
}

void st_fill(const st_shape *shape, uint64_t id, uint8_t *const *leaf)
{
    uint64_t key = mix(id), sum = key;
    uint32_t tag = (uint32_t)key;
    for (uint32_t l = LEAF_FIRST; l < shape->num_leaves; l++)
        sum += fill_payload(leaf[l], shape->size[l], mix(key + l));
    memcpy(leaf[LEAF_TAG], &tag, sizeof tag);
    memcpy(leaf[LEAF_SUM], &sum, sizeof sum);
    memcpy(leaf[LEAF_ID], &id, sizeof id);
}

bool st_whole(const st_shape *shape, const uint8_t *const *leaf, uint64_t *id)
{
    uint32_t tag;
    uint64_t sum, found;
    memcpy(id, leaf[LEAF_ID], sizeof *id);
    memcpy(&tag, leaf[LEAF_TAG], sizeof tag);
    memcpy(&sum, leaf[LEAF_SUM], sizeof sum);
    uint64_t key = mix(*id);
    found = key;
    bool whole = tag == (uint32_t)key;
    for (uint32_t l = LEAF_FIRST; l < shape->num_leaves; l++)
        whole = payload_whole(leaf[l], shape->size[l], mix(key + l), &found) && whole;
    return whole && found == sum;
}
