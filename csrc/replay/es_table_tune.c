/* A table's temperatures, where they are chosen by the effective sample size that is wanted. */
#include "replay/es_table.h"

/* So many changes at least from one time to the next; or a part of the items that there were. */
#define FEW 16
#define PART 4

void es_table_tune_begin(es_table *t)
{
    const es_selector_class *class = t->sampler->class;
    double temperatures[2] = {t->words->temperature[0], t->words->temperature[1]};
    bool chosen =
        temperatures[0] > 0 && (temperatures[1] > 0 || !es_table_ages(t)); /* of each part, or somebody scribbled */
    if (t->config->sampler.target > 0 && chosen)
        class->use(t->sampler, temperatures);
}

void es_table_tune(es_table *t)
{
    es_redo *redo = &t->store->redo;
    es_table_words *words = t->words;
    uint64_t size = es_table_size(t), wait = size / PART < FEW ? FEW : size / PART;
    uint64_t changes = words->clock + words->moved + words->aged;
    double temperatures[2];
    if (!(t->config->sampler.target > 0) || *t->failed || size == 0 || changes < words->tune_at)
        return;
    t->sampler->class->choose(t->sampler, temperatures);
    es_redo_set(redo, &words->tune_at, changes + wait);
    for (int i = 0; i < 2; i++)
        es_redo_set_double(redo, &words->temperature[i], temperatures[i]);
    es_redo_commit(redo);
    t->sampler->class->use(t->sampler, temperatures);
}
