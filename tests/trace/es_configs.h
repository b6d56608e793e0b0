/* Tables for scenarios of a replay. */
#ifndef ES_CONFIGS_H
#define ES_CONFIGS_H

#include <math.h>

#define ANY 1000 /* limits nothing */
#define LIMITED(table_name, sampler_kind, remover_kind, size, again, ...)                               \
    {                                                                                                   \
        .name = table_name, .sampler = {.kind = sampler_kind, .parameter = 0.5, .beta = 0.4},           \
        .remover = {.kind = remover_kind, .parameter = 1}, .max_size = size, .min_size = 1, .ratio = 1, \
        .replacement = again, __VA_ARGS__                                                               \
    }
#define CONFIG(name, sampler, remover, size, again, ...) \
    LIMITED(name, sampler, remover, size, again, .min_diff = -INFINITY, __VA_ARGS__)
#define FREELY .max_diff = INFINITY
#define TABLE(name, sampler, remover, size) CONFIG(name, sampler, remover, size, 1, FREELY)
/* Each living item once before any again. */
#define ROUNDS(name, sampler, remover, size) CONFIG(name, sampler, remover, size, 0, FREELY)
#define ONCE(name, sampler, remover, size) CONFIG(name, sampler, remover, size, 1, FREELY, .max_times_sampled = 1)
#define PROTECTED(name, sampler, remover, size) CONFIG(name, sampler, remover, size, 1, FREELY, .is_protected = 1)
/* Two items ahead of samples; the others park. */
#define PARKED(name, sampler, remover, size) CONFIG(name, sampler, remover, size, 1, .max_diff = 2, .max_parked = 3)

/* Two hot items, whose age is up to 1; up to 3, they are there. */
#define HOT_AND_COLD(table_name, remover_kind, size, aim)                                               \
    {                                                                                                   \
        .name = table_name,                                                                             \
        .sampler = {.kind = ES_HOT_COLD,                                                                \
                    .parameter = 0.5,                                                                   \
                    .beta = 0.4,                                                                        \
                    .target = aim,                                                                      \
                    .share = 0.7,                                                                       \
                    .hot_size = 2,                                                                      \
                    .age = 1,                                                                           \
                    .max_age = 3},                                                                      \
        .remover = {.kind = remover_kind, .parameter = 1}, .max_size = size, .min_size = 1, .ratio = 1, \
        .replacement = 1, .min_diff = -INFINITY, FREELY                                                 \
    }

/* Items of several steps. */
#define N_STEPS(steps, stack) \
    .item = {.kind = ES_ITEM_N_STEP, .length = steps, .period = 1, .before = (stack)-1, .gamma = 0.5}
#define SEQUENCES(steps, every, pads) \
    .item = {.kind = ES_ITEM_SEQUENCE, .length = steps, .period = every, .padded = pads}
#define EXPLICIT(steps) .item = {.kind = ES_ITEM_EXPLICIT, .length = steps, .period = 1}

/* As many samples as items. */
#define MATCHED(name, sampler, remover, size) \
    LIMITED(name, sampler, remover, size, 1, .min_diff = 0, .max_diff = INFINITY)

#endif
