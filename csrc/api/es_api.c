/* What Python calls: checks on entry, then the ring, the copies and the owners together. */
#include "api/es_api.h"

#include "api/es_call.h"
#include "base/es_clock.h"
#include "base/es_wait.h"
#include "ring/es_blocking.h"
#include "ring/es_drain.h"
#include "ring/es_journal.h"
#include "ring/es_lease.h"
#include "ring/es_leaves.h"
#include "ring/es_locks.h"
#include "ring/es_owner.h"
#include "ring/es_producer.h"
#include "ring/es_ring.h"
#include "ring/es_slots.h"
#include "ring/es_stats.h"
#include "ring/es_version.h"
#include "ring/es_wake.h"

const char *es_api_wait_kind(void)
{
    return es_wait_kind();
}

uint32_t es_api_fork_generation(void)
{
    return es_locks_fork_generation();
}

/* --- attaching ------------------------------------------------------------- */

es_ring *es_api_open(void *base, uint64_t size, es_locks *locks, int poison, int *error)
{
    return es_ring_open(base, size, locks, poison, error);
}

void es_api_free(es_ring *r)
{
    es_ring_free(r);
}

/* Tells learners that are attached already that they share the ring, and notes what they lease. */
static void share(es_ring *r)
{
    /* FENCE shared: of two learners that attach at the same time, at least one sees the other. */
    atomic_thread_fence(memory_order_seq_cst);
    if (!es_owner_learner_alive(&r->map, r->locks, r->me))
        return;
    atomic_store_explicit(&r->map.hdr->shared, 1, memory_order_relaxed);
    /* FENCE shared: pairs with es_api_take(). */
    atomic_thread_fence(memory_order_seq_cst);
    es_lease_note_older(r);
}

int64_t es_api_attach(es_ring *r, const es_identity *id)
{
    if (r->fork_generation != es_locks_fork_generation())
        return ES_EFORK;
    if (r->locks == NULL)
        return ES_EREADONLY;
    /* SYNC attached: acquire; pairs with the release store below. */
    if (atomic_load_explicit(&r->left, memory_order_acquire) == 0)
        return -EALREADY;
    int64_t index = es_owner_register(&r->map, r->locks, id);
    if (index >= 0) {
        r->me = (uint32_t)index;
        r->role = id->role;
        atomic_store_explicit(&r->last_sweep_ns, es_clock_ns(), memory_order_relaxed);
        atomic_store_explicit(&r->last_repair_ns, es_clock_ns(), memory_order_relaxed);
        if (id->role == ES_ROLE_LEARNER)
            share(r);
        /* SYNC attached: release; me and role are visible to whoever enters. */
        atomic_store_explicit(&r->detached, 0, memory_order_release);
        atomic_store_explicit(&r->retired, 0, memory_order_release);
        atomic_store_explicit(&r->left, 0, memory_order_release);
    }
    return index;
}

int es_api_stop(es_ring *r)
{
    if (r->fork_generation != es_locks_fork_generation())
        return ES_EFORK;
    /* SYNC busy: seq_cst; pairs with es_call_enter(): a thread either sees detached or is counted. */
    if (atomic_exchange(&r->detached, 1) != 0)
        return ES_EDETACHED;
    /* Once is enough: a thread that parks has read the sequence number first, and detached after
     * it. So it sees detached, or its number is old by now and it does not sleep. */
    if (atomic_load(&r->busy) != 0)
        es_wake_all(r);
    return ES_OK;
}

int es_api_retire(es_ring *r)
{
    uint32_t no = 0;
    if (r->fork_generation != es_locks_fork_generation())
        return ES_EFORK;
    /* SYNC busy: seq_cst; pairs with es_call_enter_to_settle(): a thread either sees retired or is counted. */
    if (!atomic_compare_exchange_strong(&r->retired, &no, 1))
        return ES_EDETACHED;
    /* SYNC busy: seq_cst; the same for es_call_enter(). */
    atomic_exchange(&r->detached, 1);
    es_call_await(r);
    /* Counted, so that es_api_detach() does not free the entry meanwhile. */
    if (es_call_enter_to_end(r) == ES_OK) {
        es_slots_reopen(r, r->me);
        es_call_leave(r);
    }
    es_wake_all(r);
    return ES_OK;
}

int es_api_detach(es_ring *r)
{
    uint32_t no = 0;
    if (r->fork_generation != es_locks_fork_generation())
        return ES_EFORK;
    /* SYNC busy: seq_cst; pairs with es_call_enter() and es_call_enter_to_end(): a thread either sees left or is counted. */
    if (!atomic_compare_exchange_strong(&r->left, &no, 1))
        return ES_EDETACHED;
    /* SYNC busy: seq_cst; the same for es_call_enter_to_settle() and es_call_enter(). */
    atomic_exchange(&r->retired, 1);
    atomic_exchange(&r->detached, 1);
    es_call_await(r);
    es_lease_release_all(r);
    es_journal_settle(&r->map, r->me);
    es_slots_reopen(r, r->me);
    if (r->map.weights != NULL)
        es_version_release_all(&r->map, r->me);
    es_wake_all(r);
    es_owner_free(&r->map, r->me);
    es_locks_drop(r->locks, r->me);
    return ES_OK;
}

void es_api_shape(const es_ring *r, uint64_t *batch_size, uint64_t *num_batches, uint32_t *num_leaves)
{
    *batch_size = r->map.batch_size;
    *num_batches = r->map.num_batches;
    *num_leaves = r->map.num_leaves;
}

uint64_t es_api_leaf_offset(const es_ring *r, uint32_t leaf)
{
    return (uint64_t)(r->map.leaf_data[leaf] - r->map.base);
}

uint64_t es_api_leaf_size(const es_ring *r, uint32_t leaf)
{
    return r->map.leaf_size[leaf];
}

/* --- producing ------------------------------------------------------------- */

static void record_copy(es_ring *r, uint64_t start)
{
    if (start != 0)
        es_stats_record(&r->map, ES_STATS_COPY, es_clock_ns() - start);
}

/* ES_EEVICTED: after the close a learner has sealed the slot. */
static int commit_one(es_ring *r, uint64_t pos)
{
    return es_producer_commit(r, pos, 1) == 1 ? ES_OK : ES_EEVICTED;
}

int es_api_send_wait(es_ring *r, void **leaves, uint64_t timeout_ns)
{
    uint64_t pos;
    int rc = es_call_enter_to_claim(r);
    if (rc != ES_OK)
        return rc;
    int64_t n = es_blocking_claim(r, 1, timeout_ns, &pos);
    if (n > 0) {
        uint64_t start = es_stats_detailed(&r->map) ? es_clock_ns() : 0;
        es_leaves_write(&r->map, pos, leaves);
        es_leaves_stamp(&r->map, pos, 1, es_ring_version(r));
        record_copy(r, start);
        rc = commit_one(r, pos);
    } else {
        rc = (int)n;
    }
    es_call_leave(r);
    return rc;
}

int es_api_send(es_ring *r, void **leaves)
{
    return es_api_send_wait(r, leaves, 0);
}

/* From the completion of a batch on, so many bytes are written at most before its learners are woken, and no more than
 * half of the ring has. A wake-up may cost more than a small sample, and whoever is woken finds all that has come since. */
#define MOST_BEFORE_WAKE (UINT64_C(1) << 20)

int64_t es_api_send_many(es_ring *r, void **leaves, uint64_t first, uint64_t n, uint64_t timeout_ns)
{
    uint64_t sent = 0, since = 0; /* since: bytes written since a batch was completed */
    bool complete = false;        /* a batch is, and its learners are not woken yet: nothing below may sleep */
    int64_t rc = es_call_enter_to_claim(r);
    if (rc != ES_OK)
        return rc;
    int64_t version = es_ring_version(r);
    uint64_t most = es_leaves_bytes(&r->map, r->map.capacity) / 2;
    if (most > MOST_BEFORE_WAKE)
        most = MOST_BEFORE_WAKE;
    while (first + sent < n) {
        uint64_t pos, start;
        int64_t run = es_blocking_claim(r, n - first - sent, sent == 0 ? timeout_ns : 0, &pos);
        if (run < 0) {
            rc = run;
            break;
        }
        since = complete ? since + es_leaves_bytes(&r->map, (uint64_t)run) : 0;
        if (since > most) {
            es_wake_learners(r);
            complete = false;
            since = 0;
        }
        start = es_stats_detailed(&r->map) ? es_clock_ns() : 0;
        es_leaves_write_run(&r->map, pos, (uint64_t)run, leaves, first + sent);
        es_leaves_stamp(&r->map, pos, (uint64_t)run, version);
        record_copy(r, start);
        uint64_t done = es_producer_commit_run(r, pos, (uint64_t)run, &complete);
        sent += done;
        if (done < (uint64_t)run) {
            rc = ES_EEVICTED;
            break;
        }
    }
    if (complete)
        es_wake_learners(r);
    es_call_leave(r);
    return sent > 0 ? (int64_t)sent : rc;
}

static int64_t reserve(es_ring *r, uint64_t want, uint64_t timeout_ns, int64_t *position)
{
    uint64_t pos;
    int rc = es_call_enter_to_claim(r);
    if (rc != ES_OK)
        return rc;
    int64_t n = es_blocking_claim(r, want, timeout_ns, &pos);
    if (n > 0) {
        *position = (int64_t)pos;
        es_leaves_stamp(&r->map, pos, (uint64_t)n, es_ring_version(r));
    }
    es_call_leave(r);
    return n;
}

int es_api_reserve(es_ring *r, uint64_t timeout_ns, int64_t *position)
{
    int64_t n = reserve(r, 1, timeout_ns, position);
    return n > 0 ? ES_OK : (int)n;
}

int64_t es_api_reserve_many(es_ring *r, uint64_t want, int64_t *position)
{
    return reserve(r, want, 0, position);
}

int64_t es_api_commit_many(es_ring *r, int64_t position, uint64_t n)
{
    int rc = es_call_enter_to_settle(r);
    if (rc != ES_OK)
        return rc;
    int64_t done = (int64_t)es_producer_commit(r, (uint64_t)position, n);
    es_call_leave(r);
    return done;
}

int es_api_commit(es_ring *r, int64_t position)
{
    int64_t done = es_api_commit_many(r, position, 1);
    return done == 0 ? ES_EEVICTED : done > 0 ? ES_OK : (int)done;
}

int es_api_abort(es_ring *r, int64_t position)
{
    int rc = es_call_enter_to_settle(r);
    if (rc != ES_OK)
        return rc;
    es_producer_abort(r, (uint64_t)position);
    es_call_leave(r);
    return ES_OK;
}

int64_t es_api_committed_from(es_ring *r, uint64_t position)
{
    return es_producer_committed_from(r, position);
}

int64_t es_api_claimed(es_ring *r)
{
    return (int64_t)es_producer_claimed(r);
}

int es_api_learner_alive(es_ring *r)
{
    if (r->fork_generation != es_locks_fork_generation())
        return ES_EFORK;
    return r->locks == NULL ? ES_EREADONLY : es_owner_learner_alive(&r->map, r->locks, ES_NOBODY);
}

/* --- learning -------------------------------------------------------------- */

int64_t es_api_take(es_ring *r, uint32_t flags, uint64_t timeout_ns, es_snapshot *snap)
{
    snap->length = 0;
    snap->sweep_due = 0;
    int rc = es_call_enter(r);
    if (rc != ES_OK)
        return rc;
    int64_t batch = es_blocking_take(r, flags, timeout_ns);
    if (batch >= 0) {
        es_stats_snapshot(&r->map, snap);
        snap->batch = (uint64_t)batch;
        snap->round = r->held[batch] - 1;
        /* FENCE shared: either this learner sees here that it shares the ring, or the learner that
         * attaches sees this lease. */
        atomic_thread_fence(memory_order_seq_cst);
        snap->shared = atomic_load_explicit(&r->map.hdr->shared, memory_order_relaxed);
        snap->length = r->map.batch_size - r->scan[batch].gaps;
        if (snap->latest_version > 0 && r->scan[batch].gaps == 0)
            es_stats_ages(r->map.versions + (uint64_t)batch * r->map.batch_size, snap->length, snap);
        snap->learner_wait_ns = atomic_exchange_explicit(&r->wait_ns, 0, memory_order_relaxed);
    }
    uint64_t last = atomic_load_explicit(&r->last_sweep_ns, memory_order_relaxed), now = es_clock_ns();
    snap->sweep_due = now - last >= r->map.reap_interval_ns;
    if (batch >= 0)
        es_lease_note_time(r, (uint64_t)batch, now);
    es_call_leave(r);
    return batch;
}

int es_api_release(es_ring *r, uint64_t batch, uint64_t round)
{
    int rc = es_call_enter_to_end(r);
    if (rc != ES_OK)
        return rc;
    rc = es_lease_release(r, batch, round);
    es_call_leave(r);
    return rc;
}

int es_api_give_back(es_ring *r, uint64_t batch, uint64_t round)
{
    int rc = es_call_enter_to_end(r);
    if (rc != ES_OK)
        return rc;
    rc = es_lease_give_back(r, batch, round);
    es_call_leave(r);
    return rc;
}

int64_t es_api_committed_mask(es_ring *r, uint64_t batch, uint64_t round, uint8_t *mask)
{
    int64_t rc = es_call_enter(r);
    if (rc != ES_OK)
        return rc;
    rc = es_lease_committed(r, batch, round, mask);
    es_call_leave(r);
    return rc;
}

/* ES_OK, or what is wrong with the causes. */
static int check_causes(const es_watch *watches, uint32_t n, const uint32_t *word)
{
    uint32_t most = word == NULL ? ES_WATCH_MOST : ES_WATCH_MOST - 1;
    if (n > most)
        return -E2BIG;
    if ((n == 0 && word == NULL) || (uintptr_t)word % sizeof *word != 0)
        return -EINVAL;
    for (uint32_t i = 0; i < n; i++)
        if (watches[i].what != ES_WATCH_BATCH && watches[i].what != ES_WATCH_ROOM)
            return -EINVAL;
    return ES_OK;
}

int es_api_wait_any(const es_watch *watches, uint32_t n, uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    uint32_t inside = 0;
    int rc = check_causes(watches, n, word);
    if (rc != ES_OK)
        return rc;
    while (inside < n && (rc = es_call_enter(watches[inside].ring)) == ES_OK)
        inside++;
    if (rc == ES_OK)
        rc = es_blocking_wait_any(watches, n, (_Atomic uint32_t *)word, seen, timeout_ns);
    while (inside > 0)
        es_call_leave(watches[--inside].ring);
    return rc;
}

void es_api_change_word(uint32_t *word)
{
    /* SYNC watched-word: release; what led to the change is visible to whoever watches. */
    atomic_fetch_add_explicit((_Atomic uint32_t *)word, 1, memory_order_release);
    es_wait_wake((_Atomic uint32_t *)word);
}

int es_api_close(es_ring *r)
{
    /* Without es_call_enter(): the creator may have detached already when it closes the stream. */
    if (r->fork_generation != es_locks_fork_generation())
        return ES_EFORK;
    if (r->locks == NULL)
        return ES_EREADONLY;
    es_drain_close(r);
    return ES_OK;
}

int es_api_reset_histograms(es_ring *r)
{
    int rc = es_call_enter(r);
    if (rc != ES_OK)
        return rc;
    es_stats_reset(&r->map);
    es_call_leave(r);
    return ES_OK;
}
