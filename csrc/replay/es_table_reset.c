/* A table that begins anew. */
#include "replay/es_table.h"

/* An item that is parked is dropped. */
static void drop_parked(es_table *t, uint32_t item)
{
    es_table_note_free(t, item);
    es_redo_commit(&t->store->redo);
    es_rank_remove(t->used, item);
    es_order_remove(&t->parked, item);
    es_table_let_go_of_steps(t, item);
}

void es_table_reset(es_table *t)
{
    es_redo *redo = &t->store->redo;
    es_table_words *words = t->words;
    *(volatile uint64_t *)&words->resetting = 1;
    while (t->parked.count > 0)
        drop_parked(t, t->parked.last);
    while (es_table_size(t) > 0)
        es_table_remove(t, es_rank_member(t->members, es_table_size(t) - 1), false);
    es_redo_set(redo, &words->inserted, 0);
    es_redo_set(redo, &words->sampled, 0);
    es_redo_set(redo, &words->evicted, 0);
    es_redo_set_double(redo, &words->highest, t->highest = 1);
    es_redo_set(redo, &words->tune_at, 0);
    if (es_table_ages(t)) {
        es_redo_set(redo, &words->cold, 0);
        es_redo_set(redo, &words->gone, 0);
        es_redo_set(redo, &words->marked, 0);
        es_redo_set(redo, &words->moved, 0);
        es_redo_set(redo, &words->aged, 0);
    } else {
        es_redo_set(redo, &words->round, 1);
    }
    es_redo_set(redo, &words->resetting, 0);
    es_redo_commit(redo);
    if (es_table_ages(t))
        es_hot_cold_begin(t->sampler, 0);
}
