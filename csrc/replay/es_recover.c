#include "replay/es_recover.h"

#include <stdlib.h>

#include "replay/es_insert.h"
#include "replay/es_room.h"
#include "replay/es_sort.h"

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
        es_step_head head = es_steps_head_of(record);
        code = es_steps_reserve(&m->steps);
        if (code == ES_OK)
            es_steps_enter(&m->steps, order[i].number, &head);
        m->store.dated |= head.version != 0;
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

/* Of a store that is mapped. */
static int open_tables(es_tables *m, const es_custom_selector *custom, uint32_t num_custom, es_trouble *why)
{
    int code = es_redo_recover(&m->store.redo);
    if (code != ES_OK || (code = es_steps_init(&m->steps, &m->store)) != ES_OK ||
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
        code = es_insert_finish(m);
    }
    if (code == ES_OK && !m->failed) {
        es_steps_trim_all(&m->steps, order, n);
        for (uint32_t t = 0; t < m->num_tables; t++)
            es_table_recover_finish(&m->table[t]);
        es_room_settle(m);
        es_insert_unpark(m);
    }
    free(order);
    return code == ES_OK && m->failed ? ES_ESELECTOR : code;
}

int es_recover_open(es_tables *m, void *base, uint64_t size, const es_custom_selector *custom, uint32_t num_custom,
                    es_trouble *why)
{
    *m = (es_tables){.num_tables = 0};
    int code = es_store_map(&m->store, base, size);
    return code == ES_OK ? open_tables(m, custom, num_custom, why) : code;
}

/* --- a custom selector for whoever only looks: it takes no part ----------------------------- */

static int take_note(void *self, uint64_t key, double priority)
{
    (void)self, (void)key, (void)priority;
    return 0;
}

static int let_go(void *self, uint64_t key)
{
    (void)self, (void)key;
    return 0;
}

static int draw_none(void *self, const double *numbers, uint64_t n, uint64_t *keys, double *probabilities)
{
    (void)self, (void)numbers, (void)n, (void)keys, (void)probabilities;
    return -1;
}

static int know_nothing(void *self, uint64_t key, double *probability)
{
    (void)self, (void)key, (void)probability;
    return -1;
}

static void hear_nothing(void *self, uint64_t key)
{
    (void)self, (void)key;
}

int es_recover_open_records(es_tables *m, void *base, uint64_t size, es_trouble *why)
{
    static int self;
    es_custom_selector custom[2 * ES_MAX_TABLES];
    for (uint32_t i = 0; i < 2 * ES_MAX_TABLES; i++)
        custom[i] = (es_custom_selector){&self, take_note, take_note, let_go, draw_none, know_nothing, hear_nothing};
    *m = (es_tables){.num_tables = 0};
    int code = es_store_map_records(&m->store, base, size);
    return code == ES_OK ? open_tables(m, custom, 2 * ES_MAX_TABLES, why) : code;
}

void es_recover_close(es_tables *m)
{
    for (uint32_t t = 0; t < m->num_tables; t++)
        es_table_free(&m->table[t]);
    free(m->table);
    es_steps_free(&m->steps);
    es_store_unmap(&m->store);
}
