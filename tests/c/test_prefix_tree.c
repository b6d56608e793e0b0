/* The tree of weights against sums that are computed from nothing, for each kind of instructions that this processor
 * has. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "es_test.h"
#include "replay/es_lanes.h"
#include "replay/es_prefix_tree.h"

#define LARGEST 140000
static uint32_t find_one(const es_prefix_tree *t, double at)
{
    uint32_t found;
    es_prefix_tree_find_many(t, &at, &found, 1);
    return found;
}

static const uint32_t sizes[] = {1, 15, 16, 17, 255, 256, 257, 4097, 40000, LARGEST};
#define NUM_SIZES (sizeof sizes / sizeof sizes[0])

enum mood { UNIFORM, INTEGERS, TIES, RARE, SUBNORMAL, WILD, MOODS };

static double unit(es_random *r)
{
    return (es_random_below(r, 1 << 26) * 0x1p27 + es_random_below(r, 1 << 27)) * 0x1p-53;
}

static double of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* A weight with any exponent that is allowed. */
static double wild(es_random *r)
{
    switch (es_random_below(r, 8)) {
    case 0:
        return 0;
    case 1:
        return ES_PREFIX_MAX;
    case 2:
        return of_bits(es_random_below(r, UINT32_MAX));
    case 3:
        return -0.0;
    default:
        return of_bits((uint64_t)es_random_below(r, 1023 + 991) << 52 | (uint64_t)es_random_below(r, UINT32_MAX) << 20);
    }
}

static double weight(es_random *r, enum mood mood)
{
    switch (mood) {
    case INTEGERS:
        return es_random_below(r, 8);
    case TIES:
        return es_random_below(r, 4) > 0;
    case RARE:
        return es_random_below(r, 50) == 0 ? unit(r) : 0;
    case SUBNORMAL:
        return of_bits(es_random_below(r, 3));
    case WILD:
        return wild(r);
    default:
        return unit(r);
    }
}

/* The pairwise sum of n = 2^k numbers, which are 0 from size on. */
static double pairwise(const double *x, uint64_t first, uint64_t n, uint64_t size)
{
    if (first >= size)
        return 0;
    return n == 1 ? x[first] : pairwise(x, first, n / 2, size) + pairwise(x, first + n / 2, n / 2, size);
}

static double total_of(const double *x, uint32_t size)
{
    return pairwise(x, 0, UINT64_C(1) << 32, size);
}

static double least_of(const double *x, uint32_t size)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < size; i++)
        if (x[i] > 0 && x[i] < least)
            least = x[i];
    return least;
}

/* A tree of each kind. */
typedef struct trees {
    es_prefix_tree of[ES_LANES_KINDS];
    uint32_t n;
} trees;

static trees trees_new(uint32_t size)
{
    trees t = {.n = es_lanes_best() + 1};
    for (uint32_t kind = 0; kind < t.n; kind++) {
        CHECK_EQ(es_prefix_tree_init(&t.of[kind], size), ES_OK);
        t.of[kind].kind = kind;
    }
    return t;
}

static void trees_free(trees *t)
{
    for (uint32_t kind = 0; kind < t->n; kind++)
        es_prefix_tree_free(&t->of[kind]);
}

/* Number of nodes of a level. */
static uint64_t width(const es_prefix_tree *t, uint32_t level)
{
    return ((t->leaves - 1) >> (4 * level + 4)) + 1;
}

/* Whether a level's nodes keep the same. */
static bool same_children(const double *a, const double *b, uint64_t nodes)
{
    return memcmp(a, b, nodes * ES_FANOUT * sizeof *a) == 0;
}

/* Whether two trees are the same to the bit. Where a node's weights are all 0, it does not matter where its children
 * begin. */
static bool same(const es_prefix_tree *a, const es_prefix_tree *b)
{
    bool ok = memcmp(&a->all, &b->all, sizeof a->all) == 0 && same_children(a->weight, b->weight, width(a, 0));
    if (a->levels > 1)
        ok = ok && same_children(a->sum, b->sum, width(a, 1)) && same_children(a->least, b->least, width(a, 1));
    for (uint32_t l = 2; l < a->levels; l++)
        for (uint64_t i = 0; i < width(a, l); i++) {
            const es_prefix_node *m = &a->node[l][i], *n = &b->node[l][i];
            ok = ok && memcmp(m->sum, n->sum, sizeof m->sum) == 0 && memcmp(m->least, n->least, sizeof m->least) == 0;
            double sum = 0;
            for (uint32_t j = 0; j < ES_FANOUT; j++)
                sum += m->sum[j];
            ok = ok && (sum == 0 || memcmp(m->begin, n->begin, sizeof m->begin) == 0);
        }
    return ok;
}

static bool same_bits(double a, double b)
{
    return bits_of(a) == bits_of(b);
}

/* Everything that a tree says of its weights. */
static void check_values(es_prefix_tree *t, const double *w)
{
    uint32_t size = (uint32_t)t->leaves;
    double squares = 0;
    for (uint32_t i = 0; i < size; i++) {
        CHECK(es_prefix_tree_get(t, i) == w[i]);
        squares += w[i] * w[i];
    }
    CHECK(same_bits(es_prefix_tree_total(t), total_of(w, size)));
    CHECK(isinf(squares) ? isinf(es_prefix_tree_squares(t))
                         : fabs(es_prefix_tree_squares(t) - squares) <= squares * 1e-6);
    CHECK(same_bits(es_prefix_tree_least(t), least_of(w, size)));
}

/* What is found: not 0, the same for every kind, one by one or many, and where it should be up to rounding. */
static void check_finds(const trees *t, const double *w, es_random *r)
{
    static double at[200];
    static uint32_t found[200], again[200];
    uint32_t n = 1 + es_random_below(r, 200), size = (uint32_t)t->of[0].leaves;
    double total = es_prefix_tree_total(&t->of[0]);
    if (total == 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        at[i] = unit(r) * total;
    at[0] = 0;
    at[n - 1] = of_bits(bits_of(total) - 1);
    es_prefix_tree_find_many(&t->of[0], at, found, n);
    for (uint32_t kind = 1; kind < t->n; kind++) {
        es_prefix_tree_find_many(&t->of[kind], at, again, n);
        CHECK(memcmp(found, again, n * sizeof *found) == 0);
    }
    for (uint32_t i = 0; i < n; i++) {
        REQUIRE(found[i] < size);
        CHECK(w[found[i]] > 0);
        CHECK_EQ(find_one(&t->of[t->n - 1], at[i]), found[i]);
    }
    for (uint32_t i = 0; i < n; i += 1 + n / 4) {
        double before = 0;
        for (uint32_t leaf = 0; leaf < found[i]; leaf++)
            before += w[leaf];
        double near = total * 1e-11;
        CHECK(before <= at[i] + near && at[i] <= before + w[found[i]] + near);
    }
}

/* Random weights of every kind, one by one and many at a time: all that the tree says is what its weights say. */
TEST(prefix_tree_is_what_its_weights_say)
{
    static double w[LARGEST], weights[1200];
    static uint32_t leaves[1200];
    es_random r = es_random_new(1);
    for (uint32_t s = 0; s < NUM_SIZES; s++)
        for (enum mood mood = 0; mood < MOODS; mood++) {
            uint32_t size = sizes[s];
            trees t = trees_new(size);
            memset(w, 0, sizeof w);
            for (uint64_t round = size < 5000 ? es_test_scaled(12) + 1 : 3; round-- > 0;) {
                uint32_t n = es_random_below(&r, es_random_below(&r, 2) ? 1200 : 40);
                for (uint32_t i = 0; i < n; i++) {
                    leaves[i] = es_random_below(&r, 2) ? es_random_below(&r, size) : (i * 3 / 2) % size;
                    weights[i] = weight(&r, mood);
                    w[leaves[i]] = weights[i];
                }
                for (uint32_t kind = 0; kind < t.n; kind++)
                    if (round % 2 == 0)
                        es_prefix_tree_set_many(&t.of[kind], leaves, weights, n);
                    else
                        for (uint32_t i = 0; i < n; i++)
                            es_prefix_tree_set(&t.of[kind], leaves[i], weights[i]);
                check_values(&t.of[0], w);
                for (uint32_t kind = 1; kind < t.n; kind++)
                    CHECK(same(&t.of[0], &t.of[kind]));
                check_finds(&t, w, &r);
            }
            trees_free(&t);
        }
}

/* A tree after a random history is the tree of its weights, and so is one that was set many at a time. */
TEST(prefix_tree_forgets_its_history)
{
    static double w[LARGEST];
    static uint32_t every[LARGEST];
    es_random r = es_random_new(2);
    for (uint32_t s = 0; s < NUM_SIZES; s++) {
        uint32_t size = sizes[s];
        trees old = trees_new(size), fresh = trees_new(size), many = trees_new(size);
        for (uint32_t i = 0; i < 3000 + size; i++) {
            uint32_t leaf = es_random_below(&r, size);
            double v = weight(&r, es_random_below(&r, MOODS));
            for (uint32_t kind = 0; kind < old.n; kind++)
                es_prefix_tree_set(&old.of[kind], leaf, v);
        }
        for (uint32_t i = 0; i < size; i++)
            w[i] = es_prefix_tree_get(&old.of[0], i), every[i] = i;
        for (uint32_t kind = 0; kind < old.n; kind++) {
            for (uint32_t i = size; i-- > 0;)
                es_prefix_tree_set(&fresh.of[kind], i, w[i]);
            es_prefix_tree_set_many(&many.of[kind], every, w, size);
            CHECK(same(&old.of[kind], &fresh.of[kind]));
            CHECK(same(&old.of[kind], &many.of[kind]));
        }
        trees_free(&old), trees_free(&fresh), trees_free(&many);
    }
}

/* Where nothing is rounded, every leaf is found from its first number to its last. */
TEST(prefix_tree_finds_exactly)
{
    es_random r = es_random_new(3);
    for (uint32_t s = 0; s < NUM_SIZES; s++) {
        uint32_t size = sizes[s];
        trees t = trees_new(size);
        for (uint32_t kind = 0; kind < t.n; kind++) {
            for (uint32_t i = 0; i < size; i++)
                es_prefix_tree_set(&t.of[kind], i, weight(&r, INTEGERS));
            double at = 0;
            for (uint32_t i = 0; i < size; i++) {
                double w = es_prefix_tree_get(&t.of[kind], i);
                if (w > 0) {
                    CHECK_EQ(find_one(&t.of[kind], at), i);
                    CHECK_EQ(find_one(&t.of[kind], of_bits(bits_of(at + w) - 1)), i);
                }
                at += w;
            }
            CHECK(at == es_prefix_tree_total(&t.of[kind]));
        }
        trees_free(&t);
    }
}

/* Rounding can leave more than a node has: above its last number, and before children of weight 0. */
TEST(prefix_tree_never_finds_a_zero)
{
    es_random r = es_random_new(4);
    for (uint64_t round = es_test_scaled(3000); round-- > 0;) {
        uint32_t size = 200 + es_random_below(&r, 200);
        trees t = trees_new(size);
        for (uint32_t i = 0; i < size; i++)
            for (uint32_t kind = 0; kind < t.n; kind++)
                es_prefix_tree_set(&t.of[kind], i,
                                   i % 16 < 9 && i % 256 < 140 ? (i * 37 % 11 + 1) / 10.0 * unit(&r) : 0);
        for (uint32_t kind = 0; kind < t.n; kind++) {
            const es_prefix_tree *tree = &t.of[kind];
            double total = es_prefix_tree_total(tree);
            for (uint32_t i = 0; i < 20; i++) {
                double at = i == 0 ? total : of_bits(bits_of(total) - i);
                uint32_t leaf = find_one(tree, at);
                CHECK(leaf < size && es_prefix_tree_get(tree, leaf) > 0);
            }
        }
        trees_free(&t);
    }
}

/* Leaves are drawn as often as their weights say. The draws are the same in every run. */
TEST(prefix_tree_draws_by_weight)
{
    enum { LEAVES = 300, DRAWS = 60000 };
    es_random r = es_random_of(12, 5);
    static double at[DRAWS];
    static uint32_t leaves[DRAWS], drawn[LEAVES];
    trees t = trees_new(LEAVES);
    for (uint32_t kind = 0; kind < t.n; kind++) {
        es_prefix_tree *tree = &t.of[kind];
        for (uint32_t i = 0; i < LEAVES; i++)
            es_prefix_tree_set(tree, i, i % 7 * 0.3);
        double total = es_prefix_tree_total(tree), chi2 = 0;
        for (uint32_t i = 0; i < DRAWS; i++)
            at[i] = unit(&r) * total;
        es_prefix_tree_find_many(tree, at, leaves, DRAWS);
        memset(drawn, 0, sizeof drawn);
        for (uint32_t i = 0; i < DRAWS; i++)
            drawn[leaves[i]]++;
        for (uint32_t i = 0; i < LEAVES; i++) {
            double expected = es_prefix_tree_get(tree, i) / total * DRAWS;
            if (expected > 0)
                chi2 += (drawn[i] - expected) * (drawn[i] - expected) / expected;
            else
                CHECK_EQ(drawn[i], 0);
        }
        CHECK(chi2 > 170 && chi2 < 360); /* 256 degrees of freedom: 4 standard deviations are 91 */
    }
    trees_free(&t);
}

/* A tree says how much memory it set aside: little more than its weights. */
TEST(prefix_tree_counts_its_bytes)
{
    es_prefix_tree t;
    REQUIRE_EQ(es_prefix_tree_init(&t, 1000000), ES_OK);
    CHECK(t.bytes > 9 * 1000000 && t.bytes < 10 * 1000000);
    es_prefix_tree_free(&t);
}
