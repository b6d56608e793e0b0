#define _GNU_SOURCE
#include "es_fixture.h"

#include "es_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t sample_leaves[FIX_LEAVES] = {sizeof(uint64_t), FIX_PATTERN};
static const uint8_t uuid[16] = "fixture-segment";
static const char schema[] = "id:u8 pattern:40";

static void *must(void *p, const char *what)
{
    if (p == NULL) {
        fprintf(stderr, "fixture: %s\n", what);
        abort();
    }
    return p;
}

es_geometry fix_geometry(uint64_t batch_size, uint64_t num_batches, uint32_t flags)
{
    return (es_geometry){.batch_size = batch_size,
                         .num_batches = num_batches,
                         .reap_interval_ns = 20000000,
                         .max_producers = FIX_PRODUCERS,
                         .max_remotes = FIX_REMOTES,
                         .num_leaves = FIX_LEAVES,
                         .schema_size = sizeof schema,
                         .flags = flags};
}

uint64_t fix_segment_size(const es_geometry *geo)
{
    return es_layout_size(geo, sample_leaves);
}

int fix_format(void *base, uint64_t size, const es_geometry *geo)
{
    return es_layout_format(base, size, geo, sample_leaves, schema, uuid, getpid(), 1);
}

static es_fix *fixture(const es_geometry *geo, const uint64_t *leaf_sizes)
{
    es_fix *f = must(calloc(1, sizeof *f), "memory");
    f->geo = *geo;
    f->size = es_layout_size(geo, leaf_sizes);
    f->base = must(f->size != 0 ? aligned_alloc(ES_PAGE, f->size) : NULL, "segment");
    memset(f->base, 0, f->size);
    /* locks that live in this process alone */
    f->locks = must(es_locks_new(-1, ES_MAX_LEARNERS + geo->max_producers), "locks");
    return f;
}

es_fix *fix_new(uint64_t batch_size, uint64_t num_batches, uint32_t flags)
{
    es_geometry geo = fix_geometry(batch_size, num_batches, flags);
    es_fix *f = fixture(&geo, sample_leaves);
    must(fix_format(f->base, f->size, &geo) == ES_OK ? f : NULL, "format");
    return f;
}

es_fix *fix_new_leaves(const es_geometry *geo, const uint64_t *leaf_sizes)
{
    es_fix *f = fixture(geo, leaf_sizes);
    uint8_t *text = must(calloc(1, geo->schema_size + 1), "schema");
    must(es_layout_format(f->base, f->size, geo, leaf_sizes, text, uuid, getpid(), 1) == ES_OK ? f : NULL, "format");
    free(text);
    return f;
}

void fix_free(es_fix *f)
{
    for (int i = 0; i < f->num_rings; i++)
        es_api_free(f->rings[i]);
    es_locks_free(f->locks);
    free(f->base);
    free(f);
}

es_ring *fix_open(es_fix *f, int poison)
{
    int error;
    es_ring *r = must(es_api_open(f->base, f->size, f->locks, poison, &error), "open");
    must(f->num_rings < FIX_MAX_RINGS ? f : NULL, "too many attachments");
    f->rings[f->num_rings++] = r;
    return r;
}

es_ring *fix_attach(es_fix *f, uint32_t role)
{
    es_identity id = {.role = role, .pid = getpid(), .start_time = 1.5};
    es_ring *r = fix_open(f, 0);
    must(es_api_attach(r, &id) >= 0 ? r : NULL, "attach");
    return r;
}

es_ring *fix_producer(es_fix *f)
{
    return fix_attach(f, ES_ROLE_PRODUCER);
}

es_ring *fix_learner(es_fix *f)
{
    return fix_attach(f, ES_ROLE_LEARNER);
}

void fix_die(es_fix *f, es_ring *r)
{
    es_locks_drop(f->locks, r->me);
}

int fix_sweep(es_ring *by)
{
    es_identity id;
    int n = 0;
    int64_t i = es_sweep_next_dead(by, 0, &id);
    for (; i >= 0; i = es_sweep_next_dead(by, (uint32_t)i + 1, &id), n++)
        es_reap(by, (uint32_t)i);
    return n == 0 && i == ES_UNSURE ? ES_UNSURE : n;
}

void fix_slot(es_ring *r, uint64_t index, uint64_t lap, uint32_t owner, uint32_t state)
{
    atomic_store(&r->map.slots[index], es_word(lap, owner, state));
}

void fix_batch(es_ring *r, uint64_t j, uint64_t round, uint32_t owner, uint32_t state)
{
    atomic_store(&r->map.batches[j].word, es_word(round, owner, state));
}

uint64_t fix_slot_word(es_ring *r, uint64_t index)
{
    return atomic_load(&r->map.slots[index]);
}

uint64_t fix_batch_word(es_ring *r, uint64_t j)
{
    return atomic_load(&r->map.batches[j].word);
}

uint32_t fix_count(es_ring *r, uint64_t j)
{
    return atomic_load(&r->map.batches[j].count);
}

uint64_t fix_tail(es_ring *r)
{
    return atomic_load(&r->map.hdr->tail);
}

uint64_t fix_head(es_ring *r)
{
    return atomic_load(&r->map.hdr->head);
}

void fix_sample(uint64_t id, fix_sample_t *out)
{
    out->id = id;
    uint64_t x = id;
    for (int i = 0; i < FIX_PATTERN; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        out->pattern[i] = (uint8_t)(x >> 56);
    }
}

int fix_send_wait(es_ring *r, uint64_t id, uint64_t timeout_ns)
{
    fix_sample_t s;
    fix_sample(id, &s);
    void *leaves[FIX_LEAVES] = {&s.id, s.pattern};
    return es_api_send_wait(r, leaves, timeout_ns);
}

int fix_send(es_ring *r, uint64_t id)
{
    return fix_send_wait(r, id, 0);
}

int64_t fix_send_many(es_ring *r, uint64_t first_id, uint64_t n, uint64_t timeout_ns)
{
    uint64_t ids[16];
    uint8_t patterns[16][FIX_PATTERN];
    for (uint64_t i = 0; i < n && i < 16; i++) {
        fix_sample_t s;
        fix_sample(first_id + i, &s);
        ids[i] = s.id;
        memcpy(patterns[i], s.pattern, FIX_PATTERN);
    }
    void *leaves[FIX_LEAVES] = {ids, patterns};
    return es_api_send_many(r, leaves, 0, n < 16 ? n : 16, timeout_ns);
}

int64_t fix_reserve(es_ring *r, uint64_t timeout_ns)
{
    int64_t pos;
    int rc = es_api_reserve(r, timeout_ns, &pos);
    return rc == ES_OK ? pos : rc;
}

void fix_write(es_ring *r, uint64_t pos, uint64_t id)
{
    fix_sample_t s;
    fix_sample(id, &s);
    uint64_t index = pos % r->map.capacity;
    memcpy(r->map.leaf_data[0] + index * sizeof s.id, &s.id, sizeof s.id);
    memcpy(r->map.leaf_data[1] + index * FIX_PATTERN, s.pattern, FIX_PATTERN);
}

bool fix_read(es_ring *r, uint64_t index, uint64_t *id)
{
    fix_sample_t s;
    memcpy(id, r->map.leaf_data[0] + index * sizeof *id, sizeof *id);
    fix_sample(*id, &s);
    return memcmp(s.pattern, r->map.leaf_data[1] + index * FIX_PATTERN, FIX_PATTERN) == 0;
}

int64_t fix_take(es_ring *r, uint32_t flags, uint64_t *round)
{
    es_snapshot snap;
    int64_t j = es_api_take(r, flags, 0, &snap);
    if (j >= 0)
        *round = snap.round;
    return j;
}

int64_t fix_take_k(es_ring *r, uint32_t flags)
{
    uint64_t round;
    int64_t j = fix_take(r, flags, &round);
    if (j < 0)
        return j;
    es_api_release(r, (uint64_t)j, round);
    return (int64_t)(round * r->map.num_batches) + j;
}

int64_t fix_take_short(es_ring *l, uint32_t flags, uint64_t *ids)
{
    es_snapshot snap;
    uint8_t mask[16];
    int64_t j = es_api_take(l, flags, 0, &snap), n = 0;
    if (j < 0)
        return j;
    CHECK_EQ(es_api_committed_mask(l, (uint64_t)j, snap.round, mask), (int64_t)snap.length);
    for (uint64_t i = 0; i < l->map.batch_size; i++)
        if (mask[i])
            CHECK(fix_read(l, (uint64_t)j * l->map.batch_size + i, &ids[n++]));
    CHECK_EQ(es_api_release(l, (uint64_t)j, snap.round), ES_OK);
    return n;
}

void fix_spin_laps(es_ring *producer, es_ring *learner, uint64_t laps)
{
    for (uint64_t i = 0; i < laps * producer->map.capacity; i++) {
        fix_send(producer, i);
        fix_take_k(learner, 0);
    }
}
