/* What is explored: versions of weights, with three or four slots. */
#include "xp.h"

/* --- parts ----------------------------------------------------------------------- */

static void publishes_one(void)
{
    xp_publish();
}

static void publishes_three(void)
{
    for (int i = 0; i < 3; i++)
        xp_publish();
}

static void publishes_and_closes(void)
{
    xp_publish();
    es_api_close(xp_theatre.of[xp_me()]);
}

/* Another publisher may follow once the first one is known to be dead. */
static void succeeds(void)
{
    if (xp_sweep_found())
        xp_publish();
}

static void copies_twice(void)
{
    xp_copy();
    xp_copy();
}

static void leases_twice(void)
{
    xp_lease_version(XP_RELEASES);
    xp_lease_version(XP_RELEASES);
}

static void leases_one(void)
{
    xp_lease_version(XP_RELEASES);
}

static void keeps_one(void)
{
    xp_lease_version(XP_KEEPS);
}

static void keeps_one_and_leaves(void)
{
    xp_lease_version(XP_KEEPS);
    xp_leave();
}

static void sweeps_and_leases(void)
{
    xp_sweep();
    xp_lease_version(XP_RELEASES);
}

static void waits_and_copies(void)
{
    xp_wait_version(4);
    xp_copy();
}

static void waits_for_more(void)
{
    xp_wait_version(5);
}

static void stops(void)
{
    es_api_stop(xp_theatre.of[xp_me()]);
}

/* --- settings ---------------------------------------------------------------------- */

#define P XP_PRODUCER
#define L XP_LEARNER
#define S XP_SHARES

/* A publisher, or two, and readers. So many versions are published before. */
#define SETTING(name, published, ...)         \
    static void name(void)                    \
    {                                         \
        xp_cast(__VA_ARGS__);                 \
        for (int i = 0; i < (published); i++) \
            xp_publish();                     \
    }

SETTING(none_lp, 0, L, P, 0, 0)
SETTING(three_lp, 3, L, P, 0, 0)
SETTING(three_lpp, 3, L, P, P, 0)
SETTING(three_llp, 3, L, L, P, 0)
SETTING(three_lps, 3, L, P, S, 0)

/* --- scenes --------------------------------------------------------------------------- */

#define OF                                                                                                         \
    " es_version_latest es_version_wake_all tell is_leased seize es_version_publish look es_version_copy "         \
    "es_version_lease es_version_release es_version_wait closed "
#define SCENE(name, slots, setting, ...) \
    {name, 1, slots, ES_FLAG_WEIGHTS, setting, {__VA_ARGS__}, .orders_of = OF

const xp_scene xp_weights[] = {
    SCENE("weights: the first version, and a copy", 3, none_lp, publishes_one, copies_twice), .mortal = 1},
    SCENE("weights: three versions, and copies", 3, three_lp, publishes_three, copies_twice), .mortal = 1},
    SCENE("weights: three versions, and leases", 3, three_lp, publishes_three, leases_twice), .mortal = 3},
    SCENE("weights: two share a lease", 3, three_lpp, publishes_three, leases_one, leases_one), .mortal = 7},
    SCENE("weights: two have a lease each", 4, three_lpp, publishes_three, leases_one, leases_one), .mortal = 7},
    SCENE("weights: a lease and a copy", 3, three_lpp, publishes_three, leases_one, copies_twice), .mortal = 3},
    SCENE("weights: a dead reader's lease", 3, three_lpp, publishes_one, keeps_one, sweeps_and_leases), .mortal = 6},
    SCENE("weights: a reader leaves with a lease", 3, three_lpp, publishes_three, keeps_one_and_leaves, leases_one), .mortal = 4},
    SCENE("weights: a publisher's successor, and copies", 3, three_llp, publishes_three, succeeds, copies_twice), .mortal = 1},
    SCENE("weights: a publisher's successor, and leases", 3, three_llp, publishes_three, succeeds, leases_twice), .mortal = 5},
    SCENE("weights: a wait for a version", 3, three_lp, publishes_one, waits_and_copies), .mortal = 1},
    SCENE("weights: two wait for a version", 3, three_lpp, publishes_three, waits_for_more, waits_and_copies), .mortal = 3},
    SCENE("weights: a close under a wait for a version", 3, three_lp, publishes_and_closes, waits_for_more), .mortal = 1},
    SCENE("weights: a stop under a wait for a version", 3, three_lps, publishes_one, waits_for_more, stops), .together = 4,
     .private_words = true},
    {0},
};
