/* An item is as likely as its priority to the power of alpha (Schaul et al., "Prioritized experience
 * replay", 2016). A weight of 0 is never drawn while any is positive; if all are 0, all are alike. */
#include <math.h>
#include <stdlib.h>

#include "replay/es_pow.h"
#include "replay/es_prefix_tree.h"
#include "replay/es_random.h"
#include "replay/es_rank.h"
#include "replay/es_selector.h"

#define MANY 64
#define SOME 32 /* powers that are computed together */

typedef struct prioritized {
    es_selector base;
    double alpha;
    double last, weight_of_last; /* a priority, and its weight: items often come with the same */
    es_rank *members;
    es_prefix_tree weights; /* of members */
    es_prefix_tree all;     /* also of those set aside; only if any ever is */
    uint64_t limit;
    bool has_all;
} prioritized;

static double weight_of(const prioritized *p, double priority)
{
    return es_pow(priority, p->alpha);
}

static bool accepts(const es_selector *s, double priority)
{
    const prioritized *p = (const prioritized *)s;
    /* Up to 1, and with an exponent of at most 1, a weight is at most 1 or its priority. */
    bool surely = priority <= 1 || (p->alpha <= 1 && priority <= ES_PREFIX_MAX);
    return surely || weight_of(p, priority) <= ES_PREFIX_MAX;
}

static void set(prioritized *p, uint32_t item, double weight, bool member)
{
    if (member)
        es_prefix_tree_set(&p->weights, item, weight);
    if (p->has_all)
        es_prefix_tree_set(&p->all, item, weight);
}

static void insert(es_selector *s, const es_candidate *c)
{
    prioritized *p = (prioritized *)s;
    es_rank_add(p->members, c->item);
    if (c->priority != p->last)
        p->last = c->priority, p->weight_of_last = weight_of(p, c->priority);
    set(p, c->item, p->weight_of_last, true);
}

static void update(es_selector *s, const es_candidate *c, uint64_t n)
{
    prioritized *p = (prioritized *)s;
    uint32_t items[ES_SELECTOR_MANY], left[ES_SELECTOR_MANY];
    double weights[ES_SELECTOR_MANY], left_weights[ES_SELECTOR_MANY];
    uint64_t members = 0;
    for (uint64_t i = 0, done = 0; i < n; i++) {
        items[i] = c[i].item;
        es_prefix_tree_fetch(&p->weights, items[i]); /* while the powers are computed */
        weights[i] = c[i].priority;
        if (i % SOME != SOME - 1 && i != n - 1)
            continue;
        es_pow_many(p->weights.kind, weights + done, i + 1 - done, p->alpha);
        done = i + 1;
    }
    if (!p->has_all) {
        es_prefix_tree_set_many(&p->weights, items, weights, n);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        if (es_rank_has(p->members, items[i]))
            left[members] = items[i], left_weights[members++] = weights[i];
    es_prefix_tree_set_many(&p->weights, left, left_weights, members);
    es_prefix_tree_set_many(&p->all, items, weights, n);
}

static void remove_item(es_selector *s, uint32_t item)
{
    prioritized *p = (prioritized *)s;
    if (es_rank_has(p->members, item))
        es_rank_remove(p->members, item);
    set(p, item, 0, true);
}

static void set_aside(es_selector *s, uint32_t item)
{
    prioritized *p = (prioritized *)s;
    es_rank_remove(p->members, item);
    es_prefix_tree_set(&p->weights, item, 0);
}

static void draw(es_selector *s, uint64_t *random, uint64_t n, uint32_t *items, double *probabilities)
{
    prioritized *p = (prioritized *)s;
    double total = es_prefix_tree_total(&p->weights), at[MANY];
    uint64_t count = es_rank_count(p->members), ranks[MANY];
    for (uint64_t done = 0; done < n; done += MANY) {
        uint64_t some = n - done < MANY ? n - done : MANY;
        if (total > 0) {
            for (uint64_t i = 0; i < some; i++)
                at[i] = es_random_unit(random) * total;
            es_prefix_tree_find_many(&p->weights, at, items + done, some);
        } else {
            for (uint64_t i = 0; i < some; i++)
                ranks[i] = es_random_below(random, count);
            es_rank_members(p->members, ranks, items + done, some);
        }
    }
    for (uint64_t i = 0; i < n; i++)
        probabilities[i] = total > 0 ? es_prefix_tree_get(&p->weights, items[i]) / total : 1 / (double)count;
}

static double probability(es_selector *s, uint32_t item)
{
    prioritized *p = (prioritized *)s;
    double total = es_prefix_tree_total(&p->weights);
    return total > 0 ? es_prefix_tree_get(&p->weights, item) / total : 1 / (double)es_rank_count(p->members);
}

static void ratios(es_selector *s, const uint32_t *items, uint64_t n, double *ratios)
{
    prioritized *p = (prioritized *)s;
    const es_prefix_tree *all = p->has_all ? &p->all : &p->weights;
    double least = es_prefix_tree_least(all);
    for (uint64_t i = 0; i < n; i++) {
        double weight = es_prefix_tree_get(all, items[i]);
        ratios[i] = weight > 0 ? weight / least : 1;
    }
}

static double effective(es_selector *s)
{
    prioritized *p = (prioritized *)s;
    double total = es_prefix_tree_total(&p->weights), squares = es_prefix_tree_squares(&p->weights);
    if (total == 0)
        return (double)es_rank_count(p->members);
    if (isnormal(squares))
        return total * total / squares;
    double sum = 0; /* weights beyond the squares of float64: a pass over all */
    for (uint64_t i = 0; i < p->limit; i++) {
        double share = es_prefix_tree_get(&p->weights, (uint32_t)i) / total;
        sum += share * share;
    }
    return 1 / sum;
}

static void describe(es_selector *s, es_selector_figures *to)
{
    const prioritized *p = (const prioritized *)s;
    double least = es_prefix_tree_least(p->has_all ? &p->all : &p->weights);
    to->mass = es_prefix_tree_total(&p->weights);
    to->least = isinf(least) ? 0 : least;
    to->log_mass = log(to->mass);
    to->log_least = log(least);
}

static uint64_t bytes(const es_selector *s)
{
    const prioritized *p = (const prioritized *)s;
    return es_rank_bytes(p->members) + p->weights.bytes + (p->has_all ? p->all.bytes : 0);
}

static void free_prioritized(es_selector *s)
{
    prioritized *p = (prioritized *)s;
    es_rank_free(p->members);
    es_prefix_tree_free(&p->weights);
    if (p->has_all)
        es_prefix_tree_free(&p->all);
    free(p);
}

static const es_selector_class prioritized_class = {
    .insert = insert,
    .update = update,
    .remove = remove_item,
    .set_aside = set_aside,
    .draw = draw,
    .probability = probability,
    .ratios = ratios,
    .accepts = accepts,
    .effective = effective,
    .describe = describe,
    .bytes = bytes,
    .free = free_prioritized,
    .random = true,
};

es_selector *es_prioritized_new(uint64_t limit, double alpha, bool rounds)
{
    prioritized *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (prioritized){.base.class = &prioritized_class, .alpha = alpha, .limit = limit}; /* the weight of 0 is 0 */
    made->members = es_rank_new(limit);
    if (made->members != NULL && es_prefix_tree_init(&made->weights, limit) == ES_OK) {
        if (!rounds)
            return &made->base;
        made->has_all = es_prefix_tree_init(&made->all, limit) == ES_OK;
        if (made->has_all)
            return &made->base;
        es_prefix_tree_free(&made->weights);
    }
    es_rank_free(made->members);
    free(made);
    return NULL;
}
