/* Stores of a replay in tests: what the items of their tables give to a batch. */
#ifndef ES_ITEMS_H
#define ES_ITEMS_H

#include <stdbool.h>

#include "replay/es_replay_types.h"

/* Outputs of one table at most, for so many leaves. */
#define ES_ITEMS_OUTPUTS(leaves) (2 * (leaves) + 4)

static inline es_item_config es_items_steps(uint32_t num_leaves)
{
    return (es_item_config){.kind = ES_ITEM_STEP, .length = 1, .period = 1, .num_outputs = num_leaves};
}

/* Fills in what a test leaves out: a table that does not say what its items are has single steps. Each has all the
 * outputs that it can have: its steps leaf by leaf, before the episode the first one again for odd leaves and zeros for
 * even ones; of n steps, the same of what follows, the return of the first leaf if that is of doubles, discount and
 * length; of sequences, the first leaf of the first step, mask and length; of explicit items, one step of each leaf. Returns how many outputs there are. */
static inline uint32_t es_items_fill(es_table_config *tables, uint32_t num_tables, const uint64_t *leaf_sizes,
                                     uint32_t num_leaves, es_output *outputs)
{
    es_output *o = outputs;
    for (uint32_t t = 0; t < num_tables; t++) {
        es_item_config *item = &tables[t].item;
        es_output *first = o;
        if (item->kind == 0)
            *item = es_items_steps(num_leaves);
        int32_t before = (int32_t)item->before;
        bool explicit = item->kind == ES_ITEM_EXPLICIT, n_step = item->kind == ES_ITEM_N_STEP;
        uint32_t count = n_step ? item->before + 1 : explicit ? 1 : item->length;
        for (uint32_t next = 0; next < (n_step ? 2 : 1); next++)
            for (uint32_t l = 0; l < num_leaves; l++)
                *o++ = (es_output){.kind = next       ? ES_OUTPUT_NEXT
                                           : explicit ? ES_OUTPUT_COLUMN
                                                      : ES_OUTPUT_STEPS,
                                   .leaf = l,
                                   .count = count,
                                   .from = -before,
                                   .repeat = item->kind == ES_ITEM_STEP || explicit ? 0 : l % 2};
        if (n_step && leaf_sizes[0] % 8 == 0)
            *o++ = (es_output){.kind = ES_OUTPUT_RETURN, .width = 8};
        if (n_step)
            *o++ = (es_output){.kind = ES_OUTPUT_DISCOUNT, .width = 8};
        if (item->kind == ES_ITEM_SEQUENCE) {
            *o++ = (es_output){.kind = ES_OUTPUT_STEPS, .count = 1};
            *o++ = (es_output){.kind = ES_OUTPUT_MASK, .count = item->length};
        }
        if (item->kind != ES_ITEM_STEP && !explicit)
            *o++ = (es_output){.kind = ES_OUTPUT_LENGTH};
        item->num_outputs = (uint32_t)(o - first);
    }
    return (uint32_t)(o - outputs);
}

#endif
