/* Each item is as likely as any other. */
#include <stdlib.h>

#include "replay/es_random.h"
#include "replay/es_rank.h"
#include "replay/es_selector.h"

#define MANY 64

typedef struct uniform {
    es_selector base;
    es_rank *members;
} uniform;

static void insert(es_selector *s, const es_candidate *c)
{
    es_rank_add(((uniform *)s)->members, c->item);
}

static void remove_item(es_selector *s, uint32_t item)
{
    if (es_rank_has(((uniform *)s)->members, item))
        es_rank_remove(((uniform *)s)->members, item);
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

static uint64_t bytes(const es_selector *s)
{
    return es_rank_bytes(((const uniform *)s)->members);
}

static void free_uniform(es_selector *s)
{
    es_rank_free(((uniform *)s)->members);
    free(s);
}

static const es_selector_class uniform_class = {
    .insert = insert,
    .remove = remove_item,
    .draw = draw,
    .probability = probability,
    .effective = effective,
    .bytes = bytes,
    .free = free_uniform,
    .random = true,
};

es_selector *es_uniform_new(uint64_t limit)
{
    uniform *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (uniform){.base.class = &uniform_class, .members = es_rank_new(limit)};
    if (made->members != NULL)
        return &made->base;
    free(made);
    return NULL;
}
