#include "replay/es_inbox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/es_insert.h"

int es_inbox_open_steps(es_inbox *in, es_tables *m, es_ring *ring, void *segment, const uint8_t *uuid)
{
    es_store *store = &m->store;
    uint32_t n = store->num_leaves + 1;
    uint64_t *sizes = calloc(n, sizeof *sizes);
    if (sizes == NULL)
        return -ENOMEM;
    sizes[0] = sizeof(es_inbox_head) + store->num_tables * sizeof(double) + store->max_columns * sizeof(es_item_column);
    for (uint32_t i = 0; i < store->num_leaves; i++)
        sizes[i + 1] = store->leaves[i].size;
    int code =
        es_source_open(&in->steps, ring, segment, uuid, &store->hdr->inbox, store->inbox, store->inbox_slots, sizes, n);
    free(sizes);
    free(in->columns);
    in->columns = calloc(store->max_columns + 1, sizeof *in->columns);
    return code == ES_OK && in->columns == NULL ? -ENOMEM : code;
}

int es_inbox_open_updates(es_inbox *in, es_tables *m, es_ring *ring, void *segment, const uint8_t *uuid)
{
    es_store *store = &m->store;
    uint64_t size = sizeof(es_update_block);
    return es_source_open(&in->updates, ring, segment, uuid, &store->hdr->updates, store->updates, store->update_slots,
                          &size, 1);
}

void es_inbox_close(es_inbox *in)
{
    es_source_close(&in->steps);
    es_source_close(&in->updates);
    free(in->columns);
    in->columns = NULL;
}

/* Notes that a sample is used up, though nothing came of it. */
static void pass_over(es_source *s)
{
    *(volatile uint64_t *)es_source_word(s) = es_source_value(s);
    es_source_used(s);
}

/* --- steps -------------------------------------------------------------------------- */

/* Stores an explicit item. */
static int store_item(es_inbox *in, es_tables *m, const es_inbox_head *head, const double *priorities,
                      const uint8_t *columns, es_trouble *why)
{
    es_origin origin = {es_source_word(&in->steps), es_source_value(&in->steps)};
    uint32_t table = head->episode;
    if (table >= m->num_tables || m->table[table].config->item.kind != ES_ITEM_EXPLICIT || isnan(priorities[table]))
        return ES_EXPIRED;
    memcpy(in->columns, columns, m->table[table].form.num_outputs * sizeof *in->columns);
    es_explicit_item item = {
        .stream = head->stream,
        .number = head->number,
        .environment = head->environment,
        .table = table,
        .length = head->index,
        .priority = priorities[table],
        .columns = in->columns,
    };
    return es_insert_item(m, &item, &origin, why);
}

/* Stores the step that was taken. Another process may write to it still, so it is read once. */
static int store_step(es_inbox *in, es_tables *m, const void *const *leaves, es_trouble *why)
{
    es_inbox_head brought;
    double priorities[ES_MAX_TABLES];
    memcpy(&brought, leaves[0], sizeof brought);
    const uint8_t *after = (const uint8_t *)leaves[0] + sizeof brought;
    memcpy(priorities, after, m->num_tables * sizeof *priorities);
    if (brought.flags & ES_HEAD_ITEM)
        return store_item(in, m, &brought, priorities, after + m->num_tables * sizeof *priorities, why);
    es_step_head head = {
        .stream = brought.stream,
        .number = brought.number,
        .version = es_steps_version(in->steps.version),
        .index = brought.index,
        .environment = brought.environment,
        .episode = brought.episode,
        .flags = brought.flags & (ES_STEP_TERMINATED | ES_STEP_TRUNCATED | ES_STEP_LOST | ES_STEP_FINAL),
    };
    es_origin origin = {es_source_word(&in->steps), es_source_value(&in->steps)};
    return es_insert_step(m, &head, leaves + 1, 0, priorities, &origin, why);
}

uint64_t es_inbox_store(es_inbox *in, es_tables *m, uint64_t most, int *code, es_trouble *why)
{
    uint64_t stored = 0;
    *code = ES_OK;
    while (stored < most && *code == ES_OK) {
        const void *const *leaves = es_source_next(&in->steps, code);
        if (leaves == NULL)
            break;
        *code = store_step(in, m, leaves, why);
        if (*code == ES_EPRIORITY || *code == ES_ETWICE || *code == ES_EXPIRED) { /* writers know what they send */
            in->refused++;
            pass_over(&in->steps);
            *code = ES_OK;
        } else if (*code == ES_OK) {
            es_source_used(&in->steps);
            stored++;
        }
    }
    es_source_release(&in->steps);
    return stored;
}

/* --- updates ------------------------------------------------------------------------- */

static bool block_is_possible(const es_tables *m, const es_update_block *b)
{
    if (b->table >= m->num_tables || (b->n > ES_UPDATE_KEYS && b->kind != ES_UPDATE_ASK))
        return false;
    if (b->kind == ES_UPDATE_LEARNED)
        return es_table_ages(&m->table[b->table]);
    for (uint64_t i = 0; b->kind == ES_UPDATE_PRIORITIES && i < b->n; i++)
        if (!es_table_accepts(&m->table[b->table], b->priorities[i]))
            return false;
    return b->kind >= ES_UPDATE_PRIORITIES && b->kind <= ES_UPDATE_ASK;
}

/* A block that was made in part, before its replay was killed, is made again as a whole: the result is the same. But
 * what counts must not count twice: it changes together with the word that says that the block was used. */
static void make_update(es_tables *m, const es_update_block *b, const es_origin *origin)
{
    es_table *t = &m->table[b->table];
    if (b->kind == ES_UPDATE_LEARNED) {
        es_table_age(t, origin);
        return;
    }
    if (b->kind == ES_UPDATE_PRIORITIES) {
        es_table_update(t, b->keys, b->priorities, b->n);
        return;
    }
    for (uint64_t i = 0; i < b->n; i++) {
        uint32_t item = es_table_find(t, b->keys[i]);
        if (item != ES_STEPS_NONE)
            es_table_remove(t, item, false);
    }
}

uint64_t es_inbox_update(es_inbox *in, es_tables *m, uint64_t most, int *code)
{
    uint64_t made = 0;
    *code = ES_OK;
    in->ask = (es_ask){.batch_size = 0};
    while (made < most && in->ask.batch_size == 0) {
        const void *const *leaves = es_source_next(&in->updates, code);
        if (leaves == NULL)
            break;
        es_update_block block;
        memcpy(&block, leaves[0], sizeof block);
        if (!block_is_possible(m, &block))
            in->refused++;
        else if (block.kind == ES_UPDATE_ASK)
            in->ask = (es_ask){
                .batch_size = block.n,
                .num_batches = block.keys[0],
                .world_size = block.keys[1],
                .table = block.table,
            };
        else
            make_update(m, &block, &(es_origin){es_source_word(&in->updates), es_source_value(&in->updates)});
        pass_over(&in->updates);
        made++;
    }
    es_source_release(&in->updates);
    return made;
}
