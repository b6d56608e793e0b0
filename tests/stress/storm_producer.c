/* A producer's life: random operations of every kind. It writes each into the ledger before and after. Its life ends
 * when it is killed, when its sequence numbers are used up, when the ring is closed, or when it is asked to leave. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storm.h"

typedef struct producer {
    st_actor *actor;
    uint32_t acked;
    uint32_t many; /* samples that the buffers hold */
    uint8_t *buffer[ST_LEAVES];
    bool over;
} producer;

static void begin(producer *p, uint32_t n)
{
    es_account_begin(p->actor->a->samples, p->actor->life, n);
}

static void end(producer *p, uint32_t sent)
{
    p->acked += sent;
    es_account_end(p->actor->a->samples, p->actor->life, sent);
}

static void count(producer *p, enum st_path path, bool succeeded)
{
    p->actor->proc->paths[path] += succeeded;
}

static bool closed(producer *p)
{
    es_snapshot snap;
    es_monitor_observe(p->actor->r, &snap);
    return snap.closed != 0;
}

/* Some results are no fault: full, timed out, interrupted by a signal; after the close also closed and evicted. */
static void check(producer *p, int64_t rc, const char *what)
{
    if (rc >= 0 || rc == ES_FULL || rc == ES_TIMEOUT || rc == -EINTR)
        return;
    p->over = true;
    if ((rc != ES_ECLOSED && rc != ES_EEVICTED) || !closed(p))
        st_fault_add(p->actor->a, ST_CODE, st_id(p->actor->life, p->acked), -1, rc, what);
}

static void fill_buffers(producer *p, uint32_t n)
{
    const st_shape *shape = &p->actor->w->shape;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t l = 0; l < shape->num_leaves; l++)
            es_sample_leaf(st_id(p->actor->life, p->acked + i), l, shape->size[l], p->buffer[l] + i * shape->size[l]);
    es_age_set_version(p->actor->r, es_sample_version(st_id(p->actor->life, p->acked), n), true);
}

/* In a calm round no producer sleeps through a release. If it has slept for a whole slice, the ring must still be
 * full. */
static void check_slept(producer *p, int64_t rc)
{
    uint64_t position;
    if (rc != ES_TIMEOUT || !st_calm(&p->actor->w->config) || es_one_claim(p->actor->r, &position) != ES_OK)
        return;
    es_producer_abort(p->actor->r, position);
    if (st_slept_through(p->actor))
        st_fault_add(p->actor->a, ST_SLEPT, st_id(p->actor->life, p->acked), (int64_t)position, 0,
                     "a producer was not woken when there was space");
}

static void send_one(producer *p, uint64_t timeout_ns)
{
    void *leaves[ST_LEAVES];
    for (uint32_t l = 0; l < ST_LEAVES; l++)
        leaves[l] = p->buffer[l];
    fill_buffers(p, 1);
    st_at(p->actor, timeout_ns == 0 ? ST_SENDING : ST_WAITING);
    begin(p, 1);
    int rc = timeout_ns == 0 ? es_api_send(p->actor->r, leaves) : es_api_send_wait(p->actor->r, leaves, timeout_ns);
    end(p, rc == ES_OK);
    count(p, timeout_ns == 0 ? ST_BY_SEND : ST_BY_SEND_WAIT, rc == ES_OK);
    check(p, rc, "es_api_send");
    check_slept(p, rc);
    if (rc == ES_FULL && timeout_ns == 0)
        st_nap(20000);
}

static void send_many(producer *p)
{
    void *leaves[ST_LEAVES];
    for (uint32_t l = 0; l < ST_LEAVES; l++)
        leaves[l] = p->buffer[l];
    uint32_t n = 1 + es_random_below(&p->actor->random, p->many);
    fill_buffers(p, n);
    st_at(p->actor, ST_SENDING_MANY);
    begin(p, n);
    int64_t rc = es_api_send_many(p->actor->r, leaves, 0, n, p->actor->w->slice_ns);
    uint32_t sent = rc > 0 ? (uint32_t)rc : 0;
    if (rc > 0 && sent < n && closed(p)) { /* those that were sent may not be the first ones */
        es_account_cut(p->actor->a->samples, p->actor->life, n, sent);
        p->over = true;
        return;
    }
    end(p, sent);
    count(p, ST_BY_SEND_MANY, sent > 0);
    check(p, rc, "es_api_send_many");
    check_slept(p, rc);
}

static bool reserve(producer *p, uint64_t timeout_ns, int64_t *position)
{
    st_at(p->actor, ST_RESERVING);
    /* Of two slots that it has reserved, it commits the second one first: either sample may come into this one. */
    es_age_set_version(p->actor->r, es_sample_version(st_id(p->actor->life, p->acked), 2), true);
    int rc = es_api_reserve(p->actor->r, timeout_ns, position);
    check(p, rc, "es_api_reserve");
    check_slept(p, rc);
    return rc == ES_OK;
}

/* Writes half a sample of nonsense into the slot, and sometimes pauses. */
static void scribble(producer *p, int64_t position)
{
    const es_map *m = &p->actor->r->map;
    uint64_t index = (uint64_t)position % m->capacity;
    st_at(p->actor, ST_WRITING);
    for (uint32_t l = 0; l < m->num_leaves; l++)
        memset(m->leaf_data[l] + index * m->leaf_size[l], 0xee, (m->leaf_size[l] + 1) / 2);
    if (es_random_below(&p->actor->random, 8) == 0)
        st_nap(es_random_below(&p->actor->random, 1000000));
}

static void write_and_commit(producer *p, int64_t position, enum st_path path)
{
    const es_map *m = &p->actor->r->map;
    scribble(p, position);
    es_sample_write(m, (uint64_t)position % m->capacity, st_id(p->actor->life, p->acked));
    st_at(p->actor, ST_COMMITTING);
    begin(p, 1);
    int rc = es_api_commit(p->actor->r, position);
    end(p, rc == ES_OK);
    count(p, path, rc == ES_OK);
    check(p, rc, "es_api_commit");
}

static void reserve_one(producer *p)
{
    int64_t position;
    if (reserve(p, p->actor->w->slice_ns, &position))
        write_and_commit(p, position, ST_BY_RESERVE);
}

/* Commits the later slot first, with the smaller sequence number. A producer must not wait for a second slot while it
 * holds one: the space that it waits for may depend on that one. */
static void reserve_two(producer *p)
{
    int64_t first, second;
    if (!reserve(p, p->actor->w->slice_ns, &first))
        return;
    if (reserve(p, 0, &second))
        write_and_commit(p, second, ST_BY_TWO_RESERVES);
    write_and_commit(p, first, ST_BY_RESERVE);
}

static void reserve_and_abort(producer *p)
{
    int64_t position;
    if (!reserve(p, p->actor->w->slice_ns, &position))
        return;
    scribble(p, position);
    st_at(p->actor, ST_ABORTING);
    int rc = es_api_abort(p->actor->r, position);
    count(p, ST_BY_ABORT, rc == ES_OK);
    check(p, rc, "es_api_abort");
}

/* Detaches, half of the time while it holds a slot, and attaches again. */
static void reattach(producer *p)
{
    int64_t position;
    if (es_random_below(&p->actor->random, 2) == 0 && reserve(p, p->actor->w->slice_ns, &position))
        scribble(p, position);
    st_detach(p->actor);
    st_attach(p->actor, ES_ROLE_PRODUCER);
    count(p, ST_BY_REATTACH, true);
}

static void rare(producer *p)
{
    switch (es_random_below(&p->actor->random, 8)) {
    case 0:
        st_sweep(p->actor->a, p->actor->r, &p->actor->random);
        return;
    case 1:
        reattach(p);
        return;
    case 2:
        st_at(p->actor, ST_IDLE);
        st_nap(es_random_below(&p->actor->random, 500000));
        return;
    default:
        reserve_two(p);
    }
}

static void operate(producer *p)
{
    if (st_calm(&p->actor->w->config) && es_clock_ns() % (ST_CALM_BUSY_NS + ST_CALM_IDLE_NS) > ST_CALM_BUSY_NS) {
        st_at(p->actor, ST_IDLE);
        st_nap(5000000);
        return;
    }
    uint32_t way = es_random_below(&p->actor->random, 64);
    if (way < 12)
        send_one(p, 0);
    else if (way < 34)
        send_one(p, p->actor->w->slice_ns);
    else if (way < 48)
        send_many(p);
    else if (way < 56)
        reserve_one(p);
    else if (way < 61)
        reserve_and_abort(p);
    else
        rare(p);
}

void st_produce(st_actor *actor)
{
    producer p = {.actor = actor, .many = actor->w->config.sample_bytes > 10000 ? 3 : ST_MANY};
    for (uint32_t l = 0; l < actor->w->shape.num_leaves; l++)
        p.buffer[l] = malloc(actor->w->shape.size[l] * p.many + 1);
    st_attach(actor, ES_ROLE_PRODUCER);
    while (!p.over && p.acked + ST_MANY + 2 < ST_SEQS &&
           atomic_load_explicit(&actor->a->stage, memory_order_relaxed) == ST_RUN)
        operate(&p);
    st_detach(actor);
}
