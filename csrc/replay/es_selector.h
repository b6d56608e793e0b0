/* How an item of a table is chosen: to be sampled, or to be removed. One file a selector.
 *
 * Items are numbers below the table's number of records. A member of a selector can be drawn. What a
 * selector draws depends on its members, their priorities and orders, and on the generator alone,
 * never on how they came: so it is the same after the store was opened again. */
#ifndef ES_SELECTOR_H
#define ES_SELECTOR_H

#include "base/es_base.h"
#include "replay/es_rank.h"
#include "replay/es_replay_types.h"

typedef struct es_selector es_selector;

/* An item as a selector sees it. */
typedef struct es_candidate {
    uint32_t item;
    double priority;
    uint64_t inserted, updated;
    uint32_t generation; /* of the item's key */
} es_candidate;

/* What a selector says of itself. Of one part: the first of two. */
typedef struct es_selector_figures {
    double temperature[2], effective[2];
    double mass, least, log_mass, log_least; /* see es_table_info */
    uint64_t hot;
} es_selector_figures;

typedef struct es_selector_class {
    /* The item becomes a member. In order of insertion: by ascending c->inserted. */
    void (*insert)(es_selector *s, const es_candidate *c);
    /* n items, members or set aside, have new priorities, one after the other. NULL: that changes nothing. */
    void (*update)(es_selector *s, const es_candidate *c, uint64_t n);
    /* The item goes. It is a member, or was set aside. */
    void (*remove)(es_selector *s, uint32_t item);
    /* It is drawn no more, but is in the table still. NULL: as remove. */
    void (*set_aside)(es_selector *s, uint32_t item);
    /* n draws, with replacement: items and probabilities. There is a member. items[0] is ES_SELECTOR_NONE if a custom
     * selector has failed. */
    void (*draw)(es_selector *s, uint64_t *random, uint64_t n, uint32_t *items, double *probabilities);
    /* Of drawing that member now. Not a number if a custom selector has failed. */
    double (*probability)(es_selector *s, uint32_t item);
    /* Weights of n items, by the least positive weight in the table, set aside or not; 1 for weight 0. NULL: all 1. */
    void (*ratios)(es_selector *s, const uint32_t *items, uint64_t n, double *ratios);
    /* Whether items may have that priority. NULL: every one that is finite and not negative. */
    bool (*accepts)(const es_selector *s, double priority);
    /* 1 / the sum of the squares of all members' probabilities. There is a member. Not a number: nobody knows. */
    double (*effective)(es_selector *s);
    /* Temperatures of its members, one for each part, chosen for the effective sample size that is wanted. Changes
     * nothing. NULL: it has none. */
    void (*choose)(es_selector *s, double *temperatures);
    /* It has these from now on. */
    void (*use)(es_selector *s, const double *temperatures);
    void (*describe)(es_selector *s, es_selector_figures *to); /* NULL: nothing to say.
                                                                  none of the masses is a number before */
    uint64_t (*bytes)(const es_selector *s);
    void (*free)(es_selector *s);
    bool random; /* each draw takes one number of the generator */
} es_selector_class;

/* The most that update() is told at once. */
#define ES_SELECTOR_MANY 256

#define ES_SELECTOR_NONE UINT32_MAX

struct es_selector {
    const es_selector_class *class;
};

/* Without members, for items below limit. rounds: items will be set aside. custom: for the kind ES_CUSTOM, which sets
 * *failed once its members are not the table's any more. NULL without memory. */
es_selector *es_selector_new(const es_selector_config *config, uint64_t limit, bool rounds,
                             const es_custom_selector *custom, bool *failed);
void es_selector_free(es_selector *s);
bool es_selector_accepts(const es_selector *s, double priority);
void es_selector_update(es_selector *s, const es_candidate *c, uint64_t n);
void es_selector_set_aside(es_selector *s, uint32_t item);
void es_selector_ratios(es_selector *s, const uint32_t *items, uint64_t n, double *ratios);

/* The kinds, for es_selector_new(). */
es_selector *es_uniform_new(uint64_t limit);
/* The same over the members of a table, which adds and removes them itself. */
es_selector *es_uniform_over(es_rank *members);
es_selector *es_prioritized_new(uint64_t limit, double alpha, bool rounds);
es_selector *es_softmax_new(uint64_t limit, const es_selector_config *config, bool rounds);
es_selector *es_hot_cold_new(uint64_t limit, const es_selector_config *config);
es_selector *es_fifo_new(uint64_t limit, bool last_first);
es_selector *es_heap_new(uint64_t limit, bool greatest_first);
es_selector *es_custom_new(uint64_t limit, const es_custom_selector *calls, bool *failed);

/* --- the kind ES_HOT_COLD ---------------------------------------------------------- */

/* Without members. Those that were inserted before the cold-th will be cold. */
void es_hot_cold_begin(es_selector *s, uint64_t cold);
/* Has the hot item that was inserted first become cold. */
void es_hot_cold_advance(es_selector *s);
/* How many are hot; the one of them that was inserted first, and of all; the one after an item. ES_SELECTOR_NONE: there
 * is none. */
uint64_t es_hot_cold_count(const es_selector *s);
uint32_t es_hot_cold_first_hot(const es_selector *s);
uint32_t es_hot_cold_first(const es_selector *s);
uint32_t es_hot_cold_next(const es_selector *s, uint32_t item);

#endif
