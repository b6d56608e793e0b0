/* The steps of a store as this process sees them: which records are used, the order in which they
 * came, their streams and episodes, and the items that refer to each. All of it is derived. */
#ifndef ES_STEPS_H
#define ES_STEPS_H

#include "base/es_base.h"
#include "replay/es_order.h"
#include "replay/es_rank.h"
#include "replay/es_sort.h"
#include "replay/es_store.h"

#define ES_STEPS_NONE UINT32_MAX

/* Who wrote a step, and which of its steps it is. */
typedef struct es_step_head {
    uint64_t stream, number, version;
    uint32_t environment, episode, flags, zero;
} es_step_head;

typedef struct es_episode {
    uint32_t stream;
    uint32_t number; /* in its stream */
    uint32_t steps;  /* living ones; 0: the entry is free */
    uint32_t older;  /* the next lower number of the same stream; or the next free entry. Plus 1 */
    uint32_t newer;  /* the next higher one, plus 1 */
} es_episode;

typedef struct es_stream {
    uint64_t id;
    uint32_t environment;
    uint32_t episodes; /* entries; 0: the entry is free */
    uint32_t newest;   /* the entry of its episode with the highest number, plus 1 */
    uint32_t last;     /* its living step with the highest number, which it keeps, or ES_STEPS_NONE */
    uint32_t next;     /* of the same bucket, or free, plus 1 */
} es_stream;

typedef struct es_steps {
    es_store *store;
    es_rank *living;
    es_order open;        /* steps with items of a table that is not protected, in order of arrival */
    uint32_t *episode_of; /* of a step */
    uint32_t *items;      /* the first item of a step, by its place among the items of all tables, plus 1 */
    uint32_t *next_item;  /* the next item of the same step, plus 1 */
    es_episode *episodes;
    es_stream *streams;
    uint32_t *buckets; /* streams, plus 1 */
    uint32_t episode_room, free_episode, stream_room, free_stream, num_buckets;
    bool some_protected;
    uint64_t kept;      /* steps without items: each is its stream's last one */
    uint64_t kept_from; /* none of them has arrived before */
} es_steps;

int es_steps_init(es_steps *s, es_store *store);
void es_steps_free(es_steps *s);

/* Makes room for one more step, so that es_steps_enter() cannot fail: ES_OK or -ENOMEM. */
int es_steps_reserve(es_steps *s);
/* The record that the next step gets: the lowest free one. */
uint32_t es_steps_next(const es_steps *s);
/* A step with that record lives now. Returns a step that its stream does not keep any more, or ES_STEPS_NONE: the one
 * that was its last one, or this step, when it came late. */
uint32_t es_steps_enter(es_steps *s, uint32_t step, const es_step_head *head);
/* A step that has no items goes: its record is free. */
void es_steps_drop(es_steps *s, uint32_t step);
/* The same if it has no items and its stream does not keep it. */
void es_steps_drop_if_unused(es_steps *s, uint32_t step);
/* The last step of the stream that wrote least recently, of those whose last step has no items;
 * ES_STEPS_NONE if there is none. */
uint32_t es_steps_idlest(es_steps *s);

/* item: its place among the items of all tables. A step that gets its first item of a table that is not protected is
 * the newest open one. */
void es_steps_link(es_steps *s, uint32_t step, uint32_t item);
void es_steps_unlink(es_steps *s, uint32_t step, uint32_t item);
/* Puts the open steps into that order, once all are linked. */
void es_steps_reorder(es_steps *s, const es_sort_pair *steps, uint64_t n);
/* The first item of a step, or the next one; ES_STEPS_NONE ends it. */
static inline uint32_t es_steps_first_item(const es_steps *s, uint32_t step)
{
    return s->items[step] - 1;
}
static inline uint32_t es_steps_next_item(const es_steps *s, uint32_t item)
{
    return s->next_item[item] - 1;
}

#endif
