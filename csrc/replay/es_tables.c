#include "replay/es_tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/es_gather.h"
#include "replay/es_sort.h"
#include "replay/es_window.h"

static uint64_t living_items(const es_tables *m)
{
    uint64_t sum = 0;
    for (uint32_t t = 0; t < m->num_tables; t++)
        sum += es_table_size(&m->table[t]);
    return sum;
}

static uint64_t living_steps(const es_tables *m)
{
    return es_rank_count(m->steps.living);
}

/* --- what goes when there is no room -------------------------------------------------- */

/* The table of an item, by its place among all items. */
static es_table *table_of(const es_tables *m, uint32_t item)
{
    uint32_t t = 0;
    while (item >= m->store.first_item[t + 1])
        t++;
    return &m->table[t];
}

static bool can_go(const es_tables *m, uint32_t item)
{
    const es_table *t = table_of(m, item);
    return !t->config->is_protected && !es_table_is_parked(t, (uint32_t)(item - t->first_item));
}

/* An item that can go, of the oldest step that has one, or ES_STEPS_NONE. Open steps before it have parked items only. */
static uint32_t oldest_that_can_go(const es_tables *m)
{
    for (uint32_t step = m->steps.open.first; step != ES_STEPS_NONE; step = es_order_next(&m->steps.open, step))
        for (uint32_t i = es_steps_first_item(&m->steps, step); i != ES_STEPS_NONE;
             i = es_steps_next_item(&m->steps, i))
            if (can_go(m, i))
                return i;
    return ES_STEPS_NONE;
}

/* Whether at least n items can go. */
static bool can_lose(const es_tables *m, uint64_t n)
{
    uint64_t found = 0;
    for (uint32_t step = m->steps.open.first; step != ES_STEPS_NONE && found < n;
         step = es_order_next(&m->steps.open, step))
        for (uint32_t i = es_steps_first_item(&m->steps, step); i != ES_STEPS_NONE;
             i = es_steps_next_item(&m->steps, i))
            found += can_go(m, i);
    return found >= n;
}

/* A step that no item refers to, and that its stream has kept since before that item's last step came; item: or
 * ES_STEPS_NONE, for any. Without this, each writer that ever was would keep steps, and the tables would shrink. */
static uint32_t kept_longer_than(const es_tables *m, uint32_t item)
{
    uint32_t idle = m->steps.bare.first;
    if (idle == ES_STEPS_NONE || item == ES_STEPS_NONE)
        return idle;
    const es_table *t = table_of(m, item);
    uint64_t limit = m->store.steps[t->step_of[item - t->first_item]].arrival;
    return m->store.steps[idle].arrival < limit ? idle : ES_STEPS_NONE;
}

static void evict_item(es_tables *m, uint32_t item)
{
    es_table *t = table_of(m, item);
    es_table_remove(t, (uint32_t)(item - t->first_item), true);
}

/* Brings the numbers of items within their limits again: false if that cannot be. */
static bool settle_items(es_tables *m)
{
    for (uint32_t t = 0; t < m->num_tables; t++)
        while (es_table_size(&m->table[t]) > m->table[t].config->max_size)
            if (!es_table_evict(&m->table[t]))
                return false;
    while (living_items(m) > m->store.max_items) {
        uint32_t item = oldest_that_can_go(m);
        if (item == ES_STEPS_NONE)
            return false;
        evict_item(m, item);
    }
    return true;
}

/* Brings everything within its limits again. What it does depends on the store alone, so whoever opens the store after
 * a kill goes on with it. */
static void settle(es_tables *m)
{
    uint32_t item;
    if (!settle_items(m))
        return;
    while (living_steps(m) > m->store.capacity) {
        item = oldest_that_can_go(m);
        uint32_t idle = kept_longer_than(m, item);
        if (idle != ES_STEPS_NONE)
            es_steps_drop(&m->steps, idle);
        else if (item != ES_STEPS_NONE)
            evict_item(m, item); /* one at a time: after a kill nobody knows which ones were to go with it */
        else
            return;
    }
}

/* Nothing could go for a step that came, perhaps, and something can by now. */
static void use_room(es_tables *m)
{
    if (living_steps(m) > m->store.capacity)
        settle(m);
}

/* --- inserting ------------------------------------------------------------------------ */

static bool is_full(const es_table *t)
{
    return es_table_size(t) >= t->config->max_size;
}

/* A step that is to be stored, and the items that it completes. */
typedef struct es_newcomer {
    const es_step_head *head;
    const double *priorities;
    es_arrival arrival;
    uint64_t items[ES_MAX_TABLES]; /* how many in each table */
    uint64_t steps; /* 1; 2: with what its episode ends with; 0: that, its place was found with the step before */
    bool park;      /* an item that its table's limiter forbids is parked */
} es_newcomer;

static bool is_many(const es_table *t)
{
    return t->config->item.kind != ES_ITEM_STEP;
}

static void count_items(const es_tables *m, es_newcomer *c)
{
    if (m->store.keep > 1)
        c->arrival = es_window_arrival(&m->steps, c->head, ES_STEPS_NONE);
    for (uint32_t t = 0; t < m->num_tables; t++) {
        const es_table *table = &m->table[t];
        uint64_t n =
            is_many(table) ? es_window_count(&table->config->item, &c->arrival) : (c->head->flags & ES_STEP_FINAL) == 0;
        c->items[t] = isnan(c->priorities[t]) ? 0 : n;
    }
}

/* Whether something can go for this step and its items, or nothing has to. A table that is full loses as many items
 * as it gets. Records beyond capacity make this simple: they are in use only if what has gone has freed no step. */
static bool has_room(const es_tables *m, const es_newcomer *c)
{
    bool some_full = false;
    uint64_t items = living_items(m), fixed = 0, steps = living_steps(m); /* items: as many as there will be */
    for (uint32_t t = 0; t < m->num_tables; t++) {
        const es_table *table = &m->table[t];
        uint64_t size = es_table_size(table), room = is_full(table) ? 0 : table->config->max_size - size;
        uint64_t more = c->items[t] < room ? c->items[t] : room;
        some_full |= c->items[t] > room;
        items += more;
        if (table->config->is_protected)
            fixed += size + more;
    }
    if (steps > m->store.capacity + (c->steps == 0) || fixed > m->store.max_items)
        return false;
    if (c->steps == 0) /* what there was to lose may have gone for the step before: then its items go at once */
        return true;
    bool no_row = steps + c->steps > m->store.capacity && m->steps.bare.count == 0 && !some_full;
    uint64_t too_many = items > m->store.max_items ? items - m->store.max_items : 0;
    return (!no_row && too_many == 0) || can_lose(m, too_many > 0 ? too_many : 1);
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
    return has_room(m, c) ? ES_OK : ES_NO_ROOM;
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
    record->index = head->index;
    es_redo_set(&m->store.redo, &record->word, es_record_word(generation, head->flags, ES_RECORD_LIVE));
    es_redo_set(&m->store.redo, &hdr->arrivals, hdr->arrivals + 1);
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
        all += is_many(&m->table[t]) ? c->items[t] : 0;
    for (uint32_t t = 0; t < m->num_tables; t++) {
        es_table *table = &m->table[t];
        for (uint32_t i = 0; is_many(table) && i < c->items[t]; i++) {
            if (made++ < before)
                continue;
            settle_items(m); /* the record of one more item is all that a table has beyond its limits */
            if (m->failed)
                return;
            es_window w = es_window_nth(&table->config->item, &c->arrival, i);
            es_noted noted = note_item(table, &w, c->priorities[t], c->park);
            es_redo_set(redo, &making->made, made);
            if (made == all)
                es_redo_set(redo, &making->step, 0);
            es_redo_commit(redo);
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
        if (is_many(&m->table[t]) && c->items[t] > 0)
            return true;
    return false;
}

/* A dead process was making a step's items. ES_OK or ES_EDAMAGED. */
static int make_missing_items(es_tables *m)
{
    es_making_words making = *(volatile es_making_words *)&m->store.hdr->making;
    if (making.step == 0)
        return ES_OK;
    uint32_t step = (uint32_t)(making.step - 1);
    if (m->store.keep == 1 || making.step > m->store.step_slots || !es_rank_has(m->steps.living, step))
        return ES_EDAMAGED;
    const es_step_record *record = &m->store.steps[step];
    es_step_head head = es_step_head_of(record);
    es_newcomer c = {.head = &head, .priorities = making.priorities, .park = making.park != 0};
    c.arrival = es_window_arrival(&m->steps, &head, step);
    for (uint32_t t = 0; t < m->num_tables; t++) {
        es_table *table = &m->table[t];
        double priority = making.priorities[t];
        if (!isnan(priority) && !(priority < 0) && !es_table_accepts(table, priority))
            return ES_EDAMAGED;
        if (is_many(table) && !isnan(priority))
            c.items[t] = es_window_count(&table->config->item, &c.arrival);
    }
    make_items(m, &c);
    if (!m->failed) /* it may be all made, if somebody has scribbled on the count */
        *(volatile uint64_t *)&m->store.hdr->making.step = 0;
    return ES_OK;
}

/* --- steps ------------------------------------------------------------------------------ */

int es_tables_add(es_tables *m, const es_step_head *head, const void *const *leaves, uint64_t i,
                  const double *priorities, const es_origin *origin, es_trouble *why)
{
    bool has_place = origin == NULL && head->flags & ES_STEP_FINAL; /* es_tables_can_add_last() has said so */
    es_newcomer c = {.head = head, .priorities = priorities, .steps = !has_place, .park = origin != NULL};
    if (m->failed)
        return ES_ESELECTOR;
    use_room(m);
    count_items(m, &c);
    int code = check(m, &c, why);
    if (code == ES_OK)
        code = reserve(m);
    if (code != ES_OK)
        return code;
    uint32_t step = es_steps_next(&m->steps);
    es_window alone = es_window_of_step(step);
    es_noted noted[ES_MAX_TABLES];
    bool many = makes_items(m, &c);
    es_gather_into_row(&m->store, es_store_row(&m->store, step), leaves, i);
    note_step(m, step, head);
    if (origin != NULL)
        es_redo_set(&m->store.redo, origin->word, origin->value);
    for (uint32_t t = 0; t < m->num_tables; t++)
        if (c.items[t] > 0 && !is_many(&m->table[t]))
            noted[t] = note_item(&m->table[t], &alone, priorities[t], c.park);
    if (many)
        note_making(m, &c, step);
    es_redo_commit(&m->store.redo);
    es_steps_enter(&m->steps, step, head);
    for (uint32_t t = 0; t < m->num_tables; t++)
        if (c.items[t] > 0 && !is_many(&m->table[t]))
            enter_item(&m->table[t], &noted[t]);
    if (many) {
        c.arrival = es_window_arrival(&m->steps, head, step);
        make_items(m, &c);
    }
    es_steps_trim(&m->steps, step);
    settle(m);
    return m->failed ? ES_ESELECTOR : ES_OK;
}

int es_tables_can_add_last(es_tables *m, const es_step_head *head, const double *priorities, es_trouble *why)
{
    es_newcomer c = {.head = head, .priorities = priorities, .steps = 2};
    es_arrival last = {.left = {.last = ES_STEPS_NONE}};
    if (m->failed)
        return ES_ESELECTOR;
    use_room(m);
    count_items(m, &c);
    last.own = c.arrival.own;
    last.own.event = ES_EVENT_FINAL;
    last.own.index++;
    last.own.run += last.own.run < m->store.keep;
    for (uint32_t t = 0; t < m->num_tables; t++)
        if (is_many(&m->table[t]) && !isnan(priorities[t]))
            c.items[t] += es_window_count(&m->table[t].config->item, &last);
    return check(m, &c, why);
}

/* Whether the store has room for one more item of that table, or something can go for it. */
static bool has_room_for_item(const es_tables *m, const es_table *t)
{
    return is_full(t) || living_items(m) < m->store.max_items || can_lose(m, 1);
}

uint64_t es_tables_unpark(es_tables *m)
{
    uint64_t in = 0;
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (es_table *table = &m->table[t];
             table->parked.count > 0 && has_room_for_item(m, table) && es_table_unpark(table); in++)
            settle(m);
    return in;
}

uint64_t es_tables_parked(const es_tables *m)
{
    uint64_t parked = 0;
    for (uint32_t t = 0; t < m->num_tables; t++)
        parked += m->table[t].parked.count;
    return parked;
}

/* --- opening ---------------------------------------------------------------------------- */

static bool step_is_possible(const es_tables *m, const es_step_record *record)
{
    return es_record_state(record->word) == ES_RECORD_LIVE && record->arrival < m->store.hdr->arrivals;
}

/* All living steps, in order of arrival. */
static int recover_steps(es_tables *m, es_sort_pair *order, uint64_t *n, es_trouble *why)
{
    *n = 0;
    for (uint64_t i = 0; i < m->store.step_slots; i++) {
        es_step_record record = *(volatile es_step_record *)&m->store.steps[i];
        if (es_record_state(record.word) == ES_RECORD_FREE)
            continue;
        why->index = i;
        if (!step_is_possible(m, &record))
            return ES_EDAMAGED;
        order[(*n)++] = (es_sort_pair){.key = record.arrival, .number = (uint32_t)i};
    }
    int code = es_sort(order, *n);
    for (uint64_t i = 0; i < *n && code == ES_OK; i++) {
        const es_step_record *record = &m->store.steps[order[i].number];
        es_step_head head = es_step_head_of(record);
        code = es_steps_reserve(&m->steps);
        if (code == ES_OK)
            es_steps_enter(&m->steps, order[i].number, &head);
    }
    return code;
}

static int recover_tables(es_tables *m, es_trouble *why)
{
    int code = ES_OK;
    for (uint32_t t = 0; t < m->num_tables && code == ES_OK; t++) {
        uint64_t item = 0;
        code = es_table_reserve(&m->table[t]);
        if (code == ES_OK)
            code = es_table_recover(&m->table[t], &item);
        why->table = t;
        why->index = m->store.step_slots + item;
    }
    return code;
}

/* Makes the tables, empty. custom: two of them for each table, or fewer. */
static int make_tables(es_tables *m, const es_custom_selector *custom, uint32_t num_custom, es_trouble *why)
{
    static const es_custom_selector none[2];
    m->table = calloc(m->store.num_tables, sizeof *m->table);
    if (m->table == NULL)
        return -ENOMEM;
    for (uint32_t t = 0; t < m->store.num_tables; t++) {
        const es_custom_selector *mine = num_custom / 2 > t ? &custom[2 * t] : none;
        const es_table_config *config = &m->store.tables[t];
        why->table = t;
        if ((config->sampler.kind == ES_CUSTOM && mine[0].self == NULL) ||
            (config->remover.kind == ES_CUSTOM && mine[1].self == NULL))
            return ES_ENOSELECTOR;
        m->num_tables++;
        if (es_table_init(&m->table[t], &m->store, &m->steps, t, mine, &m->failed) != ES_OK)
            return -ENOMEM;
    }
    return ES_OK;
}

int es_tables_open(es_tables *m, void *base, uint64_t size, const es_custom_selector *custom, uint32_t num_custom,
                   es_trouble *why)
{
    *m = (es_tables){.num_tables = 0};
    int code = es_store_map(&m->store, base, size);
    if (code != ES_OK || (code = es_redo_recover(&m->store.redo)) != ES_OK ||
        (code = es_steps_init(&m->steps, &m->store)) != ES_OK ||
        (code = make_tables(m, custom, num_custom, why)) != ES_OK)
        return code;
    es_sort_pair *order = malloc(m->store.step_slots * sizeof *order);
    uint64_t n = 0;
    m->steps.recovering = true;
    code = order == NULL ? -ENOMEM : recover_steps(m, order, &n, why);
    if (code == ES_OK)
        code = recover_tables(m, why);
    if (code == ES_OK && !m->failed) {
        es_steps_sort(&m->steps, order, n);
        code = make_missing_items(m);
    }
    if (code == ES_OK && !m->failed) {
        es_steps_trim_all(&m->steps, order, n);
        for (uint32_t t = 0; t < m->num_tables; t++)
            if (m->table[t].words->resetting)
                es_table_reset(&m->table[t]);
        settle(m);
        es_tables_unpark(m);
    }
    free(order);
    return code == ES_OK && m->failed ? ES_ESELECTOR : code;
}

void es_tables_close(es_tables *m)
{
    for (uint32_t t = 0; t < m->num_tables; t++)
        es_table_free(&m->table[t]);
    free(m->table);
    es_steps_free(&m->steps);
    es_store_unmap(&m->store);
}
