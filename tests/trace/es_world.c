#define _GNU_SOURCE
#include "es_world.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "es_kill.h"
#include "es_tracee.h"

#define MAX_LEAF 5000u
#define HOUR_NS UINT64_C(3600000000000)

static const uint64_t usual_leaves[] = {8, 24};
static uint8_t usual[WORLD_IDS][24]; /* leaf 1 of each id */
static uint8_t stack[WORLD_LEAVES][WORLD_STACK * MAX_LEAF];

static void *shared(uint64_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        abort();
    return p;
}

/* --- samples --------------------------------------------------------------- */

void world_fill(es_world *w, uint64_t first, uint64_t n)
{
    for (uint32_t l = 0; l < w->geo.num_leaves; l++) {
        for (uint64_t i = 0; i < n; i++)
            es_sample_leaf(first + i, l, w->f->leaf_sizes[l], stack[l] + i * w->f->leaf_sizes[l]);
        w->leaves[l] = stack[l];
    }
    es_age_set_version(w->mine != NULL ? w->mine : w->p, es_sample_version(first, n), true);
}

/* The id in a slot, or WORLD_IDS if its leaves disagree, or its version. The usual leaves take few instructions, because the tracee
 * is killed at each of them. */
static uint64_t read_slot(es_world *w, es_ring *r, uint64_t index)
{
    uint64_t id;
    if (!es_sample_is_version(r->map.versions[index], *(uint64_t *)(void *)(r->map.leaf_data[0] + index * 8)))
        return WORLD_IDS;
    if (w->scenario->leaf_sizes != NULL)
        return es_sample_read(&r->map, index, &id) && id < WORLD_IDS ? id : WORLD_IDS;
    memcpy(&id, r->map.leaf_data[0] + index * 8, 8);
    return id < WORLD_IDS && memcmp(usual[id], r->map.leaf_data[1] + index * 24, 24) == 0 ? id : WORLD_IDS;
}

/* --- attachments ----------------------------------------------------------- */

static es_ring *attach(es_world *w, uint32_t role)
{
    return fix_join(w->f, w->locks, role, w->scenario->poison);
}

void world_enter(es_world *w, uint32_t role)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    w->locks = fix_own_locks(w->f);
    w->mine = attach(w, role);
    w->mine->map.streams = w->scenario->streams;
}

/* Worlds of the same scenario reuse the fixture. */
static es_fix *fixture_of(const struct es_scenario *s)
{
    static es_fix *f;
    static const struct es_scenario *last;
    es_geometry geo = {.batch_size = s->batch_size,
                       .num_batches = s->num_batches,
                       .reap_interval_ns = 1000000000,
                       .max_producers = WORLD_PRODUCERS,
                       .max_remotes = 2,
                       .num_leaves = s->leaf_sizes != NULL ? s->num_leaves : 2,
                       .schema_size = 2,
                       .flags = s->flags};
    if (s == last) {
        fix_again(f);
        return f;
    }
    if (f != NULL)
        fix_free(f);
    last = s;
    return f = fix_new_shared(&geo, s->leaf_sizes != NULL ? s->leaf_sizes : usual_leaves);
}

void world_open(es_world *w, const struct es_scenario *s)
{
    static es_side *side;
    if (side == NULL) {
        side = shared(sizeof *side);
        for (uint64_t id = 0; id < WORLD_IDS; id++)
            es_sample_leaf(id, 1, sizeof usual[id], usual[id]);
    }
    memset((void *)side, 0, sizeof *side);
    *w = (es_world){.scenario = s, .f = fixture_of(s), .side = side, .next_id = ID_BEFORE};
    w->geo = w->f->geo;
    w->locks = w->f->locks;
    w->l = attach(w, ES_ROLE_LEARNER);
    w->p = attach(w, ES_ROLE_PRODUCER);
}

void world_close(es_world *w)
{
    CHECK_EQ(es_api_detach(w->p), ES_OK);
    CHECK_EQ(es_api_detach(w->l), ES_OK);
    CHECK_EQ(es_locks_any(w->locks), 0);
    for (uint32_t i = 0; i < w->l->map.num_owners; i++)
        CHECK_EQ(w->l->map.owners[i].state, ES_OWNER_FREE);
    world_abandon(w);
}

void world_abandon(es_world *w)
{
    if (w->sleeper != 0) {
        kill(w->sleeper, SIGKILL);
        waitpid(w->sleeper, NULL, 0);
    }
    w->sleeper = 0;
    es_api_free(w->p);
    es_api_free(w->l);
}

void world_victim(es_world *w, uint32_t role, void (*body)(es_world *w))
{
    pid_t pid = fork();
    if (pid == 0) {
        world_enter(w, role);
        body(w);
        kill(getpid(), SIGKILL);
    }
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
        abort();
}

/* --- sending and taking ----------------------------------------------------- */

int world_send(es_world *w)
{
    uint64_t id = w->next_id;
    world_fill(w, id, 1);
    int rc = es_api_send(w->p, w->leaves);
    if (rc == ES_OK)
        w->side->sent[id] = SENT_OK;
    w->next_id += rc == ES_OK;
    return rc;
}

void world_send_n(es_world *w, uint64_t n)
{
    while (n-- > 0)
        CHECK_EQ(world_send(w), ES_OK);
}

void world_mine_send(es_world *w, uint64_t first, uint64_t n)
{
    for (uint64_t id = first; id < first + n; id++) {
        world_fill(w, id, 1);
        if (es_api_send(w->mine, w->leaves) == ES_OK)
            w->side->sent[id] = SENT_OK;
    }
}

uint64_t world_mine_reserve(es_world *w, uint64_t id)
{
    int64_t position = 0;
    es_age_set_version(w->mine, es_sample_version(id, 1), true);
    CHECK_EQ(es_api_reserve(w->mine, 0, &position), ES_OK);
    es_sample_write(&w->mine->map, (uint64_t)position % w->mine->map.capacity, id);
    return (uint64_t)position;
}

/* Reads the samples of a leased batch and enters them in the account. take: 0 for the tracer and the sleeper, else
 * 1 + the index of the tracee's take. */
static int64_t read_batch(es_world *w, es_ring *r, uint64_t j, uint64_t round, uint32_t take)
{
    uint8_t mask[32];
    int64_t n = es_api_committed_mask(r, j, round, mask);
    for (uint64_t i = 0; n >= 0 && i < w->geo.batch_size; i++) {
        if (!mask[i])
            continue;
        uint64_t id = read_slot(w, r, j * w->geo.batch_size + i);
        if (id == WORLD_IDS)
            w->side->torn++;
        else if (take == 0)
            w->side->got[id]++;
        else
            w->side->take_of[id] = (uint8_t)take;
    }
    return n;
}

static int64_t enter_batch(es_world *w, es_ring *r, int64_t j, const es_snapshot *snap)
{
    int64_t n = read_batch(w, r, (uint64_t)j, snap->round, 0);
    CHECK_EQ(n, (int64_t)snap->length);
    CHECK_EQ(es_api_release(r, (uint64_t)j, snap->round), ES_OK);
    return n;
}

int64_t world_take(es_world *w, es_ring *r, uint32_t flags, uint64_t timeout_ns)
{
    es_snapshot snap;
    int64_t j = es_api_take(r, flags, timeout_ns, &snap);
    return j < 0 ? j : enter_batch(w, r, j, &snap);
}

int64_t world_tracee_take(es_world *w, uint32_t flags, uint64_t timeout_ns)
{
    es_snapshot snap;
    int64_t j = es_api_take(w->mine, flags, timeout_ns, &snap);
    if (j < 0)
        return j;
    uint32_t take = w->side->num_takes;
    es_take_note *note = &w->side->takes[take];
    note->batch = (uint64_t)j;
    note->round = snap.round;
    w->side->num_takes = take + 1;
    int64_t n = read_batch(w, w->mine, (uint64_t)j, snap.round, take + 1);
    note->whole = 1;
    return n;
}

int world_tracee_release(es_world *w)
{
    const es_take_note *note = &w->side->takes[w->side->num_takes - 1];
    return es_api_release(w->mine, note->batch, note->round);
}

/* --- the sleeper ------------------------------------------------------------ */

/* The sleeper stays until it is told to leave. If it left by itself, it would change the ring under the tracee. */
static void say_out_and_stay(es_world *w)
{
    w->side->sleeper_out = 1;
    while (!w->side->sleeper_may_leave)
        nap_ns(20000);
}

static void sleep_and_leave(es_world *w, uint32_t role, unsigned failures)
{
    if (w->mine->map.weights != NULL) {
        if (es_weights_wait(w->mine, w->position + 1, HOUR_NS) != ES_OK)
            _exit(2);
        say_out_and_stay(w);
    } else if (role == ES_ROLE_LEARNER) {
        es_snapshot snap;
        int64_t j = es_api_take(w->mine, 0, HOUR_NS, &snap);
        say_out_and_stay(w);
        if (j >= 0)
            enter_batch(w, w->mine, j, &snap);
        else if (j != ES_ENDED)
            _exit(2);
    } else {
        world_fill(w, ID_SLEEPER, 1);
        w->side->sent[ID_SLEEPER] = SENT_MAYBE;
        int rc = es_api_send_wait(w->mine, w->leaves, HOUR_NS);
        w->side->sent[ID_SLEEPER] = rc == ES_OK ? SENT_OK : SENT_NOT;
        say_out_and_stay(w);
        if (rc != ES_OK && rc != ES_ECLOSED)
            _exit(3);
    }
    _exit(es_test_failures() == failures && es_api_detach(w->mine) == ES_OK ? 0 : 4);
}

void world_sleeper(es_world *w, uint32_t role)
{
    const es_map *m = &w->l->map;
    const _Atomic uint32_t *sleeps = m->weights != NULL        ? &m->weights->reader_sleeps
                                     : role == ES_ROLE_LEARNER ? &m->hdr->learner_sleeps
                                                               : &m->hdr->producers_sleep;
    w->sleeper_role = role;
    w->sleeper = fork();
    if (w->sleeper == 0) {
        world_enter(w, role);
        sleep_and_leave(w, role, es_test_failures());
    }
    /* It sets its flag before its last look at the ring. That look never sleeps, so a sleep after the flag is the
     * wait itself. */
    while (*sleeps == 0 || !process_sleeps(w->sleeper))
        sched_yield();
}

uint64_t world_word(es_world *w, uint64_t index)
{
    return atomic_load(&w->l->map.slots[index]);
}

static bool complete_batch(es_world *w)
{
    for (uint64_t j = 0; j < w->geo.num_batches; j++) {
        uint64_t b = atomic_load(&w->l->map.batches[j].word), n = 0;
        for (uint64_t i = 0; i < w->geo.batch_size; i++) {
            uint64_t s = world_word(w, j * w->geo.batch_size + i);
            n += es_word_state(s) == ES_COMMITTED && es_word_lap(s) == es_word_round(b) + 1;
        }
        if (es_word_state(b) == ES_FILL && n == w->geo.batch_size)
            return true;
    }
    return false;
}

static bool space(es_world *w)
{
    uint64_t capacity = w->geo.batch_size * w->geo.num_batches, p = atomic_load(&w->l->map.hdr->tail);
    for (uint64_t q = 0; q < capacity; q++)
        if (es_word_state(world_word(w, q)) == ES_REOPEN)
            return true;
    while (es_word_lap(world_word(w, p % capacity)) > p / capacity)
        p++;
    uint64_t b = atomic_load(&w->l->map.batches[p / w->geo.batch_size % w->geo.num_batches].word);
    return es_word_state(b) == ES_FILL && es_word_round(b) >= p / capacity;
}

bool world_sleeper_due(es_world *w)
{
    if (w->l->map.hdr->closed)
        return true;
    if (w->l->map.weights != NULL)
        return es_weights_latest(w->l) > (int64_t)w->position;
    return w->sleeper_role == ES_ROLE_LEARNER ? complete_batch(w) : space(w);
}

bool world_sleeper_settles(es_world *w)
{
    for (;;) {
        bool sleeps = process_sleeps(w->sleeper);
        if (w->side->sleeper_out)
            return true;
        if (sleeps)
            return false;
        sched_yield();
    }
}

void world_sleeper_await(es_world *w)
{
    int status = -1;
    while (!w->side->sleeper_out && waitpid(w->sleeper, &status, WNOHANG) == 0)
        nap_ns(20000);
    w->side->sleeper_may_leave = 1;
    if (status == -1)
        waitpid(w->sleeper, &status, 0);
    w->sleeper = 0;
    CHECK_EQ(status, 0);
}

void world_lower_tail(es_world *w)
{
    atomic_fetch_sub(&w->l->map.hdr->tail, 1);
}
