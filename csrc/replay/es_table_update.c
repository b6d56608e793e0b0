/* New priorities for the items of a table. */
#include "base/es_prefetch.h"
#include "replay/es_table.h"

/* An item gets a priority at that time of the table's clock, once the list of changes is whole. */
static es_candidate note_priority(es_table *t, uint32_t item, double priority, uint64_t time)
{
    es_item_record *record = &t->items[item];
    es_redo *redo = &t->store->redo;
    es_redo_set_double(redo, &record->priority, priority);
    es_redo_set(redo, &record->updated, time);
    return (es_candidate){item, priority, record->inserted, time, es_record_generation(record->word)};
}

/* Changes the store. time: of the next change. */
static void commit_priorities(es_table *t, uint64_t time)
{
    es_redo_set(&t->store->redo, &t->words->clock, time);
    es_redo_commit(&t->store->redo);
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

/* Implicit items have no priorities: nothing changes. */
static uint64_t count_different(es_table *t, const uint64_t *keys, uint64_t n)
{
    uint64_t different = 0;
    for (uint64_t i = 0; i < n; i++)
        different += es_implicit_see(&t->implicit, es_table_find(t, keys[i]));
    for (uint64_t i = 0; i < n; i++)
        es_implicit_forget(&t->implicit, (uint32_t)keys[i]);
    return different;
}

uint64_t es_table_update(es_table *t, const uint64_t *keys, const double *priorities, uint64_t n)
{
    if (es_table_is_implicit(t))
        return count_different(t, keys, n);
    uint64_t before = t->words->clock, time = before, different = 0, changed = 0, noted = 0, seen = 0;
    es_candidate candidates[ES_SELECTOR_MANY];
    for (uint64_t i = 0; i < n; i++)
        if ((uint32_t)keys[i] < t->slots) {
            es_prefetch(&t->items[(uint32_t)keys[i]]);
            es_rank_fetch(t->members, (uint32_t)keys[i]);
        }
    for (uint64_t i = 0; i < n; i++) {
        uint32_t item = es_table_find(t, keys[i]);
        if (item != ES_STEPS_NONE) {
            uint64_t bit = UINT64_C(1) << item % 64;
            if (noted == ES_STORE_UPDATES || seen & bit) { /* it may be one of those that are noted */
                commit_priorities(t, time);
                noted = seen = 0;
            }
            different += t->items[item].updated < before; /* otherwise it was updated in this call already */
            candidates[changed++] = note_priority(t, item, priorities[i], time++);
            noted++, seen |= bit;
        }
        if (changed == ES_SELECTOR_MANY || i == n - 1) {
            if (noted > 0)
                commit_priorities(t, time);
            noted = seen = 0;
            es_selector_update(t->sampler, candidates, changed);
            es_selector_update(t->remover, candidates, changed);
            changed = 0;
        }
    }
    raise_highest(t, keys, priorities, n);
    es_table_tune(t);
    return different;
}
