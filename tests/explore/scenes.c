/* What is explored: a few threads in each scene, around one promise of the ring. scenes_two.c has those with two rings,
 * scenes_remote.c those with learners on other hosts. */
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

static void sends_two_at_once(void)
{
    xp_send_many(2, XP_LONG);
}

static void sends_three_at_once(void)
{
    xp_send_many(3, XP_LONG);
}

static void tries_to_send(void)
{
    xp_send(XP_NOW);
}

static void reserves(void)
{
    xp_reserve(true, XP_LONG);
}

static void commits(void)
{
    xp_commit();
}

static void reserves_two(void)
{
    reserves();
    reserves();
}

static void aborts(void)
{
    xp_reserve(false, XP_LONG);
}

static void aborts_then_sends(void)
{
    xp_reserve(false, XP_NOW);
    xp_send(XP_NOW);
}

static void sends_and_detaches(void)
{
    xp_send(XP_NOW);
    xp_leave();
}

static void detaches(void)
{
    xp_leave();
}

static void loops(void)
{
    xp_loop(2);
}

static void attaches_and_takes(void)
{
    if (xp_attach(ES_ROLE_LEARNER) >= 0)
        xp_take(0, XP_LONG);
}

static void attaches_and_loops(void)
{
    if (xp_attach(ES_ROLE_LEARNER) >= 0)
        xp_loop(2);
}

static void sends_one_waiting(void)
{
    xp_send(XP_LONG);
}

static void retires(void)
{
    es_api_retire(xp_theatre.of[xp_me()]);
}

static void stops(void)
{
    es_api_stop(xp_theatre.of[xp_me()]);
}

/* Takes, lets another thread retire the attachment, and ends its lease after that. */
static void holds_across_a_retirement(void)
{
    es_snapshot snap;
    es_ring *r = xp_theatre.of[xp_me()];
    int64_t j = es_api_take(r, 0, XP_NOW, &snap);
    es_api_retire(r);
    if (j >= 0 && es_api_give_back(r, (uint64_t)j, snap.round) != ES_OK)
        xp_violation("a batch that a retired learner leased cannot be given back");
    xp_leave();
}

/* Detaches with a slot that is claimed and not committed. */
static void detaches_with_a_claim(void)
{
    int64_t pos;
    es_api_reserve(xp_theatre.of[xp_me()], XP_NOW, &pos);
    xp_leave();
}

static void attaches_and_sends(void)
{
    if (xp_attach(ES_ROLE_PRODUCER) >= 0)
        xp_send(XP_NOW);
}

static void attaches_and_detaches(void)
{
    if (xp_attach(ES_ROLE_LEARNER) >= 0)
        xp_leave();
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

static void looks_once(void)
{
    xp_take(0, XP_NOW);
}

static void looks_twice(void)
{
    xp_take(0, XP_NOW);
    xp_take(0, XP_NOW);
}

static void gives_back(void)
{
    xp_take_and_give_back(0, XP_NOW);
}

static void takes_to_the_end(void)
{
    xp_take_to_the_end(XP_LONG);
}

/* Takes at a time when a drain no longer waits for other learners' leases. */
static void takes_late_to_the_end(void)
{
    xp_pass(UINT64_C(2000000000));
    takes_to_the_end();
}

static void attaches_and_gives_back(void)
{
    if (xp_attach(ES_ROLE_LEARNER) >= 0)
        xp_take_and_give_back(0, XP_NOW);
}

/* A drain does not wait forever for a living learner's lease, so this waits until thread 2 is dead. */
static void takes_to_the_end_once_2_is_dead(void)
{
    if (xp_dead(2))
        takes_late_to_the_end();
}

static void takes_some(void)
{
    xp_take(ES_TAKE_SHORT | ES_TAKE_ANY_ORDER, XP_NOW);
}

static void gives_back_some(void)
{
    xp_take_and_give_back(ES_TAKE_SHORT | ES_TAKE_ANY_ORDER, XP_NOW);
}

static void attaches_sweeps_and_takes(void)
{
    if (xp_attach(ES_ROLE_LEARNER) < 0)
        return;
    xp_sweep();
    xp_take(0, XP_NOW);
}

static void sweeps(void)
{
    xp_sweep();
}

static void sweeps_and_takes(void)
{
    xp_sweep();
    xp_take(0, XP_NOW);
}

static void closes(void)
{
    es_api_close(xp_theatre.of[xp_me()]);
}

static void closes_and_takes(void)
{
    closes();
    takes_to_the_end();
}

static void closes_and_takes_late(void)
{
    closes();
    takes_late_to_the_end();
}

static void asks_for_the_end(void)
{
    es_snapshot snap;
    if (es_api_take(xp_theatre.of[xp_me()], 0, XP_NOW, &snap) == ES_ENDED)
        xp_violation("ES_ENDED, although a claim is open");
}

static void repairs(void)
{
    if (es_repair(xp_theatre.of[xp_me()]) != 0)
        xp_violation("repair changed a ring that nobody scribbled on");
}

static void serves(void)
{
    xp_serve(2, XP_NOW, XP_LEAVES_CLIENT);
}

static void serves_one_by_one_and_detaches(void)
{
    xp_serve(1, XP_NOW, XP_LEAVES_RING);
}

static void serves_and_waits(void)
{
    xp_serve(3, XP_LONG, XP_LEAVES_CLIENT);
}

static void lets_its_client_go(void)
{
    xp_let_go();
}

static void sweeps_and_serves(void)
{
    xp_sweep();
    serves();
}

/* --- settings ---------------------------------------------------------------------- */

#define P XP_PRODUCER
#define L XP_LEARNER
#define S XP_SHARES
#define N XP_COMES_LATER
#define B XP_BRIDGE
#define cast xp_cast

#define SETTING(name, filled, emptied, filled_again, ...) \
    static void name(void)                                \
    {                                                     \
        cast(__VA_ARGS__);                                \
        xp_fill(filled);                                  \
        xp_empty(emptied);                                \
        xp_fill(filled_again);                            \
    }

SETTING(ppl, 0, 0, 0, P, P, L, 0)
SETTING(ppl_one, 1, 0, 0, P, P, L, 0)
SETTING(ppl_full_2x1, 2, 0, 0, P, P, L, 0)
SETTING(ppl_full_1x1, 1, 0, 0, P, P, L, 0)
SETTING(ppl_full_2x2, 4, 0, 0, P, P, L, 0)
SETTING(pll_one, 1, 0, 0, P, L, L, 0)
SETTING(pll_two, 2, 0, 0, P, L, L, 0)
SETTING(pll_three, 3, 0, 0, P, L, L, 0)
SETTING(pll_late, 3, 3, 3, P, L, L, 0)
SETTING(lln_two, 2, 0, 0, L, L, N, 0)
SETTING(ppn_one, 1, 0, 0, P, P, N, L)
SETTING(psl, 0, 0, 0, P, S, L, 0)
SETTING(psnl, 0, 0, 0, P, S, N, L)
SETTING(plsp, 0, 0, 0, P, L, S, P)
SETTING(psl_full, 2, 0, 0, P, S, L, 0)
SETTING(ps_full, 2, 0, 0, P, S, 0, 0)
SETTING(lsp_two, 2, 0, 0, L, S, P, 0)
SETTING(plll, 1, 0, 0, P, L, L, L)
SETTING(lsp, 0, 0, 0, L, S, P, 0)
SETTING(pll, 0, 0, 0, P, L, L, 0)
SETTING(lll_one, 1, 0, 0, L, L, L, 0)
SETTING(pplp, 0, 0, 0, P, P, L, P)
SETTING(pplp_full, 2, 0, 0, P, P, L, P)
SETTING(pplp_one, 1, 0, 0, P, P, L, P)
SETTING(plp_one, 1, 0, 0, P, L, P, 0)
SETTING(pnpl_one, 1, 0, 0, P, N, P, L)

#define WITH_CLIENT(name, samples, filled, ...) \
    static void name(void)                      \
    {                                           \
        cast(__VA_ARGS__);                      \
        xp_client(samples);                     \
        xp_fill(filled);                        \
    }

WITH_CLIENT(bbl, 3, 0, B, B, L, 0)
WITH_CLIENT(bbl_one, 2, 1, B, B, L, 0)
WITH_CLIENT(bbp, 2, 0, B, B, P, 0)
WITH_CLIENT(bpl_full, 2, 2, B, P, L, 0)

/* The third bridge serves another client, in the first entry. */
static void bbb_other(void)
{
    cast(B, B, B, 0);
    xp_client(1);
    xp_other_client(3);
}

static void pln_two(void)
{
    cast(P, L, N, 0);
    xp_fill(2);
    xp_without_the_stage();
}

static void pnn_two(void)
{
    cast(P, N, N, 0);
    xp_fill(2);
    xp_without_the_stage();
}

/* The learner overwrites its batch when it releases it. */
static void pll_poisoning(void)
{
    cast(P, L, L, 0);
    xp_fill(1);
    xp_theatre.of[2]->poison = true;
}

/* The producer has a claim. */
static void pssn_claimed(void)
{
    cast(P, S, S, N);
    xp_claim(1);
}

/* The same, and it is stopped. */
static void psn_stopped(void)
{
    cast(P, S, N, 0);
    xp_claim(1);
    es_api_stop(xp_theatre.of[1]);
}

/* The ring is closed and a claim is open. */
static void ls_closed(void)
{
    int64_t pos;
    cast(L, S, 0, 0);
    if (es_api_reserve(xp_theatre.producer, XP_NOW, &pos) != ES_OK)
        xp_die("the ring is too small for the scene");
    es_api_close(xp_theatre.producer);
}

/* The ring is closed and the learner that leased the batch is dead. */
static void plnl_leased(void)
{
    es_snapshot snap;
    cast(P, L, N, L);
    xp_fill(1);
    if (es_api_take(xp_theatre.of[4], 0, XP_NOW, &snap) != 0)
        xp_die("there is no batch to take");
    es_api_close(xp_theatre.producer);
    es_locks_drop(xp_theatre.f->locks, xp_theatre.of[4]->me);
}

/* The ring is closed and a batch is complete. */
static void nnl_closed(void)
{
    cast(N, N, L, 0);
    xp_fill(1);
    es_api_close(xp_theatre.producer);
}

/* --- scenes --------------------------------------------------------------------------- */

#define SHARING \
    " share es_api_take es_lease_note_older es_lease_left_to_others es_lease_end es_lease_tell es_lease_take "
#define PASSING_ON " es_wake_producer wake_passed_over es_blocking_claim claim_or_sleep sleep_for_space "
#define RETIRING " es_api_retire es_api_detach enter_unless es_call_leave "
#define STOPPING " es_api_stop es_api_detach enter_unless es_call_enter_to_settle es_call_leave "

const xp_scene xp_one_ring[] = {
    {"two send, one takes", 2, 2, 0, ppl, {sends_one, sends_one, takes_one}, .mortal = 3},
    {"two send twice, one takes twice", 2, 1, 0, ppl, {sends_two, sends_two, takes_two}, .mortal = 3},
    {"batches of one in a ring of one", 1, 1, 0, ppl, {sends_two, sends_one, takes_two}, .mortal = 3},
    {"a full ring, two wait for space", 2, 1, 0, ppl_full_2x1, {sends_one, sends_one, takes_one}, .mortal = 4},
    {"a full ring, three wait for space",
     2,
     1,
     0,
     pplp_full,
     {sends_one, sends_one, takes_one, sends_one},
     .mortal = 11,
     .orders_of = PASSING_ON},
    {"a full ring of one", 1, 1, 0, ppl_full_1x1, {sends_one, sends_one, takes_two}, .mortal = 7},
    {"a run and a single", 2, 2, 0, ppl_one, {sends_three_at_once, sends_one, takes_two}, .mortal = 3},
    {"a run of batches of one", 1, 3, 0, ppl, {sends_two_at_once, sends_one, takes_two}, .mortal = 3},
    {"two runs in a full ring", 2, 2, 0, ppl_full_2x2, {sends_two_at_once, sends_two_at_once, takes_two}, .mortal = 1},
    {"an abort and a re-opened slot", 2, 1, 0, ppl_one, {aborts, sends_one, takes_one}, .mortal = 1},
    {"aborts in a full ring", 2, 1, 0, ppl, {aborts_then_sends, sends_two, takes_one}, .mortal = 1},
    {"an abort in a full ring, two wait",
     2,
     1,
     0,
     pplp_one,
     {aborts, sends_one, takes_one, sends_two},
     .mortal = 10,
     .orders_of = PASSING_ON},
    {"one reserves, another waits", 1, 1, 0, ppl, {reserves, aborts, takes_two}, .mortal = 3},
    {"two learners, one batch", 1, 2, 0, pll_one, {sends_one, takes_one, takes_one}, .mortal = 6},
    {"two learners, two batches", 1, 2, 0, pll_two, {sends_one, looks_twice, looks_twice}, .mortal = 6},
    {"two learners, in any order",
     1,
     3,
     ES_FLAG_READY_ORDER,
     pll_two,
     {sends_two, looks_twice, looks_twice},
     .mortal = 6},
    {"in the order of the sends", 1, 3, ES_FLAG_READY_ORDER, ppl, {sends_two, sends_one, takes_two}, .mortal = 0},
    {"two learners, second lap", 1, 3, 0, pll_late, {sends_one, looks_twice, looks_twice}, .mortal = 6},
    {"a batch given back", 1, 2, 0, pll_one, {sends_one, gives_back, takes_two}, .mortal = 2},
    {"given back, two learners", 1, 2, 0, pll_two, {sends_one, gives_back, looks_twice}, .mortal = 2},
    {"a dead producer is reaped", 2, 2, 0, ppl_one, {sends_one, sends_one, sweeps_and_takes}, .mortal = 1},
    {"a dead reaper", 2, 1, 0, pplp, {sends_one, sends_one, sweeps_and_takes, sweeps}, .mortal = 13},
    {"a dead learner, another attaches",
     1,
     2,
     0,
     lln_two,
     {takes_one, takes_one, attaches_sweeps_and_takes},
     .mortal = 7},
    {"an entry used again",
     2,
     2,
     0,
     pnpl_one,
     {detaches_with_a_claim, attaches_and_sends, sends_one, sweeps},
     .mortal = 7},
    {"one attaches while another dies",
     2,
     2,
     0,
     ppn_one,
     {sends_one, sends_and_detaches, attaches_and_sends, sweeps},
     .mortal = 3},
    {"a close while two send", 2, 2, 0, pplp, {sends_one, sends_one, takes_to_the_end, closes}, .mortal = 3},
    {"a close of a full ring", 2, 1, 0, pplp_full, {sends_one, tries_to_send, takes_to_the_end, closes}, .mortal = 1},
    {"a close with two learners", 1, 2, 0, pll_one, {closes, takes_to_the_end, takes_to_the_end}, .mortal = 2},
    {"a close while a batch is poisoned",
     1,
     1,
     0,
     pll_poisoning,
     {tries_to_send, looks_once, closes_and_takes},
     .mortal = 2},
    {"the end of a closed ring, and a dead learner's lease",
     1,
     2,
     0,
     plnl_leased,
     {sweeps, takes_late_to_the_end, attaches_and_detaches},
     .mortal = 5},
    {"the end, and a dead learner whose entry another takes",
     1,
     2,
     0,
     nnl_closed,
     {attaches_and_detaches, attaches_and_gives_back, takes_to_the_end_once_2_is_dead},
     .mortal = 2},
    {"two threads ask for the end",
     1,
     2,
     0,
     ls_closed,
     {asks_for_the_end, asks_for_the_end},
     .together = 2,
     .private_words = true},
    {"a partial batch", 2, 2, 0, pll_one, {sends_one, takes_some, looks_twice}, .mortal = 2},
    {"a partial batch given back, two wait",
     3,
     1,
     0,
     plp_one,
     {sends_one, gives_back_some, sends_one},
     .mortal = 5,
     .orders_of = PASSING_ON},
    {"two take partially", 2, 2, 0, pll_three, {sends_one, takes_some, takes_some}, .mortal = 2},
    {"a partial batch, and an abort", 2, 1, 0, ppl, {aborts, sends_one, takes_some}, .mortal = 4},
    {"repair of an intact ring", 2, 2, 0, ppl_one, {sends_two, aborts, repairs}, .mortal = 1},
    {"repair beside learners", 1, 2, 0, pll_two, {sends_two, takes_two, repairs}, .mortal = 2},
    {"repair beside a close", 1, 2, 0, plll, {closes, takes_to_the_end, takes_to_the_end, repairs}, .mortal = 2},
    {"repair beside a partial batch", 2, 1, 0, pll_one, {sends_one, takes_some, repairs}, .mortal = 2},
    {"repair beside a head that moves",
     1,
     2,
     0,
     lll_one,
     {looks_once, looks_twice, repairs},
     .mortal = 2,
     .orders_of = " look_from_head repair_head "},
    {"two threads of a producer",
     2,
     1,
     0,
     psl,
     {sends_one, sends_one, takes_one},
     .together = 2,
     .private_words = true},
    {"detaching under another thread",
     2,
     1,
     0,
     psl_full,
     {sends_one, detaches, takes_one},
     .together = 2,
     .private_words = true},
    {"retiring while another thread detaches",
     2,
     2,
     0,
     psnl,
     {retires, detaches, attaches_and_sends},
     .together = 2,
     .private_words = true,
     .orders_of = RETIRING},
    {"stopping a producer that waits",
     2,
     1,
     0,
     ps_full,
     {sends_one_waiting, stops},
     .together = 2,
     .private_words = true,
     .orders_of = STOPPING},
    {"a claim when its producer is stopped",
     2,
     2,
     0,
     psl,
     {reserves_two, stops, takes_one},
     .together = 2,
     .private_words = true,
     .orders_of = STOPPING},
    {"stopping while another thread detaches",
     1,
     1,
     0,
     pssn_claimed,
     {commits, stops, detaches, attaches_and_sends},
     .together = 6,
     .private_words = true,
     .orders_of = STOPPING},
    {"a commit after a stop, and another thread detaches",
     1,
     1,
     0,
     psn_stopped,
     {commits, detaches, attaches_and_sends},
     .together = 2,
     .private_words = true,
     .orders_of = STOPPING},
    {"a retired learner's lease",
     1,
     2,
     0,
     pll_two,
     {sends_one, holds_across_a_retirement, takes_one},
     .mortal = 2,
     .orders_of = RETIRING},
    {"a second learner comes",
     1,
     2,
     0,
     pln_two,
     {sends_one_waiting, loops, attaches_and_takes},
     .mortal = 2,
     .orders_of = SHARING},
    {"two learners come",
     1,
     2,
     0,
     pnn_two,
     {sends_one_waiting, attaches_and_loops, attaches_and_loops},
     .mortal = 2,
     .orders_of = SHARING},
    {"two threads of a learner",
     1,
     2,
     0,
     lsp_two,
     {takes_one, takes_one, sends_one},
     .together = 2,
     .private_words = true},
    {"a thread goes on with another's scan",
     2,
     1,
     0,
     plsp,
     {sends_one, looks_once, takes_one, sends_one},
     .together = 4,
     .private_words = true,
     .orders_of = " scan "},
    {"detaching under a thread that waits",
     2,
     2,
     0,
     lsp,
     {takes_one, detaches, sends_one},
     .together = 2,
     .private_words = true},
    {"learners wait for a run", 2, 2, 0, pll, {sends_two_at_once, takes_one, takes_one}, .mortal = 6},
    {"a bridge dies, another takes its client", 2, 2, 0, bbl, {serves, sweeps_and_serves, looks_twice}, .mortal = 1},
    {"two bridges die", 2, 2, 0, bbl_one, {serves, sweeps_and_serves, sweeps_and_takes}, .mortal = 7},
    {"a client goes from bridge to bridge",
     2,
     2,
     0,
     bbp,
     {serves, serves_one_by_one_and_detaches, sends_one},
     .mortal = 4},
    {"a bridge in a full ring", 2, 1, 0, bpl_full, {serves_and_waits, sweeps, takes_two}, .mortal = 1},
    {"a close while a bridge sends",
     2,
     1,
     0,
     bbl,
     {serves_and_waits, sweeps_and_serves, closes_and_takes},
     .mortal = 1},
    {"a bridge is evicted", 2, 1, 0, bbl, {serves_and_waits, sweeps_and_serves, closes_and_takes_late}, .mortal = 1},
    {"an entry becomes free while a client connects",
     2,
     2,
     0,
     bbb_other,
     {serves, serves, lets_its_client_go},
     .mortal = 4},
    {0},
};
