/* Sets up a scene, saves its state, and settles its account. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xp_play.h"

#define PRODUCERS 8
#define REMOTES 2

xp_stage xp_theatre;

void xp_die(const char *why)
{
    fprintf(stderr, "the explorer cannot continue: %s\n", why);
    abort();
}

/* --- saved state ------------------------------------------------------------------ */

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

/* --- setup -------------------------------------------------------------------------- */

static es_ring *attached(uint32_t role, int pid)
{
    es_ring *r = fix_open(xp_theatre.f, 0);
    es_identity id = {.role = role, .pid = pid};
    if (es_api_attach(r, &id) < 0)
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
    xp_theatre.of[t] = fix_open(xp_theatre.f, 0);
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
            xp_die("the scene does not have that many batches");
}

void xp_stage_set(const xp_scene *scene)
{
    static const uint64_t leaf = sizeof(uint64_t);
    xp_stage *s = &xp_theatre;
    es_geometry geo = {.batch_size = scene->batch_size,
                       .num_batches = scene->num_batches,
                       .flags = scene->flags,
                       .reap_interval_ns = XP_REAP_INTERVAL,
                       .max_producers = PRODUCERS,
                       .num_leaves = 1,
                       .max_remotes = REMOTES};
    memset(s, 0, sizeof *s);
    memset(&xp_account, 0, sizeof xp_account);
    s->f = fix_new_leaves(&geo, &leaf);
    s->producer = attached(ES_ROLE_PRODUCER, 100);
    s->learner = attached(ES_ROLE_LEARNER, 100);
    scene->setup();
    const es_map *m = &s->producer->map;
    remember(m->base, (uint64_t)(m->leaf_data[0] - m->base) + m->capacity * leaf);
    remember((void *)s->f->locks->held, s->f->locks->count + ES_MAX_LEARNERS);
    remember(&xp_account, sizeof xp_account);
    for (int i = 0; i < s->f->num_rings; i++) {
        es_ring *r = s->f->rings[i];
        remember(r, sizeof *r);
        remember(r->scan, m->num_batches * sizeof *r->scan);
        remember(r->held, m->num_batches * sizeof *r->held);
        remember(r->older, m->num_batches * sizeof *r->older);
    }
}

void xp_stage_clear(void)
{
    xp_stage_restore();
    for (int i = 0; i < num_pieces; i++)
        free(pieces[i].copy);
    num_pieces = 0;
    fix_free(xp_theatre.f);
}

void xp_stage_cast(const xp_scene *scene)
{
    for (int t = 1; t < XP_THREADS; t++)
        if (scene->threads[t - 1] != NULL && xp_theatre.of[t] != NULL && xp_theatre.of[t]->detached == 0)
            xp_memory_hold(t, xp_theatre.of[t]);
}

/* --- settling ---------------------------------------------------------------------------- */

void xp_stage_nobody_oversleeps(void)
{
    es_header *h = xp_theatre.producer->map.hdr;
    es_snapshot snap;
    uint64_t pos;
    for (int t = 1; t < XP_THREADS; t++) {
        if (xp_parked_on(t, &h->space_seq) && es_one_claim(xp_theatre.producer, &pos) != ES_FULL)
            xp_violation("a producer sleeps although it could claim");
        if (xp_parked_on(t, &h->space_seq) && xp_theatre.of[t]->detached != 0)
            xp_violation("a producer sleeps although it was stopped");
        if (xp_parked_on(t, &h->ready_seq) && es_api_take(xp_theatre.learner, 0, 0, &snap) != ES_EMPTY)
            xp_violation("a learner sleeps although there is a batch for it");
    }
}

void xp_stage_reap(void)
{
    xp_sweep_by(xp_theatre.learner);
}

/* A thread that died before it noted a release may or may not have released the sample. */
static void check_sample(int id)
{
    uint64_t final = 0;
    for (int i = 0; i < xp_account.num_got[id]; i++)
        final += xp_account.got[id][i].released || !xp_dead(xp_account.got[id][i].by);
    if (final == 0 && xp_account.num_got[id] > 0)
        final = 1;
    const char *wrong = es_account_name(es_account_verdict((enum es_sent)xp_account.sent[id], final));
    if (wrong != NULL) {
        static char text[40];
        snprintf(text, sizeof text, "a sample is %s", wrong);
        xp_violation(text);
    }
}

static void check_ring(void)
{
    const char *wrong = es_valid(xp_theatre.producer);
    if (wrong != NULL)
        xp_violation(wrong);
}

void xp_stage_settle(void)
{
    int64_t rc = 0;
    xp_stage_reap();
    check_ring();
    es_api_close(xp_theatre.producer);
    xp_pass(UINT64_C(2000000000));
    for (int turn = 0; turn < 40 && (rc >= 0 || rc == ES_EMPTY); turn++)
        rc = xp_take(0, XP_NOW);
    if (rc != ES_ENDED)
        xp_violation("the stream does not end");
    check_ring();
    for (int id = 0; id < xp_account.next; id++)
        check_sample(id);
    xp_check_client();
}

int64_t __real_es_repair(es_ring *r);
int64_t __wrap_es_repair(es_ring *r);
int64_t __wrap_es_repair(es_ring *r)
{
    int64_t n = __real_es_repair(r);
    if (n != 0)
        xp_violation("a ring that is not corrupt was repaired");
    return n;
}
