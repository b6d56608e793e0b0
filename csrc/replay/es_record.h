/* The records of steps and items in a store. */
#ifndef ES_RECORD_H
#define ES_RECORD_H

#include "base/es_base.h"

enum es_record_state { ES_RECORD_FREE = 0, ES_RECORD_LIVE = 1, ES_RECORD_PARKED = 2 };

/* The word of a record: generation:32 | flags:24 | state:8. The generation changes when a free record is used. */
static inline uint64_t es_record_word(uint32_t generation, uint32_t flags, uint32_t state)
{
    return (uint64_t)generation << 32 | (uint64_t)flags << 8 | state;
}
static inline uint32_t es_record_generation(uint64_t word)
{
    return (uint32_t)(word >> 32);
}
static inline uint32_t es_record_flags(uint64_t word)
{
    return (uint32_t)(word >> 8) & 0xffffff;
}
static inline uint32_t es_record_state(uint64_t word)
{
    return (uint32_t)word & 0xff;
}

/* One step. Its leaves are in the row of the same number. */
typedef struct es_step_record {
    uint64_t word;
    uint64_t stream; /* a random number: one life of one writer */
    uint64_t number; /* of the step in its stream, from 0 */
    uint32_t environment, episode;
    uint64_t arrival; /* of the step in the store */
    uint32_t version; /* of the weights that it was made with */
    uint32_t index;   /* of the step in its episode, from 0 */
} es_step_record;

/* One item of a table. The record of item i is at the same place as long as the item lives. */
typedef struct es_item_record {
    uint64_t word;
    uint32_t step, length; /* its last step, and how many it has */
    double priority;
    uint64_t times_sampled;
    uint64_t inserted; /* how many items were inserted before it */
    uint64_t updated;  /* by the table's clock: inserted, or given a priority */
    /* Of the table's round: of sampling without replacement, the one in which it was drawn last; where items age, the one
     * in which it came. */
    uint64_t round;
    uint32_t before, flags; /* how many steps it refers to before its first one; es_window_flag */
} es_item_record;

#endif
