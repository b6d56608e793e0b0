/* One table: items that refer to steps, chosen by two selectors, as often as its rate limiter allows.
 *
 * An item has a record, or is implicit (es_implicit.h): then all is known from its last step. Whoever asks about an item
 * asks es_table_step_of(), es_table_key(), es_table_record(); es_draw.c, where each line counts, looks itself.
 *
 * The records and counters in the store are the truth. They change through the redo list; what is
 * private follows once they have changed. The functions that begin with note_ only add to the list. */
#ifndef ES_TABLE_H
#define ES_TABLE_H

#include "base/es_base.h"
#include "replay/es_implicit.h"
#include "replay/es_order.h"
#include "replay/es_outputs.h"
#include "replay/es_rank.h"
#include "replay/es_rate_limiter.h"
#include "replay/es_selector.h"
#include "replay/es_steps.h"
#include "replay/es_store.h"
#include "replay/es_window.h"

typedef struct es_table {
    es_store *store;
    es_steps *steps;
    const es_table_config *config;
    es_table_words *words;
    es_item_record *items; /* NULL: they are implicit */
    es_implicit implicit;
    es_item_column *columns; /* of explicit items: as many for each as there are outputs; NULL: they have none */
    uint64_t first_item;     /* its place among the items of all tables */
    uint64_t slots;
    double highest;        /* as in words, on which somebody may scribble */
    es_rate_limits limits; /* likewise */
    uint32_t *step_of;     /* of an item: its last one. NULL: it is the item's number */
    es_span *spans;        /* of an item. NULL: each is one step, or they are implicit */
    uint64_t *in_a_row; /* a bit for each item of several steps: their records are one after the other, and stay so */
    es_form form;       /* what an item gives to a batch */
    es_rank *used;      /* records that are not free: members and parked ones. Where nothing parks: the members */
    es_rank *members;
    es_order parked; /* items that wait for the limiter, the oldest first */
    es_rank *aside;  /* drawn in this round; NULL with replacement */
    es_selector *sampler, *remover;
    bool *failed;            /* of all tables: a custom selector has */
    uint32_t *episode_items; /* how many items each episode has, by its entry */
    uint32_t episode_room;
    uint64_t episodes;
} es_table;

uint64_t es_table_bytes(const es_table *t);
/* custom: what the table's sampler and remover are, if they are of that kind. */
int es_table_init(es_table *t, es_store *store, es_steps *steps, uint32_t number, const es_custom_selector *custom,
                  bool *failed);
void es_table_free(es_table *t);

/* Of an explicit item. NULL: the table's items have none. */
static inline es_item_column *es_table_columns(const es_table *t, uint32_t item)
{
    return t->columns != NULL ? t->columns + item * (uint64_t)t->form.num_outputs : NULL;
}

/* Whether the records of its steps are one after the other: mostly, where one writer writes. Of an item that refers to
 * several. It has room in the near caches, so this is known long before the item's record comes. */
static inline bool es_table_is_in_a_row(const es_table *t, uint32_t item)
{
    return t->in_a_row[item / 64] >> item % 64 & 1;
}

static inline bool es_table_is_implicit(const es_table *t)
{
    return t->items == NULL;
}

/* Whether its items have several steps. */
static inline bool es_table_is_of_many(const es_table *t)
{
    return t->config->item.kind != ES_ITEM_STEP;
}

/* An item's last step. */
static inline uint32_t es_table_step_of(const es_table *t, uint32_t item)
{
    return t->step_of == NULL ? item : t->step_of[item];
}

static inline uint64_t es_table_key(const es_table *t, uint32_t item)
{
    uint64_t word = es_table_is_implicit(t) ? t->store->steps[item].word : t->items[item].word;
    return (uint64_t)es_record_generation(word) << 32 | item;
}

/* Its steps, as they were checked: somebody may have scribbled on its record since. */
static inline es_window es_table_window(const es_table *t, uint32_t item)
{
    if (es_table_is_implicit(t))
        return es_implicit_window(&t->implicit, item);
    es_span one = {1, 0}, span = t->spans == NULL ? one : t->spans[item];
    return (es_window){.last = t->step_of[item], .length = span.length, .before = span.before};
}
/* Its record. Of an implicit item what it would be: with priority 1, never drawn, and inserted when its step arrived. */
es_item_record es_table_record(const es_table *t, uint32_t item);

uint64_t es_table_size(const es_table *t);
bool es_table_can_insert(const es_table *t, uint64_t n);
bool es_table_can_sample(const es_table *t, uint64_t n);
bool es_table_accepts(const es_table *t, double priority);

/* --- inserting ------------------------------------------------------------------- */

/* Makes room so that the other functions cannot fail: ES_OK or -ENOMEM. */
int es_table_reserve(es_table *t);
/* Whether the table takes an item of these steps that were found. Of an implicit one: see es_implicit_can_have(). */
static inline bool es_table_takes(const es_table *t, const es_window *w)
{
    return !es_table_is_implicit(t) || es_implicit_can_have(&t->implicit, w->last);
}
/* Fills the record of a new item, which is free still, and notes that it lives. Returns the item. */
uint32_t es_table_note_insert(es_table *t, const es_window *w, double priority);
/* The item, which was noted last, lives now. */
void es_table_enter(es_table *t, uint32_t item, const es_window *w, double priority);
/* The same for an item that waits until the limiter lets it in. Its steps stay meanwhile. */
bool es_table_can_park(const es_table *t, uint64_t n);
uint32_t es_table_note_park(es_table *t, const es_window *w, double priority);
void es_table_enter_parked(es_table *t, uint32_t item, const es_window *w);
static inline bool es_table_is_parked(const es_table *t, uint32_t item)
{
    return t->parked.count > 0 && es_order_has(&t->parked, item);
}
/* Lets the oldest parked item in, if the limiter does. Whether it did. */
bool es_table_unpark(es_table *t);

/* --- removing and changing --------------------------------------------------------- */

/* Removes the item that the remover picks. The table is not empty. Whether it did: a custom remover may fail. */
bool es_table_evict(es_table *t);
/* Removes an item. evicted: to make room. A step that has no items then, and that no stream keeps, goes, too. */
void es_table_remove(es_table *t, uint32_t item, bool evicted);
/* The item with that key, or ES_STEPS_NONE. */
static inline uint32_t es_table_find(const es_table *t, uint64_t key)
{
    uint32_t item = (uint32_t)key;
    return item < t->slots && es_rank_has(t->members, item) && es_table_key(t, item) == key ? item : ES_STEPS_NONE;
}
/* --- for es_table_age.c --------------------------------------------------------------- */

/* Whether its items grow old: its sampler has a hot part and a cold one. */
static inline bool es_table_ages(const es_table *t)
{
    return t->config->sampler.kind == ES_HOT_COLD;
}
/* Notes that the n hot items that were inserted first become cold. They do so by es_hot_cold_advance(). */
void es_table_note_cold(es_table *t, uint64_t n);
/* Removes an item that is too old. */
void es_table_remove_aged(es_table *t, uint32_t item);

/* --- for es_draw.c ------------------------------------------------------------------- */

es_rate_counts es_table_counts(const es_table *t);
/* The item as selectors see it. */
es_candidate es_table_candidate(const es_table *t, uint32_t item);
/* Notes that an item is no more. */
void es_table_note_free(es_table *t, uint32_t item);
/* Takes the item out of all that is private. */
void es_table_leave(es_table *t, uint32_t item);
/* It does not refer to its steps any more. Those that nothing refers to go. Their records are not in the redo list:
 * opening the store drops them. For es_table_reset.c, too. */
void es_table_let_go_of_steps(es_table *t, uint32_t item);

/* --- for es_table_recover.c ------------------------------------------------------------ */

/* Whether sampler and remover accept a priority, whatever they have accepted before. */
bool es_table_selectors_accept(const es_table *t, double priority);
/* es_table_enter() of an item as selectors see it. */
void es_table_enter_candidate(es_table *t, const es_candidate *c, const es_window *w);

/* --- resetting: es_table_reset.c ------------------------------------------------------- */

/* Removes all items, and counts from 0. */
void es_table_reset(es_table *t);

/* --- limits: es_table_limits.c --------------------------------------------------------- */

/* The limiter has the limits that the store says: whether they are possible. */
bool es_table_limits_begin(es_table *t);
/* It has others from now on: numbers, or infinite. Of a table whose items have records. Others rely on it that their
 * limiter never forbids to insert. */
void es_table_limits_set(es_table *t, const es_rate_limits *limits);

/* --- temperatures: es_table_tune.c ----------------------------------------------------- */

/* The sampler has the temperatures that the store says. */
void es_table_tune_begin(es_table *t);
/* Chooses temperatures for the effective sample size that is wanted, if so many changes have come since the last time as
 * a quarter of the items that there were. Whether they have, depends on the store alone: on its clock, which insertions
 * and updates move, and on how many items became cold, or went because of their age. It takes a pass over the table. */
void es_table_tune(es_table *t);

/* --- ageing: es_table_age.c ------------------------------------------------------------ */

/* The learner has made an update: items are one older. Some that are old enough become cold, or go. At most 4096 of
 * each, and twice as many as came since the last update: a backlog is not left for long, and no call takes it all.
 * origin: where the word of it comes from, or NULL. */
void es_table_age(es_table *t, const es_origin *origin);
/* Removes the items that were to go. */
void es_table_age_finish(es_table *t);

/* --- updating: es_table_update.c ------------------------------------------------------ */

/* Gives items priorities that the table accepts, one after the other. Returns how many different ones there were. */
uint64_t es_table_update(es_table *t, const uint64_t *keys, const double *priorities, uint64_t n);
/* In the table and in the store. For es_table_recover.c, too. */
void es_table_update_highest(es_table *t, double highest);

/* --- opening: es_table_recover.c ------------------------------------------------------ */

/* All items of the store are members now: links them, and fills the selectors. ES_OK, -ENOMEM, or ES_EDAMAGED when the
 * record of item *where cannot be. */
int es_table_recover(es_table *t, uint64_t *where);
/* After that: ends what a dead process had begun, a reset or an update. */
void es_table_recover_finish(es_table *t);

#endif
