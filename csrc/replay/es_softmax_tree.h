/* Draws with probability softmax(priority / temperature), at any priority, in the time of a tree.
 *
 * A node holds the greatest priority below it, and for each child its share: the sum of
 * exp((priority - greatest) / temperature) over the child's leaves. Every share is at most the
 * number of leaves, so nothing overflows; what underflows has no probability in float64 either. A
 * share is computed anew from the child, always in the same order, when the child or the greatest
 * priority changes. */
#ifndef ES_SOFTMAX_TREE_H
#define ES_SOFTMAX_TREE_H

#include "base/es_base.h"

typedef struct es_softmax_tree es_softmax_tree;

/* leaves at least 1, all absent; temperature positive. NULL without memory. */
es_softmax_tree *es_softmax_tree_new(uint64_t leaves, double temperature);
void es_softmax_tree_free(es_softmax_tree *t);

/* priority: finite and at least 0; -INFINITY: absent. */
void es_softmax_tree_set(es_softmax_tree *t, uint32_t leaf, double priority);
double es_softmax_tree_get(const es_softmax_tree *t, uint32_t leaf);
/* A leaf for each 0 <= u[i] < 1: each with its probability. One must be present. */
void es_softmax_tree_find_many(const es_softmax_tree *t, const double *u, uint32_t *leaves, uint64_t n);
/* Of a leaf that is present. */
double es_softmax_tree_probability(const es_softmax_tree *t, uint32_t leaf);
/* The least priority that is present, or INFINITY. */
double es_softmax_tree_least(const es_softmax_tree *t);
/* The natural logarithm of the sum of exp(priority / temperature) over all that is present; -INFINITY if nothing is. */
double es_softmax_tree_log_sum(const es_softmax_tree *t);
/* 1 / the sum of the squares of all probabilities; 0 if no leaf is present. */
double es_softmax_tree_effective(const es_softmax_tree *t);
/* The temperature for an effective sample size of `share` of the leaves that are present: see es_temperature_choose().
 * Takes a pass over them. */
double es_softmax_tree_choose(const es_softmax_tree *t, double share);
/* Another temperature from now on. The tree is what it would be if it had always been so. Takes such a pass, too. */
void es_softmax_tree_rescale(es_softmax_tree *t, double temperature);
double es_softmax_tree_temperature(const es_softmax_tree *t);
uint64_t es_softmax_tree_bytes(const es_softmax_tree *t);

#endif
