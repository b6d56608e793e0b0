/* Sets a scene, keeps the account of its samples, and settles it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "es_copy.h"
#include "xp.h"

#define MAX_GOT 6
#define PRODUCERS 8
#define REAP_INTERVAL UINT64_C(20000000)

xp_stage xp_theatre;

enum sent { NOT_SENT, SENT, IN_DOUBT };

static struct {
    uint8_t sent[XP_IDS];
    struct {
        uint8_t by;
        bool released;
    } got[XP_IDS][MAX_GOT];
    int num_got[XP_IDS];
    int next;
    bool left[XP_THREADS]; /* the attachment of this thread has been left */
} account;

void xp_die(const char *why)
{
    fprintf(stderr, "the explorer cannot go on: %s\n", why);
    abort();
}

/* --- remembering ------------------------------------------------------------------ */

#define MAX_PIECES 64

static struct {
    void *at;
    uint64_t size;
    void *copy;
} pieces[MAX_PIECES];
static int num_pieces;

static void remember(void *at, uint64_t size)
{
    if (num_pieces == MAX_PIECES)
        xp_die("more pieces than the stage keeps");
    pieces[num_pieces].at = at;
    pieces[num_pieces].size = size;
    pieces[num_pieces].copy = memcpy(malloc(size), at, size);
    num_pieces++;
}

void xp_stage_restore(void)
{
    for (int i = 0; i < num_pieces; i++)
        memcpy(pieces[i].at, pieces[i].copy, pieces[i].size);
}

/* --- setting ------------------------------------------------------------------------ */

static es_ring *open_ring(void)
{
    xp_stage *s = &xp_theatre;
    int error;
    es_ring *r = es_open(s->base, s->size, s->locks, 0, &error);
    if (r == NULL || s->num_rings == XP_RINGS)
        xp_die("no more attachments");
    return s->rings[s->num_rings++] = r;
}

static es_ring *attached(uint32_t role, int pid)
{
    es_ring *r = open_ring();
    es_identity id = {.role = role, .pid = pid};
    if (es_attach(r, &id) < 0)
        xp_die("cannot attach");
    return r;
}

void xp_producer(int t)
{
    xp_theatre.of[t] = attached(ES_ROLE_PRODUCER, 100 + t);
}

void xp_learner(int t)
{
    xp_theatre.of[t] = attached(ES_ROLE_LEARNER, 100 + t);
}

void xp_shares(int t)
{
    xp_theatre.of[t] = xp_theatre.of[t - 1];
}

void xp_comes_later(int t)
{
    xp_theatre.of[t] = open_ring();
}

void xp_fill(int n)
{
    while (n-- > 0)
        if (xp_send(XP_NOW) != ES_OK)
            xp_die("the ring is too small for the scene");
}

void xp_empty(int n)
{
    while (n-- > 0)
        if (xp_take(0, XP_NOW) < 0)
            xp_die("the scene has not as many batches");
}

xp_stage *xp_stage_set(const xp_scene *scene)
{
    static const uint64_t leaf = sizeof(uint64_t);
    static const uint8_t uuid[16] = "explored-segment";
    xp_stage *s = &xp_theatre;
    es_geometry geo = {.batch_size = scene->batch_size, .num_batches = scene->num_batches, .flags = scene->flags,
                       .reap_interval_ns = REAP_INTERVAL, .max_producers = PRODUCERS, .num_leaves = 1};
    memset(s, 0, sizeof *s);
    memset(&account, 0, sizeof account);
    s->size = es_segment_size(&geo, &leaf);
    s->base = aligned_alloc(ES_PAGE, s->size);
    memset(s->base, 0, s->size);
    s->locks = es_locks_new(-1, ES_MAX_LEARNERS + PRODUCERS);
    if (es_format(s->base, s->size, &geo, &leaf, "", uuid, 1, 1) != ES_OK)
        xp_die("cannot format");
    s->producer = attached(ES_ROLE_PRODUCER, 100);
    s->learner = attached(ES_ROLE_LEARNER, 100);
    scene->setup();
    const es_map *m = &s->producer->map;
    remember(s->base, (uint64_t)((const uint8_t *)m->leaf_data[0] - s->base) + m->capacity * leaf);
    remember((void *)s->locks->held, s->locks->count);
    remember(&account, sizeof account);
    for (int i = 0; i < s->num_rings; i++) {
        remember(s->rings[i], sizeof *s->rings[i]);
        remember(s->rings[i]->scan, m->num_batches * sizeof *s->rings[i]->scan);
        remember(s->rings[i]->held, m->num_batches * sizeof *s->rings[i]->held);
    }
    return s;
}

void xp_stage_clear(void)
{
    xp_stage_restore();
    for (int i = 0; i < num_pieces; i++)
        free(pieces[i].copy);
    num_pieces = 0;
    for (int i = 0; i < xp_theatre.num_rings; i++)
        es_free(xp_theatre.rings[i]);
    es_locks_free(xp_theatre.locks);
    free(xp_theatre.base);
}

void xp_stage_cast(const xp_scene *scene)
{
    for (int t = 1; t < XP_THREADS; t++)
        if (scene->threads[t - 1] != NULL && xp_theatre.of[t] != NULL && xp_theatre.of[t]->detached == 0)
            xp_memory_hold(t, xp_theatre.of[t]);
}

/* --- playing -------------------------------------------------------------------------- */

static es_ring *mine(void)
{
    return xp_me() == 0 ? NULL : xp_theatre.of[xp_me()];
}

static es_ring *as_producer(void)
{
    return xp_me() == 0 ? xp_theatre.producer : mine();
}

static es_ring *as_learner(void)
{
    return xp_me() == 0 ? xp_theatre.learner : mine();
}

static int new_id(void)
{
    if (account.next == XP_IDS)
        xp_die("more samples than the account has room for");
    account.sent[account.next] = IN_DOUBT;
    return account.next++;
}

/* Those who wait do so in slices of a reap interval, as the library does: how many they wait, or one that does not. */
static int slices(uint64_t timeout_ns)
{
    return timeout_ns == XP_LONG ? 4 : 1;
}

static uint64_t slice(uint64_t timeout_ns)
{
    return timeout_ns == XP_LONG ? REAP_INTERVAL : timeout_ns;
}

int xp_send(uint64_t timeout_ns)
{
    int id = new_id(), rc = ES_TIMEOUT;
    uint64_t value = (uint64_t)id;
    for (int n = slices(timeout_ns); n > 0 && rc == ES_TIMEOUT; n--)
        rc = es_send_wait(as_producer(), (void *[]){&value}, slice(timeout_ns));
    account.sent[id] = rc == ES_OK ? SENT : NOT_SENT;
    return rc;
}

int64_t xp_send_many(int n, uint64_t timeout_ns)
{
    uint64_t values[XP_IDS];
    int first = account.next;
    for (int i = 0; i < n; i++)
        values[i] = (uint64_t)new_id();
    int64_t rc = ES_TIMEOUT;
    for (int s = slices(timeout_ns); s > 0 && rc == ES_TIMEOUT; s--)
        rc = es_send_many(as_producer(), (void *[]){values}, 0, (uint64_t)n, slice(timeout_ns));
    /* Once the ring is closed any samples of a run may have been evicted; rc says how many were not. */
    bool closed = as_producer()->map.hdr->closed != 0;
    for (int i = 0; i < n; i++)
        account.sent[first + i] = rc > 0 && rc < n && closed ? IN_DOUBT : i < rc ? SENT : NOT_SENT;
    return rc;
}

static void write_slot(es_ring *r, uint64_t pos, uint64_t value)
{
    es_copy_sample(&r->map, pos, (void *[]){&value});
}

int xp_reserve(bool commit, uint64_t timeout_ns)
{
    int64_t pos;
    int rc = ES_TIMEOUT;
    for (int n = slices(timeout_ns); n > 0 && rc == ES_TIMEOUT; n--)
        rc = es_reserve(as_producer(), slice(timeout_ns), &pos);
    if (rc != ES_OK)
        return rc;
    int id = new_id();
    account.sent[id] = NOT_SENT;
    write_slot(as_producer(), (uint64_t)pos, (uint64_t)id);
    if (!commit)
        return es_reserve_abort(as_producer(), pos);
    account.sent[id] = IN_DOUBT;
    rc = es_reserve_commit(as_producer(), pos);
    account.sent[id] = rc == ES_OK ? SENT : NOT_SENT;
    return rc;
}

/* A sample comes to whoever runs. */
static void receive(es_ring *r, uint64_t index, int *ids, int *n)
{
    const uint64_t *leaf = (const uint64_t *)(const void *)r->map.leaf_data[0];
    uint64_t before, after;
    xp_data_read(index);
    memcpy(&before, leaf + index, sizeof before);
    xp_yield();
    memcpy(&after, leaf + index, sizeof after);
    if (before != after || before >= XP_IDS) {
        xp_violation("a sample is torn");
        return;
    }
    int id = (int)before;
    if (account.sent[id] == NOT_SENT)
        xp_violation("a sample came whose sending was refused");
    if (account.num_got[id] == MAX_GOT) {
        xp_violation("a sample came again and again");
        return;
    }
    account.got[id][account.num_got[id]].by = (uint8_t)xp_me();
    account.got[id][account.num_got[id]++].released = false;
    ids[(*n)++] = id;
}

/* Reads the committed samples of a leased batch. */
static int read_batch(es_ring *r, uint64_t j, const es_snapshot *snap, int *ids)
{
    uint8_t mask[XP_IDS];
    int n = 0;
    memset(mask, 1, sizeof mask);
    /* Only then: the mask's own loads would hide what the take's leave out. */
    if (snap->length < r->map.batch_size && es_committed_mask(r, j, snap->round, mask) != (int64_t)snap->length)
        xp_violation("a batch has not as many samples as its take said");
    for (uint64_t i = 0; i < r->map.batch_size; i++)
        if (mask[i])
            receive(r, j * r->map.batch_size + i, ids, &n);
    return n;
}

static int64_t take(uint32_t flags, uint64_t timeout_ns, es_snapshot *snap)
{
    int64_t j = ES_TIMEOUT;
    for (int n = slices(timeout_ns); n > 0 && j == ES_TIMEOUT; n--)
        j = es_take(as_learner(), flags, slice(timeout_ns), snap);
    return j;
}

int64_t xp_take(uint32_t flags, uint64_t timeout_ns)
{
    es_ring *r = as_learner();
    es_snapshot snap;
    int ids[XP_IDS];
    int64_t j = take(flags, timeout_ns, &snap);
    if (j < 0)
        return j;
    int n = read_batch(r, (uint64_t)j, &snap, ids);
    if (es_release_batch(r, (uint64_t)j, snap.round) != ES_OK)
        xp_violation("a batch that was leased cannot be released");
    for (int i = 0; i < n; i++)
        account.got[ids[i]][account.num_got[ids[i]] - 1].released = true;
    return j;
}

int64_t xp_take_and_give_back(uint32_t flags, uint64_t timeout_ns)
{
    es_ring *r = as_learner();
    es_snapshot snap;
    int64_t j = take(flags, timeout_ns, &snap);
    if (j >= 0 && es_return_batch(r, (uint64_t)j, snap.round) != ES_OK)
        xp_violation("a batch that was leased cannot be given back");
    return j;
}

int xp_attach(uint32_t role)
{
    es_identity id = {.role = role, .pid = 100 + xp_me()};
    return (int)es_attach(mine(), &id);
}

void xp_leave(void)
{
    if (es_detach(mine()) != ES_OK)
        return;
    for (int t = 1; t < XP_THREADS; t++)
        account.left[t] = account.left[t] || xp_theatre.of[t] == mine();
}

bool xp_has_left(void)
{
    return account.left[xp_me()];
}

static void sweep(es_ring *by)
{
    es_identity id;
    for (int64_t i = es_next_dead(by, 0, &id); i >= 0; i = es_next_dead(by, (uint32_t)i + 1, &id)) {
        if (id.pid != by->map.owners[i].pid)
            xp_violation("a reaper saw the identity of an earlier owner");
        es_settle(by, &id, 1);
    }
}

void xp_sweep(void)
{
    sweep(mine());
}

/* --- settling ---------------------------------------------------------------------------- */

void xp_stage_nobody_oversleeps(const xp_scene *scene)
{
    es_header *h = xp_theatre.producer->map.hdr;
    es_snapshot snap;
    uint64_t pos;
    (void)scene;
    for (int t = 1; t < XP_THREADS; t++) {
        if (xp_parked_on(t, &h->space_seq) && es_claim(xp_theatre.producer, &pos) != ES_FULL)
            xp_violation("a producer sleeps, and nothing keeps it from claiming");
        if (xp_parked_on(t, &h->ready_seq) && es_take(xp_theatre.learner, 0, 0, &snap) != ES_EMPTY)
            xp_violation("a learner sleeps, and there is something for it");
    }
}

void xp_stage_reap(void)
{
    sweep(xp_theatre.learner);
}

static void check_sample(int id)
{
    int final = 0;
    for (int i = 0; i < account.num_got[id]; i++)
        final += account.got[id][i].released || !xp_dead(account.got[id][i].by);
    if (final > 1)
        xp_violation("a sample was delivered twice to the living");
    if (account.sent[id] == SENT && account.num_got[id] == 0)
        xp_violation("a sample was lost");
}

static void check_ring(void)
{
    const char *wrong = es_valid(xp_theatre.producer);
    if (wrong != NULL)
        xp_violation(wrong);
}

void xp_stage_settle(const xp_scene *scene)
{
    int64_t rc = 0;
    (void)scene;
    xp_stage_reap();
    check_ring();
    es_close_stream(xp_theatre.producer);
    xp_pass(UINT64_C(2000000000));
    for (int turn = 0; turn < 40 && (rc >= 0 || rc == ES_EMPTY); turn++)
        rc = xp_take(0, XP_NOW);
    if (rc != ES_ENDED)
        xp_violation("the stream does not end");
    check_ring();
    for (int id = 0; id < account.next; id++)
        check_sample(id);
}

int64_t __real_es_mend(es_ring *r);
int64_t __wrap_es_mend(es_ring *r);
int64_t __wrap_es_mend(es_ring *r)
{
    int64_t n = __real_es_mend(r);
    if (n != 0)
        xp_violation("a ring that nobody scribbled on was mended");
    return n;
}
