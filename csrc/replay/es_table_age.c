/* Items that grow old. The clock, the cursor between hot and cold, and up to where items are to go, change in one list:
 * whoever is killed has made the learner's update or not. What is to go is then removed one by one, by whoever opens the
 * store if need be. */
#include "replay/es_table.h"

#define SOME 4096

/* Items from that one on, in order of insertion, that are older than `age` at that time: how many, at most `most`. */
static uint64_t count_older(const es_table *t, uint32_t item, uint64_t now, uint64_t age, uint64_t most)
{
    uint64_t n = 0;
    for (; n < most && item != ES_SELECTOR_NONE; n++, item = es_hot_cold_next(t->sampler, item)) {
        uint64_t came = t->items[item].round;
        if (came > now || now - came <= age)
            break;
    }
    return n;
}

static uint32_t nth_from(const es_table *t, uint32_t item, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        item = es_hot_cold_next(t->sampler, item);
    return item;
}

void es_table_age(es_table *t, const es_origin *origin)
{
    const es_selector_config *config = &t->config->sampler;
    es_redo *redo = &t->store->redo;
    es_table_words *words = t->words;
    uint32_t first = es_hot_cold_first(t->sampler);
    uint64_t now = words->round + 1, most = SOME + 2 * (words->inserted - words->marked);
    uint64_t cold = count_older(t, es_hot_cold_first_hot(t->sampler), now, config->age, most);
    uint64_t gone = config->max_age == 0 ? 0 : count_older(t, first, now, config->max_age, most);
    es_redo_set(redo, &words->round, now);
    es_redo_set(redo, &words->marked, words->inserted);
    if (origin != NULL)
        es_redo_set(redo, origin->word, origin->value);
    if (cold > 0)
        es_table_note_cold(t, cold);
    if (gone > 0)
        es_redo_set(redo, &words->gone, t->items[nth_from(t, first, gone - 1)].inserted + 1);
    es_redo_commit(redo);
    for (uint64_t i = 0; i < cold; i++)
        es_hot_cold_advance(t->sampler);
    es_table_age_finish(t);
    es_table_tune(t);
}

void es_table_age_finish(es_table *t)
{
    uint32_t item;
    if (!es_table_ages(t))
        return;
    while ((item = es_hot_cold_first(t->sampler)) != ES_SELECTOR_NONE && t->items[item].inserted < t->words->gone)
        es_table_remove_aged(t, item);
}
