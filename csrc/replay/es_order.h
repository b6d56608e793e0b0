/* Small numbers in an order of their own: a doubly linked list over two arrays. */
#ifndef ES_ORDER_H
#define ES_ORDER_H

#include <stdlib.h>

#include "base/es_base.h"
#include "base/es_memory.h"

#define ES_ORDER_NONE UINT32_MAX

typedef struct es_order {
    uint32_t *links; /* of number i: previous at 2 i, next at 2 i + 1. Numbers are stored plus 1; 0: none */
    uint32_t first, last;
    uint64_t count;
} es_order;

static inline int es_order_init(es_order *o, uint64_t limit)
{
    *o = (es_order){.first = ES_ORDER_NONE, .last = ES_ORDER_NONE};
    o->links = es_memory_new(limit, 2 * sizeof *o->links);
    return o->links == NULL ? -ENOMEM : ES_OK;
}

/* Another order of numbers below the same limit. No number may be in both at a time. */
static inline es_order es_order_beside(const es_order *o)
{
    return (es_order){.links = o->links, .first = ES_ORDER_NONE, .last = ES_ORDER_NONE};
}

static inline void es_order_free(es_order *o)
{
    free(o->links);
}

static inline bool es_order_has(const es_order *o, uint32_t i)
{
    return o->links[2 * (uint64_t)i] != 0 || o->first == i;
}

static inline uint32_t es_order_next(const es_order *o, uint32_t i)
{
    return o->links[2 * (uint64_t)i + 1] - 1; /* 0 gives ES_ORDER_NONE */
}

static inline uint32_t es_order_previous(const es_order *o, uint32_t i)
{
    return o->links[2 * (uint64_t)i] - 1;
}

/* before: or ES_ORDER_NONE, to be the first one. */
static inline void es_order_insert_after(es_order *o, uint32_t before, uint32_t i)
{
    uint32_t after = before == ES_ORDER_NONE ? o->first : es_order_next(o, before);
    o->links[2 * (uint64_t)i] = before + 1;
    o->links[2 * (uint64_t)i + 1] = after + 1;
    *(before == ES_ORDER_NONE ? &o->first : &o->links[2 * (uint64_t)before + 1]) = before == ES_ORDER_NONE ? i : i + 1;
    *(after == ES_ORDER_NONE ? &o->last : &o->links[2 * (uint64_t)after]) = after == ES_ORDER_NONE ? i : i + 1;
    o->count++;
}

static inline void es_order_append(es_order *o, uint32_t i)
{
    es_order_insert_after(o, o->last, i);
}

static inline void es_order_remove(es_order *o, uint32_t i)
{
    uint32_t before = o->links[2 * (uint64_t)i] - 1, after = es_order_next(o, i);
    if (before == ES_ORDER_NONE)
        o->first = after;
    else
        o->links[2 * (uint64_t)before + 1] = after + 1;
    if (after == ES_ORDER_NONE)
        o->last = before;
    else
        o->links[2 * (uint64_t)after] = before + 1;
    o->links[2 * (uint64_t)i] = o->links[2 * (uint64_t)i + 1] = 0;
    o->count--;
}

#endif
