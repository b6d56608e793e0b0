/* A table's limits, where they change while it is used. */
#include <math.h>

#include "replay/es_table.h"

bool es_table_limits_begin(es_table *t)
{
    const volatile es_table_words *words = t->words;
    es_rate_limits limits = {words->min_diff, words->max_diff};
    t->limits = limits;
    return !isnan(limits.min_diff) && !isnan(limits.max_diff) &&
           (!es_table_is_implicit(t) || (isinf(limits.max_diff) && limits.max_diff > 0));
}

void es_table_limits_set(es_table *t, const es_rate_limits *limits)
{
    es_redo *redo = &t->store->redo;
    es_redo_set_double(redo, &t->words->min_diff, limits->min_diff);
    es_redo_set_double(redo, &t->words->max_diff, limits->max_diff);
    es_redo_commit(redo);
    t->limits = *limits;
}
