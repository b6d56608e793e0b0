#include "es_vault.h"

#include <math.h>
#include <string.h>

#include "es_test.h"
#include "replay/es_insert.h"
#include "replay/es_tables.h"

static void note(es_vault *v, const char *what, uint64_t which, uint64_t value)
{
    if (v->dump != NULL)
        es_dump_note(v->dump, what, which, value);
}

static void note_double(es_vault *v, const char *what, uint64_t which, double value)
{
    if (v->dump != NULL)
        es_dump_note_double(v->dump, what, which, value);
}

/* --- opening -------------------------------------------------------------------- */

void vault_plan(es_vault *v, const es_store_geometry *geo, const uint64_t *leaf_sizes, const es_table_config *tables)
{
    v->geo = *geo;
    v->leaf_sizes = leaf_sizes;
    memcpy(v->tables, tables, geo->num_tables * sizeof *tables);
    es_items_fill(v->tables, geo->num_tables, leaf_sizes, geo->num_leaves, v->outputs);
    v->size = es_replay_store_size(geo, &(es_store_parts){leaf_sizes, v->tables, v->outputs, "a schema"});
    CHECK(v->size > 0);
}

int vault_format(es_vault *v)
{
    static const uint8_t uuid[16] = "a replay";
    es_store_parts parts = {v->leaf_sizes, v->tables, v->outputs, "a schema"};
    return es_replay_format(v->base, v->size, &v->geo, &parts, uuid, 1, 2);
}

void vault_open(es_vault *v, uint64_t stream)
{
    int error;
    es_trouble why;
    v->r = es_replay_open(v->base, v->size, stream, NULL, 0, &error, &why);
    if (!CHECK_EQ(error, ES_OK))
        return;
}

void vault_close(es_vault *v)
{
    es_replay_free(v->r);
    v->r = NULL;
}

/* --- operations ----------------------------------------------------------------- */

static uint8_t steps_memory[VAULT_BATCH * VAULT_ROW];

void vault_make(es_vault *v, uint64_t n, const void **leaves)
{
    uint8_t *at = steps_memory;
    for (uint32_t l = 0; l < v->geo.num_leaves; l++) {
        leaves[l] = at;
        for (uint64_t i = 0; i < n; i++, at += v->leaf_sizes[l])
            for (uint64_t b = 0; b < v->leaf_sizes[l]; b++)
                at[b] = (uint8_t)((v->made + i) * 7 + l * 31 + b);
    }
    v->made += n;
}

uint32_t vault_version(const es_vault *v)
{
    return (uint32_t)(v->made % 5);
}

int vault_add(es_vault *v, uint32_t flags, const double *priorities)
{
    const void *leaves[VAULT_LEAVES];
    es_trouble why = {0};
    es_replay_set_version(v->r, vault_version(v), true);
    vault_make(v, 1, leaves);
    int code = es_replay_add(v->r, leaves, flags, priorities, &why);
    note(v, "result of add", why.table, (uint64_t)code);
    return code;
}

/* A replay begins with its tables. */
static es_tables *tables_of(es_vault *v)
{
    return (es_tables *)v->r;
}

int vault_add_last(es_vault *v, uint32_t flags, const double *priorities)
{
    const void *leaves[2 * VAULT_LEAVES], *final[VAULT_LEAVES];
    es_trouble why = {0};
    es_replay_set_version(v->r, vault_version(v), true);
    vault_make(v, 2, leaves);
    for (uint32_t l = 0; l < v->geo.num_leaves; l++)
        final[l] = (const uint8_t *)leaves[l] + v->leaf_sizes[l];
    int code = es_replay_add_last(v->r, leaves, final, flags, priorities, &why);
    note(v, "result of add_last", why.table, (uint64_t)code);
    return code;
}

int vault_send(es_vault *v, const es_step_head *head, const double *priorities)
{
    const void *leaves[VAULT_LEAVES];
    es_trouble why = {0};
    vault_make(v, 1, leaves);
    es_origin origin = {&tables_of(v)->store.inbox[0], v->made};
    int code = es_insert_step(tables_of(v), head, leaves, 0, priorities, &origin, &why);
    note(v, "result of a step that was sent", why.table, (uint64_t)code);
    return code;
}

int vault_bring(es_vault *v, const double *priorities)
{
    es_step_head head = {.stream = 9, .number = v->made, .index = (uint32_t)v->made};
    return vault_send(v, &head, priorities);
}

int vault_describe(es_vault *v, uint32_t table, uint64_t stream, uint64_t last, uint32_t length, double priority)
{
    es_item_column columns[VAULT_LEAVES];
    es_trouble why = {0};
    for (uint32_t l = 0; l < v->geo.num_leaves; l++)
        columns[l] = (es_item_column){l % length, 1};
    es_explicit_item item = {
        .stream = stream, .number = last, .table = table, .length = length, .priority = priority, .columns = columns};
    es_origin origin = {&tables_of(v)->store.inbox[0], ++v->made};
    int code = es_insert_item(tables_of(v), &item, &origin, &why);
    note(v, "result of an item that was sent", why.table, (uint64_t)code);
    return code;
}

void vault_turn(es_vault *v)
{
    es_turn turn;
    note(v, "turn", 0, es_replay_turn(v->r, 0, &turn));
}

void vault_add_some(es_vault *v, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        CHECK_EQ(vault_add(v, 0, (const double[VAULT_TABLES]){-1, -1, -1}), ES_OK);
}

void vault_add_episode(es_vault *v, uint64_t n)
{
    vault_add_some(v, n - 1);
    CHECK_EQ(vault_add(v, ES_STEP_TRUNCATED, (const double[VAULT_TABLES]){-1, -1, -1}), ES_OK);
}

int64_t vault_extend(es_vault *v, uint64_t n, const uint8_t *flags, const double *priorities)
{
    const void *leaves[VAULT_LEAVES];
    es_trouble why = {0};
    int error;
    es_replay_set_version(v->r, vault_version(v), true);
    vault_make(v, n, leaves);
    int64_t in = es_replay_extend(v->r, leaves, n, flags, priorities, &error, &why);
    note(v, "result of extend", why.index, (uint64_t)in);
    note(v, "error of extend", why.table, (uint64_t)error);
    return in;
}

int64_t vault_add_vector(es_vault *v, uint64_t n, const uint8_t *terminated, bool known, const double *priorities)
{
    const void *leaves[VAULT_LEAVES], *finals[VAULT_BATCH * VAULT_LEAVES] = {NULL};
    es_trouble why = {0};
    int error;
    es_replay_set_version(v->r, vault_version(v), true);
    vault_make(v, n, leaves);
    for (uint64_t i = 0; i < n; i++) /* the row's own first leaf; the others are zeros */
        finals[i * v->geo.num_leaves] = (const uint8_t *)leaves[0] + i * v->leaf_sizes[0];
    es_vector all = {.leaves = leaves,
                     .finals = known ? finals : NULL,
                     .terminated = terminated,
                     .priorities = priorities,
                     .n = n,
                     .skips_resets = 1};
    int64_t done = es_replay_add_vector(v->r, &all, 0, &error, &why);
    note(v, "result of add_vector", why.index, (uint64_t)done);
    note(v, "error of add_vector", why.table, (uint64_t)error);
    return done;
}

static struct {
    uint8_t outputs[VAULT_OUTPUTS][VAULT_BATCH * VAULT_ITEM];
    double probability[VAULT_BATCH], priority[VAULT_BATCH], weight[VAULT_BATCH];
    int64_t times_sampled[VAULT_BATCH], table_size[VAULT_BATCH], age[VAULT_BATCH], version[VAULT_BATCH];
} batch;

static es_batch_arrays arrays_of(void **outputs, uint64_t *keys)
{
    for (uint32_t o = 0; o < VAULT_OUTPUTS; o++)
        outputs[o] = batch.outputs[o];
    return (es_batch_arrays){outputs,          keys,         batch.probability,
                             batch.priority,   batch.weight, batch.times_sampled,
                             batch.table_size, batch.age,    batch.version};
}

static void note_batch(es_vault *v, uint32_t table, const uint64_t *keys, uint64_t n)
{
    for (uint64_t i = 0; i < n && v->dump != NULL; i++) {
        note(v, "key", i, keys[i]);
        note_double(v, "probability", i, batch.probability[i]);
        note_double(v, "priority", i, batch.priority[i]);
        note_double(v, "weight", i, batch.weight[i]);
        note(v, "times_sampled", i, (uint64_t)batch.times_sampled[i]);
        note(v, "table_size", i, (uint64_t)batch.table_size[i]);
        note(v, "age", i, (uint64_t)batch.age[i]);
        note(v, "version", i, (uint64_t)batch.version[i]);
        for (uint32_t o = 0; o < es_replay_num_outputs(v->r, table); o++) {
            uint64_t size = es_replay_output_size(v->r, table, o);
            es_dump_note_bytes(v->dump, "output", i, batch.outputs[o] + i * size, size);
        }
    }
}

int vault_sample(es_vault *v, uint32_t table, uint64_t n)
{
    void *outputs[VAULT_OUTPUTS];
    es_batch_arrays out = arrays_of(outputs, v->keys);
    memset(v->keys, 0xff, sizeof v->keys);
    int code = es_replay_sample(v->r, table, n, NAN, &out);
    note(v, "result of sample", table, (uint64_t)code);
    if (code == ES_OK)
        note_batch(v, table, v->keys, n);
    return code;
}

int64_t vault_update(es_vault *v, uint32_t table, const uint64_t *keys, const double *priorities, uint64_t n)
{
    es_trouble why = {0};
    int64_t there = es_replay_update(v->r, table, keys, priorities, n, &why);
    note(v, "result of update", table, (uint64_t)there);
    return there;
}

int vault_learned(es_vault *v, uint32_t table)
{
    int code = es_replay_learned(v->r, table);
    note(v, "result of learned", table, (uint64_t)code);
    return code;
}

int vault_set_limits(es_vault *v, uint32_t table, double min_diff, double max_diff)
{
    int code = es_replay_set_limits(v->r, table, min_diff, max_diff);
    note(v, "result of set_limits", table, (uint64_t)code);
    return code;
}

int64_t vault_delete(es_vault *v, uint32_t table, const uint64_t *keys, uint64_t n)
{
    int64_t there = es_replay_delete(v->r, table, keys, n);
    note(v, "result of delete", table, (uint64_t)there);
    return there;
}

/* --- life ------------------------------------------------------------------------- */

void vault_look(es_vault *v, uint32_t table)
{
    es_table_info info;
    es_trouble why = {0};
    uint64_t keys[VAULT_BATCH];
    void *outputs[VAULT_OUTPUTS];
    es_batch_arrays out = arrays_of(outputs, keys);
    es_replay_info(v->r, table, &info);
    note(v, "size", table, info.size);
    note(v, "inserted", table, info.inserted);
    note(v, "sampled", table, info.sampled);
    note(v, "deleted", table, info.deleted);
    note(v, "evicted", table, info.evicted);
    note(v, "parked", table, info.parked);
    note(v, "episodes", table, info.episodes);
    note(v, "drawn_before", table, info.drawn_before);
    note_double(v, "highest", table, info.highest);
    /* A sum from which weights were taken again: its last bits depend on all that came and went. */
    note_double(v, "effective_sample_size", table, (double)(float)info.effective_sample_size);
    note(v, "hot", table, info.hot);
    for (int part = 0; part < 2; part++) {
        note_double(v, "temperature", table, info.temperature[part]);
        note_double(v, "effective of a part", table, (double)(float)info.part_effective[part]);
    }
    note_double(v, "min_diff", table, info.min_diff);
    note_double(v, "max_diff", table, info.max_diff);
    note(v, "can_sample", table, info.can_sample + 2 * (uint64_t)es_replay_can_sample(v->r, table, 2));
    note(v, "can_insert", table, info.can_insert + 2 * (uint64_t)es_replay_can_insert(v->r, table, 2));
    note(v, "num_steps", table, es_replay_num_steps(v->r));
    note(v, "check_priority", table, (uint64_t)es_replay_check_priority(v->r, table, 2));
    memcpy(keys, v->keys, sizeof keys);
    int code = es_replay_get(v->r, table, keys, 2, 0.5, &out, &why);
    note(v, "result of get", why.index, (uint64_t)code);
    if (code == ES_OK)
        note_batch(v, table, keys, 2);
}

/* Adds a step to the stream of the replay that may have died, whoever goes on with it. */
static void live_add(es_vault *v, es_step_head *head, const double *priorities)
{
    const void *leaves[VAULT_LEAVES];
    es_trouble why = {0};
    head->version = vault_version(v);
    vault_make(v, 1, leaves);
    note(v, "result of add", why.table,
         (uint64_t)es_insert_step(tables_of(v), head, leaves, 0, priorities, NULL, &why));
    head->number++, head->index++;
}

void vault_live(es_vault *v)
{
    static const double some[][VAULT_TABLES] = {{3, 0.25, -1}, {0.5, NAN, 2}, {-1, 1, NAN}, {0, 7, 4}};
    es_step_head head = {.stream = VAULT_STREAM, .number = 1000, .episode = 100};
    memset(v->keys, 0xff, sizeof v->keys);
    v->made = 1000;
    for (uint32_t t = 0; t < v->geo.num_tables; t++) {
        vault_look(v, t);
        if (vault_sample(v, t, 3) == ES_OK)
            vault_update(v, t, v->keys, (const double[]){0.5, 2, 0}, 3);
    }
    for (uint32_t i = 0; i < 3; i++)
        live_add(v, &head, some[i]);
    head.episode++, head.index = 0;
    vault_turn(v);
    for (uint32_t t = 0; t < v->geo.num_tables; t++) {
        if (vault_sample(v, t, 4) == ES_OK)
            vault_delete(v, t, v->keys, 2);
        vault_look(v, t);
    }
    live_add(v, &head, some[3]);
    for (uint32_t t = 0; t < v->geo.num_tables; t++)
        if (v->tables[t].sampler.kind == ES_HOT_COLD)
            vault_learned(v, t);
    live_add(v, &head, some[0]);
    for (uint32_t t = 0; t < v->geo.num_tables; t++) {
        vault_sample(v, t, 2);
        vault_look(v, t);
    }
    es_dump_store(v->dump, v->base, v->size);
}
