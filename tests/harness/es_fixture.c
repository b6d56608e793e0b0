#define _GNU_SOURCE
#include "es_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const uint64_t sample_leaves[FIX_LEAVES] = {sizeof(uint64_t), FIX_PATTERN};
static const uint8_t uuid[16] = "fixture-segment";
static const char text[] = "id:u8 pattern:40"; /* the schema, cut to the segment's schema size */

static void *must(void *p, const char *what)
{
    if (p == NULL || p == MAP_FAILED) {
        perror(what);
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
                         .schema_size = sizeof text,
                         .flags = flags};
}

/* --- the segment -------------------------------------------------------------- */

es_locks *fix_own_locks(const es_fix *f)
{
    char path[64];
    int fd = -1;
    if (f->lock_fd >= 0) {
        /* Not dup(): locks belong to an open file description, and a duplicate would share it. */
        snprintf(path, sizeof path, "/proc/self/fd/%d", f->lock_fd);
        fd = open(path, O_RDWR | O_CLOEXEC);
        must(fd >= 0 ? path : NULL, "lock file");
    }
    return must(es_locks_new(fd, ES_MAX_LEARNERS + f->geo.max_producers), "locks");
}

void fix_again(es_fix *f)
{
    es_locks_free(f->locks);
    f->locks = fix_own_locks(f);
    uint8_t *schema = must(calloc(1, f->geo.schema_size + sizeof text), "schema");
    memcpy(schema, text, sizeof text);
    memset(f->base, 0, f->size);
    must(es_layout_format(f->base, f->size, &f->geo, f->leaf_sizes, schema, uuid, getpid(), 1) == ES_OK ? f : NULL,
         "format");
    free(schema);
}

static es_fix *fixture(const es_geometry *geo, const uint64_t *leaf_sizes)
{
    es_fix *f = must(calloc(1, sizeof *f), "fixture");
    f->geo = *geo;
    f->lock_fd = -1;
    f->size = es_layout_size(geo, leaf_sizes);
    f->leaf_sizes = must(calloc(geo->num_leaves + 1, sizeof *leaf_sizes), "leaf sizes");
    memcpy(f->leaf_sizes, leaf_sizes, geo->num_leaves * sizeof *leaf_sizes);
    must(f->size != 0 ? f : NULL, "segment size");
    return f;
}

es_fix *fix_new_leaves(const es_geometry *geo, const uint64_t *leaf_sizes)
{
    es_fix *f = fixture(geo, leaf_sizes);
    f->base = must(aligned_alloc(ES_PAGE, f->size), "segment");
    fix_again(f);
    return f;
}

es_fix *fix_new(uint64_t batch_size, uint64_t num_batches, uint32_t flags)
{
    es_geometry geo = fix_geometry(batch_size, num_batches, flags);
    return fix_new_leaves(&geo, sample_leaves);
}

es_fix *fix_new_shared(const es_geometry *geo, const uint64_t *leaf_sizes)
{
    es_fix *f = fixture(geo, leaf_sizes != NULL ? leaf_sizes : sample_leaves);
    f->base = must(mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), "shared segment");
    f->lock_fd = memfd_create("locks", MFD_CLOEXEC);
    fix_again(f);
    return f;
}

void fix_free(es_fix *f)
{
    for (int i = 0; i < f->num_rings; i++)
        es_api_free(f->rings[i]);
    es_locks_free(f->locks);
    if (f->lock_fd >= 0) {
        munmap(f->base, f->size);
        close(f->lock_fd);
    } else {
        free(f->base);
    }
    free(f->leaf_sizes);
    free(f);
}

/* --- attachments -------------------------------------------------------------- */

static es_ring *opened(const es_fix *f, es_locks *locks, int poison)
{
    int error;
    return must(es_api_open(f->base, f->size, locks, poison, &error), "open");
}

es_ring *fix_open(es_fix *f, int poison)
{
    must(f->num_rings < FIX_MAX_RINGS ? f : NULL, "room for attachments");
    return f->rings[f->num_rings++] = opened(f, f->locks, poison);
}

es_ring *fix_join(const es_fix *f, es_locks *locks, uint32_t role, int poison)
{
    es_ring *r = opened(f, locks, poison);
    es_identity id = {.role = role, .pid = getpid(), .start_time = 1.5};
    int64_t index = 0;
    while (role != 0 && (index = es_api_attach(r, &id)) == ES_ENOOWNER)
        sched_yield(); /* all entries belong to dead owners */
    must(index >= 0 ? r : NULL, "attach");
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

/* --- samples ------------------------------------------------------------------- */

void fix_sample(uint64_t id, fix_sample_t *out)
{
    out->id = id;
    es_sample_leaf(id, 1, FIX_PATTERN, out->pattern);
}

void fix_share(es_ring *r)
{
    es_age_set_version(r, ES_SAMPLE_ANY_VERSION, true);
}

void fix_set_version(es_ring *r, uint64_t first_id, uint64_t n)
{
    if (es_age_version(r) != ES_SAMPLE_ANY_VERSION)
        es_age_set_version(r, es_sample_version(first_id, n), true);
}

int fix_send_wait(es_ring *r, uint64_t id, uint64_t timeout_ns)
{
    fix_sample_t s;
    fix_sample(id, &s);
    void *leaves[FIX_LEAVES] = {&s.id, s.pattern};
    fix_set_version(r, id, 1);
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
    n = n < 16 ? n : 16;
    fix_set_version(r, first_id, n);
    return es_api_send_many(r, leaves, 0, n, timeout_ns);
}

int64_t fix_reserve(es_ring *r, uint64_t timeout_ns)
{
    int64_t pos;
    int rc = es_api_reserve(r, timeout_ns, &pos);
    return rc == ES_OK ? pos : rc;
}

void fix_write(es_ring *r, uint64_t pos, uint64_t id)
{
    es_sample_write(&r->map, pos % r->map.capacity, id);
    es_leaves_stamp(&r->map, pos, 1, es_sample_version(id, 1));
}

bool fix_read(es_ring *r, uint64_t index, uint64_t *id)
{
    return es_sample_read(&r->map, index, id);
}

int64_t fix_read_batch(es_ring *r, int64_t j, const es_snapshot *snap, uint64_t *ids)
{
    uint8_t mask[FIX_MAX_BATCH];
    int64_t n = 0;
    must(r->map.batch_size <= FIX_MAX_BATCH ? r : NULL, "room for a batch");
    bool full = snap->length == r->map.batch_size, whole = true;
    memset(mask, 1, sizeof mask);
    /* A full batch is read before the mask, because the take alone must make its samples visible. */
    if (!full && es_api_committed_mask(r, (uint64_t)j, snap->round, mask) != (int64_t)snap->length)
        return FIX_TORN;
    for (uint64_t i = 0; i < r->map.batch_size; i++)
        if (mask[i])
            whole = fix_read(r, (uint64_t)j * r->map.batch_size + i, &ids[n++]) && whole;
    if (full)
        whole = es_api_committed_mask(r, (uint64_t)j, snap->round, mask) == n && whole;
    return whole ? n : FIX_TORN;
}

/* --- taking -------------------------------------------------------------------- */

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
    int64_t j = es_api_take(l, flags, 0, &snap);
    if (j < 0)
        return j;
    int64_t n = fix_read_batch(l, j, &snap, ids);
    return es_api_release(l, (uint64_t)j, snap.round) == ES_OK ? n : FIX_TORN;
}

void fix_spin_laps(es_ring *producer, es_ring *learner, uint64_t laps)
{
    for (uint64_t i = 0; i < laps * producer->map.capacity; i++) {
        fix_send(producer, i);
        fix_take_k(learner, 0);
    }
}
