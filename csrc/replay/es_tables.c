#include "replay/es_tables.h"

#include <stdlib.h>

#include "replay/es_insert.h"
#include "replay/es_room.h"
#include "replay/es_sort.h"

uint64_t es_tables_unpark(es_tables *m)
{
    uint64_t in = 0;
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (; es_table_unpark(&m->table[t]); in++)
            es_room_settle(m);
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
        code = es_insert_finish(m);
    }
    if (code == ES_OK && !m->failed) {
        es_steps_trim_all(&m->steps, order, n);
        for (uint32_t t = 0; t < m->num_tables; t++)
            if (m->table[t].words->resetting)
                es_table_reset(&m->table[t]);
        es_room_settle(m);
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
