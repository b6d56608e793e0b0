/* Checks the ring that a killed process leaves behind. */
#include "es_after.h"

#include <stdio.h>

#include "es_versions.h"

void after_note_releases(es_world *w)
{
    for (uint32_t t = 0; t < w->side->num_takes; t++) {
        const es_take_note *note = &w->side->takes[t];
        uint64_t b = atomic_load(&w->l->map.batches[note->batch].word);
        bool up = es_word_round(b) > note->round || es_word_state(b) == ES_RETIRED || es_word_state(b) == ES_POISONING;
        w->released[t] = up && !w->scenario->never_releases;
        /* It releases only what it has read completely. */
        CHECK(note->whole || !w->released[t]);
    }
}

/* Checks that every sample that was sent was delivered once, to the living or to the dead. The sample that was being
 * sent is delivered at most once. No other sample is delivered. */
static unsigned account(es_world *w)
{
    es_side *side = w->side;
    uint64_t wrong[ACCOUNT_FAULTS + 1] = {0};
    uint32_t kept = 0;
    for (uint32_t id = 0; id < WORLD_IDS; id++) {
        bool to_the_dead = side->take_of[id] != 0 && w->released[side->take_of[id] - 1];
        bool of_tracee = id >= ID_TRACEE && id < ID_TRACEE + w->scenario->sends;
        wrong[es_account_verdict((enum es_sent)side->sent[id], side->got[id] + (uint64_t)to_the_dead)]++;
        kept += of_tracee && side->got[id] > 0;
        /* A run is committed in order. */
        CHECK(!(of_tracee && id > ID_TRACEE && side->got[id] > 0 && side->got[id - 1] == 0));
    }
    wrong[ACCOUNT_TORN] += side->torn;
    for (int fault = 0; fault < ACCOUNT_FAULTS; fault++)
        if (!CHECK_EQ(wrong[fault], 0))
            fprintf(stderr, "    this many samples were %s\n", es_account_name((enum es_account_fault)fault));
    return (kept > 0 ? KEPT : 0) | (kept < w->scenario->sends ? LOST : 0);
}

static int sweep(es_world *w)
{
    es_identity id;
    int n = 0;
    for (int64_t i = es_sweep_next_dead(w->l, 0, &id); i >= 0; i = es_sweep_next_dead(w->l, (uint32_t)i + 1, &id), n++)
        CHECK(es_sweep_settle(w->l, &id, 1) >= 0);
    return n;
}

static void make_it_due(es_world *w)
{
    if (w->l->map.weights != NULL) {
        CHECK(versions_publish(w, w->l) > 0);
    } else if (w->sleeper_role == ES_ROLE_LEARNER) {
        while (!world_sleeper_due(w))
            if (!CHECK_EQ(world_send(w), ES_OK))
                break;
    } else {
        CHECK(world_take(w, w->l, 0, 0) > 0);
    }
}

/* Lets the sleeper's call end: at once if it is due, else once the tracer has made it due. */
static unsigned let_sleeper_out(es_world *w)
{
    if (world_sleeper_settles(w)) {
        world_sleeper_await(w);
        return WOKEN;
    }
    if (!world_sleeper_due(w)) /* else it sleeps although it is due: nothing will wake it */
        make_it_due(w);
    if (CHECK(world_sleeper_due(w)))
        world_sleeper_await(w);
    return 0;
}

static void only_we_are_left(es_world *w)
{
    es_map *m = &w->l->map;
    for (uint32_t i = 0; i < m->num_owners; i++) {
        bool ours = i == w->l->me || i == w->p->me;
        CHECK_EQ(atomic_load(&m->owners[i].state), ours ? ES_OWNER_LIVE : ES_OWNER_FREE);
        CHECK_EQ(es_locks_held(w->locks, i), ours);
    }
    for (uint64_t q = 0; q < m->capacity; q++) {
        uint64_t word = world_word(w, q);
        CHECK(es_word_state(word) != ES_CLAIMED);
    }
    for (uint64_t j = 0; j < m->num_batches; j++) {
        uint32_t state = es_word_state(atomic_load(&m->batches[j].word));
        CHECK(state == ES_FILL || state == ES_RETIRED);
    }
}

/* Sends two laps, so that a stuck slot or batch shows. Then fills the ring: no space may be lost. */
static void go_round(es_world *w)
{
    uint64_t capacity = w->geo.batch_size * w->geo.num_batches, in = 0;
    w->next_id = ID_AFTER;
    for (uint64_t n = 0; n < 2 * capacity;) {
        int rc = world_send(w);
        n += rc == ES_OK;
        if (rc == ES_FULL && !CHECK(world_take(w, w->l, 0, 0) == (int64_t)w->geo.batch_size))
            return;
        if (rc != ES_OK && !CHECK_EQ(rc, ES_FULL))
            return;
    }
    while (world_take(w, w->l, 0, 0) > 0)
        ;
    for (uint64_t id = ID_AFTER; id < w->next_id; id++)
        in += w->side->got[id] == 0;
    CHECK(in < w->geo.batch_size);
    while (in <= capacity && world_send(w) == ES_OK)
        in++;
    CHECK_EQ(in, capacity);
}

unsigned after_death(es_world *w)
{
    unsigned outcomes = w->l->map.hdr->closed ? CLOSED : 0;
    outcomes |= sweep(w) > 0 ? REAPED : NOBODY;
    if (w->sleeper != 0)
        outcomes |= let_sleeper_out(w);
    if (w->scenario->check != NULL)
        outcomes |= w->scenario->check(w);
    CHECK_STR(es_valid(w->l), NULL);
    only_we_are_left(w);
    if (w->l->map.weights != NULL)
        return outcomes | versions_after(w);
    if (!w->l->map.hdr->closed)
        go_round(w);
    CHECK_EQ(es_api_close(w->l), ES_OK);
    int64_t n;
    while ((n = world_take(w, w->l, 0, 0)) >= 0)
        ;
    CHECK_EQ(n, ES_ENDED); /* not ES_EMPTY: no producer is left to wait for */
    CHECK_STR(es_valid(w->l), NULL);
    return outcomes | account(w);
}
