/* Kills a process of a ring at every instruction of a scenario, as es_everywhere.c says, with a fresh ring and fresh
 * processes for each kill.
 *
 * Another process, with its own descriptor of the lock file, sweeps the ring. The ring
 * must then be in a state that a run without a death could reach. It is valid. The dead
 * process leaves no claim, lease, entry or lock byte behind. All space is there. Two
 * more laps succeed, the stream ends, and every committed sample is delivered once and
 * whole.
 *
 * What this does not prove: much about a death while another process is in the middle
 * of an operation. The exceptions are sleepers, which are asleep, and the few scenarios
 * in which the tracer acts at one point of the operation. The stepped tests in ../c and
 * the kill storms cover the other cases.
 */
#include "es_kill.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "es_after.h"
#include "es_cover.h"
#include "es_everywhere.h"

#define MAX_PATH 60000u
#define MAX_RING (1u << 20)

/* One kill. */
typedef struct killing {
    es_world w;
    const es_scenario *scenario;
    uint32_t skip; /* compare-and-exchanges, before the tracer acts */
} killing;

/* What the processes of a world share, when the tracer last looked; and whether it changed, by instruction. */
static uint8_t ring_then[MAX_RING];
static uint8_t side_then[sizeof(es_side)];
static bool changed_at[MAX_PATH];

/* --- the tracee ------------------------------------------------------------- */

static void be_killed(es_world *w)
{
    const es_scenario *s = w->scenario;
    tracee_begin();
    world_enter(w, s->role);
    for (uint32_t i = 0; i < s->sends; i++)
        w->side->sent[ID_TRACEE + i] = SENT_MAYBE;
    world_fill(w, ID_TRACEE, s->sends > 0 ? s->sends : 1);
    if (s->prepare != NULL)
        s->prepare(w);
    raise(SIGSTOP);
    w->side->phase = PHASE_INSIDE;
    w->side->rc = s->act(w);
    w->side->phase = PHASE_OVER;
    raise(SIGSTOP);
    for (;;)
        pause();
}

static void wake_it(void *arg)
{
    es_world *w = arg;
    w->slept = true;
    w->scenario->when_asleep(w);
}

static bool start(void *world, es_tracee *t)
{
    killing *k = world;
    es_world *w = &k->w;
    const es_scenario *s = k->scenario;
    k->skip = s->meddle_skip;
    world_open(w, s);
    if (s->before != NULL)
        s->before(w);
    pid_t child = fork();
    if (child == 0)
        be_killed(w);
    w->tracee = child;
    if (!tracee_attach(t, child))
        return false;
    if (s->when_asleep != NULL) {
        t->when_asleep = wake_it;
        t->arg = w;
    }
    if (s->between != NULL)
        s->between(w);
    return true;
}

/* A reaper may look at any time, so a registered, living process must hold its lock byte. */
static void living_holds_its_byte(es_world *w)
{
    es_map *m = &w->l->map;
    for (uint32_t i = 0; i < m->num_owners; i++)
        if (atomic_load(&m->owners[i].state) == ES_OWNER_LIVE && atomic_load(&m->owners[i].pid) == w->tracee)
            CHECK_EQ(es_locks_held(w->locks, i), 1);
}

/* Kills the tracee where it is and checks what is left. */
static unsigned finish(void *world, es_tracee *t, uint32_t n)
{
    es_world *w = &((killing *)world)->w;
    const es_scenario *s = w->scenario;
    (void)n;
    unsigned outcomes = 0;
    if (!s->drops_locks)
        living_holds_its_byte(w);
    CHECK(!s->must_not_sleep || !w->slept);
    if (w->side->phase == PHASE_OVER) {
        CHECK_EQ(w->side->rc, s->want);
        for (uint32_t i = 0; i < s->sends; i++)
            w->side->sent[ID_TRACEE + i] = s->want >= 0 ? SENT_OK : SENT_NOT;
    } else {
        tracee_kill(t);
    }
    after_note_releases(w);
    if (w->side->phase == PHASE_OVER) {
        /* No process has died yet: only the operation itself can have woken the sleeper. */
        if (w->sleeper != 0 && world_sleeper_due(w))
            world_sleeper_await(w);
        if (s->alive != NULL)
            s->alive(w);
        tracee_kill(t);
    }
    for (uint32_t i = 0; i < w->side->num_takes; i++)
        outcomes |= w->released[i] ? RELEASED : GIVEN_BACK;
    outcomes |= after_death(w);
    world_close(w);
    return outcomes;
}

static enum phase phase_of(const void *world)
{
    return ((const killing *)world)->w.side->phase;
}

static void abandon(void *world)
{
    world_abandon(&((killing *)world)->w);
}

/* --- where a death leaves something new ---------------------------------------- */

static bool changed(uint8_t *then, const void *now, uint64_t size)
{
    if (memcmp(then, now, size) == 0)
        return false;
    memcpy(then, now, size);
    return true;
}

static void look(void *world, uint32_t n)
{
    const es_world *w = &((killing *)world)->w;
    if (!CHECK(w->f->size <= MAX_RING && n < MAX_PATH))
        return;
    bool ring = changed(ring_then, w->f->base, w->f->size);
    bool side = changed(side_then, w->side, sizeof side_then);
    changed_at[n] = ring || side;
}

static bool leaves_more(void *world, uint32_t n)
{
    (void)world;
    return changed_at[n];
}

/* --- the tracer acts ----------------------------------------------------------- */

static bool meddles(void *world, uint64_t pc)
{
    killing *k = world;
    const es_scenario *s = k->scenario;
    if (k->w.side->phase != PHASE_INSIDE)
        return false;
    if (s->meddle_when != NULL)
        return s->meddle_when(&k->w);
    const es_place *place = cover_place(pc);
    if (place == NULL)
        return false;
    if (s->meddle_at != NULL)
        return strcmp(place->function, s->meddle_at) == 0;
    return place->exchange && strcmp(place->function, s->meddle_in) == 0 && k->skip-- == 0;
}

static void meddle(void *world)
{
    killing *k = world;
    k->scenario->meddle(&k->w);
}

void kill_everywhere(const es_scenario *s)
{
    killing k = {.scenario = s};
    es_everywhere_kill(&(es_everywhere){
        .name = s->name,
        .world = &k,
        .start = start,
        .phase = phase_of,
        .look = es_everywhere_quick() ? look : NULL,
        .leaves_more = es_everywhere_quick() ? leaves_more : NULL,
        .meddles = s->meddle == NULL ? NULL : meddles,
        .meddle = meddle,
        .finish = finish,
        .abandon = abandon,
        .through = s->through,
        .outcomes = s->outcomes,
    });
}
