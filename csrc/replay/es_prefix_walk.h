/* How the tree is climbed and descended, compiled once for each kind of instructions: es_prefix_tree.c includes this
 * file with LANES(name) and TARGET defined. It has no guard for that reason. */

TARGET static inline summary LANES(of_weights)(LANES(es_lanes) v)
{
    return (summary){LANES(es_lanes_sum)(v), LANES(es_lanes_least)(v)};
}

/* The sum of a node's sums. */
TARGET static inline double LANES(add_up)(es_prefix_tree *t, uint32_t level, uint32_t i, LANES(es_lanes) sums)
{
    return level == 1 ? LANES(es_lanes_sum)(sums) : LANES(es_lanes_begin)(sums, t->node[level][i].begin);
}

/* The least weight is computed anew only when that of a child has changed. */
TARGET static inline summary LANES(of_node)(es_prefix_tree *t, uint32_t level, uint32_t i, bool least_changed)
{
    double sum = LANES(add_up)(t, level, i, LANES(es_lanes_load)(sums_of(t, level, i)));
    if (least_changed)
        return (summary){sum, LANES(es_lanes_least)(LANES(es_lanes_load)(leasts_of(t, level, i)))};
    return (summary){sum, *least_slot(t, level, i)};
}

TARGET static void LANES(set)(es_prefix_tree *t, uint32_t leaf, double w)
{
    uint32_t i = leaf / ES_FANOUT, j = leaf % ES_FANOUT;
    t->squares = count_square(t->squares, t->weight[leaf], w);
    summary s = LANES(of_weights)(LANES(es_lanes_put)(t->weight + i * (uint64_t)ES_FANOUT, j, w));
    for (uint32_t l = 1; l < t->levels; l++) {
        j = i % ES_FANOUT, i /= ES_FANOUT;
        double *leasts = leasts_of(t, l, i);
        summary up = {.least = *least_slot(t, l, i)};
        if (leasts[j] != s.least)
            up.least = LANES(es_lanes_least)(LANES(es_lanes_put)(leasts, j, s.least));
        up.sum = LANES(add_up)(t, l, i, LANES(es_lanes_put)(sums_of(t, l, i), j, s.sum));
        s = up;
    }
    t->all = s;
}

/* Computes each node once: a level's list is what the level below has changed. */
TARGET static void LANES(set_some)(es_prefix_tree *t, const uint32_t *leaves, const double *weights, uint32_t n)
{
    uint32_t list[SOME];
    es_prefix_squares squares = t->squares;
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            fetch(&t->weight[leaves[i + AHEAD] & -(uint32_t)ES_FANOUT], 2);
        double w = weights[i] + 0.0; /* -0.0 becomes 0.0 */
        squares = count_square(squares, t->weight[leaves[i]], w);
        t->weight[leaves[i]] = w;
        list[i] = leaves[i];
    }
    t->squares = squares;
    n = parents(t, 0, list, n);
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            es_prefix_tree_fetch_above(t, list[i + AHEAD] & ~CHANGED);
        tell_parent(t, 0, &list[i], LANES(of_weights)(LANES(es_lanes_load)(t->weight + list[i] * (uint64_t)ES_FANOUT)));
    }
    for (uint32_t l = 1; l < t->levels; l++) {
        n = parents(t, l, list, n);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t node = list[i] & ~CHANGED;
            tell_parent(t, l, &list[i], LANES(of_node)(t, l, node, list[i] & CHANGED));
        }
    }
}

/* One step down for each of some queries, whose cache misses then overlap. */
TARGET __attribute__((always_inline)) static inline void LANES(find_some)(const es_prefix_tree *t, const double *at,
                                                                          uint32_t *leaves, uint32_t n)
{
    double rest[ABREAST];
    uint32_t where[ABREAST];
    for (uint32_t q = 0; q < n; q++)
        rest[q] = at[q] >= 0 ? at[q] : 0, where[q] = 0;
    for (uint32_t l = t->levels - 1; l > 1; l--) {
        const es_prefix_node *nodes = t->node[l];
        for (uint32_t q = 0; q < n; q++) {
            const double *begin = nodes[where[q]].begin;
            uint32_t j = LANES(es_lanes_pick)(begin, rest[q]);
            rest[q] -= begin[j];
            where[q] = where[q] * ES_FANOUT + j;
            fetch(l > 2 ? t->node[l - 1][where[q]].begin : sums_of(t, 1, where[q]), 2);
        }
    }
    for (uint32_t q = 0; q < n && t->levels > 1; q++) {
        uint32_t j = LANES(es_lanes_enter)(LANES(es_lanes_load)(sums_of(t, 1, where[q])), &rest[q]);
        where[q] = where[q] * ES_FANOUT + j;
        fetch(&t->weight[where[q] * (uint64_t)ES_FANOUT], 2);
    }
    for (uint32_t q = 0; q < n; q++)
        leaves[q] = where[q] * ES_FANOUT +
                    LANES(es_lanes_search)(LANES(es_lanes_load)(&t->weight[where[q] * (uint64_t)ES_FANOUT]), rest[q]);
}

TARGET static void LANES(find_many)(const es_prefix_tree *t, const double *at, uint32_t *leaves, uint64_t n)
{
    for (; n >= ABREAST; n -= ABREAST, at += ABREAST, leaves += ABREAST)
        LANES(find_some)(t, at, leaves, ABREAST);
    if (n > 0)
        LANES(find_some)(t, at, leaves, (uint32_t)n);
}
