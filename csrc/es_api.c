#define _GNU_SOURCE /* nanosleep */
/* The roof: entry checks, and the ring, the copies and the owners put together. */
#include "es_api.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "es_copy.h"
#include "es_ring.h"

/* --- segments -------------------------------------------------------------- */

void es_describe(const void *base, uint64_t size, es_geometry *geo, uint8_t *uuid, int64_t *pid, int64_t *created_ns,
                 void *schema, uint64_t room)
{
    const es_header *hdr = base;
    *geo = hdr->geometry;
    if (geo->schema_size > size) /* changed since: nobody shall make room for that */
        geo->schema_size = 0;
    memcpy(uuid, hdr->uuid, sizeof hdr->uuid);
    *pid = hdr->creator_pid;
    *created_ns = hdr->created_ns;
    /* Whoever can write the segment may change these after es_check(). */
    uint64_t at = hdr->offsets.schema, bytes = geo->schema_size < room ? geo->schema_size : room;
    if (bytes > 0 && at <= size && bytes <= size - at)
        memcpy(schema, (const uint8_t *)base + at, bytes);
}

uint32_t es_creator_byte(void)
{
    return ES_MAX_LEARNERS + ES_MAX_PRODUCERS;
}

/* --- attaching ------------------------------------------------------------- */

es_ring *es_open(void *base, uint64_t size, es_locks *locks, int poison, int *error)
{
    es_ring *r = calloc(1, sizeof *r);
    *error = r == NULL ? -ENOMEM : es_map_init(&r->map, base, size);
    if (*error != ES_OK) {
        free(r);
        return NULL;
    }
    r->scan = calloc(r->map.num_batches, sizeof *r->scan);
    r->held = calloc(r->map.num_batches, sizeof *r->held);
    pthread_mutex_init(&r->look_lock, NULL);
    pthread_mutex_init(&r->partial_lock, NULL);
    if (r->scan == NULL || r->held == NULL) {
        *error = -ENOMEM;
        es_free(r);
        return NULL;
    }
    r->locks = locks;
    r->poison = poison != 0;
    r->fork_generation = es_fork_generation();
    r->detached = 1; /* until es_attach() */
    r->seen_reopen = UINT64_MAX;   /* no 32-bit sequence: the first claim searches for holes */
    r->seen_returned = UINT64_MAX; /* and the first look is everywhere */
    return r;
}

void es_free(es_ring *r)
{
    if (r == NULL)
        return;
    pthread_mutex_destroy(&r->look_lock);
    pthread_mutex_destroy(&r->partial_lock);
    es_map_free(&r->map);
    free(r->scan);
    free(r->held);
    free(r->leaf_at);
    free(r);
}

int64_t es_attach(es_ring *r, const es_identity *id)
{
    if (r->fork_generation != es_fork_generation())
        return ES_EFORK;
    if (r->locks == NULL)
        return ES_EREADONLY;
    /* SYNC attached: acquire; pairs with the release store below. */
    if (atomic_load_explicit(&r->detached, memory_order_acquire) == 0)
        return -EALREADY;
    int64_t index = es_owner_register(&r->map, r->locks, id);
    if (index >= 0) {
        r->me = (uint32_t)index;
        r->role = id->role;
        atomic_store_explicit(&r->last_sweep_ns, es_now_ns(), memory_order_relaxed);
        atomic_store_explicit(&r->last_mend_ns, es_now_ns(), memory_order_relaxed);
        /* SYNC attached: release; me and role are visible to whoever enters. */
        atomic_store_explicit(&r->detached, 0, memory_order_release);
    }
    return index;
}

static void release_all(es_ring *r)
{
    for (uint64_t j = 0; j < r->map.num_batches; j++)
        if (r->held[j] != 0)
            es_release(r, j, r->held[j] - 1);
}

int es_detach(es_ring *r)
{
    uint32_t no = 0;
    if (r->fork_generation != es_fork_generation())
        return ES_EFORK;
    /* SYNC busy: seq_cst; pairs with enter(): a thread either sees detached, or is counted. */
    if (!atomic_compare_exchange_strong(&r->detached, &no, 1))
        return ES_EDETACHED;
    /* A thread that sleeps in here looks at detached when woken. */
    const struct timespec nap = {.tv_nsec = 50000};
    while (atomic_load(&r->busy) != 0) {
        es_wake_everybody(r);
        nanosleep(&nap, NULL);
    }
    release_all(r);
    es_settle_bridge(&r->map, r->me);
    es_leave_claims(r);
    es_owner_free(&r->map, r->me);
    es_locks_drop(r->locks, r->me);
    return ES_OK;
}

void es_shape(const es_ring *r, uint64_t *batch_size, uint64_t *num_batches, uint32_t *num_leaves)
{
    *batch_size = r->map.batch_size;
    *num_batches = r->map.num_batches;
    *num_leaves = r->map.num_leaves;
}

uint64_t es_leaf_offset(const es_ring *r, uint32_t leaf)
{
    return (uint64_t)(r->map.leaf_data[leaf] - r->map.base);
}

uint64_t es_leaf_size(const es_ring *r, uint32_t leaf)
{
    return r->map.leaf_size[leaf];
}

/* Every call that touches the ring is bracketed by these two. */
static int enter(es_ring *r)
{
    if (r->fork_generation != es_fork_generation())
        return ES_EFORK;
    /* SYNC busy: seq_cst; pairs with es_detach(). */
    atomic_fetch_add(&r->busy, 1);
    if (atomic_load(&r->detached) == 0)
        return ES_OK;
    atomic_fetch_sub_explicit(&r->busy, 1, memory_order_release);
    return ES_EDETACHED;
}

static void leave(es_ring *r)
{
    /* SYNC busy: release; what the thread did in the ring is over for es_detach(). */
    atomic_fetch_sub_explicit(&r->busy, 1, memory_order_release);
}

/* --- producing ------------------------------------------------------------- */

static void record_copy(es_ring *r, uint64_t start)
{
    if (start != 0)
        es_hist_record(&r->map, ES_HIST_COPY, es_now_ns() - start);
}

int es_send_wait(es_ring *r, void **leaves, uint64_t timeout_ns)
{
    uint64_t pos;
    int rc = enter(r);
    if (rc != ES_OK)
        return rc;
    int64_t n = es_claim_wait(r, 1, timeout_ns, &pos);
    if (n > 0) {
        uint64_t start = es_detailed(&r->map) ? es_now_ns() : 0;
        es_copy_sample(&r->map, pos, leaves);
        record_copy(r, start);
        rc = es_commit(r, pos, 1);
    } else {
        rc = (int)n;
    }
    leave(r);
    return rc;
}

int es_send(es_ring *r, void **leaves)
{
    return es_send_wait(r, leaves, 0);
}

int64_t es_send_many(es_ring *r, void **leaves, uint64_t first, uint64_t n, uint64_t timeout_ns)
{
    uint64_t sent = 0;
    int64_t rc = enter(r);
    if (rc != ES_OK)
        return rc;
    while (first + sent < n) {
        uint64_t pos, start;
        int64_t run = es_claim_wait(r, n - first - sent, sent == 0 ? timeout_ns : 0, &pos);
        if (run < 0) {
            rc = run;
            break;
        }
        start = es_detailed(&r->map) ? es_now_ns() : 0;
        es_copy_run(&r->map, pos, (uint64_t)run, leaves, first + sent);
        record_copy(r, start);
        uint64_t done = es_commit_run(r, pos, (uint64_t)run);
        sent += done;
        if (done < (uint64_t)run) {
            rc = ES_EEVICTED;
            break;
        }
    }
    leave(r);
    return sent > 0 ? (int64_t)sent : rc;
}

int es_reserve(es_ring *r, uint64_t timeout_ns, int64_t *position)
{
    uint64_t pos;
    int rc = enter(r);
    if (rc != ES_OK)
        return rc;
    int64_t n = es_claim_wait(r, 1, timeout_ns, &pos);
    if (n > 0)
        *position = (int64_t)pos;
    leave(r);
    return n > 0 ? ES_OK : (int)n;
}

int es_reserve_commit(es_ring *r, int64_t position)
{
    int rc = enter(r);
    if (rc != ES_OK)
        return rc;
    rc = es_commit(r, (uint64_t)position, 1);
    leave(r);
    return rc;
}

int es_reserve_abort(es_ring *r, int64_t position)
{
    int rc = enter(r);
    if (rc != ES_OK)
        return rc;
    es_abort(r, (uint64_t)position);
    leave(r);
    return ES_OK;
}

int es_learner_alive(es_ring *r)
{
    if (r->fork_generation != es_fork_generation())
        return ES_EFORK;
    return r->locks == NULL ? ES_EREADONLY : es_owner_learner_alive(&r->map, r->locks);
}

/* --- learning -------------------------------------------------------------- */

int64_t es_take(es_ring *r, uint32_t flags, uint64_t timeout_ns, es_snapshot *snap)
{
    snap->length = 0;
    snap->sweep_due = 0;
    int rc = enter(r);
    if (rc != ES_OK)
        return rc;
    int64_t batch = es_take_wait(r, flags, timeout_ns);
    if (batch >= 0) {
        es_snapshot_fill(&r->map, snap);
        snap->batch = (uint64_t)batch;
        snap->round = r->held[batch] - 1;
        snap->length = r->map.batch_size - r->scan[batch].gaps;
        snap->learner_wait_ns = atomic_exchange_explicit(&r->wait_ns, 0, memory_order_relaxed);
    }
    uint64_t last = atomic_load_explicit(&r->last_sweep_ns, memory_order_relaxed);
    snap->sweep_due = es_now_ns() - last >= r->map.reap_interval_ns;
    leave(r);
    return batch;
}

int es_release_batch(es_ring *r, uint64_t batch, uint64_t round)
{
    int rc = enter(r);
    if (rc != ES_OK)
        return rc;
    rc = es_release(r, batch, round);
    leave(r);
    return rc;
}

int es_return_batch(es_ring *r, uint64_t batch, uint64_t round)
{
    int rc = enter(r);
    if (rc != ES_OK)
        return rc;
    rc = es_give_back(r, batch, round);
    leave(r);
    return rc;
}

int64_t es_committed_mask(es_ring *r, uint64_t batch, uint64_t round, uint8_t *mask)
{
    int64_t rc = enter(r);
    if (rc != ES_OK)
        return rc;
    rc = es_committed(r, batch, round, mask);
    leave(r);
    return rc;
}

int es_close_stream(es_ring *r)
{
    /* Without enter(): a creator that is being torn down may have detached already. */
    if (r->fork_generation != es_fork_generation())
        return ES_EFORK;
    if (r->locks == NULL)
        return ES_EREADONLY;
    es_close_ring(r);
    return ES_OK;
}

int es_reset_histograms(es_ring *r)
{
    int rc = enter(r);
    if (rc != ES_OK)
        return rc;
    es_hist_reset(&r->map);
    leave(r);
    return ES_OK;
}
