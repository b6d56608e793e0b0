/* Bridges that are killed while they send for a client. Another bridge sends the rest, and nothing twice. */
#include <string.h>

#include "es_parts.h"

#define ANN ((const uint8_t *)"ann: sixteen b..")
#define SAMPLES 3

static uint8_t block[SAMPLES * 64];

/* The samples of the client, leaf by leaf. */
static void make_block(es_world *w)
{
    uint64_t at = 0;
    world_fill(w, ID_TRACEE, SAMPLES);
    for (uint32_t l = 0; l < w->geo.num_leaves; l++) {
        CHECK(at + SAMPLES * w->f->leaf_sizes[l] <= sizeof block);
        memcpy(block + at, w->leaves[l], SAMPLES * w->f->leaf_sizes[l]);
        at += SAMPLES * w->f->leaf_sizes[l];
    }
}

static void become_a_bridge(es_world *w)
{
    make_block(w);
    CHECK_EQ(es_bridge_begin(w->mine), ES_OK);
    CHECK_EQ(es_bridge_open(w->mine, ANN, 0, "ann"), 0);
}

static int64_t send_the_block(es_world *w)
{
    return es_bridge_send(w->mine, 0, block, 0, SAMPLES, 0, es_sample_version(ID_TRACEE, SAMPLES), 0);
}

/* A client that lost its connection asks another bridge how many samples are committed, and continues from there. */
static unsigned another_bridge_sends_the_rest(es_world *w)
{
    make_block(w);
    CHECK_EQ(es_bridge_begin(w->p), ES_OK);
    CHECK_EQ(es_bridge_open(w->p, ANN, 0, "ann"), 0);
    int64_t there = es_bridge_committed(w->p, 0);
    if (CHECK(there >= 0 && there <= SAMPLES) && there < SAMPLES)
        CHECK_EQ(es_bridge_send(w->p, 0, block, (uint64_t)there, SAMPLES, 0, es_sample_version(ID_TRACEE, SAMPLES), 0),
                 SAMPLES - there);
    for (uint32_t i = 0; i < SAMPLES; i++)
        w->side->sent[ID_TRACEE + i] = SENT_OK;
    return 0;
}

static void one_before(es_world *w)
{
    world_send_n(w, 1);
}

/* The block spans two batches and completes the first. */
KILL_EVERYWHERE(bridge_sends, .batch_size = 3, .num_batches = 3, .role = ES_ROLE_PRODUCER, .before = one_before,
                .prepare = become_a_bridge, .act = send_the_block, .want = SAMPLES, .sends = SAMPLES,
                .check = another_bridge_sends_the_rest, .outcomes = KEPT | REAPED,
                .through = "es_bridge_send es_leaves_write_run es_producer_commit");

static int64_t wait_and_send(es_world *w)
{
    CHECK_EQ(send_the_block(w), ES_FULL);
    return es_bridge_send(w->mine, 0, block, 0, SAMPLES, 0, es_sample_version(ID_TRACEE, SAMPLES),
                          UINT64_C(3600000000000));
}

static void take_a_batch(es_world *w)
{
    CHECK(world_take(w, w->l, 0, 0) > 0);
}

static unsigned space_comes_for_another_bridge(es_world *w)
{
    take_a_batch(w);
    return another_bridge_sends_the_rest(w);
}

/* Finds the ring full, then sleeps until a learner releases a batch. */
KILL_EVERYWHERE(bridge_waits_for_space, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = full_ring, .prepare = become_a_bridge, .when_asleep = take_a_batch, .act = wait_and_send,
                .want = SAMPLES, .sends = SAMPLES, .check = space_comes_for_another_bridge, .outcomes = KEPT | REAPED,
                .through = "es_bridge_send count_wait end_wait es_wait");

static int64_t leave(es_world *w)
{
    return es_api_detach(w->mine);
}

static void become_a_bridge_and_send(es_world *w)
{
    become_a_bridge(w);
    CHECK_EQ(send_the_block(w), SAMPLES);
}

/* A bridge that detaches hands over its clients as a dead one does. */
KILL_EVERYWHERE(bridge_detaches, .batch_size = 3, .num_batches = 3, .role = ES_ROLE_PRODUCER,
                .prepare = become_a_bridge_and_send, .act = leave, .sends = SAMPLES,
                .check = another_bridge_sends_the_rest, .outcomes = KEPT | REAPED, .through = "es_journal_settle");

static int64_t connect_and_leave(es_world *w)
{
    int64_t remote = es_bridge_open(w->mine, ANN, 7, "ann");
    return es_bridge_committed(w->mine, (uint32_t)remote) + es_bridge_known(w->mine, (uint32_t)remote) +
           es_bridge_wanted(w->mine, (uint32_t)remote) + es_bridge_count(w->mine, (uint32_t)remote, 1, 1) +
           es_bridge_count_refused(w->mine) + es_bridge_leave(w->mine, (uint32_t)remote, 1);
}

static void begin(es_world *w)
{
    CHECK_EQ(es_bridge_begin(w->mine), ES_OK);
}

static unsigned client_is_gone_or_unchanged(es_world *w)
{
    es_remote_info info;
    CHECK_EQ(es_bridge_begin(w->p), ES_OK);
    int64_t remote = es_monitor_next_remote(w->p, 0, &info);
    if (remote >= 0)
        CHECK_EQ(info.state, ES_REMOTE_AWAY);
    remote = es_bridge_open(w->p, ANN, 7, "ann");
    CHECK_EQ(es_bridge_committed(w->p, (uint32_t)remote), 7);
    return 0;
}

/* The bridge dies while its client's entry is half made, made, or left. */
KILL_EVERYWHERE(client_connects_and_leaves, .batch_size = 3, .num_batches = 3, .role = ES_ROLE_PRODUCER,
                .prepare = begin, .act = connect_and_leave, .want = 7, .check = client_is_gone_or_unchanged,
                .outcomes = REAPED,
                .through = "es_bridge_open take_new es_bridge_leave es_bridge_committed es_bridge_count_refused");

static int64_t begin_it(es_world *w)
{
    return es_bridge_begin(w->mine);
}

KILL_EVERYWHERE(bridge_begins, .batch_size = 3, .num_batches = 3, .role = ES_ROLE_PRODUCER, .act = begin_it,
                .outcomes = REAPED, .through = "es_bridge_begin");

/* Dies after it wrote two samples to the journal and committed one of them. */
static void send_half_and_die(es_world *w)
{
    uint64_t pos;
    become_a_bridge(w);
    es_owner *o = &w->mine->map.owners[w->mine->me];
    CHECK_EQ(es_producer_claim(w->mine, 2, &pos), 2);
    for (uint32_t i = 0; i < 2; i++)
        fix_write(w->mine, pos + i, ID_TRACEE + i);
    o->journal_position = pos;
    o->journal_count = 2;
    o->journal_remote = 1;
    CHECK_EQ(es_producer_commit(w->mine, pos, 1), 1);
}

static void a_bridge_that_died_half_way(es_world *w)
{
    world_victim(w, ES_ROLE_PRODUCER, send_half_and_die);
}

static int64_t sweep_up(es_world *w)
{
    es_identity id;
    int64_t n = 0;
    for (int64_t i = es_sweep_next_dead(w->mine, 0, &id); i >= 0;
         i = es_sweep_next_dead(w->mine, (uint32_t)i + 1, &id), n++)
        es_sweep_settle(w->mine, &id, 1);
    return n;
}

/* Reapers that die in the reap of a bridge do not change its count. */
KILL_EVERYWHERE(reap_a_bridge, .batch_size = 3, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .before = a_bridge_that_died_half_way, .act = sweep_up, .want = 1, .sends = SAMPLES,
                .check = another_bridge_sends_the_rest, .outcomes = KEPT,
                .through = "es_reap es_journal_settle was_committed");

static void one_came_and_went(es_world *w)
{
    CHECK_EQ(es_bridge_begin(w->p), ES_OK);
    for (int i = 0; i < 2; i++) {
        int64_t remote = es_bridge_open(w->p, i == 0 ? ANN : (const uint8_t *)"bob: sixteen b..", 7, "");
        CHECK_EQ(es_bridge_leave(w->p, (uint32_t)remote, 1), ES_OK);
    }
}

static int64_t come_back(es_world *w)
{
    es_remote_info info;
    return es_bridge_committed(w->mine, (uint32_t)es_bridge_open(w->mine, ANN, 0, "ann")) +
           es_monitor_next_remote(w->mine, 1, &info) + es_api_committed_from(w->mine, 0) +
           (es_bridge_open(w->mine, (const uint8_t *)"cat: sixteen b..", 0, "cat") == 1) +
           (es_bridge_find(w->mine, ANN, "ann") == 0) + (es_api_claimed(w->mine) == 0);
}

/* A known client comes back, and another client gets the entry of one that has left. */
KILL_EVERYWHERE(clients_come_back, .batch_size = 3, .num_batches = 3, .role = ES_ROLE_PRODUCER,
                .before = one_came_and_went, .prepare = begin, .act = come_back, .want = 11,
                .check = client_is_gone_or_unchanged, .outcomes = REAPED,
                .through = "es_bridge_open find has_id turn take_entry es_monitor_next_remote es_api_committed_from "
                           "es_bridge_find es_api_claimed");
