/* The tables of a store that is opened. */
#include <math.h>
#include <stdlib.h>

#include "replay/es_sort.h"
#include "replay/es_table.h"

static bool words_are_possible(const es_table *t)
{
    const es_table_words *words = t->words;
    for (int i = 0; i < 2; i++)
        if (!isfinite(words->temperature[i]) || words->temperature[i] < 0)
            return false;
    return t->highest >= 1 && es_table_selectors_accept(t, t->highest) && words->round >= 1 &&
           words->cold <= words->inserted && words->gone <= words->inserted && words->marked <= words->inserted &&
           (words->temperature[0] > 0 || words->temperature[1] == 0);
}

static es_window window_of(const es_item_record *r)
{
    return (es_window){.last = r->step, .length = r->length, .before = r->before, .flags = r->flags};
}

static bool record_is_possible(const es_table *t, uint32_t item, const es_item_record *r)
{
    es_window w = window_of(r);
    const es_item_column *columns = es_table_columns(t, item);
    bool parked = es_record_state(r->word) == ES_RECORD_PARKED;
    return (parked || es_record_state(r->word) == ES_RECORD_LIVE) && r->step < t->store->step_slots &&
           es_rank_has(t->steps->living, r->step) && es_table_accepts(t, r->priority) &&
           r->inserted < (parked ? t->words->parkings : t->words->inserted) &&
           (parked || r->updated < t->words->clock) && r->round <= t->words->round &&
           es_window_is_possible(&t->config->item, t->steps, &w) &&
           (columns == NULL || es_outputs_can_have(&t->form, columns, r->length));
}

/* The records in that state, in order of insertion. -ENOMEM; ES_EDAMAGED: see es_table_recover(). */
static int64_t records_in(es_table *t, uint32_t state, es_sort_pair **order, uint64_t *where)
{
    uint64_t n = 0, count = 0;
    for (uint64_t i = 0; i < t->slots; i++)
        count += es_record_state(t->items[i].word) == state;
    *order = malloc((count + 1) * sizeof **order);
    if (*order == NULL)
        return -ENOMEM;
    for (uint64_t i = 0; i < t->slots && n < count; i++) {
        es_item_record record = *(volatile es_item_record *)&t->items[i];
        if (es_record_state(record.word) != state)
            continue;
        *where = t->first_item + i;
        if (!record_is_possible(t, (uint32_t)i, &record))
            return ES_EDAMAGED;
        (*order)[n++] = (es_sort_pair){.key = record.inserted, .number = (uint32_t)i};
        t->step_of[i] = record.step;
        if (t->spans != NULL)
            t->spans[i] = (es_span){record.length, record.before};
    }
    int code = es_sort(*order, n);
    return code == ES_OK ? (int64_t)n : code;
}

/* Checks implicit items, and enters them. */
static int recover_implicit(es_table *t, uint64_t *where)
{
    const es_implicit *x = &t->implicit;
    uint32_t step = es_implicit_marked(x, 0);
    for (; step != ES_STEPS_NONE; step = es_implicit_marked(x, step + UINT64_C(1))) {
        *where = t->first_item + step;
        es_window w = es_implicit_window(x, step);
        if (step >= t->slots || !es_rank_has(t->steps->living, step) ||
            !es_window_is_possible(&t->config->item, t->steps, &w))
            return ES_EDAMAGED;
        es_candidate c = es_table_candidate(t, step);
        es_table_enter_candidate(t, &c, &w);
    }
    return ES_OK;
}

int es_table_recover(es_table *t, uint64_t *where)
{
    es_sort_pair *living = NULL, *parked = NULL;
    *where = t->first_item;
    t->highest = *(volatile double *)&t->words->highest;
    if (!es_table_limits_begin(t) || !words_are_possible(t))
        return ES_EDAMAGED;
    if (es_table_ages(t))
        es_hot_cold_begin(t->sampler, t->words->cold);
    es_table_tune_begin(t);
    if (es_table_is_implicit(t))
        return recover_implicit(t, where);
    for (uint64_t i = 0; i < t->slots; i++)
        if (es_record_state(t->items[i].word) > ES_RECORD_PARKED) {
            *where = t->first_item + i;
            return ES_EDAMAGED;
        }
    int64_t n = records_in(t, ES_RECORD_LIVE, &living, where);
    int64_t waiting = n < 0 ? n : records_in(t, ES_RECORD_PARKED, &parked, where);
    if (waiting > 0 && (uint64_t)waiting > t->config->max_parked)
        waiting = ES_EDAMAGED;
    for (int64_t i = 0; waiting >= 0 && i < n; i++) {
        es_candidate c = es_table_candidate(t, living[i].number);
        es_window w = es_table_window(t, c.item);
        t->highest = c.priority > t->highest ? c.priority : t->highest; /* an update may not be whole */
        es_table_enter_candidate(t, &c, &w);
    }
    for (int64_t i = 0; waiting >= 0 && t->aside != NULL && i < n; i++) {
        uint32_t item = living[i].number;
        if (t->items[item].round != t->words->round)
            continue;
        es_rank_add(t->aside, item);
        es_selector_set_aside(t->sampler, item);
    }
    for (int64_t i = 0; i < waiting; i++) {
        es_window w = es_table_window(t, parked[i].number);
        es_table_enter_parked(t, parked[i].number, &w);
    }
    free(living);
    free(parked);
    return waiting < 0 ? (int)waiting : ES_OK;
}

void es_table_recover_finish(es_table *t)
{
    if (t->words->resetting)
        es_table_reset(t);
    else if (t->highest > *(volatile double *)&t->words->highest)
        es_table_update_highest(t, t->highest);
    es_table_age_finish(t);
}
