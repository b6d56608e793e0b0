#include "replay/es_prefix_tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/es_memory.h"
#include "base/es_prefetch.h"

typedef es_prefix_summary summary;

#define ABREAST 128 /* queries that go down together */
#define SOME 512    /* leaves that are set together */
#define FEW 512     /* nodes of a level that a byte each sorts */
#define AHEAD 16    /* nodes that are fetched ahead */

/* A bit beside a node's number: the least weight below it has changed. */
#define CHANGED (UINT32_C(1) << 31)

/* A weight becomes another one. */
static inline es_prefix_squares count_square(es_prefix_squares s, double from, double to)
{
    double gone = from * from, come = to * to, sum = s.sum + (come - gone);
    return (es_prefix_squares){sum, s.worn + (sum + (come + gone))};
}

/* What a node keeps of its children, from level 1 on. */
static inline double *sums_of(const es_prefix_tree *t, uint32_t level, uint32_t i)
{
    return level == 1 ? t->sum + i * (uint64_t)ES_FANOUT : t->node[level][i].sum;
}
static inline double *leasts_of(const es_prefix_tree *t, uint32_t level, uint32_t i)
{
    return level == 1 ? t->least + i * (uint64_t)ES_FANOUT : t->node[level][i].least;
}

/* Where a node's own least weight is kept. */
static inline double *least_slot(es_prefix_tree *t, uint32_t level, uint32_t i)
{
    return level + 1 < t->levels ? &leasts_of(t, level + 1, i / ES_FANOUT)[i % ES_FANOUT] : &t->all.least;
}

/* Gives a node's new values to its parent. */
static inline void tell_parent(es_prefix_tree *t, uint32_t level, uint32_t *entry, summary s)
{
    uint32_t child = *entry & ~CHANGED, j = child % ES_FANOUT;
    if (level + 1 == t->levels) {
        t->all = s;
        return;
    }
    double *least = &leasts_of(t, level + 1, child / ES_FANOUT)[j];
    *entry = child | (*least != s.least ? CHANGED : 0);
    *least = s.least, sums_of(t, level + 1, child / ES_FANOUT)[j] = s.sum;
}

/* Fetches so many lines. */
static inline void fetch(const void *from, uint32_t lines)
{
    for (uint32_t i = 0; i < lines; i++)
        es_prefetch((const char *)from + i * ES_CACHE_LINE);
}

/* Where nodes are many, few leaves have one in common, unless they are neighbours. */
static uint32_t parents_of_many(uint32_t *list, uint32_t n, uint32_t flag)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t parent = (list[i] & ~flag) / ES_FANOUT, changed = list[i] & flag;
        if (found > 0 && (list[found - 1] & ~CHANGED) == parent)
            list[found - 1] |= changed;
        else
            list[found++] = parent | changed;
    }
    return found;
}

/* Where they are few, a byte for each sorts them: a store for each of the list, and none of them waits for another. */
static uint32_t parents_of_few(uint32_t *list, uint32_t n, uint32_t flag)
{
    uint8_t marked[FEW] = {0}, changed[FEW + 1] = {0}; /* the last one: nobody looks */
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t parent = (list[i] & ~flag) / ES_FANOUT;
        marked[parent] = 1;
        changed[list[i] & flag ? parent : FEW] = 1;
    }
    for (uint32_t i = 0; i < FEW; i += 8) {
        uint64_t eight;
        memcpy(&eight, &marked[i], sizeof eight);
        if (eight == 0)
            continue;
        for (uint32_t j = i; j < i + 8; j++) {
            list[found] = j | (uint32_t)changed[j] << 31;
            found += marked[j];
        }
    }
    return found;
}

/* Makes a list of nodes below a level the list of their parents. One that comes twice would only be computed twice. */
static inline uint32_t parents(const es_prefix_tree *t, uint32_t level, uint32_t *list, uint32_t n)
{
    bool few = (t->leaves - 1) >> (4 * level + 4) < FEW;
    return (few ? parents_of_few : parents_of_many)(list, n, level > 0 ? CHANGED : 0);
}

#define LANES(name) name##_plain
#define TARGET
#include "replay/es_prefix_walk.h"
#undef LANES
#undef TARGET

#ifdef __x86_64__

#define LANES(name) name##_avx2
#define TARGET ES_LANES_TARGET_avx2
#include "replay/es_prefix_walk.h"
#undef LANES
#undef TARGET

#define LANES(name) name##_avx512
#define TARGET ES_LANES_TARGET_avx512
#include "replay/es_prefix_walk.h"
#undef LANES
#undef TARGET

#endif

static const struct walk {
    void (*set)(es_prefix_tree *t, uint32_t leaf, double w);
    void (*set_some)(es_prefix_tree *t, const uint32_t *leaves, const double *weights, uint32_t n);
    void (*find_many)(const es_prefix_tree *t, const double *at, uint32_t *leaves, uint64_t n);
} walks[ES_LANES_KINDS] = {
    [ES_LANES_PLAIN] = {set_plain, set_some_plain, find_many_plain},
#ifdef __x86_64__
    [ES_LANES_AVX2] = {set_avx2, set_some_avx2, find_many_avx2},
    [ES_LANES_AVX512] = {set_avx512, set_some_avx512, find_many_avx512},
#endif
};

int es_prefix_tree_init(es_prefix_tree *t, uint64_t leaves)
{
    uint64_t groups = (leaves + ES_FANOUT - 1) / ES_FANOUT, nodes[ES_PREFIX_LEVELS] = {groups};
    *t = (es_prefix_tree){.leaves = leaves, .levels = 1, .kind = es_lanes_best()};
    uint64_t size = groups * ES_FANOUT * sizeof(double);
    for (uint64_t n = groups; n > 1; t->levels++) {
        n = (n + ES_FANOUT - 1) / ES_FANOUT;
        nodes[t->levels] = n;
        size += n * (t->levels == 1 ? 2 * ES_FANOUT * sizeof(double) : sizeof(es_prefix_node));
    }
    /* A group's two lines are neighbours that the processor fetches together. */
    const uint64_t alignment = 2 * ES_CACHE_LINE;
    t->bytes = size + alignment;
    t->memory = es_memory_new(1, t->bytes);
    if (t->memory == NULL)
        return -ENOMEM;
    t->weight = (double *)(((uintptr_t)t->memory + alignment - 1) & -(uintptr_t)alignment);
    t->sum = t->weight + groups * ES_FANOUT;
    t->least = t->sum + (t->levels > 1 ? nodes[1] * ES_FANOUT : 0);
    es_prefix_node *next = (es_prefix_node *)(t->least + (t->least - t->sum));
    for (uint32_t l = 2; l < t->levels; l++) {
        t->node[l] = next;
        next += nodes[l];
    }
    return ES_OK;
}

void es_prefix_tree_free(es_prefix_tree *t)
{
    free(t->memory);
    *t = (es_prefix_tree){0};
}

void es_prefix_tree_set(es_prefix_tree *t, uint32_t leaf, double w)
{
    walks[t->kind].set(t, leaf, w + 0.0); /* -0.0 becomes 0.0 */
}

void es_prefix_tree_set_many(es_prefix_tree *t, const uint32_t *leaves, const double *weights, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += SOME)
        walks[t->kind].set_some(t, leaves + i, weights + i, (uint32_t)(n - i < SOME ? n - i : SOME));
}

double es_prefix_tree_total(const es_prefix_tree *t)
{
    return t->all.sum;
}

double es_prefix_tree_least(const es_prefix_tree *t)
{
    return t->all.least > 0 ? t->all.least : INFINITY;
}

double es_prefix_tree_squares(es_prefix_tree *t)
{
    es_prefix_squares *s = &t->squares;
    if (s->worn * 0x1p-52 < s->sum * 1e-6) /* not where one is infinite, or not a number */
        return s->sum;
    s->sum = 0;
    for (uint64_t i = 0; i < t->leaves; i++)
        s->sum += t->weight[i] * t->weight[i];
    s->worn = s->sum * (double)t->leaves;
    return s->sum;
}

void es_prefix_tree_find_many(const es_prefix_tree *t, const double *at, uint32_t *leaves, uint64_t n)
{
    walks[t->kind].find_many(t, at, leaves, n);
}
