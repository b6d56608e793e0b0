/* New priorities for the items of a table. */
#include "base/es_prefetch.h"
#include "replay/es_table.h"

/* In the store. */
static es_candidate set_priority(es_table *t, uint32_t item, double priority)
{
    es_item_record *record = &t->items[item];
    es_table_words *words = t->words;
    es_redo *redo = &t->store->redo;
    es_candidate c = {item, priority, record->inserted, words->clock, es_record_generation(record->word)};
    es_redo_set_double(redo, &record->priority, priority);
    es_redo_set(redo, &record->updated, words->clock);
    es_redo_set(redo, &words->clock, words->clock + 1);
    es_redo_commit(redo);
    return c;
}

void es_table_update_highest(es_table *t, double highest)
{
    es_redo_set_double(&t->store->redo, &t->words->highest, t->highest = highest);
    es_redo_commit(&t->store->redo);
}

/* After the items have these priorities. Of an item that was named twice, only the one that it has now counts. */
static void raise_highest(es_table *t, const uint64_t *keys, const double *priorities, uint64_t n)
{
    double highest = t->highest;
    for (uint64_t i = 0; i < n; i++) {
        if (priorities[i] <= highest)
            continue;
        uint32_t item = es_table_find(t, keys[i]);
        if (item != ES_STEPS_NONE && t->items[item].priority == priorities[i])
            highest = priorities[i];
    }
    if (highest > t->highest)
        es_table_update_highest(t, highest);
}

uint64_t es_table_update(es_table *t, const uint64_t *keys, const double *priorities, uint64_t n)
{
    uint64_t before = t->words->clock, different = 0, changed = 0;
    es_candidate candidates[ES_SELECTOR_MANY];
    for (uint64_t i = 0; i < n; i++)
        if ((uint32_t)keys[i] < t->slots) {
            es_prefetch(&t->items[(uint32_t)keys[i]]);
            es_rank_fetch(t->members, (uint32_t)keys[i]);
        }
    for (uint64_t i = 0; i < n; i++) {
        uint32_t item = es_table_find(t, keys[i]);
        if (item != ES_STEPS_NONE) {
            different += t->items[item].updated < before; /* otherwise it was updated in this call already */
            candidates[changed++] = set_priority(t, item, priorities[i]);
        }
        if (changed == ES_SELECTOR_MANY || i == n - 1) {
            es_selector_update(t->sampler, candidates, changed);
            es_selector_update(t->remover, candidates, changed);
            changed = 0;
        }
    }
    raise_highest(t, keys, priorities, n);
    return different;
}
