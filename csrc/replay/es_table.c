#include "replay/es_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/es_memory.h"

uint64_t es_table_size(const es_table *t)
{
    return es_rank_count(t->members);
}

es_rate_counts es_table_counts(const es_table *t)
{
    return (es_rate_counts){t->words->inserted, t->words->sampled, es_table_size(t)};
}

bool es_table_can_insert(const es_table *t, uint64_t n)
{
    es_rate_counts counts = es_table_counts(t);
    return es_rate_limiter_can_insert(t->config, &t->limits, &counts, n);
}

bool es_table_can_sample(const es_table *t, uint64_t n)
{
    es_rate_counts counts = es_table_counts(t);
    return es_rate_limiter_can_sample(t->config, &t->limits, &counts, n);
}

static uint64_t in_a_row_words(const es_table *t)
{
    return t->slots / 64 + 1;
}

/* What items with records have. */
static bool init_records(es_table *t, uint32_t number, const es_custom_selector *custom)
{
    const es_table_config *config = t->config;
    t->items = &t->store->items[t->store->first_record[number]];
    t->columns = config->item.kind == ES_ITEM_EXPLICIT ? t->store->columns + t->store->first_column[number] : NULL;
    t->step_of = es_memory_new(t->slots, sizeof *t->step_of);
    t->used = es_rank_new(t->slots);
    t->aside = config->replacement ? NULL : es_rank_new(t->slots);
    t->sampler = es_selector_new(&config->sampler, t->slots, !config->replacement, &custom[0], t->failed);
    t->remover = es_selector_new(&config->remover, t->slots, false, &custom[1], t->failed);
    if (es_table_is_of_many(t))
        t->spans = es_memory_new(t->slots, sizeof *t->spans);
    return t->step_of != NULL && t->used != NULL && (config->replacement || t->aside != NULL) &&
           (!es_table_is_of_many(t) || t->spans != NULL);
}

/* What items without them have. */
static bool init_implicit(es_table *t, uint32_t number)
{
    t->used = t->members;
    if (t->members == NULL || t->in_a_row == NULL ||
        es_implicit_init(&t->implicit, t->store, t->steps, number, t->members, t->in_a_row) != ES_OK)
        return false;
    t->sampler = es_uniform_over(t->members);
    t->remover = es_implicit_remover(&t->implicit);
    return true;
}

int es_table_init(es_table *t, es_store *store, es_steps *steps, uint32_t number, const es_custom_selector *custom,
                  bool *failed)
{
    const es_table_config *config = &store->tables[number];
    uint64_t first = store->first_item[number], slots = store->first_item[number + 1] - first;
    bool implicit = es_store_layout_is_implicit(config);
    *t = (es_table){
        .store = store,
        .steps = steps,
        .config = config,
        .words = &store->words[number],
        .first_item = first,
        .slots = slots,
        .members = es_rank_new(slots),
        .failed = failed,
    };
    if (es_table_is_of_many(t))
        t->in_a_row = es_memory_new(in_a_row_words(t), sizeof *t->in_a_row);
    bool whole = implicit ? init_implicit(t, number) : init_records(t, number, custom);
    bool parks = es_order_init(&t->parked, !implicit && config->max_parked > 0 ? slots : 1) == ES_OK;
    whole = es_outputs_init(&t->form, store, number) == ES_OK && whole && parks && t->members != NULL &&
            (!es_table_is_of_many(t) || t->in_a_row != NULL) && t->sampler != NULL && t->remover != NULL;
    return whole ? ES_OK : -ENOMEM;
}

void es_table_free(es_table *t)
{
    free(t->step_of);
    free(t->spans);
    free(t->in_a_row);
    es_implicit_free(&t->implicit);
    es_outputs_free(&t->form);
    if (t->used != t->members)
        es_rank_free(t->used);
    es_rank_free(t->members);
    es_order_free(&t->parked);
    es_rank_free(t->aside);
    es_selector_free(t->sampler);
    es_selector_free(t->remover);
    free(t->episode_items);
}

uint64_t es_table_bytes(const es_table *t)
{
    uint64_t each = sizeof(es_item_record) + sizeof *t->step_of + (t->spans == NULL ? 0 : sizeof *t->spans);
    uint64_t records = t->slots * each + (t->used == NULL ? 0 : es_rank_bytes(t->used));
    if (es_table_is_implicit(t))
        records = es_implicit_bits_size(&t->implicit) + es_implicit_bytes(&t->implicit); /* with the marks */
    records += t->in_a_row == NULL ? 0 : in_a_row_words(t) * sizeof *t->in_a_row;
    return records + sizeof(es_table_words) + es_rank_bytes(t->members) +
           (t->aside == NULL ? 0 : es_rank_bytes(t->aside)) + t->sampler->class->bytes(t->sampler) +
           t->remover->class->bytes(t->remover) + t->episode_room * sizeof *t->episode_items;
}

bool es_table_selectors_accept(const es_table *t, double priority)
{
    return es_selector_accepts(t->sampler, priority) && es_selector_accepts(t->remover, priority);
}

/* Selectors accept whatever is less than what they accept, as they did the highest. */
bool es_table_accepts(const es_table *t, double priority)
{
    return (priority >= 0 && priority <= t->highest) || es_table_selectors_accept(t, priority);
}

es_item_record es_table_record(const es_table *t, uint32_t item)
{
    if (!es_table_is_implicit(t))
        return *(volatile es_item_record *)&t->items[item];
    es_step_record step = *(volatile es_step_record *)&t->store->steps[item];
    return (es_item_record){.word = es_record_word(es_record_generation(step.word), 0, ES_RECORD_LIVE),
                            .step = item,
                            .length = es_implicit_length(&t->implicit, item),
                            .priority = 1,
                            .inserted = step.arrival};
}

/* From the record, on which somebody may have scribbled. */
es_candidate es_table_candidate(const es_table *t, uint32_t item)
{
    es_item_record record = es_table_record(t, item);
    return (es_candidate){item, es_table_accepts(t, record.priority) ? record.priority : 0, record.inserted,
                          record.updated, es_record_generation(record.word)};
}

void es_table_note_free(es_table *t, uint32_t item)
{
    if (es_table_is_implicit(t)) {
        es_implicit_note(&t->implicit, item, false);
        return;
    }
    const uint64_t *word = &t->items[item].word;
    es_redo_set(&t->store->redo, word, es_record_word(es_record_generation(*word), 0, ES_RECORD_FREE));
}

/* --- inserting ------------------------------------------------------------------- */

int es_table_reserve(es_table *t)
{
    uint32_t room = t->steps->streams.episode_room;
    if (t->episode_room == room)
        return ES_OK;
    uint32_t *grown = realloc(t->episode_items, room * sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    memset(grown + t->episode_room, 0, (room - t->episode_room) * sizeof *grown);
    t->episode_items = grown;
    t->episode_room = room;
    return ES_OK;
}

/* Fills the record of a new item, which is free still, and notes its state. */
static uint32_t note_new(es_table *t, const es_window *w, double priority, uint64_t inserted, uint32_t state)
{
    uint32_t item = es_rank_lowest_absent(t->used);
    es_item_record *record = &t->items[item];
    record->step = w->last;
    record->length = w->length;
    record->before = w->before;
    record->flags = w->flags;
    record->priority = priority;
    record->times_sampled = 0;
    record->inserted = inserted;
    record->updated = t->words->clock;
    record->round = es_table_ages(t) ? t->words->round : 0;
    es_redo_set(&t->store->redo, &record->word, es_record_word(es_record_generation(record->word) + 1, 0, state));
    return item;
}

void es_table_note_cold(es_table *t, uint64_t n)
{
    uint32_t last = es_hot_cold_first_hot(t->sampler);
    for (uint64_t i = 1; i < n; i++)
        last = es_hot_cold_next(t->sampler, last);
    es_redo_set(&t->store->redo, &t->words->cold, t->items[last].inserted + 1);
    es_redo_set(&t->store->redo, &t->words->moved, t->words->moved + n);
}

/* How many hot items become cold before one more comes. Two, where the hot part was restored from a larger one. */
static uint64_t hot_items_in_the_way(const es_table *t)
{
    if (!es_table_ages(t))
        return 0;
    uint64_t most = t->config->sampler.hot_size, hot = es_hot_cold_count(t->sampler);
    return hot < most ? 0 : hot == most ? 1 : 2;
}

/* Notes that one more item is in the table. */
static void note_counts(es_table *t, double priority)
{
    es_table_words *words = t->words;
    es_redo *redo = &t->store->redo;
    es_redo_set(redo, &words->inserted, words->inserted + 1);
    es_redo_set(redo, &words->clock, words->clock + 1);
    if (priority > t->highest)
        es_redo_set_double(redo, &words->highest, t->highest = priority);
    uint64_t cold = hot_items_in_the_way(t);
    if (cold > 0)
        es_table_note_cold(t, cold);
}

uint32_t es_table_note_insert(es_table *t, const es_window *w, double priority)
{
    if (es_table_is_implicit(t)) {
        es_implicit_note(&t->implicit, w->last, true);
        note_counts(t, 1);
        return w->last;
    }
    uint32_t item = note_new(t, w, priority, t->words->inserted, ES_RECORD_LIVE);
    note_counts(t, priority);
    return item;
}

/* What a member has that a parked item has not. */
static void enter(es_table *t, const es_candidate *c)
{
    es_rank_add(t->members, c->item);
    t->sampler->class->insert(t->sampler, c);
    t->remover->class->insert(t->remover, c);
    if (t->episode_items[t->steps->episode_of[es_table_step_of(t, c->item)]]++ == 0)
        t->episodes++;
}

/* The same of an item that was noted just now. */
static void enter_new(es_table *t, const es_candidate *c)
{
    for (uint64_t n = hot_items_in_the_way(t); n > 0; n--)
        es_hot_cold_advance(t->sampler);
    enter(t, c);
}

/* How many steps it refers to, for es_steps_link(). */
static uint64_t span_of(const es_table *t, uint32_t item)
{
    return t->spans == NULL ? 0 : (uint64_t)t->spans[item].length + t->spans[item].before;
}

/* Notes whether its steps are in a row. As long as it refers to them, no step comes between them. */
static void note_in_a_row(es_table *t, uint32_t item)
{
    uint64_t *word = &t->in_a_row[item / 64], bit = UINT64_C(1) << item % 64, n = span_of(t, item);
    uint32_t step = t->step_of[item];
    while (n > 1 && step > 0 && es_steps_older(t->steps, step) == step - 1)
        step--, n--;
    *word = n <= 1 ? *word | bit : *word & ~bit;
}

/* What both have. */
static void use(es_table *t, uint32_t item, const es_window *w)
{
    if (es_table_is_implicit(t)) {
        es_implicit_use(&t->implicit, item);
        return;
    }
    t->step_of[item] = w->last;
    if (t->spans != NULL) {
        t->spans[item] = (es_span){w->length, w->before};
        note_in_a_row(t, item);
    }
    es_rank_add(t->used, item);
    es_steps_link(t->steps, w->last, span_of(t, item), (uint32_t)(t->first_item + item));
}

void es_table_enter(es_table *t, uint32_t item, const es_window *w, double priority)
{
    es_candidate c = {item, priority, t->words->inserted - 1, t->words->clock - 1,
                      (uint32_t)(es_table_key(t, item) >> 32)};
    use(t, item, w);
    enter_new(t, &c);
}

void es_table_enter_candidate(es_table *t, const es_candidate *c, const es_window *w)
{
    use(t, c->item, w);
    enter(t, c);
}

bool es_table_can_park(const es_table *t, uint64_t n)
{
    return t->parked.count + n <= t->config->max_parked;
}

uint32_t es_table_note_park(es_table *t, const es_window *w, double priority)
{
    uint32_t item = note_new(t, w, priority, t->words->parkings, ES_RECORD_PARKED);
    es_redo_set(&t->store->redo, &t->words->parkings, t->words->parkings + 1);
    return item;
}

void es_table_enter_parked(es_table *t, uint32_t item, const es_window *w)
{
    use(t, item, w);
    es_order_append(&t->parked, item);
}

bool es_table_unpark(es_table *t)
{
    if (*t->failed || t->parked.count == 0 || !es_table_can_insert(t, 1))
        return false;
    uint32_t item = t->parked.first;
    es_item_record *record = &t->items[item];
    es_candidate c = es_table_candidate(t, item);
    c.inserted = t->words->inserted, c.updated = t->words->clock;
    es_redo_set(&t->store->redo, &record->word, es_record_word(es_record_generation(record->word), 0, ES_RECORD_LIVE));
    es_redo_set(&t->store->redo, &record->inserted, c.inserted);
    es_redo_set(&t->store->redo, &record->updated, c.updated);
    if (es_table_ages(t)) /* it comes now: so rounds rise in the order of insertion */
        es_redo_set(&t->store->redo, &record->round, t->words->round);
    note_counts(t, c.priority);
    es_redo_commit(&t->store->redo);
    es_order_remove(&t->parked, item);
    enter_new(t, &c);
    return true;
}

/* --- removing and changing --------------------------------------------------------- */

void es_table_let_go_of_steps(es_table *t, uint32_t item)
{
    if (es_table_is_implicit(t)) {
        es_implicit_let_go(&t->implicit, item);
        return;
    }
    uint32_t step = t->step_of[item];
    es_steps_unlink(t->steps, step, span_of(t, item), (uint32_t)(t->first_item + item));
    es_steps_drop_unused(t->steps, step, span_of(t, item));
}

void es_table_leave(es_table *t, uint32_t item)
{
    if (t->used != t->members)
        es_rank_remove(t->used, item);
    es_rank_remove(t->members, item);
    if (t->aside != NULL && es_rank_has(t->aside, item))
        es_rank_remove(t->aside, item);
    t->sampler->class->remove(t->sampler, item);
    t->remover->class->remove(t->remover, item);
    if (--t->episode_items[t->steps->episode_of[es_table_step_of(t, item)]] == 0)
        t->episodes--;
    es_table_let_go_of_steps(t, item);
}

void es_table_remove(es_table *t, uint32_t item, bool evicted)
{
    es_table_note_free(t, item);
    if (evicted)
        es_redo_set(&t->store->redo, &t->words->evicted, t->words->evicted + 1);
    es_redo_commit(&t->store->redo);
    es_table_leave(t, item);
}

void es_table_remove_aged(es_table *t, uint32_t item)
{
    es_table_note_free(t, item);
    es_redo_set(&t->store->redo, &t->words->aged, t->words->aged + 1);
    es_redo_commit(&t->store->redo);
    es_table_leave(t, item);
}

bool es_table_evict(es_table *t)
{
    uint64_t random = t->words->random;
    uint32_t item;
    double probability;
    t->remover->class->draw(t->remover, &random, 1, &item, &probability);
    if (item == ES_SELECTOR_NONE) {
        *t->failed = true; /* nothing may be stored before somebody else brings the table within its limit */
        return false;
    }
    if (t->remover->class->random)
        es_redo_set(&t->store->redo, &t->words->random, random);
    es_table_remove(t, item, true);
    return true;
}
