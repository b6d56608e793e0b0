/* A selector whose caller says how items are chosen. What it says is checked here: only a member can be drawn.
 *
 * A draw that fails changes nothing, and may be tried again. Once it was not told of a change, its members are not the
 * table's: then it is not asked for anything any more. */
#include <math.h>
#include <stdlib.h>

#include "replay/es_random.h"
#include "replay/es_selector.h"

#define MANY 256

typedef struct custom {
    es_selector base;
    es_custom_selector calls;
    uint64_t *keys; /* of members; 0: no member */
    uint64_t limit;
    bool *failed;
} custom;

static void insert(es_selector *s, const es_candidate *c)
{
    custom *x = (custom *)s;
    x->keys[c->item] = (uint64_t)c->generation << 32 | c->item;
    if (!*x->failed && x->calls.insert(x->calls.self, x->keys[c->item], c->priority) != 0)
        *x->failed = true;
}

static void update(es_selector *s, const es_candidate *c, uint64_t n)
{
    custom *x = (custom *)s;
    for (uint64_t i = 0; i < n && !*x->failed; i++) {
        uint64_t key = x->keys[c[i].item];
        if (key != 0 && x->calls.update(x->calls.self, key, c[i].priority) != 0)
            *x->failed = true;
    }
}

static void remove_item(es_selector *s, uint32_t item)
{
    custom *x = (custom *)s;
    uint64_t key = x->keys[item];
    x->keys[item] = 0;
    if (key != 0 && !*x->failed && x->calls.remove(x->calls.self, key) != 0)
        *x->failed = true;
}

static bool has(const custom *x, uint64_t key)
{
    return key != 0 && (uint32_t)key < x->limit && x->keys[(uint32_t)key] == key;
}

/* At most MANY of them. */
static bool draw_some(custom *x, uint64_t *random, uint64_t n, uint32_t *items, double *probabilities)
{
    double numbers[MANY];
    uint64_t keys[MANY];
    for (uint64_t i = 0; i < n; i++)
        numbers[i] = es_random_unit(random);
    if (*x->failed || x->calls.draw(x->calls.self, numbers, n, keys, probabilities) != 0)
        return false;
    for (uint64_t i = 0; i < n; i++) {
        if (!has(x, keys[i])) {
            x->calls.refuse(x->calls.self, keys[i]);
            return false;
        }
        items[i] = (uint32_t)keys[i];
    }
    return true;
}

static void draw(es_selector *s, uint64_t *random, uint64_t n, uint32_t *items, double *probabilities)
{
    for (uint64_t done = 0; done < n; done += MANY) {
        uint64_t some = n - done < MANY ? n - done : MANY;
        if (!draw_some((custom *)s, random, some, items + done, probabilities + done)) {
            items[0] = ES_SELECTOR_NONE;
            return;
        }
    }
}

static double probability(es_selector *s, uint32_t item)
{
    const custom *x = (custom *)s;
    double found;
    bool there = !*x->failed && x->calls.probability(x->calls.self, x->keys[item], &found) == 0;
    return there ? found : NAN;
}

static double effective(es_selector *s)
{
    (void)s;
    return NAN;
}

static uint64_t bytes(const es_selector *s)
{
    return ((const custom *)s)->limit * sizeof(uint64_t);
}

static void free_custom(es_selector *s)
{
    free(((custom *)s)->keys);
    free(s);
}

static const es_selector_class custom_class = {
    .insert = insert,
    .update = update,
    .remove = remove_item,
    .draw = draw,
    .probability = probability,
    .effective = effective,
    .bytes = bytes,
    .free = free_custom,
    .random = true,
};

es_selector *es_custom_new(uint64_t limit, const es_custom_selector *calls, bool *failed)
{
    custom *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (custom){.base.class = &custom_class,
                     .calls = *calls,
                     .keys = calloc(limit, sizeof *made->keys),
                     .limit = limit,
                     .failed = failed};
    if (made->keys != NULL)
        return &made->base;
    free(made);
    return NULL;
}
