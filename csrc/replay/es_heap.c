/* The item of the least or the greatest priority; among equals the one inserted or updated longest ago. */
#include <stdlib.h>

#include "base/es_memory.h"
#include "replay/es_selector.h"

#define CHILDREN 4

typedef struct entry {
    double key; /* the priority; negative in a heap with the greatest on top */
    uint64_t updated;
    uint32_t item, zero;
} entry;

typedef struct heap {
    es_selector base;
    entry *entries;
    uint32_t *places; /* of an item, plus 1; 0: absent */
    uint64_t count, limit;
    double sign;
} heap;

static bool before(const entry *a, const entry *b)
{
    return a->key != b->key ? a->key < b->key : a->updated < b->updated;
}

static void put(heap *h, uint64_t place, entry e)
{
    h->entries[place] = e;
    h->places[e.item] = (uint32_t)(place + 1);
}

static uint64_t up(heap *h, uint64_t place, const entry *e)
{
    for (uint64_t parent; place > 0 && before(e, &h->entries[parent = (place - 1) / CHILDREN]); place = parent)
        put(h, place, h->entries[parent]);
    return place;
}

static uint64_t down(heap *h, uint64_t place, const entry *e)
{
    for (;;) {
        uint64_t first = place * CHILDREN + 1, best = first;
        if (first >= h->count)
            return place;
        for (uint64_t child = first + 1; child < h->count && child < first + CHILDREN; child++)
            if (before(&h->entries[child], &h->entries[best]))
                best = child;
        if (!before(&h->entries[best], e))
            return place;
        put(h, place, h->entries[best]);
        place = best;
    }
}

static void insert(es_selector *s, const es_candidate *c)
{
    heap *h = (heap *)s;
    entry e = {.key = h->sign * c->priority, .updated = c->updated, .item = c->item};
    put(h, up(h, h->count++, &e), e);
}

static void remove_item(es_selector *s, uint32_t item)
{
    heap *h = (heap *)s;
    if (h->places[item] == 0)
        return;
    uint64_t place = h->places[item] - 1;
    entry last = h->entries[--h->count];
    h->places[item] = 0;
    if (place < h->count)
        put(h, down(h, up(h, place, &last), &last), last);
}

static void update(es_selector *s, const es_candidate *c, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (((heap *)s)->places[c[i].item] == 0)
            continue;
        remove_item(s, c[i].item);
        insert(s, &c[i]);
    }
}

static void draw(es_selector *s, uint64_t *random, uint64_t n, uint32_t *items, double *probabilities)
{
    (void)random;
    for (uint64_t i = 0; i < n; i++) {
        items[i] = ((heap *)s)->entries[0].item;
        probabilities[i] = 1;
    }
}

static double probability(es_selector *s, uint32_t item)
{
    return item == ((heap *)s)->entries[0].item ? 1 : 0;
}

static double effective(es_selector *s)
{
    (void)s;
    return 1;
}

static uint64_t bytes(const es_selector *s)
{
    return ((const heap *)s)->limit * (sizeof(entry) + sizeof(uint32_t));
}

static void free_heap(es_selector *s)
{
    free(((heap *)s)->entries);
    free(((heap *)s)->places);
    free(s);
}

static const es_selector_class heap_class = {
    .insert = insert,
    .update = update,
    .remove = remove_item,
    .draw = draw,
    .probability = probability,
    .effective = effective,
    .bytes = bytes,
    .free = free_heap,
};

es_selector *es_heap_new(uint64_t limit, bool greatest_first)
{
    heap *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (heap){
        .base.class = &heap_class,
        .entries = es_memory_new(limit, sizeof(entry)),
        .places = es_memory_new(limit, sizeof(uint32_t)),
        .limit = limit,
        .sign = greatest_first ? -1 : 1,
    };
    if (made->entries != NULL && made->places != NULL)
        return &made->base;
    free_heap(&made->base);
    return NULL;
}
