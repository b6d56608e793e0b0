#include "replay/es_selector.h"

#include <math.h>

es_selector *es_selector_new(const es_selector_config *config, uint64_t limit, bool rounds,
                             const es_custom_selector *custom, bool *failed)
{
    switch (config->kind) {
    case ES_UNIFORM:
        return es_uniform_new(limit);
    case ES_PRIORITIZED:
        return es_prioritized_new(limit, config->parameter, rounds);
    case ES_SOFTMAX:
        return es_softmax_new(limit, config, rounds);
    case ES_HOT_COLD:
        return es_hot_cold_new(limit, config);
    case ES_FIFO:
    case ES_LIFO:
        return es_fifo_new(limit, config->kind == ES_LIFO);
    case ES_CUSTOM:
        return es_custom_new(limit, custom, failed);
    default:
        return es_heap_new(limit, config->kind == ES_MAX_HEAP);
    }
}

void es_selector_free(es_selector *s)
{
    if (s != NULL)
        s->class->free(s);
}

bool es_selector_accepts(const es_selector *s, double priority)
{
    return priority >= 0 && isfinite(priority) && (s->class->accepts == NULL || s->class->accepts(s, priority));
}

void es_selector_update(es_selector *s, const es_candidate *c, uint64_t n)
{
    if (s->class->update != NULL)
        s->class->update(s, c, n);
}

void es_selector_set_aside(es_selector *s, uint32_t item)
{
    (s->class->set_aside != NULL ? s->class->set_aside : s->class->remove)(s, item);
}

void es_selector_ratios(es_selector *s, const uint32_t *items, uint64_t n, double *ratios)
{
    if (s->class->ratios != NULL) {
        s->class->ratios(s, items, n, ratios);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        ratios[i] = 1;
}
