/* Each item is as likely as any other. */
#include <math.h>
#include <stdlib.h>

#include "replay/es_random.h"
#include "replay/es_rank.h"
#include "replay/es_selector.h"

#define MANY 64

typedef struct uniform {
    es_selector base;
    es_rank *members;
    bool shared; /* the table's own: it adds and removes */
} uniform;

static void insert(es_selector *s, const es_candidate *c)
{
    uniform *u = (uniform *)s;
    if (!u->shared)
        es_rank_add(u->members, c->item);
}

static void remove_item(es_selector *s, uint32_t item)
{
    uniform *u = (uniform *)s;
    if (!u->shared && es_rank_has(u->members, item))
        es_rank_remove(u->members, item);
}

static void draw(es_selector *s, uint64_t *random, uint64_t n, uint32_t *items, double *probabilities)
{
    const es_rank *members = ((uniform *)s)->members;
    uint64_t count = es_rank_count(members), ranks[MANY];
    for (uint64_t done = 0; done < n; done += MANY) {
        uint64_t some = n - done < MANY ? n - done : MANY;
        for (uint64_t i = 0; i < some; i++)
            ranks[i] = es_random_below(random, count);
        es_rank_members(members, ranks, items + done, some);
    }
    for (uint64_t i = 0; i < n; i++)
        probabilities[i] = 1 / (double)count;
}

static double probability(es_selector *s, uint32_t item)
{
    (void)item;
    return 1 / (double)es_rank_count(((uniform *)s)->members);
}

static double effective(es_selector *s)
{
    return (double)es_rank_count(((uniform *)s)->members);
}

static void describe(es_selector *s, es_selector_figures *to)
{
    to->mass = effective(s);
    to->least = 1;
    to->log_mass = log(to->mass);
    to->log_least = 0;
}

static uint64_t bytes(const es_selector *s)
{
    const uniform *u = (const uniform *)s;
    return u->shared ? 0 : es_rank_bytes(u->members);
}

static void free_uniform(es_selector *s)
{
    uniform *u = (uniform *)s;
    if (!u->shared)
        es_rank_free(u->members);
    free(s);
}

static const es_selector_class uniform_class = {
    .insert = insert,
    .remove = remove_item,
    .draw = draw,
    .probability = probability,
    .effective = effective,
    .describe = describe,
    .bytes = bytes,
    .free = free_uniform,
    .random = true,
};

es_selector *es_uniform_over(es_rank *members)
{
    uniform *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (uniform){.base.class = &uniform_class, .members = members, .shared = true};
    return &made->base;
}

es_selector *es_uniform_new(uint64_t limit)
{
    es_rank *members = es_rank_new(limit);
    uniform *made = members == NULL ? NULL : (uniform *)es_uniform_over(members);
    if (made == NULL) {
        es_rank_free(members);
        return NULL;
    }
    made->shared = false;
    return &made->base;
}
