/* Windows: which steps of an episode are an item together, and when it is complete.
 *
 * An item is complete with its last step. What a step completes follows from the steps of its stream that came
 * before, and from the table's settings alone: so whoever opens a store can find it out again. */
#ifndef ES_WINDOW_H
#define ES_WINDOW_H

#include "base/es_base.h"
#include "replay/es_steps.h"
#include "replay/es_store.h"

enum es_window_flag {
    ES_WINDOW_NEXT = 1,      /* the last step is the one that follows: its action is no part of the item */
    ES_WINDOW_TERMINATED = 2 /* nothing follows from the item's last action */
};

typedef struct es_window {
    uint32_t last, length, before, flags; /* last: or ES_STEPS_NONE, for a step that has no record yet */
} es_window;

static inline es_window es_window_of_step(uint32_t step)
{
    return (es_window){.last = step, .length = 1};
}

/* How many steps it refers to, for es_steps_link(). */
static inline uint64_t es_window_span(const es_item_config *item, const es_window *w)
{
    return item->kind == ES_ITEM_STEP ? 0 : (uint64_t)w->length + w->before;
}

/* What a step means to an episode. */
enum es_event {
    ES_EVENT_NONE,
    ES_EVENT_GOES_ON,
    ES_EVENT_TERMINATED,
    ES_EVENT_CUT,   /* it is the last one, and nobody knows what follows */
    ES_EVENT_LEFT,  /* it was the last one, as the next step shows */
    ES_EVENT_FINAL, /* it is what the episode ends with */
    ES_EVENT_FINAL_TERMINATED
};

/* An episode, as far as it goes. */
typedef struct es_ending {
    uint32_t last;         /* its last step */
    uint32_t event, index; /* of that step */
    uint32_t run;          /* how many steps end with it, as es_steps_run() */
    uint32_t before_last;  /* the step before it, if it is a final one */
} es_ending;

/* A step that arrives ends the episode before, perhaps, and goes on with its own. */
typedef struct es_arrival {
    es_ending left, own;
} es_arrival;

/* What a step that arrives means to its stream. step: ES_STEPS_NONE for one that has no record yet. Only where streams
 * keep several steps. */
es_arrival es_window_arrival(const es_steps *s, const es_step_head *head, uint32_t step);
/* How many items of a table the step completes. */
uint32_t es_window_count(const es_item_config *item, const es_arrival *arrival);
/* The i-th of them. */
es_window es_window_nth(const es_item_config *item, const es_arrival *arrival, uint32_t i);
/* Whether a table can have such an item, and its steps are there. */
bool es_window_is_possible(const es_item_config *item, const es_steps *s, const es_window *w);

#endif
