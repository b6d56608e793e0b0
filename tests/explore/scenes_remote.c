/* What is explored: bridges that take batches for a learner on another host. A bridge never waits in a take, and keeps a
 * batch as long as that learner works on it. */
#include "xp.h"

/* --- parts ----------------------------------------------------------------------- */

static void sends_one(void)
{
    xp_send(XP_LONG);
}

static void takes_one(void)
{
    xp_take(0, XP_LONG);
}

static void looks_twice(void)
{
    xp_take(0, XP_NOW);
    xp_take(0, XP_NOW);
}

static void serves_two(void)
{
    xp_learner_gets(2);
}

static void sweeps_and_serves_two(void)
{
    xp_sweep();
    xp_learner_gets(2);
}

static void serves_and_detaches(void)
{
    xp_learner_keeps();
    xp_leave();
}

static void keeps_one(void)
{
    xp_learner_keeps();
}

static void shares(void)
{
    xp_learner_shares();
}

static void comes_and_keeps_one(void)
{
    if (xp_attach(ES_ROLE_LEARNER) < 0)
        return;
    if (es_bridge_learn(xp_theatre.of[xp_me()]) != ES_OK)
        xp_violation("a bridge cannot take batches");
    xp_learner_keeps();
}

static void attaches_and_takes(void)
{
    if (xp_attach(ES_ROLE_LEARNER) >= 0)
        xp_take(0, XP_LONG);
}

/* --- settings ---------------------------------------------------------------------- */

#define P XP_PRODUCER
#define L XP_LEARNER
#define N XP_COMES_LATER
#define R XP_LEARNS

#define SETTING(name, filled, ...) \
    static void name(void)         \
    {                              \
        xp_cast(__VA_ARGS__);      \
        xp_fill(filled);           \
    }

SETTING(prl_two, 2, P, R, L, 0)
SETTING(prr_two, 2, P, R, R, 0)
SETTING(rrl_three, 3, R, R, L, 0)

static void prn_two(void)
{
    xp_cast(P, R, N, 0);
    xp_fill(2);
    xp_without_the_stage();
}

static void pnn_two(void)
{
    xp_cast(P, N, N, 0);
    xp_fill(2);
    xp_without_the_stage();
}

/* --- scenes --------------------------------------------------------------------------- */

#define TAKING \
    " es_bridge_learn es_lease_note_older is_bridges es_lease_left_to_others es_lease_take es_lease_give_back_all "

const xp_scene xp_remote_learner[] = {
    {"a learner on another host, and one here",
     1,
     2,
     0,
     prl_two,
     {sends_one, serves_two, looks_twice},
     .mortal = 6,
     .orders_of = TAKING},
    {"a bridge dies, another serves its learner",
     1,
     2,
     0,
     prr_two,
     {sends_one, serves_two, sweeps_and_serves_two},
     .mortal = 6,
     .orders_of = TAKING},
    {"a bridge leaves with its learner's batch",
     1,
     3,
     0,
     rrl_three,
     {serves_and_detaches, sweeps_and_serves_two, takes_one},
     .mortal = 7,
     .orders_of = TAKING},
    {"a bridge calls a batch back", 1, 2, 0, prl_two, {sends_one, shares, takes_one}, .mortal = 6, .orders_of = TAKING},
    {"a learner comes while a bridge keeps a batch",
     1,
     2,
     0,
     prn_two,
     {sends_one, keeps_one, attaches_and_takes},
     .mortal = 2,
     .orders_of = TAKING},
    {"a bridge and a learner come",
     1,
     2,
     0,
     pnn_two,
     {sends_one, comes_and_keeps_one, attaches_and_takes},
     .mortal = 2,
     .orders_of = TAKING},
    {0},
};
