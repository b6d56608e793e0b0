/* Scenes with two rings, the theatre and the annex: threads that wait for both at once (es_api_wait_any). */
#include "xp.h"

/* --- parts ----------------------------------------------------------------------- */

static void sends_one(void)
{
    xp_send(XP_LONG);
}

static void sends_two(void)
{
    xp_send(XP_LONG);
    xp_send(XP_LONG);
}

static void takes_one(void)
{
    xp_take(0, XP_LONG);
}

static void takes_two(void)
{
    xp_take(0, XP_LONG);
    xp_take(0, XP_LONG);
}

static void stops(void)
{
    es_api_stop(xp_theatre.of[xp_me()]);
}

static void closes(void)
{
    es_api_close(xp_theatre.of[xp_me()]);
}

static es_watch watch(const xp_stage *stage, enum es_watch_cause what)
{
    return (es_watch){stage->of[xp_me()], what};
}

/* What a replay does: takes a batch in the theatre, and sends a sample in the annex, whichever it can first. */
static void relays(void)
{
    const es_watch both[] = {watch(&xp_theatre, ES_WATCH_BATCH), watch(&xp_annex, ES_WATCH_ROOM)};
    bool took = false, sent = false;
    for (int turn = 0; turn < 4 && !(took && sent); turn++) {
        int ready = xp_wait_any(both + took, took || sent ? 1 : 2, XP_NO_BELL, XP_LONG);
        if (ready < 0)
            return;
        if (ready == 0 && !took) {
            took = xp_take(0, XP_NOW) >= 0;
        } else {
            xp_go_to(&xp_annex);
            sent = xp_send(XP_NOW) == ES_OK;
            xp_go_to(&xp_theatre);
        }
    }
}

/* Is told of room, and leaves it. */
static void waits_for_room_and_leaves_it(void)
{
    const es_watch both[] = {watch(&xp_theatre, ES_WATCH_ROOM), watch(&xp_annex, ES_WATCH_ROOM)};
    xp_wait_any(both, 2, XP_NO_BELL, XP_LONG);
}

static void waits_for_batches(void)
{
    const es_watch both[] = {watch(&xp_theatre, ES_WATCH_BATCH), watch(&xp_annex, ES_WATCH_BATCH)};
    for (int turn = 0; turn < 3; turn++) {
        int ready = xp_wait_any(both, 2, XP_NO_BELL, XP_LONG);
        if (ready < 0)
            return;
        xp_go_to(ready == 0 ? &xp_theatre : &xp_annex);
        if (xp_take(0, XP_NOW) >= 0)
            return;
    }
}

/* In vain: only a stop ends it. */
static void waits_until_it_is_stopped(void)
{
    const es_watch both[] = {watch(&xp_theatre, ES_WATCH_ROOM), watch(&xp_annex, ES_WATCH_BATCH)};
    if (xp_wait_any(both, 2, XP_NO_BELL, XP_LONG) != ES_EDETACHED)
        xp_violation("a thread that waits does not hear that it was stopped");
}

static void stops_in_the_annex(void)
{
    es_api_stop(xp_annex.of[xp_me()]);
}

static void detaches_in_the_annex(void)
{
    xp_go_to(&xp_annex);
    xp_leave();
}

static void takes_in_both(void)
{
    takes_one();
    xp_go_to(&xp_annex);
    takes_one();
}

static void sends_in_the_annex(void)
{
    xp_go_to(&xp_annex);
    xp_send(XP_LONG);
}

static void takes_one_and_sends_in_the_annex(void)
{
    takes_one();
    sends_in_the_annex();
}

static void takes_two_in_the_annex(void)
{
    xp_go_to(&xp_annex);
    takes_two();
}

static void takes_in_the_annex(void)
{
    xp_go_to(&xp_annex);
    takes_one();
}

#define NOTE 31 /* no scene has that many slots */

static void leaves_a_note(void)
{
    xp_data_write(&xp_theatre.producer->map, NOTE);
    es_api_change_word(&xp_bell);
}

static void waits_for_a_note(void)
{
    const es_watch batch = watch(&xp_theatre, ES_WATCH_BATCH);
    int ready = xp_wait_any(&batch, 1, XP_BELL, XP_LONG);
    if (ready == 0)
        xp_take(0, XP_NOW);
    if (ready == 1 || (ready == 0 && xp_wait_any(NULL, 0, XP_BELL, XP_LONG) == 0))
        xp_data_read(&xp_theatre.producer->map, NOTE);
    else
        xp_violation("a thread that waits does not see that its word has changed");
}

static void waits_for_the_end(void)
{
    const es_watch both[] = {watch(&xp_theatre, ES_WATCH_BATCH), watch(&xp_annex, ES_WATCH_ROOM)};
    int ready;
    while ((ready = xp_wait_any(both, 2, XP_NO_BELL, XP_LONG)) == 0)
        if (xp_take(0, XP_NOW) < 0)
            return;
    if (ready < 0 && atomic_load(&xp_theatre.producer->map.hdr->closed) != 0)
        xp_violation("a thread that waits does not hear of the close");
}

/* --- settings ---------------------------------------------------------------------- */

#define P XP_PRODUCER
#define L XP_LEARNER
#define S XP_SHARES

/* The ring is full, and every producer has noticed: it has searched for re-opened slots. */
static void fill_up(int n)
{
    uint64_t pos;
    xp_fill(n);
    for (int t = 1; t <= 4 && n > 0; t++) {
        es_ring *r = xp_here()->of[t];
        if (r != NULL && r->role == ES_ROLE_PRODUCER && es_one_claim(r, &pos) != ES_FULL)
            xp_die("the ring of the scene is not full");
    }
}

/* A full theatre or an empty one, and the same for the annex. */
#define TWO_RINGS(name, filled, filled_annex, a, b, c, d, ...) \
    static void name(void)                                     \
    {                                                          \
        xp_cast(a, b, c, d);                                   \
        fill_up(filled);                                       \
        xp_go_to(&xp_annex);                                   \
        xp_cast(__VA_ARGS__);                                  \
        fill_up(filled_annex);                                 \
        xp_go_to(&xp_theatre);                                 \
    }

TWO_RINGS(relay, 0, 1, L, P, 0, 0, P, 0, L, 0)
TWO_RINGS(relay_beside_others, 0, 1, L, P, L, 0, P, 0, P, L)
TWO_RINGS(ppl_full_and_plp_full, 2, 2, P, P, L, 0, P, 0, L, P)
TWO_RINGS(ppl_full_and_pl_full, 2, 2, P, P, L, 0, P, 0, 0, L)
TWO_RINGS(pppl_full, 2, 2, P, P, P, L, P, P, 0, 0)
TWO_RINGS(lp_and_lp, 0, 0, L, L, P, 0, L, 0, 0, P)
TWO_RINGS(ps_full_and_ls, 1, 0, P, S, L, 0, L, S, 0, 0)
TWO_RINGS(lpp, 0, 1, L, P, P, 0, P, 0, 0, 0)

/* --- scenes --------------------------------------------------------------------------- */

#define SEVERAL " is_ready first_ready arm any_detached sleep_until_ready pass_on es_api_change_word "

const xp_scene xp_two_rings[] = {
    {"a replay waits for batch and room",
     1,
     1,
     0,
     relay,
     {relays, sends_one, takes_in_the_annex},
     .mortal = 6,
     .orders_of = SEVERAL},
    {"a replay beside others that wait",
     1,
     1,
     0,
     relay_beside_others,
     {relays, sends_two, takes_one_and_sends_in_the_annex, takes_two_in_the_annex},
     .mortal = 14,
     .orders_of = SEVERAL},
    {"room in two rings, left to others",
     2,
     1,
     0,
     ppl_full_and_plp_full,
     {waits_for_room_and_leaves_it, sends_one, takes_in_both, sends_in_the_annex},
     .mortal = 5,
     .orders_of = SEVERAL},
    {"room in two rings, from two learners",
     2,
     1,
     0,
     ppl_full_and_pl_full,
     {waits_for_room_and_leaves_it, sends_one, takes_one, takes_in_the_annex},
     .mortal = 13,
     .orders_of = SEVERAL},
    {"room that two leave to a third",
     2,
     1,
     0,
     pppl_full,
     {waits_for_room_and_leaves_it, waits_for_room_and_leaves_it, sends_one, takes_one},
     .mortal = 3,
     .orders_of = SEVERAL},
    {"batches of two rings, beside a learner",
     1,
     1,
     0,
     lp_and_lp,
     {waits_for_batches, takes_one, sends_one, sends_in_the_annex},
     .mortal = 12,
     .orders_of = SEVERAL},
    {"stopping a wait for two rings",
     1,
     1,
     0,
     ps_full_and_ls,
     {waits_until_it_is_stopped, stops},
     .together = 2,
     .private_words = true,
     .orders_of = SEVERAL},
    {"stopping it in the second ring",
     1,
     1,
     0,
     ps_full_and_ls,
     {waits_until_it_is_stopped, stops_in_the_annex},
     .together = 2,
     .private_words = true,
     .orders_of = SEVERAL},
    {"detaching under it in the second ring",
     1,
     1,
     0,
     ps_full_and_ls,
     {waits_until_it_is_stopped, detaches_in_the_annex},
     .together = 2,
     .private_words = true,
     .orders_of = SEVERAL},
    {"a batch and a word",
     1,
     1,
     0,
     lpp,
     {waits_for_a_note, sends_one, leaves_a_note},
     .mortal = 2,
     .orders_of = SEVERAL},
    {"a close under a wait for two rings",
     1,
     1,
     0,
     lpp,
     {waits_for_the_end, sends_one, closes},
     .mortal = 2,
     .orders_of = SEVERAL},
    {0},
};
