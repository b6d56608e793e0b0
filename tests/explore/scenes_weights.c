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

/* The first one may wake a reader that waits for the second. */
static void publishes_two_and_closes(void)
{
    xp_publish();
    publishes_and_closes();
}

/* Another publisher may follow once the first one is known to be dead. */
static void succeeds(void)
{
    if (xp_sweep_finds(1))
        xp_publish();
}

/* As if it were killed there, and its successor had its byte at once. */
static void publishes_and_tells_nobody(void)
{
    xp_publish_untold();
}

static void succeeds_at_once(void)
{
    if (xp_takes_over())
        xp_publish();
}

static void copies_one(void)
{
    xp_copy();
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

/* One slot of three is leased throughout, so the others are filled in turns. */
static void leased_llp(void)
{
    three_llp();
    xp_lease_version(XP_KEEPS);
    xp_publish();
}

/* --- scenes --------------------------------------------------------------------------- */

#define OF                                                                                                 \
    " es_version_latest es_version_wake_all tell is_leased seize es_version_publish look es_version_copy " \
    "es_version_lease es_version_release es_version_wait closed "
#define SCENE(about, slots, setting, may_die, ...)                                                               \
    {                                                                                                            \
        "weights: " about, 1, slots, ES_FLAG_WEIGHTS, setting, {__VA_ARGS__}, .mortal = may_die, .orders_of = OF \
    }

const xp_scene xp_weights[] = {
    SCENE("the first version, and a copy", 3, none_lp, 1, publishes_one, copies_twice),
    SCENE("three versions, and copies", 3, three_lp, 1, publishes_three, copies_twice),
    SCENE("three versions, and leases", 3, three_lp, 3, publishes_three, leases_twice),
    SCENE("two share a lease", 3, three_lpp, 7, publishes_three, leases_one, leases_one),
    SCENE("two have a lease each", 4, three_lpp, 7, publishes_three, leases_one, leases_one),
    SCENE("a lease and a copy", 3, three_lpp, 3, publishes_three, leases_one, copies_twice),
    SCENE("a dead reader's lease", 3, three_lpp, 6, publishes_one, keeps_one, sweeps_and_leases),
    SCENE("a reader leaves with a lease", 3, three_lpp, 4, publishes_three, keeps_one_and_leaves, leases_one),
    SCENE("a publisher's successor, and copies", 3, three_llp, 1, publishes_three, succeeds, copies_twice),
    SCENE("a publisher's successor, and leases", 3, three_llp, 5, publishes_three, succeeds, leases_twice),
    SCENE("a successor at once", 3, leased_llp, 0, publishes_and_tells_nobody, succeeds_at_once, copies_one),
    SCENE("a wait for a version", 3, three_lp, 1, publishes_one, waits_and_copies),
    SCENE("two wait for a version", 3, three_lpp, 3, publishes_three, waits_for_more, waits_and_copies),
    SCENE("a close under a wait for a version", 3, three_lp, 1, publishes_and_closes, waits_for_more),
    SCENE("a close behind the version", 3, three_lp, 1, publishes_two_and_closes, waits_for_more),
    {"weights: a stop under a wait for a version",
     1,
     3,
     ES_FLAG_WEIGHTS,
     three_lps,
     {publishes_one, waits_for_more, stops},
     .together = 4,
     .private_words = true,
     .orders_of = OF},
    {0},
};
