#include "replay/es_room.h"

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
    uint64_t limit = m->store.steps[es_table_step_of(t, (uint32_t)(item - t->first_item))].arrival;
    return m->store.steps[idle].arrival < limit ? idle : ES_STEPS_NONE;
}

static void evict_item(es_tables *m, uint32_t item)
{
    es_table *t = table_of(m, item);
    es_table_remove(t, (uint32_t)(item - t->first_item), true);
}

bool es_room_settle_items(es_tables *m)
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

/* Brings the store within its limits. */
static void settle(es_tables *m)
{
    uint32_t item;
    if (!es_room_settle_items(m))
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

void es_room_settle(es_tables *m)
{
    settle(m);
    for (uint32_t t = 0; t < m->num_tables; t++)
        es_table_tune(&m->table[t]);
}

/* --- what comes ------------------------------------------------------------------------ */

static bool is_full(const es_table *t)
{
    return es_table_size(t) >= t->config->max_size;
}

/* How many items there will be. */
typedef struct es_totals {
    uint64_t all, fixed; /* fixed: those that are protected */
    bool some_full;      /* a table loses some of its own */
} es_totals;

static es_totals totals_with(const es_tables *m, const uint64_t *newcomers)
{
    es_totals sum = {.all = living_items(m)};
    for (uint32_t t = 0; t < m->num_tables; t++) {
        const es_table *table = &m->table[t];
        uint64_t size = es_table_size(table), room = is_full(table) ? 0 : table->config->max_size - size;
        uint64_t more = newcomers[t] < room ? newcomers[t] : room;
        sum.some_full |= newcomers[t] > room;
        sum.all += more;
        if (table->config->is_protected)
            sum.fixed += size + more;
    }
    return sum;
}

bool es_room_for(const es_tables *m, uint64_t steps, const uint64_t *newcomers)
{
    es_totals sum = totals_with(m, newcomers);
    uint64_t rows = living_steps(m), too_many = sum.all > m->store.max_items ? sum.all - m->store.max_items : 0;
    if ((steps > 0 && rows > m->store.capacity) || sum.fixed > m->store.max_items)
        return false;
    bool no_row = steps > 0 && rows + steps > m->store.capacity && m->steps.bare.count == 0 && !sum.some_full;
    return (!no_row && too_many == 0) || can_lose(m, too_many > 0 ? too_many : 1);
}

bool es_room_was_found(const es_tables *m, const uint64_t *newcomers)
{
    return living_steps(m) < m->store.step_slots && totals_with(m, newcomers).fixed <= m->store.max_items;
}

bool es_room_for_item(const es_tables *m, const es_table *t)
{
    return is_full(t) || living_items(m) < m->store.max_items || can_lose(m, 1);
}

void es_room_use(es_tables *m)
{
    if (living_steps(m) > m->store.capacity)
        es_room_settle(m);
}
