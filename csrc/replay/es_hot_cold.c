/* The items in two parts: those that came lately are hot, the others cold. A share of the draws comes from the hot part,
 * the others from the cold one, or all from one while the other is empty. In its part an item is as likely as
 * softmax(priority / temperature) says, and each part has its temperature.
 *
 * All members are in one list, in order of insertion. A cursor divides it: what is before it is cold. Only the table
 * moves the cursor, and the store says where it stands. So which part an item is in is no word of its own that a kill
 * could leave halfway.
 *
 * The generator's state says which part a draw comes from, and its next number which item. The state goes on by the
 * golden ratio of 2^64 (es_random.h), whose multiples lie more evenly than chance would have them: any n draws in a row
 * have the hot part's share of n, within a few draws. For a seed nobody knows, each draw has exactly that chance. */
#include <math.h>
#include <stdlib.h>

#include "replay/es_order.h"
#include "replay/es_random.h"
#include "replay/es_selector.h"
#include "replay/es_softmax_tree.h"

#define MANY 64

enum { HOT, COLD, PARTS };

typedef struct hot_cold {
    es_selector base;
    double share, target;
    es_softmax_tree *part[PARTS];
    uint64_t count[PARTS];
    es_order order; /* all members */
    uint64_t limit;
    uint32_t first_hot; /* of the order */
    uint64_t cold;      /* those that are inserted before this one are cold as they come */
} hot_cold;

static int part_of(const hot_cold *h, uint32_t item)
{
    return es_softmax_tree_get(h->part[HOT], item) >= 0 ? HOT : COLD;
}

static double share_of(const hot_cold *h, int part)
{
    if (h->count[!part] == 0)
        return 1;
    return part == HOT ? h->share : 1 - h->share;
}

static void insert(es_selector *s, const es_candidate *c)
{
    hot_cold *h = (hot_cold *)s;
    int part = c->inserted < h->cold ? COLD : HOT;
    es_softmax_tree_set(h->part[part], c->item, c->priority);
    h->count[part]++;
    es_order_append(&h->order, c->item);
    if (part == HOT && h->first_hot == ES_SELECTOR_NONE)
        h->first_hot = c->item;
}

static void update(es_selector *s, const es_candidate *c, uint64_t n)
{
    hot_cold *h = (hot_cold *)s;
    for (uint64_t i = 0; i < n; i++)
        es_softmax_tree_set(h->part[part_of(h, c[i].item)], c[i].item, c[i].priority);
}

static void remove_item(es_selector *s, uint32_t item)
{
    hot_cold *h = (hot_cold *)s;
    int part = part_of(h, item);
    es_softmax_tree_set(h->part[part], item, -INFINITY);
    h->count[part]--;
    if (h->first_hot == item)
        h->first_hot = es_order_next(&h->order, item);
    es_order_remove(&h->order, item);
}

/* --- drawing --------------------------------------------------------------------- */

/* Draws up to MANY, and says which part each comes from. */
static void draw_some(const hot_cold *h, uint64_t *random, uint64_t n, uint32_t *items, uint8_t *part)
{
    double at[PARTS][MANY];
    uint32_t found[PARTS][MANY];
    uint64_t count[PARTS] = {0, 0}, next[PARTS] = {0, 0};
    double hot = share_of(h, HOT) * (h->count[HOT] > 0);
    for (uint64_t i = 0; i < n; i++) {
        double u = es_random_unit(random);
        part[i] = (double)(*random >> 11) * 0x1p-53 < hot ? HOT : COLD;
        at[part[i]][count[part[i]]++] = u;
    }
    for (int p = HOT; p < PARTS; p++)
        if (count[p] > 0)
            es_softmax_tree_find_many(h->part[p], at[p], found[p], count[p]);
    for (uint64_t i = 0; i < n; i++)
        items[i] = found[part[i]][next[part[i]]++];
}

static void draw(es_selector *s, uint64_t *random, uint64_t n, uint32_t *items, double *probabilities)
{
    const hot_cold *h = (hot_cold *)s;
    uint8_t part[MANY];
    for (uint64_t done = 0; done < n; done += MANY) {
        uint64_t some = n - done < MANY ? n - done : MANY;
        draw_some(h, random, some, items + done, part);
        for (uint64_t i = 0; i < some; i++)
            probabilities[done + i] =
                share_of(h, part[i]) * es_softmax_tree_probability(h->part[part[i]], items[done + i]);
    }
}

static double probability(es_selector *s, uint32_t item)
{
    const hot_cold *h = (hot_cold *)s;
    int part = part_of(h, item);
    return share_of(h, part) * es_softmax_tree_probability(h->part[part], item);
}

/* N P of the whole draw, of which weights are a power. What float64 has no probability for gets the least that it has. */
static void ratios(es_selector *s, const uint32_t *items, uint64_t n, double *ratios)
{
    const hot_cold *h = (hot_cold *)s;
    for (uint64_t i = 0; i < n; i++)
        ratios[i] = (double)h->order.count * fmax(probability(s, items[i]), 0x1p-1022);
}

static double effective(es_selector *s)
{
    const hot_cold *h = (hot_cold *)s;
    double squares = 0;
    for (int p = HOT; p < PARTS; p++)
        if (h->count[p] > 0)
            squares += share_of(h, p) * share_of(h, p) / es_softmax_tree_effective(h->part[p]);
    return squares > 0 ? 1 / squares : 0;
}

/* --- temperatures ------------------------------------------------------------------ */

static void choose(es_selector *s, double *temperatures)
{
    const hot_cold *h = (hot_cold *)s;
    for (int p = HOT; p < PARTS; p++)
        temperatures[p] = es_softmax_tree_choose(h->part[p], h->target);
    for (int p = HOT; p < PARTS; p++) {
        double other = temperatures[PARTS - 1 - p];
        if (!(temperatures[p] > 0)) /* a part that is empty will have items of the other one */
            temperatures[p] = h->count[p] == 0 && other > 0 ? other : es_softmax_tree_temperature(h->part[p]);
    }
}

static void use(es_selector *s, const double *temperatures)
{
    const hot_cold *h = (hot_cold *)s;
    for (int p = HOT; p < PARTS; p++)
        es_softmax_tree_rescale(h->part[p], temperatures[p]);
}

static void describe(es_selector *s, es_selector_figures *to)
{
    const hot_cold *h = (hot_cold *)s;
    to->hot = h->count[HOT];
    for (int p = HOT; p < PARTS; p++) {
        to->temperature[p] = es_softmax_tree_temperature(h->part[p]);
        to->effective[p] = es_softmax_tree_effective(h->part[p]);
    }
}

/* --- the cursor ---------------------------------------------------------------------- */

void es_hot_cold_begin(es_selector *s, uint64_t cold)
{
    ((hot_cold *)s)->cold = cold;
}

void es_hot_cold_advance(es_selector *s)
{
    hot_cold *h = (hot_cold *)s;
    uint32_t item = h->first_hot;
    double priority = es_softmax_tree_get(h->part[HOT], item);
    es_softmax_tree_set(h->part[HOT], item, -INFINITY);
    es_softmax_tree_set(h->part[COLD], item, priority);
    h->count[HOT]--, h->count[COLD]++;
    h->first_hot = es_order_next(&h->order, item);
}

uint64_t es_hot_cold_count(const es_selector *s)
{
    return ((const hot_cold *)s)->count[HOT];
}

uint32_t es_hot_cold_first_hot(const es_selector *s)
{
    return ((const hot_cold *)s)->first_hot;
}

uint32_t es_hot_cold_first(const es_selector *s)
{
    return ((const hot_cold *)s)->order.first;
}

uint32_t es_hot_cold_next(const es_selector *s, uint32_t item)
{
    return es_order_next(&((const hot_cold *)s)->order, item);
}

/* --- all of it ------------------------------------------------------------------------- */

static uint64_t bytes(const es_selector *s)
{
    const hot_cold *h = (const hot_cold *)s;
    return es_softmax_tree_bytes(h->part[HOT]) + es_softmax_tree_bytes(h->part[COLD]) + h->limit * 2 * sizeof(uint32_t);
}

static void free_hot_cold(es_selector *s)
{
    hot_cold *h = (hot_cold *)s;
    es_softmax_tree_free(h->part[HOT]);
    es_softmax_tree_free(h->part[COLD]);
    es_order_free(&h->order);
    free(h);
}

static const es_selector_class hot_cold_class = {
    .insert = insert,
    .update = update,
    .remove = remove_item,
    .draw = draw,
    .probability = probability,
    .ratios = ratios,
    .effective = effective,
    .choose = choose,
    .use = use,
    .describe = describe,
    .bytes = bytes,
    .free = free_hot_cold,
    .random = true,
};

es_selector *es_hot_cold_new(uint64_t limit, const es_selector_config *config)
{
    hot_cold *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (hot_cold){.base.class = &hot_cold_class,
                       .share = config->share,
                       .target = config->target,
                       .limit = limit,
                       .first_hot = ES_SELECTOR_NONE};
    made->part[HOT] = es_softmax_tree_new(limit, config->parameter);
    made->part[COLD] = es_softmax_tree_new(limit, config->parameter);
    if (es_order_init(&made->order, limit) == ES_OK && made->part[HOT] != NULL && made->part[COLD] != NULL)
        return &made->base;
    free_hot_cold(&made->base);
    return NULL;
}
