#include "replay/es_implicit.h"

#include <stdlib.h>

#include "base/es_memory.h"

#define WORD 64

int es_implicit_init(es_implicit *x, es_store *store, es_steps *steps, uint32_t table, es_rank *members, uint64_t *rows)
{
    *x = (es_implicit){
        .store = store,
        .steps = steps,
        .marks = store->marks + store->first_mark[table],
        .members = members,
        .rows = rows,
        .first = store->first_item[table],
        .length = store->tables[table].item.length,
        .oldest = ES_STEPS_NONE,
    };
    x->seen = es_memory_new(es_implicit_bits_size(x), 1);
    return x->seen == NULL ? -ENOMEM : ES_OK;
}

void es_implicit_free(es_implicit *x)
{
    free(x->seen);
}

uint64_t es_implicit_bytes(const es_implicit *x)
{
    return es_implicit_bits_size(x);
}

/* --- the store --------------------------------------------------------------------------- */

bool es_implicit_can_have(const es_implicit *x, uint32_t step)
{
    return !es_rank_has(x->members, step) && es_steps_run(x->steps, step) >= es_implicit_length(x, step);
}

/* What is private says which others are there. */
void es_implicit_note(es_implicit *x, uint32_t step, bool is_item)
{
    uint64_t word = x->members->word[step / WORD], bit = UINT64_C(1) << step % WORD;
    es_redo_set(&x->store->redo, &x->marks[step / WORD], is_item ? word | bit : word & ~bit);
}

uint32_t es_implicit_marked(const es_implicit *x, uint64_t from)
{
    uint64_t words = (x->store->step_slots + WORD - 1) / WORD;
    for (uint64_t i = from / WORD; i < words; i++) {
        uint64_t word = *(const volatile uint64_t *)&x->marks[i];
        if (i == from / WORD)
            word &= ~UINT64_C(0) << from % WORD;
        if (word != 0)
            return (uint32_t)(i * WORD + (uint64_t)__builtin_ctzll(word));
    }
    return ES_STEPS_NONE;
}

/* --- which steps items refer to -------------------------------------------------------------
 *
 * A step is used if the next member, itself included, is less than length steps after it in the same episode. Numbers of
 * an episode's steps say so, whatever its records say: on these somebody may scribble. */

/* How many steps after one the next member is; length: none is so near that it can refer to it. */
static uint32_t next_member(const es_implicit *x, uint32_t step)
{
    for (uint32_t n = 1; n < x->length; n++) {
        step = es_steps_next_of_episode(x->steps, step);
        if (step == ES_STEPS_NONE)
            break;
        if (es_rank_has(x->members, step))
            return n;
    }
    return x->length;
}

static bool is_in_a_row(const es_implicit *x, uint32_t item)
{
    return x->rows[item / WORD] >> item % WORD & 1;
}

/* Notes whether the steps that an item can refer to are in a row. As long as it does, none comes between them. */
static void note_row(es_implicit *x, uint32_t item)
{
    uint64_t *word = &x->rows[item / WORD], bit = UINT64_C(1) << item % WORD;
    uint32_t step = item, older = es_steps_previous_of_episode(x->steps, item), n = 1;
    bool as_before = older != ES_STEPS_NONE && es_rank_has(x->members, older) && is_in_a_row(x, older);
    while (!as_before && n < x->length && older != ES_STEPS_NONE && older == step - 1) {
        step = older, n++;
        older = es_steps_previous_of_episode(x->steps, step);
    }
    bool in_a_row = as_before ? older == item - 1 : n == x->length || older == ES_STEPS_NONE;
    *word = in_a_row ? *word | bit : *word & ~bit;
}

/* Whether some of these steps, whose records are one after the other, are members. */
static bool some_are_members(const es_implicit *x, uint32_t first, uint32_t last)
{
    for (uint32_t i = first / WORD; i <= last / WORD; i++) {
        uint64_t word = x->members->word[i];
        if (i == first / WORD)
            word &= ~UINT64_C(0) << first % WORD;
        if (i == last / WORD)
            word &= ~UINT64_C(0) >> (WORD - 1 - last % WORD);
        if (word != 0)
            return true;
    }
    return false;
}

/* Has each step begin to be used, or end it, that the item alone refers to: it is no member. */
static void change_uses(es_implicit *x, uint32_t item, bool use)
{
    /* So many of its last steps the next member refers to, too. */
    uint32_t shared = x->length - next_member(x, item), step = item, n = 0;
    if (shared > 0 && is_in_a_row(x, item) && es_steps_run(x->steps, item) >= x->length) {
        if (some_are_members(x, item - shared, item - 1))
            return;
        step = item - shared, n = shared;
    }
    for (; n < x->length && step != ES_STEPS_NONE; n++) {
        uint32_t older = es_steps_previous_of_episode(x->steps, step);
        if (n > 0 && es_rank_has(x->members, step)) /* this one refers to all that are left */
            return;
        if (n >= shared && use)
            es_steps_use(x->steps, step);
        if (n >= shared && !use) {
            es_steps_stop_using(x->steps, step);
            es_steps_drop_unused(x->steps, step, 0);
        }
        step = older;
    }
}

void es_implicit_use(es_implicit *x, uint32_t step)
{
    note_row(x, step);
    change_uses(x, step, true);
    es_steps_link(x->steps, step, 0, (uint32_t)(x->first + step));
}

void es_implicit_let_go(es_implicit *x, uint32_t step)
{
    es_steps_unlink(x->steps, step, 0, (uint32_t)(x->first + step));
    change_uses(x, step, false);
}

void es_implicit_arrived(es_implicit *x, uint32_t step)
{
    uint32_t next = next_member(x, step), newer = step;
    for (uint32_t n = 1; n < x->length && newer != ES_STEPS_NONE; n++) { /* it need not be in a row with the others */
        newer = es_steps_next_of_episode(x->steps, newer);
        if (newer != ES_STEPS_NONE)
            x->rows[newer / WORD] &= ~(UINT64_C(1) << newer % WORD);
    }
    for (; next < x->length && step != ES_STEPS_NONE && !es_rank_has(x->members, step); next++) {
        es_steps_use(x->steps, step);
        step = es_steps_previous_of_episode(x->steps, step);
    }
}

/* --- which one goes ----------------------------------------------------------------------------- */

typedef struct remover {
    es_selector base;
    es_implicit *items;
} remover;

static uint64_t arrival_of(const es_implicit *x, uint32_t step)
{
    return *(const volatile uint64_t *)&x->store->steps[step].arrival;
}

/* The first member from a step on, in order of arrival. Steps that members end with are open. */
static uint32_t member_from(const es_implicit *x, uint32_t step)
{
    while (step != ES_STEPS_NONE && !es_rank_has(x->members, step))
        step = es_order_next(&x->steps->open, step);
    return step;
}

/* Mostly it is the newest. */
static void insert(es_selector *s, const es_candidate *c)
{
    es_implicit *x = ((remover *)s)->items;
    if (x->oldest == ES_STEPS_NONE || arrival_of(x, c->item) < arrival_of(x, x->oldest))
        x->oldest = c->item;
}

/* The table has it no more, but its step is where it was. */
static void remove_item(es_selector *s, uint32_t item)
{
    es_implicit *x = ((remover *)s)->items;
    if (item != x->oldest)
        return;
    x->oldest = member_from(x, item);
    if (x->oldest == ES_STEPS_NONE && es_rank_count(x->members) > 0) /* somebody has scribbled on an arrival */
        x->oldest = member_from(x, x->steps->open.first);
}

static void draw(es_selector *s, uint64_t *random, uint64_t n, uint32_t *items, double *probabilities)
{
    (void)random;
    for (uint64_t i = 0; i < n; i++) {
        items[i] = ((remover *)s)->items->oldest;
        probabilities[i] = 1;
    }
}

static uint64_t remover_bytes(const es_selector *s)
{
    (void)s;
    return sizeof(remover);
}

static void free_remover(es_selector *s)
{
    free(s);
}

/* Nobody asks a remover for probabilities. */
static const es_selector_class remover_class = {
    .insert = insert,
    .remove = remove_item,
    .draw = draw,
    .bytes = remover_bytes,
    .free = free_remover,
};

es_selector *es_implicit_remover(es_implicit *x)
{
    remover *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (remover){.base.class = &remover_class, .items = x};
    return &made->base;
}
