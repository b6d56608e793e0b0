#include "replay/es_softmax_tree.h"

#include <math.h>
#include <stdlib.h>

#include "base/es_memory.h"
#include "base/es_prefetch.h"
#include "replay/es_exp.h"
#include "replay/es_lanes.h"
#include "replay/es_temperature.h"

#define ABREAST 16 /* queries at a time */
#define LEVELS 8   /* 16 to the 8th leaves: all that a uint32_t can name */

/* A priority's bits with the sign set; 0 is absent, so that memory may begin as zeros. Sealed priorities are ordered as
 * the priorities are. */
typedef uint64_t sealed;

#define SIGN (UINT64_C(1) << 63)

typedef struct node {
    double begin[16]; /* the shares before each child; infinite where nothing more is added */
    double share[16];
    double total[16]; /* of the child's own shares */
    sealed greatest[16], least[16];
    double squares[16];       /* of them */
    double share_squares[16]; /* as this node scales them */
} node;

/* A node's own values, which its parent keeps. */
typedef struct summary {
    sealed greatest, least;
    double total, squares;
} summary;

struct es_softmax_tree {
    uint64_t leaves, bytes;
    double temperature;
    uint32_t levels; /* of groups of 16: level 0 is priority and share, the others are node */
    sealed *priority;
    double *share;
    node *node[LEVELS];
    summary all;
    void *memory;
};

/* -INFINITY is absent. */
static sealed seal(double priority)
{
    sealed s;
    memcpy(&s, &priority, sizeof s);
    return priority >= 0 ? s | SIGN : 0;
}

static double unseal(sealed s)
{
    double priority;
    s = s > 0 ? s ^ SIGN : 0xfff0000000000000; /* -INFINITY */
    memcpy(&priority, &s, sizeof priority);
    return priority;
}

static sealed greatest_of(const sealed *s)
{
    sealed greatest = 0;
    for (uint32_t j = 0; j < ES_FANOUT; j++)
        greatest = s[j] > greatest ? s[j] : greatest;
    return greatest;
}

/* The least that is present, or absent. */
static sealed least_of(const sealed *s)
{
    sealed least = UINT64_MAX; /* what absent - 1 is */
    for (uint32_t j = 0; j < ES_FANOUT; j++)
        least = s[j] - 1 < least ? s[j] - 1 : least;
    return least + 1;
}

/* The greatest of 16 now that one of them has changed. */
static sealed greatest_now(const sealed *s, sealed greatest, sealed was, sealed is)
{
    if (is >= greatest)
        return is;
    return was < greatest ? greatest : greatest_of(s);
}

static sealed least_now(const sealed *s, sealed least, sealed was, sealed is)
{
    if (is - 1 <= least - 1)
        return is;
    return was != least ? least : least_of(s);
}

/* exp((priority - greatest) / temperature), or 0 for what is absent. The difference comes first: the quotients of both
 * could overflow. */
static double scale_of(const es_softmax_tree *t, sealed s, double greatest)
{
    return es_exp((unseal(s) - greatest) / t->temperature);
}

/* old: the group's values before. */
static summary set_leaf(es_softmax_tree *t, uint32_t leaf, double priority, summary old)
{
    uint64_t first = leaf / ES_FANOUT * (uint64_t)ES_FANOUT;
    uint32_t j = leaf % ES_FANOUT;
    sealed *p = t->priority + first, was = p[j], is = seal(priority);
    double *share = t->share + first;
    p[j] = is;
    sealed greatest = greatest_now(p, old.greatest, was, is);
    double top = unseal(greatest);
    if (greatest == old.greatest)
        share[j] = scale_of(t, is, top);
    else
        for (uint32_t i = 0; i < ES_FANOUT; i++)
            share[i] = scale_of(t, p[i], top);
    es_lanes_plain shares = es_lanes_load_plain(share);
    return (summary){greatest, least_now(p, old.least, was, is), es_lanes_sum_plain(shares),
                     es_lanes_squares_plain(shares)};
}

static void share_out(const es_softmax_tree *t, node *n, uint32_t j, double greatest)
{
    double scale = scale_of(t, n->greatest[j], greatest);
    n->share[j] = scale * n->total[j];
    n->share_squares[j] = scale * scale * n->squares[j];
}

/* old: the node's values before its child j got new ones. */
static summary set_child(const es_softmax_tree *t, node *n, uint32_t j, summary child, summary old)
{
    summary was = {n->greatest[j], n->least[j], 0, 0};
    n->greatest[j] = child.greatest, n->least[j] = child.least;
    n->total[j] = child.total, n->squares[j] = child.squares;
    sealed greatest = greatest_now(n->greatest, old.greatest, was.greatest, child.greatest);
    double top = unseal(greatest);
    if (greatest == old.greatest)
        share_out(t, n, j, top);
    else
        for (uint32_t i = 0; i < ES_FANOUT; i++)
            share_out(t, n, i, top);
    return (summary){greatest, least_now(n->least, old.least, was.least, child.least),
                     es_lanes_begin_plain(es_lanes_load_plain(n->share), n->begin),
                     es_lanes_sum_plain(es_lanes_load_plain(n->share_squares))};
}

/* What a node's parent keeps of it. */
static summary summary_of(const es_softmax_tree *t, uint32_t level, uint32_t i)
{
    if (level + 1 == t->levels)
        return t->all;
    const node *n = &t->node[level + 1][i / ES_FANOUT];
    uint32_t j = i % ES_FANOUT;
    return (summary){n->greatest[j], n->least[j], n->total[j], n->squares[j]};
}

es_softmax_tree *es_softmax_tree_new(uint64_t leaves, double temperature)
{
    es_softmax_tree *t = malloc(sizeof *t);
    if (t == NULL)
        return NULL;
    uint64_t groups = (leaves + ES_FANOUT - 1) / ES_FANOUT, nodes[LEVELS] = {groups};
    *t = (es_softmax_tree){.leaves = leaves, .temperature = temperature, .levels = 1};
    uint64_t size = groups * ES_FANOUT * 2 * sizeof(double) + 2 * ES_CACHE_LINE;
    for (uint64_t n = groups; n > 1; t->levels++) {
        n = (n + ES_FANOUT - 1) / ES_FANOUT;
        nodes[t->levels] = n;
        size += n * sizeof(node);
    }
    t->memory = es_memory_new(1, size);
    if (t->memory == NULL) {
        free(t);
        return NULL;
    }
    t->bytes = sizeof *t + size;
    t->priority = (sealed *)(((uintptr_t)t->memory + 2 * ES_CACHE_LINE - 1) & -(uintptr_t)(2 * ES_CACHE_LINE));
    t->share = (double *)(t->priority + groups * ES_FANOUT);
    node *next = (node *)(t->share + groups * ES_FANOUT);
    for (uint32_t l = 1; l < t->levels; l++) {
        t->node[l] = next;
        next += nodes[l];
    }
    return t;
}

void es_softmax_tree_free(es_softmax_tree *t)
{
    if (t == NULL)
        return;
    free(t->memory);
    free(t);
}

void es_softmax_tree_set(es_softmax_tree *t, uint32_t leaf, double priority)
{
    uint32_t i = leaf / ES_FANOUT;
    summary s = set_leaf(t, leaf, priority, summary_of(t, 0, i));
    for (uint32_t l = 1; l < t->levels; l++) {
        uint32_t j = i % ES_FANOUT;
        i /= ES_FANOUT;
        s = set_child(t, &t->node[l][i], j, s, summary_of(t, l, i));
    }
    t->all = s;
}

double es_softmax_tree_get(const es_softmax_tree *t, uint32_t leaf)
{
    return unseal(t->priority[leaf]);
}

/* One step down for each of some queries, whose cache misses then overlap. */
static inline void find_some(const es_softmax_tree *t, const double *u, uint32_t *leaves, uint32_t n)
{
    double at[ABREAST];
    uint32_t *i = leaves;
    for (uint32_t q = 0; q < n; q++)
        at[q] = u[q] * t->all.total, i[q] = 0;
    for (uint32_t l = t->levels - 1; l > 0; l--)
        for (uint32_t q = 0; q < n; q++) {
            const node *from = &t->node[l][i[q]];
            uint32_t j = es_lanes_pick_plain(from->begin, at[q]);
            at[q] = (at[q] - from->begin[j]) / from->share[j] * from->total[j];
            i[q] = i[q] * ES_FANOUT + j;
            const void *next = l > 1 ? (const void *)&t->node[l - 1][i[q]] : &t->share[i[q] * (uint64_t)ES_FANOUT];
            for (uint32_t line = 0; line < (l > 1 ? 6 : 2); line++)
                es_prefetch((const char *)next + line * ES_CACHE_LINE);
        }
    for (uint32_t q = 0; q < n; q++) {
        es_lanes_plain shares = es_lanes_load_plain(&t->share[i[q] * (uint64_t)ES_FANOUT]);
        leaves[q] = i[q] * ES_FANOUT + es_lanes_search_plain(shares, at[q]);
    }
}

void es_softmax_tree_find_many(const es_softmax_tree *t, const double *u, uint32_t *leaves, uint64_t n)
{
    for (; n >= ABREAST; n -= ABREAST, u += ABREAST, leaves += ABREAST)
        find_some(t, u, leaves, ABREAST);
    if (n > 0)
        find_some(t, u, leaves, (uint32_t)n);
}

/* Along a leaf's path the shares of its nodes multiply to this. Computed directly it is rounded less often, and does
 * not depend on where in the tree the leaf lies. */
double es_softmax_tree_probability(const es_softmax_tree *t, uint32_t leaf)
{
    return scale_of(t, t->priority[leaf], unseal(t->all.greatest)) / t->all.total;
}

double es_softmax_tree_least(const es_softmax_tree *t)
{
    return t->all.least > 0 ? unseal(t->all.least) : INFINITY;
}

double es_softmax_tree_log_sum(const es_softmax_tree *t)
{
    return t->all.greatest > 0 ? unseal(t->all.greatest) / t->temperature + log(t->all.total) : -INFINITY;
}

double es_softmax_tree_effective(const es_softmax_tree *t)
{
    return t->all.squares > 0 ? t->all.total * t->all.total / t->all.squares : 0;
}

/* --- another temperature ----------------------------------------------------------- */

/* The depths of all that is present below a node, or in a group of level 0. */
static void add_depths(const es_softmax_tree *t, uint32_t level, uint64_t i, double greatest, es_temperature *depths)
{
    for (uint64_t j = i * ES_FANOUT; j < (i + 1) * ES_FANOUT; j++)
        if (level == 0 && t->priority[j] > 0)
            es_temperature_add(depths, greatest - unseal(t->priority[j]));
        else if (level > 0 && t->node[level][i].greatest[j % ES_FANOUT] > 0)
            add_depths(t, level - 1, j, greatest, depths);
}

double es_softmax_tree_choose(const es_softmax_tree *t, double share)
{
    es_temperature depths;
    double greatest = unseal(t->all.greatest);
    if (t->all.greatest == 0)
        return 0;
    es_temperature_begin(&depths, greatest - unseal(t->all.least));
    add_depths(t, t->levels - 1, 0, greatest, &depths);
    return es_temperature_choose(&depths, share);
}

/* What the parent keeps of a node changes but for its priorities. */
static void keep_sums(es_softmax_tree *t, uint32_t level, uint64_t i, double total, double squares)
{
    if (level + 1 == t->levels) {
        t->all.total = total, t->all.squares = squares;
        return;
    }
    node *n = &t->node[level + 1][i / ES_FANOUT];
    n->total[i % ES_FANOUT] = total, n->squares[i % ES_FANOUT] = squares;
}

/* greatest: of the group. */
static void rescale_group(es_softmax_tree *t, uint64_t i, double greatest)
{
    double *share = t->share + i * ES_FANOUT;
    for (uint32_t j = 0; j < ES_FANOUT; j++)
        share[j] = scale_of(t, t->priority[i * ES_FANOUT + j], greatest);
    es_lanes_plain shares = es_lanes_load_plain(share);
    keep_sums(t, 0, i, es_lanes_sum_plain(shares), es_lanes_squares_plain(shares));
}

/* A node, and all below it where something is present. */
static void rescale(es_softmax_tree *t, uint32_t level, uint64_t i, double greatest)
{
    if (level == 0) {
        rescale_group(t, i, greatest);
        return;
    }
    node *n = &t->node[level][i];
    for (uint32_t j = 0; j < ES_FANOUT; j++)
        if (n->greatest[j] > 0)
            rescale(t, level - 1, i * ES_FANOUT + j, unseal(n->greatest[j]));
    for (uint32_t j = 0; j < ES_FANOUT; j++)
        share_out(t, n, j, greatest);
    double total = es_lanes_begin_plain(es_lanes_load_plain(n->share), n->begin);
    keep_sums(t, level, i, total, es_lanes_sum_plain(es_lanes_load_plain(n->share_squares)));
}

void es_softmax_tree_rescale(es_softmax_tree *t, double temperature)
{
    t->temperature = temperature;
    if (t->all.greatest > 0)
        rescale(t, t->levels - 1, 0, unseal(t->all.greatest));
}

double es_softmax_tree_temperature(const es_softmax_tree *t)
{
    return t->temperature;
}

uint64_t es_softmax_tree_bytes(const es_softmax_tree *t)
{
    return t->bytes;
}
