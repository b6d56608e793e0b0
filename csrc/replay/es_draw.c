#include "replay/es_draw.h"

#include <stdlib.h>

#include "replay/es_gather.h"
#include "replay/es_random.h"
#include "replay/es_sort.h"

/* Draws that are made at once. */
#define MANY 256

/* Whether the limiter allows the n-th draw from now on. If so, it allows those before it. */
static bool allows_nth(const es_table *t, uint64_t n)
{
    es_rate_counts counts = es_table_counts(t);
    bool each_goes = t->config->max_times_sampled == 1;
    if (each_goes && counts.size < n)
        return false;
    counts.sampled += n - 1;
    counts.size -= each_goes ? n - 1 : 0;
    return es_rate_limiter_can_sample(t->config, &counts, 1);
}

uint64_t es_draw_allowed(const es_table *t, uint64_t n)
{
    uint64_t allowed = 0, too_many = n + 1;
    if (n > 0 && allows_nth(t, n))
        return n;
    while (too_many - allowed > 1) {
        uint64_t middle = allowed + (too_many - allowed) / 2;
        if (allows_nth(t, middle))
            allowed = middle;
        else
            too_many = middle;
    }
    return allowed;
}

static bool draws_are_independent(const es_table *t)
{
    return t->aside == NULL && t->config->max_times_sampled == 0;
}

bool es_draw_may_fall_short(const es_table *t, uint64_t n)
{
    return !draws_are_independent(t) || !es_table_can_sample(t, n) || t->config->sampler.kind == ES_CUSTOM;
}

/* times: of the item's draws. */
static void describe(es_table *t, uint32_t item, double probability, uint64_t times, const es_drawing *to, uint64_t at)
{
    const es_item_record *record = &t->items[item];
    to->key[at] = (uint64_t)es_record_generation(record->word) << 32 | item;
    to->probability[at] = probability;
    to->priority[at] = record->priority;
    to->ratio[at] = es_selector_ratio(t->sampler, item);
    to->times_sampled[at] = (int64_t)times;
    to->table_size[at] = (int64_t)es_table_size(t);
    to->age[at] = (int64_t)(t->words->inserted - record->inserted - 1);
}

void es_draw_describe(es_table *t, uint32_t item, const es_drawing *to, uint64_t at)
{
    bool left = t->aside == NULL || !es_rank_has(t->aside, item);
    describe(t, item, left ? t->sampler->class->probability(t->sampler, item) : 0, t->items[item].times_sampled, to,
             at);
}

/* Notes the i-th draw of a call. random: the generator's state after it. */
static void note_draw(es_table *t, uint32_t item, uint64_t random, const es_draw_into *into, uint64_t i)
{
    es_redo *redo = &t->store->redo;
    es_redo_set(redo, &t->items[item].times_sampled, t->items[item].times_sampled + 1);
    es_redo_set(redo, &t->words->sampled, t->words->sampled + 1);
    es_redo_set(redo, &t->words->random, random);
    if (into != NULL)
        es_redo_set(redo, into->word, into->value + i + 1);
}

/* Draws that change nothing for the next one: an item may come again, and none goes. done: how many of the call's are
 * made already. ES_ESELECTOR: none is made. */
static int64_t draw_independent(es_table *t, uint64_t n, uint32_t *steps, const es_drawing *to, uint64_t at,
                                const es_draw_into *into, uint64_t done)
{
    uint64_t allowed = es_draw_allowed(t, n < MANY ? n : MANY);
    if (allowed == 0)
        return 0;
    uint32_t items[MANY];
    double probabilities[MANY];
    uint64_t before = t->words->random, after = before;
    t->sampler->class->draw(t->sampler, &after, allowed, items, probabilities);
    if (items[0] == ES_SELECTOR_NONE)
        return ES_ESELECTOR;
    bool random = t->sampler->class->random;
    /* Several passes, so that the memory's answers overlap. */
    for (uint64_t i = 0; i < allowed; i++)
        __builtin_prefetch(&t->items[items[i]], 1);
    for (uint64_t i = 0; i < allowed; i++) {
        /* The record has it, too, and is needed anyway. But somebody may have scribbled on it. */
        uint32_t step = *(volatile uint32_t *)&t->items[items[i]].step;
        steps[i] = step < t->store->step_slots ? step : t->step_of[items[i]];
        es_store_fetch_row(t->store, steps[i]);
    }
    if (into != NULL)
        es_gather(t->store, t->store->rows, steps, allowed, into->leaves, at);
    for (uint64_t i = 0; i < allowed; i++) {
        describe(t, items[i], probabilities[i], t->items[items[i]].times_sampled + 1, to, at + i);
        if (into != NULL)
            to->ratio[at + i] = es_draw_weight(to->ratio[at + i], into->beta);
        note_draw(t, items[i], random ? es_random_after(before, i + 1) : before, into, done + i);
        es_redo_commit(&t->store->redo);
    }
    return (int64_t)allowed;
}

/* A new round: all members are left again. */
static int begin_round(es_table *t)
{
    uint64_t size = es_table_size(t), n = 0;
    es_sort_pair *order = malloc(size * sizeof *order);
    if (order == NULL)
        return -ENOMEM;
    for (; n < size; n++) {
        uint32_t item = es_rank_member(t->members, n);
        order[n] = (es_sort_pair){.key = t->items[item].inserted, .number = item};
    }
    int code = es_sort(order, n);
    for (uint64_t i = 0; code == ES_OK && i < n; i++) {
        es_candidate c = es_table_candidate(t, order[i].number);
        es_rank_remove(t->aside, c.item);
        t->sampler->class->insert(t->sampler, &c);
    }
    free(order);
    return code;
}

/* One draw, which may take the item out of the round, or out of the table. 1, or -ENOMEM or ES_ESELECTOR. */
static int64_t draw_one(es_table *t, uint32_t *step, const es_drawing *to, uint64_t at, const es_draw_into *into,
                        uint64_t done)
{
    es_redo *redo = &t->store->redo;
    uint64_t random = t->words->random, round = t->words->round;
    uint32_t item;
    double probability;
    if (t->aside != NULL && es_rank_count(t->aside) == es_table_size(t)) {
        if (begin_round(t) != ES_OK)
            return -ENOMEM;
        round++; /* in the store with the draw: until then nothing says that the items are left again */
    }
    t->sampler->class->draw(t->sampler, &random, 1, &item, &probability);
    if (item == ES_SELECTOR_NONE) {
        if (round != t->words->round) { /* the round that has begun goes on with the next draw */
            es_redo_set(redo, &t->words->round, round);
            es_redo_commit(redo);
        }
        return ES_ESELECTOR;
    }
    bool used_up =
        t->config->max_times_sampled != 0 && t->items[item].times_sampled + 1 >= t->config->max_times_sampled;
    describe(t, item, probability, t->items[item].times_sampled + 1, to, at);
    *step = t->step_of[item];
    if (into != NULL) {
        to->ratio[at] = es_draw_weight(to->ratio[at], into->beta);
        es_gather(t->store, t->store->rows, step, 1, into->leaves, at);
    }
    note_draw(t, item, random, into, done);
    if (t->aside != NULL) {
        es_redo_set(redo, &t->items[item].round, round);
        es_redo_set(redo, &t->words->round, round);
    }
    if (used_up)
        es_table_note_free(t, &t->items[item].word);
    es_redo_commit(redo);
    if (t->aside != NULL) {
        es_rank_add(t->aside, item);
        es_selector_set_aside(t->sampler, item);
    }
    if (used_up)
        es_table_leave(t, item);
    return 1;
}

int64_t es_draw(es_table *t, uint64_t n, uint32_t *steps, const es_drawing *to, uint64_t at, const es_draw_into *into)
{
    bool independent = draws_are_independent(t);
    uint64_t done = 0;
    while (done < n && es_table_can_sample(t, 1)) {
        int64_t some = independent ? draw_independent(t, n - done, steps + done, to, at + done, into, done)
                                   : draw_one(t, steps + done, to, at + done, into, done);
        if (some < 0)
            return done == 0 ? some : (int64_t)done;
        done += (uint64_t)some;
    }
    return (int64_t)done;
}
