/* An item is as likely as softmax(priority / temperature) says. */
#include <math.h>
#include <stdlib.h>

#include "replay/es_random.h"
#include "replay/es_selector.h"
#include "replay/es_softmax_tree.h"

#define MANY 64

typedef struct softmax {
    es_selector base;
    double target; /* 0: the temperature stays */
    es_softmax_tree *members;
    es_softmax_tree *all; /* also those set aside. The same tree if none ever is */
} softmax;

static void insert(es_selector *s, const es_candidate *c)
{
    softmax *x = (softmax *)s;
    es_softmax_tree_set(x->members, c->item, c->priority);
    if (x->all != x->members)
        es_softmax_tree_set(x->all, c->item, c->priority);
}

static void update(es_selector *s, const es_candidate *c, uint64_t n)
{
    softmax *x = (softmax *)s;
    for (uint64_t i = 0; i < n; i++) {
        if (es_softmax_tree_get(x->members, c[i].item) >= 0)
            es_softmax_tree_set(x->members, c[i].item, c[i].priority);
        if (x->all != x->members)
            es_softmax_tree_set(x->all, c[i].item, c[i].priority);
    }
}

static void set_aside(es_selector *s, uint32_t item)
{
    es_softmax_tree_set(((softmax *)s)->members, item, -INFINITY);
}

static void remove_item(es_selector *s, uint32_t item)
{
    softmax *x = (softmax *)s;
    set_aside(s, item);
    if (x->all != x->members)
        es_softmax_tree_set(x->all, item, -INFINITY);
}

static void draw(es_selector *s, uint64_t *random, uint64_t n, uint32_t *items, double *probabilities)
{
    softmax *x = (softmax *)s;
    double at[MANY];
    for (uint64_t done = 0; done < n; done += MANY) {
        uint64_t some = n - done < MANY ? n - done : MANY;
        for (uint64_t i = 0; i < some; i++)
            at[i] = es_random_unit(random);
        es_softmax_tree_find_many(x->members, at, items + done, some);
    }
    for (uint64_t i = 0; i < n; i++)
        probabilities[i] = es_softmax_tree_probability(x->members, items[i]);
}

static double probability(es_selector *s, uint32_t item)
{
    return es_softmax_tree_probability(((softmax *)s)->members, item);
}

/* All weights are positive, also those that no float64 can hold. */
static void ratios(es_selector *s, const uint32_t *items, uint64_t n, double *ratios)
{
    softmax *x = (softmax *)s;
    double least = es_softmax_tree_least(x->all);
    for (uint64_t i = 0; i < n; i++)
        ratios[i] = exp((es_softmax_tree_get(x->all, items[i]) - least) / es_softmax_tree_temperature(x->all));
}

static double effective(es_selector *s)
{
    return es_softmax_tree_effective(((softmax *)s)->members);
}

static void choose(es_selector *s, double *temperatures)
{
    softmax *x = (softmax *)s;
    double chosen = es_softmax_tree_choose(x->all, x->target);
    temperatures[0] = chosen > 0 ? chosen : es_softmax_tree_temperature(x->all);
    temperatures[1] = 0;
}

static void use(es_selector *s, const double *temperatures)
{
    softmax *x = (softmax *)s;
    es_softmax_tree_rescale(x->members, temperatures[0]);
    if (x->all != x->members)
        es_softmax_tree_rescale(x->all, temperatures[0]);
}

static void describe(es_selector *s, es_selector_figures *to)
{
    const softmax *x = (const softmax *)s;
    to->temperature[0] = es_softmax_tree_temperature(x->members);
    to->log_mass = es_softmax_tree_log_sum(x->members);
    to->log_least = es_softmax_tree_least(x->all) / to->temperature[0];
}

static uint64_t bytes(const es_selector *s)
{
    const softmax *x = (const softmax *)s;
    return es_softmax_tree_bytes(x->members) + (x->all != x->members ? es_softmax_tree_bytes(x->all) : 0);
}

static void free_softmax(es_selector *s)
{
    softmax *x = (softmax *)s;
    if (x->all != x->members)
        es_softmax_tree_free(x->all);
    es_softmax_tree_free(x->members);
    free(s);
}

static const es_selector_class softmax_class = {
    .insert = insert,
    .update = update,
    .remove = remove_item,
    .set_aside = set_aside,
    .draw = draw,
    .probability = probability,
    .ratios = ratios,
    .effective = effective,
    .choose = choose,
    .use = use,
    .describe = describe,
    .bytes = bytes,
    .free = free_softmax,
    .random = true,
};

es_selector *es_softmax_new(uint64_t limit, const es_selector_config *config, bool rounds)
{
    softmax *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (softmax){.base.class = &softmax_class, .target = config->target};
    made->members = es_softmax_tree_new(limit, config->parameter);
    made->all = rounds ? es_softmax_tree_new(limit, config->parameter) : made->members;
    if (made->members != NULL && made->all != NULL)
        return &made->base;
    es_softmax_tree_free(made->members);
    free(made);
    return NULL;
}
