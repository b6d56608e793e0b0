/* The steps of a store as this process sees them: which records are used, the order in which they came, which of them
 * streams keep, and the items that refer to each. All of it is derived. */
#ifndef ES_STEPS_H
#define ES_STEPS_H

#include "base/es_base.h"
#include "replay/es_hold.h"
#include "replay/es_order.h"
#include "replay/es_rank.h"
#include "replay/es_sort.h"
#include "replay/es_store.h"
#include "replay/es_streams.h"

#define ES_STEPS_NONE UINT32_MAX

/* Who wrote a step, and which of its steps it is. */
typedef struct es_step_head {
    uint64_t stream, number;
    uint32_t version, index, environment, episode, flags, zero;
} es_step_head;

/* A version as a step's record has it. Steps cannot tell those beyond apart. */
static inline uint32_t es_steps_version(int64_t version)
{
    return version < 0 ? 0 : version > UINT32_MAX ? UINT32_MAX : (uint32_t)version;
}

/* From the record, on which somebody may have scribbled. */
static inline es_step_head es_steps_head_of(const es_step_record *from)
{
    es_step_record r = *(const volatile es_step_record *)from;
    return (es_step_head){.stream = r.stream,
                          .number = r.number,
                          .version = r.version,
                          .index = r.index,
                          .environment = r.environment,
                          .episode = r.episode,
                          .flags = es_record_flags(r.word)};
}

/* A step among those of its stream, which are in the order of their numbers. */
typedef struct es_step_link {
    uint64_t number;
    uint32_t older, newer; /* the next living ones, plus 1 */
    uint32_t uses : 31;    /* how many items of several steps refer to it; of implicit ones, how many tables */
    uint32_t kept : 1;
    uint32_t
        run; /* how many steps of its episode, with numbers that follow each other, end with it; see es_steps_run() */
} es_step_link;

typedef struct es_steps {
    es_store *store;
    es_rank *living;
    es_hold hold;         /* rows of steps that have gone, but may not be used yet */
    es_order open;        /* steps that are the last ones of items that can go, in order of arrival */
    es_order bare;        /* steps that no item refers to, in order of arrival: their streams keep them */
    uint32_t *episode_of; /* of a step: the entry in streams */
    uint32_t *items;      /* the first item that ends with a step, by its place among all tables' items, plus 1 */
    uint32_t *next_item;  /* the next item of the same step, plus 1: at a lower place, whichever was made first */
    es_step_link *links;  /* NULL: streams keep one step, and all items have one */
    es_streams streams;
    bool some_protected;
    bool recovering; /* items come in any order: see es_steps_sort() */
} es_steps;

int es_steps_init(es_steps *s, es_store *store);
void es_steps_free(es_steps *s);

/* Makes room for one more step, so that es_steps_enter() cannot fail: ES_OK or -ENOMEM. */
int es_steps_reserve(es_steps *s);
/* The record that the next step gets: the lowest free one whose row is not held, or ES_STEPS_NONE. */
uint32_t es_steps_next(const es_steps *s);
/* A step with that record lives now. */
void es_steps_enter(es_steps *s, uint32_t step, const es_step_head *head);
/* Drops what the stream of a step that has come does not keep any more. */
void es_steps_trim(es_steps *s, uint32_t step);
/* A step that no item refers to goes: its record is free. */
void es_steps_drop(es_steps *s, uint32_t step);

/* The last step of a stream; ES_STEPS_NONE if none of its steps lives. */
uint32_t es_steps_last(const es_steps *s, uint64_t stream, uint32_t environment);
/* Whether a stream has a living step with that number. Not where streams keep one step. */
bool es_steps_has(const es_steps *s, uint64_t stream, uint32_t environment, uint64_t number);
/* The living step of the same stream with the next lower number, or ES_STEPS_NONE. Not where streams keep one step. */
static inline uint32_t es_steps_older(const es_steps *s, uint32_t step)
{
    return s->links[step].older - 1;
}
/* How many steps of one episode, whose numbers follow each other, end with that one, as far as its stream keeps them. */
static inline uint32_t es_steps_run(const es_steps *s, uint32_t step)
{
    uint32_t run = s->links[step].run, keep = s->store->keep;
    return run < keep ? run : keep;
}
/* The step of the same episode whose number follows, or comes before; ES_STEPS_NONE: it does not live. Not where streams
 * keep one step. */
uint32_t es_steps_next_of_episode(const es_steps *s, uint32_t step);
uint32_t es_steps_previous_of_episode(const es_steps *s, uint32_t step);
/* Whether so many steps whose numbers follow each other end with that one and live. */
bool es_steps_are_there(const es_steps *s, uint32_t step, uint64_t n, bool of_one_episode);
/* The step with that number, if its stream keeps it; or ES_STEPS_NONE. */
uint32_t es_steps_find(const es_steps *s, uint64_t stream, uint32_t environment, uint64_t number);

/* An item ends with that step, and refers to so many steps up to it; 0: it is one of a table of single steps. item: its
 * place among the items of all tables. */
void es_steps_link(es_steps *s, uint32_t step, uint64_t span, uint32_t item);
/* It does not any more. Steps that are of no use then stay, for es_steps_drop_unused(). */
void es_steps_unlink(es_steps *s, uint32_t step, uint64_t span, uint32_t item);
void es_steps_drop_unused(es_steps *s, uint32_t step, uint64_t span);
/* An item begins to use a step, or ends it: one of several steps, or all implicit items of a table that refer to it,
 * together. */
void es_steps_use(es_steps *s, uint32_t step);
void es_steps_stop_using(es_steps *s, uint32_t step);
/* All steps and items that the store has are there: brings what depends on it into that order. steps: in order of
 * arrival. */
void es_steps_sort(es_steps *s, const es_sort_pair *steps, uint64_t n);
/* Drops what a dead process was about to drop. */
void es_steps_trim_all(es_steps *s, const es_sort_pair *steps, uint64_t n);
/* The first item that ends with a step, or the next one; ES_STEPS_NONE ends it. */
static inline uint32_t es_steps_first_item(const es_steps *s, uint32_t step)
{
    return s->items[step] - 1;
}
static inline uint32_t es_steps_next_item(const es_steps *s, uint32_t item)
{
    return s->next_item[item] - 1;
}

#endif
