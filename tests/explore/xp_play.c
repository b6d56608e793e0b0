/* What the threads of a scene do. Each function acts as a thread of the library does and keeps the account of the
 * samples that were sent and delivered. */
#include "xp_play.h"

#include <string.h>

#include "es_core.h"

#define MOST_ASKS 4 /* how often to ask for the end of the stream while another process stands still in a sweep */

struct xp_account xp_account;

void xp_go_to(xp_stage *stage)
{
    xp_account.in_annex[xp_me()] = stage == &xp_annex;
}

xp_stage *xp_here(void)
{
    return xp_account.in_annex[xp_me()] ? &xp_annex : &xp_theatre;
}

static es_ring *mine(void)
{
    return xp_me() == 0 ? NULL : xp_here()->of[xp_me()];
}

static es_ring *as_producer(void)
{
    return xp_me() == 0 ? xp_here()->producer : mine();
}

static es_ring *as_learner(void)
{
    return xp_me() == 0 ? xp_here()->learner : mine();
}

static int new_id(void)
{
    if (xp_account.next == XP_IDS)
        xp_die("more samples than the account has room for");
    xp_account.sent[xp_account.next] = SENT_MAYBE;
    xp_account.sender[xp_account.next] = (uint8_t)xp_me();
    return xp_account.next++;
}

/* A long wait is divided into slices of one reap interval, as in the library. Returns the number of slices. Without a
 * wait it is one slice of length 0. */
static int slices(uint64_t timeout_ns)
{
    return timeout_ns == XP_LONG ? 4 : 1;
}

static uint64_t slice(uint64_t timeout_ns)
{
    return timeout_ns == XP_LONG ? XP_REAP_INTERVAL : timeout_ns;
}

int xp_send(uint64_t timeout_ns)
{
    int id = new_id(), rc = ES_TIMEOUT;
    uint64_t value = (uint64_t)id;
    fix_set_version(as_producer(), value, 1);
    for (int n = slices(timeout_ns); n > 0 && rc == ES_TIMEOUT; n--)
        rc = es_api_send_wait(as_producer(), (void *[]){&value}, slice(timeout_ns));
    if (rc == ES_EEVICTED && atomic_load(&as_producer()->map.hdr->closed) == 0)
        xp_violation("a claim was taken away on an open ring");
    xp_account.sent[id] = rc == ES_OK ? SENT_OK : SENT_NOT;
    return rc;
}

int64_t xp_send_many(int n, uint64_t timeout_ns)
{
    uint64_t values[XP_IDS];
    int first = xp_account.next;
    for (int i = 0; i < n; i++)
        values[i] = (uint64_t)new_id();
    fix_set_version(as_producer(), values[0], (uint64_t)n);
    int64_t rc = ES_TIMEOUT;
    for (int s = slices(timeout_ns); s > 0 && rc == ES_TIMEOUT; s--)
        rc = es_api_send_many(as_producer(), (void *[]){values}, 0, (uint64_t)n, slice(timeout_ns));
    for (int i = 0; i < n; i++)
        xp_account.sent[first + i] = i < rc ? SENT_OK : SENT_NOT;
    return rc;
}

static void write_slot(es_ring *r, uint64_t pos, uint64_t value)
{
    es_leaves_write(&r->map, pos, (void *[]){&value});
    es_leaves_stamp(&r->map, pos, 1, es_sample_version(value, 1));
}

static int commit(int64_t pos, int id)
{
    xp_account.sent[id] = SENT_MAYBE;
    int rc = es_api_commit(as_producer(), pos);
    if (rc == ES_EDETACHED && as_producer()->retired == 0)
        xp_violation("a stopped producer cannot commit what it has claimed");
    xp_account.sent[id] = rc == ES_OK ? SENT_OK : SENT_NOT;
    return rc;
}

int xp_reserve(bool committing, uint64_t timeout_ns)
{
    int64_t pos;
    int rc = ES_TIMEOUT;
    for (int n = slices(timeout_ns); n > 0 && rc == ES_TIMEOUT; n--)
        rc = es_api_reserve(as_producer(), slice(timeout_ns), &pos);
    if (rc != ES_OK)
        return rc;
    int id = new_id();
    xp_account.sent[id] = SENT_NOT;
    write_slot(as_producer(), (uint64_t)pos, (uint64_t)id);
    if (!committing)
        return es_api_abort(as_producer(), pos);
    return commit(pos, id);
}

static int64_t claimed_at;
static int claimed_id;

void xp_claim(int t)
{
    claimed_id = new_id();
    if (es_api_reserve(xp_theatre.of[t], XP_NOW, &claimed_at) != ES_OK)
        xp_die("the ring is too small for the scene");
    write_slot(xp_theatre.of[t], (uint64_t)claimed_at, (uint64_t)claimed_id);
    xp_account.sent[claimed_id] = SENT_NOT;
}

int xp_commit(void)
{
    return commit(claimed_at, claimed_id);
}

/* In any order, too, a learner that takes one sample at a time gets each producer's in the order of their sends, unless a
 * slot was re-opened or a batch was given back. */
static void expect_order(const es_ring *r, int id)
{
    const es_header *hdr = r->map.hdr;
    int *last = &xp_account.last[xp_me()][xp_account.in_annex[xp_me()]][xp_account.sender[id]];
    if (r->map.batch_size > 1 || !(r->map.flags & ES_FLAG_READY_ORDER) || hdr->reopen_seq != 0 ||
        hdr->given_back_seq != 0)
        return;
    if (id < *last)
        xp_violation("a producer's samples came in another order than that of their sends");
    *last = id;
}

/* The running thread reads a sample. Adds its id to ids. */
static void receive(es_ring *r, uint64_t index, int *ids, int *n)
{
    const uint64_t *leaf = (const uint64_t *)(const void *)r->map.leaf_data[0];
    uint64_t before, after;
    xp_data_read(&r->map, index);
    if (xp_account.ended)
        xp_violation("a sample was delivered after the stream had ended");
    memcpy(&before, leaf + index, sizeof before);
    xp_yield();
    memcpy(&after, leaf + index, sizeof after);
    if (before != after || before >= XP_IDS) {
        xp_violation("a sample is torn");
        return;
    }
    int id = (int)before;
    if (!es_sample_is_version(r->map.versions[index], before))
        xp_violation("a sample has the version of another one");
    if (xp_account.sent[id] == SENT_NOT)
        xp_violation("a sample was delivered although its send was refused");
    if (xp_account.num_got[id] == XP_MAX_GOT) {
        xp_violation("a sample was delivered again and again");
        return;
    }
    expect_order(r, id);
    xp_account.got[id][xp_account.num_got[id]].by = (uint8_t)xp_me();
    xp_account.got[id][xp_account.num_got[id]++].released = false;
    ids[(*n)++] = id;
}

/* Reads the committed samples of a leased batch. */
static int read_batch(es_ring *r, uint64_t j, const es_snapshot *snap, int *ids)
{
    uint8_t mask[XP_IDS];
    int n = 0;
    memset(mask, 1, sizeof mask);
    /* Only for a partial batch: the loads of the mask would hide a missing acquire in take. */
    if (snap->length < r->map.batch_size && es_api_committed_mask(r, j, snap->round, mask) != (int64_t)snap->length)
        xp_violation("a batch does not have as many samples as its take said");
    for (uint64_t i = 0; i < r->map.batch_size; i++)
        if (mask[i])
            receive(r, j * r->map.batch_size + i, ids, &n);
    return n;
}

static int64_t take(uint32_t flags, uint64_t timeout_ns, es_snapshot *snap)
{
    int64_t j = ES_TIMEOUT;
    for (int n = slices(timeout_ns); n > 0 && j == ES_TIMEOUT; n--)
        j = es_api_take(as_learner(), flags, slice(timeout_ns), snap);
    return j;
}

/* Releases a batch that was read, with its ids. */
static void release(es_ring *r, int64_t j, const es_snapshot *snap, const int *ids, int n)
{
    if (es_api_release(r, (uint64_t)j, snap->round) != ES_OK)
        xp_violation("a batch that was leased cannot be released");
    for (int i = 0; i < n; i++)
        xp_account.got[ids[i]][xp_account.num_got[ids[i]] - 1].released = true;
}

bool xp_lease_take(xp_lease *lease, uint32_t flags, uint64_t timeout_ns)
{
    lease->n = 0;
    lease->batch = take(flags, timeout_ns, &lease->snap);
    return lease->batch >= 0;
}

void xp_lease_read(xp_lease *lease)
{
    lease->n = read_batch(as_learner(), (uint64_t)lease->batch, &lease->snap, lease->ids);
}

void xp_lease_release(const xp_lease *lease)
{
    release(as_learner(), lease->batch, &lease->snap, lease->ids, lease->n);
}

void xp_lease_give_back(const xp_lease *lease)
{
    if (es_api_give_back(as_learner(), (uint64_t)lease->batch, lease->snap.round) != ES_OK)
        xp_violation("a batch that was leased cannot be given back");
}

int64_t xp_take(uint32_t flags, uint64_t timeout_ns)
{
    xp_lease lease;
    if (xp_lease_take(&lease, flags, timeout_ns)) {
        xp_lease_read(&lease);
        xp_lease_release(&lease);
    }
    return lease.batch;
}

void xp_loop(int batches)
{
    es_ring *r = as_learner();
    es_snapshot snap, last;
    int ids[XP_IDS], last_ids[XP_IDS], n = 0, last_n;
    int64_t j = -1, held = -1;
    for (int i = 0; i < batches; i++) {
        if (j >= 0 && snap.shared) {
            release(r, j, &snap, ids, n);
            j = -1;
        }
        held = j, last = snap, last_n = n;
        memcpy(last_ids, ids, sizeof ids);
        j = take(0, XP_LONG, &snap);
        uint64_t next = atomic_load(&r->map.hdr->tail) / r->map.batch_size % r->map.num_batches;
        if (j == ES_TIMEOUT && held >= 0 && next == (uint64_t)held && atomic_load(&r->map.hdr->producers_sleep) != 0)
            xp_violation("a learner waits for a batch, and producers wait for the learner's last one");
        if (j >= 0)
            n = read_batch(r, (uint64_t)j, &snap, ids);
        if (held >= 0)
            release(r, held, &last, last_ids, last_n);
        if (j < 0)
            return;
    }
    release(r, j, &snap, ids, n);
}

int64_t xp_take_to_the_end(uint64_t timeout_ns)
{
    bool settled = false;
    int64_t rc;
    int asks = 0;
    while ((rc = xp_take(0, timeout_ns)) >= 0 || (rc == ES_ENDED && !settled && asks < MOST_ASKS)) {
        settled = rc == ES_ENDED && xp_sweep_by(as_learner()) == 0;
        asks += rc == ES_ENDED;
    }
    xp_account.ended = xp_account.ended || (rc == ES_ENDED && settled);
    return rc;
}

int64_t xp_take_and_give_back(uint32_t flags, uint64_t timeout_ns)
{
    xp_lease lease;
    if (xp_lease_take(&lease, flags, timeout_ns))
        xp_lease_give_back(&lease);
    return lease.batch;
}

int xp_wait_any(const es_watch *watches, uint32_t n, enum xp_bell bell, uint64_t timeout_ns)
{
    int rc = ES_TIMEOUT;
    xp_account.watches[xp_me()] = watches;
    xp_account.num_watches[xp_me()] = n;
    xp_account.hears[xp_me()] = bell == XP_BELL;
    for (int s = slices(timeout_ns); s > 0 && rc == ES_TIMEOUT; s--)
        rc = es_api_wait_any(watches, n, bell == XP_BELL ? &xp_bell : NULL, 0, slice(timeout_ns));
    xp_account.num_watches[xp_me()] = 0;
    xp_account.hears[xp_me()] = false;
    return rc;
}

int xp_attach(uint32_t role)
{
    es_identity id = {.role = role, .pid = 100 + xp_me()};
    return (int)es_api_attach(mine(), &id);
}

void xp_leave(void)
{
    if (es_api_detach(mine()) != ES_OK)
        return;
    for (int t = 1; t < XP_THREADS; t++)
        xp_account.left[t] = xp_account.left[t] || xp_here()->of[t] == mine();
}

bool xp_has_left(void)
{
    return xp_account.left[xp_me()];
}

int xp_sweep_by(es_ring *by)
{
    es_identity id;
    int n = 0;
    int64_t i = es_sweep_next_dead(by, 0, &id);
    for (; i >= 0; i = es_sweep_next_dead(by, (uint32_t)i + 1, &id), n++) {
        if (id.pid != by->map.owners[i].pid)
            xp_violation("a reaper saw the identity of an earlier owner");
        es_sweep_settle(by, &id, 1);
    }
    return n == 0 && i == ES_UNSURE ? -1 : n;
}

void xp_sweep(void)
{
    xp_sweep_by(mine());
}

bool xp_sweep_finds(int t)
{
    const es_ring *r = xp_here()->of[t];
    bool dead = xp_dead(t);
    xp_sweep_by(mine());
    return dead &&
           xp_memory_latest((const void *)&r->map.owners[r->me].state, sizeof r->map.owners->state) == ES_OWNER_FREE;
}
