/* The item that was inserted first, or last. */
#include <stdlib.h>

#include "replay/es_order.h"
#include "replay/es_selector.h"

typedef struct fifo {
    es_selector base;
    es_order members;
    uint64_t limit;
    bool last_first;
} fifo;

static void insert(es_selector *s, const es_candidate *c)
{
    es_order_append(&((fifo *)s)->members, c->item);
}

static void remove_item(es_selector *s, uint32_t item)
{
    if (es_order_has(&((fifo *)s)->members, item))
        es_order_remove(&((fifo *)s)->members, item);
}

static void draw(es_selector *s, uint64_t *random, uint64_t n, uint32_t *items, double *probabilities)
{
    const fifo *f = (fifo *)s;
    (void)random;
    for (uint64_t i = 0; i < n; i++) {
        items[i] = f->last_first ? f->members.last : f->members.first;
        probabilities[i] = 1;
    }
}

static double probability(es_selector *s, uint32_t item)
{
    const fifo *f = (fifo *)s;
    return item == (f->last_first ? f->members.last : f->members.first) ? 1 : 0;
}

static double effective(es_selector *s)
{
    (void)s;
    return 1;
}

static uint64_t bytes(const es_selector *s)
{
    return ((const fifo *)s)->limit * 2 * sizeof(uint32_t);
}

static void free_fifo(es_selector *s)
{
    es_order_free(&((fifo *)s)->members);
    free(s);
}

static const es_selector_class fifo_class = {
    .insert = insert,
    .remove = remove_item,
    .draw = draw,
    .probability = probability,
    .effective = effective,
    .bytes = bytes,
    .free = free_fifo,
};

es_selector *es_fifo_new(uint64_t limit, bool last_first)
{
    fifo *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (fifo){.base.class = &fifo_class, .limit = limit, .last_first = last_first};
    if (es_order_init(&made->members, limit) == ES_OK)
        return &made->base;
    free_fifo(&made->base);
    return NULL;
}
