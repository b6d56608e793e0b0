/* Sets up a scene, saves its state, and settles its account. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xp_play.h"

#define PRODUCERS 8
#define REMOTES 2

xp_stage xp_theatre, xp_annex;
uint32_t xp_bell;

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
    es_ring *r = fix_open(xp_here()->f, 0);
    es_identity id = {.role = role, .pid = pid};
    if (es_api_attach(r, &id) < 0)
        xp_die("cannot attach");
    return r;
}

void xp_producer(int t)
{
    xp_here()->of[t] = attached(ES_ROLE_PRODUCER, 100 + t);
}

void xp_learner(int t)
{
    xp_here()->of[t] = attached(ES_ROLE_LEARNER, 100 + t);
}

void xp_shares(int t)
{
    xp_here()->of[t] = xp_here()->of[t - 1];
    fix_share(xp_here()->of[t]);
}

void xp_comes_later(int t)
{
    xp_here()->of[t] = fix_open(xp_here()->f, 0);
}

static void cast_one(int t, enum xp_role role)
{
    switch (role) {
    case XP_NOBODY:
        break;
    case XP_PRODUCER:
        xp_producer(t);
        break;
    case XP_LEARNER:
        xp_learner(t);
        break;
    case XP_SHARES:
        xp_shares(t);
        break;
    case XP_COMES_LATER:
        xp_comes_later(t);
        break;
    case XP_BRIDGE:
        xp_bridge(t);
        break;
    case XP_LEARNS:
        xp_learns(t);
        break;
    }
}

void xp_cast(enum xp_role first, enum xp_role second, enum xp_role third, enum xp_role fourth)
{
    cast_one(1, first);
    cast_one(2, second);
    cast_one(3, third);
    cast_one(4, fourth);
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

void xp_without_the_stage(void)
{
    es_map *m = &xp_theatre.learner->map;
    atomic_store(&m->hdr->shared, 0);
    atomic_store(&m->owners[xp_theatre.learner->me].state, ES_OWNER_FREE);
}

static const uint64_t leaf = sizeof(uint64_t);

/* A fresh ring, with the stage's own attachments. */
static void build(xp_stage *s, const xp_scene *scene)
{
    es_geometry geo = {.batch_size = scene->batch_size,
                       .num_batches = scene->num_batches,
                       .flags = scene->flags,
                       .reap_interval_ns = XP_REAP_INTERVAL,
                       .max_producers = PRODUCERS,
                       .num_leaves = 1,
                       .max_remotes = REMOTES};
    s->f = fix_new_leaves(&geo, &leaf);
    xp_go_to(s);
    s->producer = attached(ES_ROLE_PRODUCER, 100);
    s->learner = attached(ES_ROLE_LEARNER, 100);
}

static void save(const xp_stage *s)
{
    const es_map *m = &s->producer->map;
    remember(m->base, (uint64_t)(m->leaf_data[0] - m->base) + m->capacity * leaf);
    remember((void *)s->f->locks->held, s->f->locks->count + ES_MAX_LEARNERS);
    for (int i = 0; i < s->f->num_rings; i++) {
        es_ring *r = s->f->rings[i];
        remember(r, sizeof *r);
        remember(r->scan, m->num_batches * sizeof *r->scan);
        remember(r->held, m->num_batches * sizeof *r->held);
        remember(r->older, m->num_batches * sizeof *r->older);
    }
}

static bool has_annex(const xp_scene *scene)
{
    for (const xp_scene *s = xp_two_rings; s->name != NULL; s++)
        if (s == scene)
            return true;
    return false;
}

void xp_stage_set(const xp_scene *scene)
{
    memset(&xp_theatre, 0, sizeof xp_theatre);
    memset(&xp_annex, 0, sizeof xp_annex);
    memset(&xp_account, 0, sizeof xp_account);
    xp_bell = 0;
    if (has_annex(scene))
        build(&xp_annex, scene);
    build(&xp_theatre, scene);
    scene->setup();
    remember(&xp_account, sizeof xp_account);
    remember(&xp_bell, sizeof xp_bell);
    save(&xp_theatre);
    if (has_annex(scene))
        save(&xp_annex);
}

void xp_stage_clear(void)
{
    xp_stage_restore();
    for (int i = 0; i < num_pieces; i++)
        free(pieces[i].copy);
    num_pieces = 0;
    fix_free(xp_theatre.f);
    if (xp_annex.f != NULL)
        fix_free(xp_annex.f);
}

static void cast_in(const xp_stage *s, const xp_scene *scene)
{
    for (int t = 1; t < XP_THREADS; t++)
        if (scene->threads[t - 1] != NULL && s->of[t] != NULL && s->of[t]->detached == 0)
            xp_memory_hold(t, s->of[t]);
}

void xp_stage_cast(const xp_scene *scene)
{
    cast_in(&xp_theatre, scene);
    cast_in(&xp_annex, scene);
}

/* --- settling ---------------------------------------------------------------------------- */

/* The thread sleeps for this cause in the ring. */
static void check_sleep(const xp_stage *s, int t, enum es_watch_cause what)
{
    es_snapshot snap;
    uint64_t pos;
    if (what == ES_WATCH_ROOM && es_one_claim(s->producer, &pos) != ES_FULL)
        xp_violation("a producer sleeps although it could claim");
    if (what == ES_WATCH_BATCH && es_api_take(s->learner, 0, 0, &snap) != ES_EMPTY)
        xp_violation("a learner sleeps although there is a batch for it");
    if (s->of[t]->detached != 0)
        xp_violation("a thread sleeps although it was stopped");
}

static void nobody_oversleeps_in(const xp_stage *s)
{
    const es_header *h = s->producer->map.hdr;
    for (int t = 1; t < XP_THREADS; t++) {
        if (xp_parked_on(t, &h->space_seq))
            check_sleep(s, t, ES_WATCH_ROOM);
        if (xp_parked_on(t, &h->ready_seq))
            check_sleep(s, t, ES_WATCH_BATCH);
        /* Whether or not it is parked on all the words that it should be. */
        for (uint32_t i = 0; xp_parked(t) && i < xp_account.num_watches[t]; i++)
            if (xp_account.watches[t][i].ring == s->of[t])
                check_sleep(s, t, xp_account.watches[t][i].what);
    }
}

void xp_stage_nobody_oversleeps(void)
{
    nobody_oversleeps_in(&xp_theatre);
    for (int t = 1; t < XP_THREADS; t++)
        if (xp_oversleeps_version(t))
            xp_violation("a thread sleeps although its version is there, or will never be");
    if (xp_annex.f != NULL)
        nobody_oversleeps_in(&xp_annex);
    for (int t = 1; t < XP_THREADS; t++)
        if (xp_parked(t) && xp_account.hears[t] && xp_memory_latest(&xp_bell, sizeof xp_bell) != 0)
            xp_violation("a thread sleeps although its word has changed");
}

void xp_stage_reap(void)
{
    xp_sweep_by(xp_theatre.learner);
    if (xp_annex.f != NULL)
        xp_sweep_by(xp_annex.learner);
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

static void check_ring(const xp_stage *s)
{
    const char *wrong = es_valid(s->producer);
    if (wrong != NULL)
        xp_violation(wrong);
}

/* Closes the ring and takes what is left. */
static void drain(xp_stage *s)
{
    int64_t rc = 0;
    xp_go_to(s);
    check_ring(s);
    es_api_close(s->producer);
    xp_pass(UINT64_C(2000000000));
    for (int turn = 0; turn < 40 && (rc >= 0 || rc == ES_EMPTY); turn++)
        rc = xp_take(0, XP_NOW);
    if (rc != ES_ENDED)
        xp_violation("the stream does not end");
    check_ring(s);
}

void xp_stage_settle(void)
{
    xp_stage_reap();
    if (xp_annex.f != NULL)
        drain(&xp_annex);
    if (xp_theatre.learner->map.weights != NULL)
        xp_settle_versions();
    else
        drain(&xp_theatre);
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
