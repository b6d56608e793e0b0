#include "replay/es_insert.h"

#include <math.h>
#include <string.h>

#include "replay/es_gather.h"
#include "replay/es_room.h"
#include "replay/es_save.h"
#include "replay/es_window.h"

/* A step that is to be stored, and the items that it completes. */
typedef struct es_newcomer {
    const es_step_head *head;
    const double *priorities;
    es_arrival arrival;
    uint64_t items[ES_MAX_TABLES]; /* how many in each table */
    uint64_t steps; /* 1; 2: with what its episode ends with; 0: that, room was found with the step before */
    bool park;      /* an item that its table's limiter forbids is parked */
} es_newcomer;

static void count_items(const es_tables *m, es_newcomer *c)
{
    if (m->store.keep > 1)
        c->arrival = es_window_arrival(&m->steps, c->head, ES_STEPS_NONE);
    for (uint32_t t = 0; t < m->num_tables; t++) {
        const es_table *table = &m->table[t];
        uint64_t n = es_table_is_of_many(table) ? es_window_count(&table->config->item, &c->arrival)
                                                : (c->head->flags & ES_STEP_FINAL) == 0;
        c->items[t] = isnan(c->priorities[t]) ? 0 : n;
    }
}

/* Whether n more items get into the table now. What is parked comes first. */
static bool lets_in(const es_table *t, uint64_t n, bool park)
{
    return es_table_can_insert(t, n) && !(park && t->parked.count > 0);
}

/* Items find their steps by the links between them: one that came between two of them would be taken for the first. */
static bool comes_again(const es_tables *m, const es_step_head *head)
{
    return m->store.keep > 1 && es_steps_has(&m->steps, head->stream, head->environment, head->number);
}

static int check(const es_tables *m, const es_newcomer *c, es_trouble *why)
{
    if (comes_again(m, c->head))
        return ES_ETWICE;
    for (uint32_t t = 0; t < m->num_tables; t++) {
        double priority = c->priorities[t];
        why->table = t;
        if (isnan(priority))
            continue;
        if (!(priority < 0) && !es_table_accepts(&m->table[t], priority))
            return ES_EPRIORITY;
        if (c->items[t] > 0 && !lets_in(&m->table[t], c->items[t], c->park) &&
            !(c->park && es_table_can_park(&m->table[t], c->items[t])))
            return ES_REFUSED;
    }
    bool room = c->steps == 0 ? es_room_was_found(m, c->items) : es_room_for(m, c->steps, c->items);
    return room ? ES_OK : ES_NO_ROOM;
}

static int reserve(es_tables *m)
{
    int code = es_steps_reserve(&m->steps);
    for (uint32_t t = 0; t < m->num_tables && code == ES_OK; t++)
        code = es_table_reserve(&m->table[t]);
    return code;
}

/* Fills the step's record, which is free still, and notes that it lives. */
static void note_step(es_tables *m, uint32_t step, const es_step_head *head)
{
    es_step_record *record = &m->store.steps[step];
    es_store_header *hdr = m->store.hdr;
    uint32_t generation = es_record_generation(record->word) + 1;
    record->stream = head->stream;
    record->number = head->number;
    record->environment = head->environment;
    record->episode = head->episode;
    record->arrival = hdr->arrivals;
    record->version = head->version;
    m->store.dated |= head->version != 0;
    record->index = head->index;
    es_redo_set(&m->store.redo, &record->word, es_record_word(generation, head->flags, ES_RECORD_LIVE));
    es_redo_set(&m->store.redo, &hdr->arrivals, hdr->arrivals + 1);
}

/* The step before says how the episode ends, too. */
static void note_end(es_tables *m, const es_step_head *final)
{
    uint32_t last = es_steps_last(&m->steps, final->stream, final->environment);
    if (last == ES_STEPS_NONE)
        return;
    const es_step_record *record = &m->store.steps[last];
    uint32_t ends = (final->flags & ES_STEP_TERMINATED ? ES_STEP_ENDS_TERMINATED : 0) |
                    (final->flags & ES_STEP_TRUNCATED ? ES_STEP_ENDS_TRUNCATED : 0);
    if (record->number + 1 == final->number && record->episode == final->episode)
        es_redo_set(&m->store.redo, &record->word, record->word | es_record_word(0, ends, 0));
}

/* What is noted of an item until it is in its table. */
typedef struct es_noted {
    es_window window;
    double priority;
    uint32_t item;
    bool parked;
} es_noted;

static es_noted note_item(es_table *t, const es_window *w, double priority, bool park)
{
    es_noted n = {.window = *w, .priority = priority < 0 ? t->highest : priority, .parked = !lets_in(t, 1, park)};
    n.item = (n.parked ? es_table_note_park : es_table_note_insert)(t, w, n.priority);
    return n;
}

static void enter_item(es_table *t, const es_noted *n)
{
    if (n->parked)
        es_table_enter_parked(t, n->item, &n->window);
    else
        es_table_enter(t, n->item, &n->window, n->priority);
}

/* --- items of several steps ----------------------------------------------------------- */

/* Makes the items of a step that is stored, from the one on that is not made yet: one after the other, each together
 * with the count of those that are made. */
static void make_items(es_tables *m, const es_newcomer *c)
{
    es_making_words *making = &m->store.hdr->making;
    es_redo *redo = &m->store.redo;
    uint64_t all = 0, made = 0, before = making->made;
    for (uint32_t t = 0; t < m->num_tables; t++)
        all += es_table_is_of_many(&m->table[t]) ? c->items[t] : 0;
    for (uint32_t t = 0; t < m->num_tables; t++) {
        es_table *table = &m->table[t];
        for (uint32_t i = 0; es_table_is_of_many(table) && i < c->items[t]; i++) {
            if (made++ < before)
                continue;
            es_room_settle_items(m); /* the record of one more item is all that a table has beyond its limits */
            if (m->failed)
                return;
            es_window w = es_window_nth(&table->config->item, &c->arrival, i);
            bool takes = es_table_takes(table, &w);
            es_noted noted = {.parked = false};
            if (takes)
                noted = note_item(table, &w, c->priorities[t], c->park);
            es_redo_set(redo, &making->made, made);
            if (made == all)
                es_redo_set(redo, &making->step, 0);
            es_redo_commit(redo);
            if (takes)
                enter_item(table, &noted);
        }
    }
}

/* Notes that a step's items are to be made. */
static void note_making(es_tables *m, const es_newcomer *c, uint32_t step)
{
    es_making_words *making = &m->store.hdr->making;
    memcpy(making->priorities, c->priorities, m->num_tables * sizeof *making->priorities);
    making->park = c->park;
    es_redo_set(&m->store.redo, &making->made, 0);
    es_redo_set(&m->store.redo, &making->step, (uint64_t)step + 1);
}

static bool makes_items(const es_tables *m, const es_newcomer *c)
{
    for (uint32_t t = 0; t < m->num_tables; t++)
        if (es_table_is_of_many(&m->table[t]) && c->items[t] > 0)
            return true;
    return false;
}

int es_insert_finish(es_tables *m)
{
    es_making_words making = *(volatile es_making_words *)&m->store.hdr->making;
    if (making.step == 0)
        return ES_OK;
    uint32_t step = (uint32_t)(making.step - 1);
    if (m->store.keep == 1 || making.step > m->store.step_slots || !es_rank_has(m->steps.living, step))
        return ES_EDAMAGED;
    const es_step_record *record = &m->store.steps[step];
    es_step_head head = es_steps_head_of(record);
    es_newcomer c = {.head = &head, .priorities = making.priorities, .park = making.park != 0};
    c.arrival = es_window_arrival(&m->steps, &head, step);
    for (uint32_t t = 0; t < m->num_tables; t++) {
        es_table *table = &m->table[t];
        double priority = making.priorities[t];
        if (!isnan(priority) && !(priority < 0) && !es_table_accepts(table, priority))
            return ES_EDAMAGED;
        if (es_table_is_of_many(table) && !isnan(priority))
            c.items[t] = es_window_count(&table->config->item, &c.arrival);
    }
    make_items(m, &c);
    if (!m->failed) /* it may be all made, if somebody has scribbled on the count */
        *(volatile uint64_t *)&m->store.hdr->making.step = 0;
    return ES_OK;
}

/* --- steps ------------------------------------------------------------------------------ */

/* A step came late: items of the steps around it may refer to it. */
static void note_arrival(es_tables *m, uint32_t step)
{
    if (m->steps.links == NULL || m->steps.links[step].newer == 0)
        return;
    for (uint32_t t = 0; t < m->num_tables; t++)
        if (es_table_is_implicit(&m->table[t]))
            es_implicit_arrived(&m->table[t].implicit, step);
}

int es_insert_step(es_tables *m, const es_step_head *head, const void *const *leaves, uint64_t i,
                   const double *priorities, const es_origin *origin, es_trouble *why)
{
    bool has_place = origin == NULL && head->flags & ES_STEP_FINAL; /* es_insert_can_end() has said so */
    es_newcomer c = {.head = head, .priorities = priorities, .steps = !has_place, .park = origin != NULL};
    if (m->failed)
        return ES_ESELECTOR;
    es_room_use(m);
    count_items(m, &c);
    int code = check(m, &c, why);
    if (code == ES_OK)
        code = reserve(m);
    if (code != ES_OK)
        return code;
    uint32_t step = es_steps_next(&m->steps);
    if (step == ES_STEPS_NONE)
        return ES_UNSYNCED;
    es_window alone = es_window_of_step(step);
    es_noted noted[ES_MAX_TABLES];
    bool many = makes_items(m, &c);
    if (m->save != NULL)
        es_save_before(m->save, &m->store, step);
    es_gather_into_step(&m->store, step, leaves, i);
    note_step(m, step, head);
    if (head->flags & ES_STEP_FINAL)
        note_end(m, head);
    if (origin != NULL)
        es_redo_set(&m->store.redo, origin->word, origin->value);
    for (uint32_t t = 0; t < m->num_tables; t++)
        if (c.items[t] > 0 && !es_table_is_of_many(&m->table[t]))
            noted[t] = note_item(&m->table[t], &alone, priorities[t], c.park);
    if (many)
        note_making(m, &c, step);
    es_redo_commit(&m->store.redo);
    es_steps_enter(&m->steps, step, head);
    note_arrival(m, step);
    for (uint32_t t = 0; t < m->num_tables; t++)
        if (c.items[t] > 0 && !es_table_is_of_many(&m->table[t]))
            enter_item(&m->table[t], &noted[t]);
    if (many) {
        c.arrival = es_window_arrival(&m->steps, head, step);
        make_items(m, &c);
    }
    if (m->failed) /* whoever opens the store makes what is missing: the step must be there */
        return ES_ESELECTOR;
    es_steps_trim(&m->steps, step);
    es_room_settle(m);
    return m->failed ? ES_ESELECTOR : ES_OK;
}

int es_insert_item(es_tables *m, const es_explicit_item *item, const es_origin *origin, es_trouble *why)
{
    es_table *t = &m->table[item->table];
    es_newcomer c = {.priorities = &item->priority, .park = origin != NULL};
    es_window w = {.length = item->length};
    w.last = es_steps_find(&m->steps, item->stream, item->environment, item->number);
    why->table = item->table;
    if (m->failed)
        return ES_ESELECTOR;
    if (w.last == ES_STEPS_NONE || !es_window_is_possible(&t->config->item, &m->steps, &w) ||
        !es_outputs_can_have(&t->form, item->columns, item->length))
        return ES_EXPIRED;
    if (!(item->priority < 0) && !es_table_accepts(t, item->priority))
        return ES_EPRIORITY;
    if (!lets_in(t, 1, c.park) && !(c.park && es_table_can_park(t, 1)))
        return ES_REFUSED;
    c.items[item->table] = 1;
    if (!es_room_for(m, 0, c.items))
        return ES_NO_ROOM;
    es_noted noted = note_item(t, &w, item->priority, c.park);
    memcpy(es_table_columns(t, noted.item), item->columns, t->form.num_outputs * sizeof *item->columns);
    if (origin != NULL)
        es_redo_set(&m->store.redo, origin->word, origin->value);
    es_redo_commit(&m->store.redo);
    enter_item(t, &noted);
    es_room_settle(m);
    return m->failed ? ES_ESELECTOR : ES_OK;
}

int es_insert_can_end(es_tables *m, const es_step_head *head, const double *priorities, es_trouble *why)
{
    es_newcomer c = {.head = head, .priorities = priorities, .steps = 2};
    es_arrival last = {.left = {.last = ES_STEPS_NONE}};
    if (m->failed)
        return ES_ESELECTOR;
    es_room_use(m);
    count_items(m, &c);
    last.own = c.arrival.own;
    last.own.event = ES_EVENT_FINAL;
    last.own.index++;
    last.own.run += last.own.run < m->store.keep;
    for (uint32_t t = 0; t < m->num_tables; t++)
        if (es_table_is_of_many(&m->table[t]) && !isnan(priorities[t]))
            c.items[t] += es_window_count(&m->table[t].config->item, &last);
    if (m->steps.hold.some && es_hold_room(&m->steps.hold) < 2)
        return ES_UNSYNCED;
    return check(m, &c, why);
}

/* --- parked items ---------------------------------------------------------------------- */

uint64_t es_insert_unpark(es_tables *m)
{
    uint64_t in = 0;
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (es_table *table = &m->table[t];
             table->parked.count > 0 && es_room_for_item(m, table) && es_table_unpark(table); in++)
            es_room_settle(m);
    return in;
}

uint64_t es_insert_parked(const es_tables *m)
{
    uint64_t parked = 0;
    for (uint32_t t = 0; t < m->num_tables; t++)
        parked += m->table[t].parked.count;
    return parked;
}
