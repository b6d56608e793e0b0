#include "replay/es_tables.h"

#include <math.h>
#include <stdlib.h>

#include "replay/es_gather.h"
#include "replay/es_sort.h"

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

/* A step without items that an idle stream keeps since before that item's step came; item: or ES_STEPS_NONE, for any.
 * Without this, each writer that ever was would keep a step, and the tables would shrink. */
static uint32_t kept_longer_than(es_tables *m, uint32_t item)
{
    uint64_t limit = UINT64_MAX;
    if (item != ES_STEPS_NONE) {
        const es_table *t = table_of(m, item);
        limit = m->store.steps[t->step_of[item - t->first_item]].arrival;
    }
    if (m->steps.kept == 0 || m->steps.kept_from >= limit)
        return ES_STEPS_NONE;
    uint32_t idle = es_steps_idlest(&m->steps);
    return idle != ES_STEPS_NONE && m->store.steps[idle].arrival < limit ? idle : ES_STEPS_NONE;
}

static void evict_item(es_tables *m, uint32_t item)
{
    es_table *t = table_of(m, item);
    es_table_remove(t, (uint32_t)(item - t->first_item), true);
}

/* Brings everything within its limits again. What it does depends on the store alone, so whoever opens the store after
 * a kill goes on with it. */
static void settle(es_tables *m)
{
    uint32_t item;
    for (uint32_t t = 0; t < m->num_tables; t++)
        while (es_table_size(&m->table[t]) > m->table[t].config->max_size)
            if (!es_table_evict(&m->table[t]))
                return;
    for (;;) {
        bool no_row = living_steps(m) > m->store.capacity;
        if (!no_row && living_items(m) <= m->store.max_items)
            return;
        item = oldest_that_can_go(m);
        uint32_t idle = no_row ? kept_longer_than(m, item) : ES_STEPS_NONE;
        if (idle != ES_STEPS_NONE)
            es_steps_drop(&m->steps, idle);
        else if (item != ES_STEPS_NONE)
            evict_item(m, item); /* one at a time: after a kill nobody knows which ones were to go with it */
        else
            return;
    }
}

/* --- inserting ------------------------------------------------------------------------ */

static bool is_full(const es_table *t)
{
    return es_table_size(t) >= t->config->max_size;
}

/* Whether something can go for this step and its items, or nothing has to. A table that is full loses as many items
 * as it gets. One record more than capacity makes this simple: it is in use only if what a remover picked has freed no
 * step. */
static bool has_room(const es_tables *m, const double *priorities)
{
    bool some_full = false;
    uint64_t items = living_items(m), fixed = 0, steps = living_steps(m); /* items: as many as there will be */
    for (uint32_t t = 0; t < m->num_tables; t++) {
        bool taken = !isnan(priorities[t]), full = is_full(&m->table[t]);
        some_full |= taken && full;
        items += taken && !full;
        if (m->table[t].config->is_protected)
            fixed += es_table_size(&m->table[t]) + (taken && !full);
    }
    if (steps > m->store.capacity || fixed > m->store.max_items)
        return false;
    if ((steps < m->store.capacity || m->steps.kept > 0 || some_full) && items <= m->store.max_items)
        return true;
    return oldest_that_can_go(m) != ES_STEPS_NONE;
}

/* Whether the next item gets into the table now. What is parked comes first. */
static bool lets_in(const es_table *t, bool park)
{
    return es_table_can_insert(t, 1) && !(park && t->parked.count > 0);
}

static int check(const es_tables *m, const double *priorities, bool park, es_trouble *why)
{
    for (uint32_t t = 0; t < m->num_tables; t++) {
        double priority = priorities[t];
        why->table = t;
        if (isnan(priority))
            continue;
        if (!(priority < 0) && !es_table_accepts(&m->table[t], priority))
            return ES_EPRIORITY;
        if (!lets_in(&m->table[t], park) && !(park && es_table_can_park(&m->table[t])))
            return ES_REFUSED;
    }
    return has_room(m, priorities) ? ES_OK : ES_NO_ROOM;
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
    es_redo_set(&m->store.redo, &record->word, es_record_word(generation, head->flags, ES_RECORD_LIVE));
    es_redo_set(&m->store.redo, &hdr->arrivals, hdr->arrivals + 1);
}

int es_tables_add(es_tables *m, const es_step_head *head, const void *const *leaves, uint64_t i,
                  const double *priorities, const es_origin *origin, es_trouble *why)
{
    int code = m->failed ? ES_ESELECTOR : check(m, priorities, origin != NULL, why);
    if (code == ES_OK)
        code = reserve(m);
    if (code != ES_OK)
        return code;
    uint32_t step = es_steps_next(&m->steps), items[ES_MAX_TABLES];
    double given[ES_MAX_TABLES];
    bool parked[ES_MAX_TABLES];
    es_gather_into_row(&m->store, es_store_row(&m->store, step), leaves, i);
    note_step(m, step, head);
    if (origin != NULL)
        es_redo_set(&m->store.redo, origin->word, origin->value);
    for (uint32_t t = 0; t < m->num_tables; t++) {
        es_table *table = &m->table[t];
        given[t] = priorities[t] < 0 ? table->highest : priorities[t];
        parked[t] = !lets_in(table, origin != NULL);
        if (!isnan(given[t]))
            items[t] = (parked[t] ? es_table_note_park : es_table_note_insert)(table, step, given[t]);
    }
    es_redo_commit(&m->store.redo);
    uint32_t before = es_steps_enter(&m->steps, step, head);
    for (uint32_t t = 0; t < m->num_tables; t++) {
        if (isnan(given[t]))
            continue;
        if (parked[t])
            es_table_enter_parked(&m->table[t], items[t], step);
        else
            es_table_enter(&m->table[t], items[t], step, given[t]);
    }
    if (before != ES_STEPS_NONE)
        es_steps_drop_if_unused(&m->steps, before);
    settle(m);
    return m->failed ? ES_ESELECTOR : ES_OK;
}

uint64_t es_tables_unpark(es_tables *m)
{
    uint64_t in = 0;
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (; es_table_unpark(&m->table[t]); in++)
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
        es_step_head head = {.stream = record->stream,
                             .number = record->number,
                             .environment = record->environment,
                             .episode = record->episode};
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

/* Steps that a dead process was about to drop. */
static void drop_unused(es_tables *m, const es_sort_pair *order, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        es_steps_drop_if_unused(&m->steps, order[i].number);
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
    code = order == NULL ? -ENOMEM : recover_steps(m, order, &n, why);
    if (code == ES_OK)
        code = recover_tables(m, why);
    if (code == ES_OK && !m->failed) {
        es_steps_reorder(&m->steps, order, n);
        drop_unused(m, order, n);
        for (uint32_t t = 0; t < m->num_tables; t++)
            es_table_finish(&m->table[t]);
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
