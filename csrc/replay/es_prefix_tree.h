/* Draws by weight: a 16-ary tree of sums over float64.
 *
 * A node is computed from its children whenever one of them changes, always in the same order. So
 * the tree depends on the weights alone, not on the path that led there, and no error adds up. The
 * least positive weight is kept the same way. */
#ifndef ES_PREFIX_TREE_H
#define ES_PREFIX_TREE_H

#include "base/es_base.h"
#include "base/es_prefetch.h"
#include "replay/es_lanes.h"

#define ES_PREFIX_LEVELS 8 /* 16 to the 8th leaves: all that a uint32_t can name */

/* The largest weight: the sum of 2^32 of them is finite. */
#define ES_PREFIX_MAX 0x1p991

/* What a node knows of its 16 children. Those of level 1 have no begin, which is computed when somebody asks: so they
 * take less of the near caches, and less is written. */
typedef struct es_prefix_node {
    double begin[16]; /* the sum of the children before each; infinite where nothing more is added */
    double sum[16];
    double least[16]; /* positive, or 0 where all weights are 0 */
} es_prefix_node;

/* The same of a node's own 16: what its parent keeps. */
typedef struct es_prefix_summary {
    double sum, least;
} es_prefix_summary;

/* The sum of the squares of all weights, to which each change adds. What it has lost by rounding since all were added
 * up is at most 2^-52 times worn. */
typedef struct es_prefix_squares {
    double sum, worn;
} es_prefix_squares;

typedef struct es_prefix_tree {
    uint64_t leaves;
    uint32_t levels; /* of groups of 16: level 0 is weight, level 1 sum and least, the others are node */
    double *weight;  /* padded with zeros to a multiple of 16 */
    /* Child j of node i at level l is node 16 i + j at level l - 1, and at level 1 a group of 16 weights. */
    double *sum, *least; /* of the children of all nodes at level 1 */
    es_prefix_node *node[ES_PREFIX_LEVELS];
    es_prefix_summary all;
    es_prefix_squares squares;
    es_lanes_kind kind;
    void *memory;
    uint64_t bytes;
} es_prefix_tree;

/* leaves at least 1, weights 0. ES_OK or -ENOMEM. Memory is touched as weights come. */
int es_prefix_tree_init(es_prefix_tree *t, uint64_t leaves);
void es_prefix_tree_free(es_prefix_tree *t);

/* 0 <= w <= ES_PREFIX_MAX */
void es_prefix_tree_set(es_prefix_tree *t, uint32_t leaf, double w);
/* The same one after the other, but faster: nodes are computed once. */
void es_prefix_tree_set_many(es_prefix_tree *t, const uint32_t *leaves, const double *weights, uint64_t n);

/* Have come into the cache what the node above 16 weights keeps of them, and what setting one of them touches first. */
static inline void es_prefix_tree_fetch_above(const es_prefix_tree *t, uint32_t group)
{
    uint64_t node = group / ES_FANOUT;
    if (t->levels == 1)
        return;
    es_prefetch(&t->sum[node * ES_FANOUT]);
    es_prefetch(&t->sum[node * ES_FANOUT + ES_FANOUT / 2]);
    es_prefetch(&t->least[group]);
}
static inline void es_prefix_tree_fetch(const es_prefix_tree *t, uint32_t leaf)
{
    uint64_t group = leaf / ES_FANOUT;
    es_prefetch(&t->weight[group * ES_FANOUT]);
    es_prefetch(&t->weight[group * ES_FANOUT + ES_FANOUT / 2]);
    es_prefix_tree_fetch_above(t, (uint32_t)group);
}

static inline double es_prefix_tree_get(const es_prefix_tree *t, uint32_t leaf)
{
    return t->weight[leaf];
}

double es_prefix_tree_total(const es_prefix_tree *t);
/* The least positive weight, or INFINITY. */
double es_prefix_tree_least(const es_prefix_tree *t);
/* The sum of the squares, within a millionth. It may be infinite, or 0 for tiny weights. Now and then that takes a pass
 * over all weights. */
double es_prefix_tree_squares(es_prefix_tree *t);

/* For each of n places the leaf at which the sum of the weights up to it exceeds that, for 0 <= at[i] < total, up to
 * rounding. Its weight is positive. The total must be positive. */
void es_prefix_tree_find_many(const es_prefix_tree *t, const double *at, uint32_t *leaves, uint64_t n);

#endif
