#include "replay/es_replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/es_copy.h"
#include "replay/es_draw.h"
#include "replay/es_gather.h"
#include "replay/es_notes.h"
#include "replay/es_peek.h"
#include "replay/es_recover.h"
#include "replay/es_replay_parts.h"
#include "replay/es_room.h"
#include "replay/es_snapshot.h"
#include "replay/es_store.h"

/* --- stores ------------------------------------------------------------------ */

uint64_t es_replay_store_size(const es_store_geometry *geo, const es_store_parts *parts)
{
    return es_store_size(geo, parts);
}

int es_replay_format(void *base, uint64_t size, const es_store_geometry *geo, const es_store_parts *parts,
                     const uint8_t *uuid, int64_t pid, int64_t created_ns)
{
    return es_store_format(base, size, geo, parts, uuid, pid, created_ns);
}

int es_replay_check(const void *base, uint64_t size)
{
    return es_store_check(base, size);
}

void es_replay_describe(const void *base, uint64_t size, es_store_geometry *geo, uint8_t *uuid, int64_t *pid,
                        int64_t *created_ns, void *schema, uint64_t room, es_table_config *tables, uint32_t max_tables)
{
    es_store_describe(base, size, geo, uuid, pid, created_ns, schema, room, tables, max_tables);
}

int es_replay_peek(const void *base, uint64_t size, uint32_t table, double *priorities, uint64_t room, es_peeked *seen)
{
    return es_peek(base, size, table, priorities, room, seen);
}

es_replay *es_replay_open(void *base, uint64_t size, uint64_t stream, const es_custom_selector *custom,
                          uint32_t num_custom, int *error, es_trouble *why)
{
    es_replay *r = calloc(1, sizeof *r);
    *why = (es_trouble){.table = 0};
    *error = -ENOMEM;
    if (r == NULL)
        return NULL;
    *error = es_recover_open(&r->tables, base, size, custom, num_custom, why);
    if (*error == ES_OK)
        *error = es_own_init(&r->own, &r->tables, stream);
    if (*error == ES_OK) {
        r->drawn = calloc(r->tables.num_tables, sizeof *r->drawn);
        *error = r->drawn == NULL ? -ENOMEM : ES_OK;
    }
    if (*error == ES_OK)
        return r;
    es_replay_free(r);
    return NULL;
}

void es_replay_free(es_replay *r)
{
    for (uint32_t t = 0; r->drawn != NULL && t < r->tables.num_tables; t++)
        es_drawn_free(&r->drawn[t]);
    es_replay_disconnect(r);
    es_recover_close(&r->tables);
    es_own_free(&r->own);
    free(r->drawn);
    free(r);
}

void es_replay_shape(es_replay *r, uint32_t *num_tables, uint32_t *num_leaves)
{
    *num_tables = r->tables.num_tables;
    *num_leaves = r->tables.store.num_leaves;
}

uint64_t es_replay_leaf_size(es_replay *r, uint32_t leaf)
{
    return r->tables.store.leaves[leaf].size;
}

uint32_t es_replay_num_outputs(es_replay *r, uint32_t table)
{
    return r->tables.table[table].form.num_outputs;
}

uint64_t es_replay_output_size(es_replay *r, uint32_t table, uint32_t output)
{
    return r->tables.table[table].form.sizes[output];
}

/* --- snapshots ---------------------------------------------------------------- */

uint64_t es_replay_records_size(const es_store_geometry *geo, const es_store_parts *parts)
{
    es_store_offsets at;
    return es_store_layout(geo, parts, &at) ? at.rows : 0;
}

uint64_t es_replay_snapshot(es_replay *r, void *to)
{
    return es_snapshot_take(&r->tables, to);
}

void es_replay_snapshot_done(es_replay *r)
{
    es_snapshot_done(&r->tables);
}

void es_replay_hold(es_replay *r, const void *snapshot)
{
    es_snapshot_hold(&r->tables, snapshot);
}

uint64_t es_replay_room(es_replay *r)
{
    return es_hold_room(&r->tables.steps.hold);
}

uint64_t es_replay_arrivals(const es_replay *r)
{
    return r->tables.store.hdr->arrivals;
}

/* What a call returns that has removed items, perhaps, or may have told a custom selector of a change. */
static int64_t unless_failed(es_replay *r, int64_t result)
{
    if (!r->tables.failed)
        es_room_use(&r->tables);
    return r->tables.failed ? ES_ESELECTOR : result;
}

/* --- inserting ----------------------------------------------------------------- */

int es_replay_add(es_replay *r, const void *const *leaves, uint32_t flags, const double *priorities, es_trouble *why)
{
    return es_own_add(&r->own, &r->tables, leaves, flags, priorities, why);
}

int es_replay_add_last(es_replay *r, const void *const *leaves, const void *const *final, uint32_t flags,
                       const double *priorities, es_trouble *why)
{
    return es_own_add_last(&r->own, &r->tables, leaves, final, flags, priorities, why);
}

int64_t es_replay_extend(es_replay *r, const void *const *leaves, uint64_t n, const uint8_t *flags,
                         const double *priorities, int *error, es_trouble *why)
{
    return es_own_extend(&r->own, &r->tables, leaves, n, flags, priorities, error, why);
}

int64_t es_replay_add_vector(es_replay *r, const es_vector *v, uint64_t first, int *error, es_trouble *why)
{
    return es_own_add_vector(&r->own, &r->tables, v, first, error, why);
}

void es_replay_set_version(es_replay *r, int64_t version, int by_hand)
{
    if (!by_hand && r->version_by_hand)
        return;
    r->version_by_hand = by_hand != 0;
    r->own.version = es_steps_version(version);
}

int64_t es_replay_version(es_replay *r)
{
    return r->own.version;
}

void es_replay_end_episode(es_replay *r)
{
    es_own_end_all(&r->own);
}

void es_replay_end_episodes(es_replay *r, const int64_t *environments, uint64_t n)
{
    es_own_end_some(&r->own, environments, n);
}

uint64_t es_replay_environments(es_replay *r, es_environment *to, uint64_t room)
{
    uint64_t n = r->own.num_environments;
    if (room > 0)
        memcpy(to, r->own.environments, (n < room ? n : room) * sizeof *to);
    return n;
}

/* --- sampling -------------------------------------------------------------------- */

static es_drawing drawing_over(const es_batch_arrays *out)
{
    return (es_drawing){out->key,           out->probability, out->priority, out->weight,
                        out->times_sampled, out->table_size,  out->age,      out->version};
}

/* The column of ratios becomes one of weights. */
static void weigh(const es_table *t, double *ratios, uint64_t n, double beta)
{
    if (isnan(beta))
        beta = t->config->sampler.beta;
    if (!(beta >= 0) || t->sampler->class->ratios == NULL)
        return;
    es_draw_weigh(ratios, n, beta);
}

int es_replay_sample(es_replay *r, uint32_t table, uint64_t n, double beta, const es_batch_arrays *out)
{
    es_table *t = &r->tables.table[table];
    es_drawn *before = &r->drawn[table];
    es_drawing to = drawing_over(out);
    es_draw_into into = {.leaves = out->leaves, .beta = NAN, .streams = es_copy_outgrows_caches(n * t->form.size)};
    uint64_t first = before->count < n ? before->count : n, missing = n - first;
    /* What was drawn may not be lost for want of memory. */
    if (missing > 0 && es_draw_may_fall_short(t, missing) && es_drawn_reserve(before, &t->form, missing) != ES_OK)
        return -ENOMEM;
    int64_t drawn = missing > 0 ? es_draw(t, missing, &to, first, &into) : 0;
    if (drawn < 0)
        return (int)drawn;
    if ((uint64_t)drawn < missing) {
        es_drawn_insert(before, &t->form, before->count, out->leaves, &to, first, (uint64_t)drawn);
        return (int)unless_failed(r, ES_SHORT);
    }
    es_drawn_take(before, &t->form, first, out->leaves, &to);
    weigh(t, out->weight, n, beta);
    return (int)unless_failed(r, ES_OK);
}

void es_replay_weigh(es_replay *r, uint32_t table, double *weight, uint64_t n, double beta)
{
    weigh(&r->tables.table[table], weight, n, beta);
}

int es_replay_put_back(es_replay *r, uint32_t table, uint64_t n, const es_batch_arrays *items)
{
    es_drawing from = drawing_over(items);
    const es_form *form = &r->tables.table[table].form;
    int code = es_drawn_reserve(&r->drawn[table], form, n);
    if (code == ES_OK)
        es_drawn_insert(&r->drawn[table], form, 0, items->leaves, &from, 0, n);
    return code;
}

int es_replay_get(es_replay *r, uint32_t table, const uint64_t *keys, uint64_t n, double beta,
                  const es_batch_arrays *out, es_trouble *why)
{
    es_table *t = &r->tables.table[table];
    es_drawing to = drawing_over(out);
    why->table = table;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t item = es_table_find(t, keys[i]);
        why->index = i;
        if (item == ES_STEPS_NONE)
            return ES_ENOITEM;
        es_draw_describe(t, item, &to, i);
        if (isnan(to.probability[i]) && t->config->sampler.kind == ES_CUSTOM)
            return ES_ESELECTOR;
        es_draw_write(t, item, out->leaves, i, false);
    }
    weigh(t, out->weight, n, beta);
    return ES_OK;
}

int64_t es_replay_update(es_replay *r, uint32_t table, const uint64_t *keys, const double *priorities, uint64_t n,
                         es_trouble *why)
{
    es_table *t = &r->tables.table[table];
    why->table = table;
    for (uint64_t i = 0; i < n; i++)
        if (!es_table_accepts(t, priorities[i])) {
            why->index = i;
            return ES_EPRIORITY;
        }
    return unless_failed(r, (int64_t)es_table_update(t, keys, priorities, n));
}

int64_t es_replay_delete(es_replay *r, uint32_t table, const uint64_t *keys, uint64_t n)
{
    es_table *t = &r->tables.table[table];
    int64_t there = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t item = es_table_find(t, keys[i]);
        if (item == ES_STEPS_NONE)
            continue;
        es_table_remove(t, item, false);
        there++;
    }
    return unless_failed(r, there);
}

int es_replay_reset(es_replay *r, uint32_t table)
{
    es_table_reset(&r->tables.table[table]);
    es_drawn_free(&r->drawn[table]);
    return (int)unless_failed(r, ES_OK);
}

int es_replay_set_limits(es_replay *r, uint32_t table, double min_diff, double max_diff)
{
    es_table *t = &r->tables.table[table];
    if (es_table_is_implicit(t) || isnan(min_diff) || isnan(max_diff))
        return -EINVAL;
    if (r->tables.failed)
        return ES_ESELECTOR;
    es_table_limits_set(t, &(es_rate_limits){min_diff, max_diff});
    return ES_OK;
}

int es_replay_learned(es_replay *r, uint32_t table)
{
    es_table *t = &r->tables.table[table];
    if (!es_table_ages(t))
        return -EINVAL;
    if (!r->tables.failed)
        es_table_age(t, NULL);
    return (int)unless_failed(r, ES_OK);
}

void es_replay_notes(es_replay *r, void *bytes, uint64_t size)
{
    es_notes_read(&r->tables.store, bytes, size);
}

void es_replay_set_notes(es_replay *r, const void *bytes, uint64_t size)
{
    es_notes_write(&r->tables.store, bytes, size);
}

/* --- rings ------------------------------------------------------------------------- */

int es_replay_connect_inbox(es_replay *r, es_ring *ring, void *segment, const uint8_t *uuid)
{
    return es_inbox_open_steps(&r->rings.inbox, &r->tables, ring, segment, uuid);
}

int es_replay_connect_updates(es_replay *r, es_ring *ring, void *segment, const uint8_t *uuid)
{
    return es_inbox_open_updates(&r->rings.inbox, &r->tables, ring, segment, uuid);
}

int es_replay_connect_batches(es_replay *r, uint32_t table, es_ring *ring, void *segment, const uint8_t *uuid,
                              uint32_t rank, uint32_t world_size)
{
    return es_rings_connect_batches(&r->rings, &r->tables.table[table], ring, segment, uuid, rank, world_size);
}

int es_replay_put(es_replay *r, uint32_t number, uint64_t n, const void *const *leaves)
{
    return number < r->rings.num_outboxes ? es_outbox_put(&r->rings.outboxes[number], n, leaves) : -EINVAL;
}

void es_replay_disconnect(es_replay *r)
{
    es_rings_disconnect(&r->rings);
}

uint64_t es_replay_turn(es_replay *r, uint64_t most, es_turn *turn)
{
    return es_rings_turn(&r->rings, &r->tables, most, turn);
}

/* --- looking --------------------------------------------------------------------- */

int es_replay_can_sample(es_replay *r, uint32_t table, uint64_t n)
{
    uint64_t before = r->drawn[table].count;
    return n <= before || es_table_can_sample(&r->tables.table[table], n - before);
}

int es_replay_can_insert(es_replay *r, uint32_t table, uint64_t n)
{
    return es_table_can_insert(&r->tables.table[table], n);
}

int es_replay_check_priority(es_replay *r, uint32_t table, double priority)
{
    return es_table_accepts(&r->tables.table[table], priority) ? ES_OK : ES_EPRIORITY;
}

void es_replay_info(es_replay *r, uint32_t table, es_table_info *info)
{
    es_table *t = &r->tables.table[table];
    uint64_t size = es_table_size(t), left = size - (t->aside == NULL ? 0 : es_rank_count(t->aside));
    es_selector_figures said = {.mass = NAN, .least = NAN, .log_mass = NAN, .log_least = NAN};
    if (t->sampler->class->describe != NULL)
        t->sampler->class->describe(t->sampler, &said);
    *info = (es_table_info){
        .size = size,
        .inserted = t->words->inserted,
        .sampled = t->words->sampled,
        .deleted = t->words->inserted - size,
        .evicted = t->words->evicted,
        .parked = t->parked.count,
        .episodes = t->episodes,
        .bytes = es_table_bytes(t) + es_drawn_bytes(&r->drawn[table], &t->form),
        .drawn_before = r->drawn[table].count,
        .highest = t->highest,
        .effective_sample_size = left > 0 ? t->sampler->class->effective(t->sampler) : 0,
        .mass = said.mass,
        .least_weight = said.least,
        .log_mass = said.log_mass,
        .least_log_weight = said.log_least,
        .min_diff = t->limits.min_diff,
        .max_diff = t->limits.max_diff,
        .can_sample = es_table_can_sample(t, 1),
        .can_insert = es_table_can_insert(t, 1),
        .temperature = {said.temperature[0], said.temperature[1]},
        .part_effective = {said.effective[0], said.effective[1]},
        .hot = said.hot,
        .moved = t->words->moved,
        .aged = t->words->aged,
        .updates = es_table_ages(t) ? t->words->round - 1 : 0,
    };
}

uint64_t es_replay_num_steps(es_replay *r)
{
    return es_rank_count(r->tables.steps.living);
}

uint64_t es_replay_list_steps(es_replay *r, es_stored_step *steps, uint64_t room)
{
    const es_steps *s = &r->tables.steps;
    uint64_t n = es_rank_count(s->living);
    for (uint64_t i = 0; i < n && i < room; i++) {
        uint32_t step = es_rank_member(s->living, i);
        const es_step_record *record = &r->tables.store.steps[step];
        es_step_head head = es_steps_head_of(record);
        steps[i] = (es_stored_step){.arrival = record->arrival,
                                    .stream = head.stream,
                                    .number = head.number,
                                    .record = step,
                                    .version = head.version,
                                    .index = head.index,
                                    .environment = head.environment,
                                    .episode = head.episode,
                                    .flags = head.flags};
    }
    return n < room ? n : room;
}

uint64_t es_replay_read_steps(es_replay *r, const es_stored_step *steps, uint64_t n, void *const *leaves)
{
    const es_store *store = &r->tables.store;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t step = steps[i].record;
        if (step >= store->step_slots || !es_rank_has(r->tables.steps.living, step) ||
            store->steps[step].arrival != steps[i].arrival)
            return i;
        es_gather(store, &step, 1, leaves, i, false);
    }
    return n;
}
