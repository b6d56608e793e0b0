#include "fuzz_store_rings.h"

#include <stdlib.h>
#include <string.h>

#include "fuzz_segment.h"
#include "replay/es_replay_parts.h"

#define MAX_SLOTS 64
#define MAX_RING_LEAVES 72
#define MAX_TABLES 8
#define MAX_PARKED (1 << 13) /* more items than fit into FUZZ_MAX_STORE */

static const uint8_t uuid[16] = "fuzzed-ring----";

/* --- rings ------------------------------------------------------------------------ */

static es_ring *attach(fuzz_ring *g, uint32_t role)
{
    int error;
    es_identity id = {.role = role, .pid = 1};
    es_ring *r = es_api_open(g->base, g->size, g->locks, 0, &error);
    if (r != NULL && es_api_attach(r, &id) < 0) {
        es_api_free(r);
        r = NULL;
    }
    return r;
}

static void close_ring(fuzz_ring *g)
{
    es_ring *both[] = {g->sender, g->learner};
    for (int i = 0; i < 2; i++)
        if (both[i] != NULL) {
            es_api_detach(both[i]);
            es_api_free(both[i]);
        }
    if (g->locks != NULL)
        es_segment_locks_free(g->locks);
    free(g->base);
    *g = (fuzz_ring){.base = NULL};
}

/* One ring in eight has another shape, and one in eight is damaged before it is opened. */
static void open_ring(fuzz_ring *g, uint64_t batch_size, uint32_t num_batches, uint64_t *leaf_sizes,
                      uint32_t num_leaves, fuzz_in *in)
{
    uint32_t kind = fuzz_below(in, 8);
    es_geometry geo = {.batch_size = batch_size,
                       .num_batches = num_batches,
                       .reap_interval_ns = 1000,
                       .max_producers = 2,
                       .num_leaves = num_leaves,
                       .schema_size = 8,
                       .flags = ES_FLAG_READY_ORDER};
    *g = (fuzz_ring){.base = NULL};
    if (kind == 0)
        geo.batch_size += fuzz_below(in, 2), geo.num_batches += fuzz_below(in, 2), leaf_sizes[0] += fuzz_below(in, 9);
    g->size = num_batches > MAX_SLOTS ? 0 : es_segment_size(&geo, leaf_sizes);
    if (g->size == 0 || g->size > 8 * FUZZ_MAX_SEGMENT)
        return;
    g->base = fuzz_block(g->size);
    FUZZ_CHECK(es_segment_format(g->base, g->size, &geo, leaf_sizes, "a schema", uuid, 1, 1) == ES_OK);
    g->locks = es_segment_locks_new(-1, ES_MAX_LEARNERS + geo.max_producers);
    for (uint32_t edits = kind == 1 ? 1 + fuzz_below(in, 4) : 0; edits > 0; edits--)
        fuzz_edit(in, g->base, g->size);
    g->sender = attach(g, ES_ROLE_PRODUCER);
    g->learner = attach(g, ES_ROLE_LEARNER);
    FUZZ_CHECK(kind == 1 || (g->sender != NULL && g->learner != NULL));
    if (g->sender == NULL || g->learner == NULL)
        close_ring(g);
}

typedef int connector(es_replay *r, es_ring *ring, void *segment, const uint8_t *id);

/* The store says that it knows a ring of that uuid, or of another one. */
static void connect(fuzz_rings *rings, fuzz_ring *g, connector *to, fuzz_in *in)
{
    uint8_t id[16];
    memcpy(id, uuid, sizeof id);
    id[0] ^= fuzz_below(in, 2);
    if (g->base == NULL)
        return;
    int code = to(rings->r, g->learner, g->base, id);
    FUZZ_CHECK(code == ES_OK || code == ES_EGEOMETRY);
    if (code != ES_OK)
        close_ring(g);
}

static void connect_batches(fuzz_rings *rings, fuzz_in *in)
{
    fuzz_ring *g = &rings->batches;
    uint8_t id[16];
    memcpy(id, uuid, sizeof id);
    id[0] ^= fuzz_below(in, 8) == 0;
    uint32_t world_size = fuzz_below(in, 2); /* of a group of its own, or of none */
    if (g->base != NULL && es_replay_connect_batches(rings->r, rings->table, g->sender, g->base, id, 0, world_size) < 0)
        close_ring(g);
}

static void connect_all(fuzz_rings *rings, fuzz_in *in)
{
    connect(rings, &rings->steps, es_replay_connect_inbox, in);
    connect(rings, &rings->updates, es_replay_connect_updates, in);
    connect_batches(rings, in);
}

/* Columns that an explicit item has at most. */
static uint32_t most_columns(es_replay *r, const es_table_config *tables, uint32_t num_tables)
{
    uint32_t most = 0;
    for (uint32_t t = 0; t < num_tables && t < MAX_TABLES; t++)
        if (tables[t].item.kind == ES_ITEM_EXPLICIT && es_replay_num_outputs(r, t) > most)
            most = es_replay_num_outputs(r, t);
    return most;
}

void fuzz_rings_open(fuzz_rings *rings, es_replay *r, const uint8_t *store, uint64_t size, fuzz_in *in)
{
    es_store_geometry geo = {0};
    uint8_t id[16];
    int64_t pid, created;
    uint64_t sizes[MAX_RING_LEAVES];
    uint32_t num_tables, num_leaves;
    es_table_config tables[MAX_TABLES];
    memset(tables, 0, sizeof tables);
    es_replay_describe(store, size, &geo, id, &pid, &created, NULL, 0, tables, MAX_TABLES);
    es_replay_shape(r, &num_tables, &num_leaves);
    *rings = (fuzz_rings){.r = r, .num_tables = num_tables};
    if (num_leaves + ES_BATCH_COLUMNS > MAX_RING_LEAVES)
        return;
    sizes[0] = sizeof(es_inbox_head) + num_tables * sizeof(double) +
               most_columns(r, tables, num_tables) * sizeof(es_item_column);
    for (uint32_t l = 0; l < num_leaves; l++)
        sizes[l + 1] = es_replay_leaf_size(r, l);
    if (geo.inbox_slots > 0)
        open_ring(&rings->steps, 1, geo.inbox_slots, sizes, num_leaves + 1, in);
    rings->table = fuzz_below(in, num_tables);
    uint32_t num_outputs = es_replay_num_outputs(r, rings->table);
    if (num_outputs + ES_BATCH_COLUMNS < MAX_RING_LEAVES && fuzz_below(in, 4) > 0) {
        for (uint32_t o = 0; o < num_outputs + ES_BATCH_COLUMNS; o++)
            sizes[o] = o < num_outputs ? es_replay_output_size(r, rings->table, o) : sizeof(uint64_t);
        open_ring(&rings->batches, 1 + fuzz_below(in, 3), 1 + fuzz_below(in, 4), sizes, num_outputs + ES_BATCH_COLUMNS,
                  in);
    }
    sizes[0] = sizeof(es_update_block);
    if (geo.update_slots > 0)
        open_ring(&rings->updates, 1, geo.update_slots, sizes, 1, in);
    connect_all(rings, in);
}

void fuzz_rings_close(fuzz_rings *rings)
{
    close_ring(&rings->steps);
    close_ring(&rings->updates);
    close_ring(&rings->batches);
}

/* --- calls ------------------------------------------------------------------------- */

/* Sends what fill() writes: a hostile sender writes anything. */
static void send(fuzz_ring *g, fuzz_in *in, void (*fill)(fuzz_in *in, uint8_t *first, uint64_t size, void *what),
                 void *what)
{
    uint64_t batch_size, num_batches;
    uint32_t num_leaves;
    void *leaves[MAX_RING_LEAVES];
    if (g->base == NULL)
        return;
    es_api_shape(g->sender, &batch_size, &num_batches, &num_leaves);
    if (num_leaves > MAX_RING_LEAVES)
        return;
    for (uint32_t l = 0; l < num_leaves; l++) {
        uint64_t size = es_api_leaf_size(g->sender, l);
        leaves[l] = fuzz_block(size);
        if (l == 0 && size <= 8 * FUZZ_MAX_SEGMENT)
            fill(in, leaves[0], size, what);
    }
    es_api_send(g->sender, leaves);
    for (uint32_t l = 0; l < num_leaves; l++)
        free(leaves[l]);
}

/* The next step of a writer, or any other. */
static es_inbox_head draw_step(fuzz_rings *rings, fuzz_in *in)
{
    static const uint32_t endings[] = {ES_STEP_TERMINATED, ES_STEP_TRUNCATED, ES_STEP_LOST,
                                       ES_STEP_FINAL | ES_STEP_TERMINATED};
    uint32_t which = fuzz_below(in, 4), odd = fuzz_below(in, 16);
    fuzz_writer *w = &rings->writers[which];
    es_inbox_head head = {.stream = which / 2,
                          .environment = which % 2,
                          .number = w->number++,
                          .index = w->index++,
                          .episode = w->episode,
                          .flags = fuzz_below(in, 6) == 0 ? endings[fuzz_below(in, 4)] : 0};
    if (head.flags != 0 || fuzz_below(in, 16) == 0)
        w->index = 0, w->episode++;
    if (odd == 0)
        head.number -= fuzz_below(in, 8), head.index = fuzz_byte(in), head.flags = fuzz_byte(in);
    else if (odd == 1)
        head.number = w->number = fuzz_value(in, UINT64_MAX), head.episode = (uint32_t)fuzz_value(in, 0);
    else if (odd == 2)
        head.index = (uint32_t)fuzz_value(in, head.index), head.episode += fuzz_below(in, 3) - 1;
    return head;
}

static void fill_step(fuzz_in *in, uint8_t *first, uint64_t size, void *what)
{
    static const double priorities[] = {-1, 0, 1, __builtin_inf(), -0.0, 1e300, 5e-324, 2};
    fuzz_rings *rings = what;
    es_inbox_head head;
    uint64_t at = sizeof head + rings->num_tables * sizeof(double);
    if (size < at)
        return;
    if (size > at && fuzz_below(in, 3) == 0) { /* an explicit item */
        const fuzz_writer *w = &rings->writers[fuzz_below(in, 4)];
        head = (es_inbox_head){.stream = (uint64_t)(w - rings->writers) / 2,
                               .environment = (uint32_t)(w - rings->writers) % 2,
                               .number = w->number - 1 - fuzz_below(in, 8) / 6,
                               .index = fuzz_below(in, 6),
                               .episode = fuzz_below(in, 4),
                               .flags = ES_HEAD_ITEM};
        for (; at + 8 <= size; at += 8) {
            es_item_column c = {fuzz_below(in, 8) / 2, 1 + fuzz_below(in, 8) / 5};
            if (fuzz_below(in, 16) == 0)
                c.back = (uint32_t)fuzz_value(in, c.back), c.stride = (uint32_t)fuzz_value(in, 1);
            memcpy(first + at, &c, sizeof c);
        }
    } else {
        head = draw_step(rings, in);
    }
    memcpy(first, &head, sizeof head);
    for (uint32_t t = 0; t < rings->num_tables; t++) {
        uint32_t kind = fuzz_below(in, 12);
        double priority = kind < 8 ? priorities[kind] : kind < 11 ? -1 : __builtin_nan("");
        memcpy(first + sizeof head + t * sizeof priority, &priority, sizeof priority);
    }
}

static void fill_updates(fuzz_in *in, uint8_t *first, uint64_t size, void *what)
{
    static const double priorities[] = {0, 1, 2, 0.5, 1e300, 1e-300, 3, -1};
    const uint64_t *keys = what;
    static es_update_block block;
    if (size < sizeof block)
        return;
    block.table = fuzz_below(in, 4);
    uint32_t kind = fuzz_below(in, 8);
    block.kind = kind == 7 ? ES_UPDATE_LEARNED : 1 + kind % 3, block.n = 1 + fuzz_below(in, 8);
    for (uint64_t i = 0; i < block.n; i++) {
        block.keys[i] = keys[fuzz_below(in, FUZZ_KEYS)];
        block.priorities[i] = priorities[fuzz_byte(in) % 64 < 63 ? i % 7 : 7];
    }
    if (fuzz_below(in, 16) == 0)
        block.n = fuzz_value(in, ES_UPDATE_KEYS);
    memcpy(first, &block, sizeof block);
}

static void sweep(es_ring *by)
{
    es_identity id;
    for (int64_t i = es_sweep_next_dead(by, 0, &id); i >= 0; i = es_sweep_next_dead(by, (uint32_t)i + 1, &id))
        es_sweep_settle(by, &id, 1);
}

static void turn(fuzz_rings *rings, fuzz_in *in)
{
    es_turn turn;
    uint32_t num_tables, num_leaves;
    uint64_t most = fuzz_below(in, 8);
    uint64_t done = es_replay_turn(rings->r, most, &turn);
    es_replay_shape(rings->r, &num_tables, &num_leaves);
    FUZZ_CHECK(done <= 3 * most + MAX_PARKED && turn.table < num_tables);
    FUZZ_CHECK(turn.steps == ES_OK || turn.steps == ES_EMPTY || turn.steps == ES_ENDED || turn.steps == ES_REFUSED ||
               turn.steps == ES_NO_ROOM || turn.steps == ES_ESELECTOR ||
               (turn.steps == ES_UNSYNCED && rings->r->tables.store.is_columns));
    FUZZ_CHECK(turn.updates == ES_OK || turn.updates == ES_EMPTY || turn.updates == ES_ENDED ||
               turn.updates == ES_ESELECTOR);
    if (turn.sweep_due && rings->steps.base != NULL)
        sweep(rings->steps.learner);
    if (turn.sweep_due && rings->updates.base != NULL)
        sweep(rings->updates.learner);
}

static void take_batch(fuzz_ring *g)
{
    es_snapshot snap;
    if (g->base == NULL)
        return;
    int64_t batch = es_api_take(g->learner, ES_TAKE_ANY_ORDER, 0, &snap);
    if (batch >= 0)
        es_api_release(g->learner, snap.batch, snap.round);
}

void fuzz_rings_call(fuzz_rings *rings, fuzz_in *in, const uint64_t *keys)
{
    fuzz_ring *all[] = {&rings->steps, &rings->updates, &rings->batches}, *g = all[fuzz_below(in, 3)];
    uint32_t kind = fuzz_below(in, 40), num_tables, num_leaves;
    es_replay_shape(rings->r, &num_tables, &num_leaves);
    if (kind < 12) {
        send(&rings->steps, in, fill_step, rings);
    } else if (kind < 16) {
        send(&rings->updates, in, fill_updates, (void *)keys);
    } else if (kind < 26) {
        turn(rings, in);
    } else if (kind >= 32) {
        take_batch(&rings->batches);
    } else if (kind < 28) {
        es_replay_disconnect(rings->r);
        connect_all(rings, in);
    } else if (kind < 30 && g->base != NULL) {
        fuzz_edit(in, g->base, g->size);
    } else if (kind == 30 && g->base != NULL && fuzz_below(in, 4) == 0) {
        es_api_close(g->learner);
    }
}
