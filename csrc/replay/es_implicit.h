/* Implicit items: a table's windows of an episode, one for each step that it can end with, without a record of each.
 *
 * The number of an item is that of its last step. How long it is follows from where that step is in its episode. So one
 * bit says all of it, the step's mark in the store: it changes through the redo list, together with the table's counters.
 * The key of an item is that of its last step: what the step's record has of generation, and its number.
 *
 * A step stays as long as an implicit item refers to it. Items that follow each other share all steps but one, so nobody
 * counts them: a table uses a step once, from the first item that refers to it to the last one. */
#ifndef ES_IMPLICIT_H
#define ES_IMPLICIT_H

#include "base/es_base.h"
#include "replay/es_rank.h"
#include "replay/es_selector.h"
#include "replay/es_steps.h"
#include "replay/es_store.h"
#include "replay/es_window.h"

typedef struct es_implicit {
    es_store *store;
    es_steps *steps;
    uint64_t *marks;  /* in the store */
    es_rank *members; /* the same, private: what decides */
    uint64_t *rows;   /* a bit for each item: the records of the steps that it can refer to are one after the other */
    uint64_t *seen;   /* bits, all 0 between two calls */
    uint64_t first;   /* the place of the first number among the items of all tables */
    uint32_t length;  /* most steps of an item */
    uint32_t oldest;  /* the item whose last step arrived first, or ES_STEPS_NONE */
} es_implicit;

/* Bytes that each of the private bits take. */
static inline uint64_t es_implicit_bits_size(const es_implicit *x)
{
    return (x->store->step_slots + 63) / 64 * sizeof(uint64_t);
}

/* Of a table with that number and these members. rows: see there. ES_OK or -ENOMEM. */
int es_implicit_init(es_implicit *x, es_store *store, es_steps *steps, uint32_t table, es_rank *members,
                     uint64_t *rows);
void es_implicit_free(es_implicit *x);
/* Private memory, beside members and rows. */
uint64_t es_implicit_bytes(const es_implicit *x);
/* Has the item go whose last step arrived first: depends on arrivals alone, which the store has. */
es_selector *es_implicit_remover(es_implicit *x);

/* How many steps the item has that ends with a step. From the record, on which somebody may have scribbled: 1 to length. */
static inline uint32_t es_implicit_length(const es_implicit *x, uint32_t step)
{
    uint32_t index = *(const volatile uint32_t *)&x->store->steps[step].index;
    return index < x->length ? index + 1 : x->length;
}
static inline es_window es_implicit_window(const es_implicit *x, uint32_t step)
{
    return (es_window){.last = step, .length = es_implicit_length(x, step)};
}
/* Whether an item can end with that step, which just became the last one of its stream or did so before the newest one:
 * it is there once, and all its steps are. Otherwise somebody has sent what no episode can be. */
bool es_implicit_can_have(const es_implicit *x, uint32_t step);
/* Notes that an item ends with that step, or does not any more. No list may have two changes of one table. */
void es_implicit_note(es_implicit *x, uint32_t step, bool is_item);
/* The item uses its steps from now on, or ends it. It is no member yet, or any more. Steps that are of no use then go. */
void es_implicit_use(es_implicit *x, uint32_t step);
void es_implicit_let_go(es_implicit *x, uint32_t step);
/* A step has come, perhaps between two others, where items might have had it. */
void es_implicit_arrived(es_implicit *x, uint32_t step);
/* Sees an item, or ES_STEPS_NONE: whether it was not seen before. Whoever calls this has it forgotten then. */
static inline bool es_implicit_see(es_implicit *x, uint32_t item)
{
    uint64_t bit = UINT64_C(1) << item % 64;
    if (item == ES_STEPS_NONE || x->seen[item / 64] & bit)
        return false;
    x->seen[item / 64] |= bit;
    return true;
}
/* item: any number. */
static inline void es_implicit_forget(es_implicit *x, uint32_t item)
{
    if (item < x->store->step_slots)
        x->seen[item / 64] &= ~(UINT64_C(1) << item % 64);
}
/* The next item that the store has, from a step on; ES_STEPS_NONE: there is none. Its step may be none. */
uint32_t es_implicit_marked(const es_implicit *x, uint64_t from);

#endif
