/* Publishers and readers of weights that are killed. The next publisher goes on, and readers get whole versions. */
#include "es_kill.h"
#include "es_versions.h"

#define HOUR UINT64_C(3600000000000)

/* Three slots, and one lease. */
#define WEIGHTS .batch_size = 1, .num_batches = 3, .flags = ES_FLAG_WEIGHTS
#define PUBLISHER WEIGHTS, .role = ES_ROLE_LEARNER
#define READER WEIGHTS, .role = ES_ROLE_PRODUCER

/* --- before --------------------------------------------------------------------- */

static void publish_n(es_world *w, int n)
{
    for (int i = 0; i < n; i++)
        CHECK(versions_publish(w, w->l) > 0);
    w->position = (uint64_t)es_weights_latest(w->l);
}

static void three_versions(es_world *w)
{
    publish_n(w, 3);
}

/* The reader has version 2, in the slot that would be filled next. */
static void a_lease_in_the_way(es_world *w)
{
    publish_n(w, 2);
    CHECK_EQ(versions_lease(w, w->p), 0);
    publish_n(w, 2);
}

static void all_leases_in_use(es_world *w)
{
    publish_n(w, 1);
    CHECK_EQ(versions_lease(w, w->p), 0);
}

static void a_reader_that_sleeps(es_world *w)
{
    publish_n(w, 3);
    world_sleeper(w, ES_ROLE_PRODUCER);
}

static void lease_and_die(es_world *w)
{
    CHECK_EQ(versions_lease(w, w->mine), 0);
}

static void a_dead_reader(es_world *w)
{
    publish_n(w, 3);
    world_victim(w, ES_ROLE_PRODUCER, lease_and_die);
}

static void lease_it(es_world *w)
{
    lease_and_die(w);
}

/* --- after ----------------------------------------------------------------------- */

static unsigned its_lease_is_untouched(es_world *w)
{
    uint64_t slot = (uint32_t)w->l->map.leases[0] - 1;
    for (int i = 0; i < 4; i++) {
        versions_check_slot(w, w->p, 2, slot);
        CHECK(versions_publish(w, w->l) > 0);
    }
    versions_check_slot(w, w->p, 2, slot);
    w->position = (uint64_t)es_weights_latest(w->l) - (uint64_t)(w->side->phase == PHASE_OVER);
    CHECK_EQ(es_weights_release(w->p, 0), ES_OK);
    return 0;
}

static unsigned end_its_lease(es_world *w)
{
    CHECK_EQ(es_weights_release(w->p, 0), ES_OK);
    return 0;
}

/* --- the operations ---------------------------------------------------------------- */

static int64_t publish(es_world *w)
{
    return versions_publish(w, w->mine);
}

static int64_t copy(es_world *w)
{
    uint64_t leaves[2][8];
    return es_weights_copy(w->mine, (void *[]){leaves[0], leaves[1]});
}

static int64_t lease(es_world *w)
{
    uint64_t number, slot;
    return es_weights_lease(w->mine, &number, &slot);
}

static int64_t end_lease(es_world *w)
{
    return es_weights_release(w->mine, 0);
}

static int64_t detach(es_world *w)
{
    return es_api_detach(w->mine);
}

static int64_t wait_for_four(es_world *w)
{
    return es_weights_wait(w->mine, 4, HOUR);
}

static int64_t wait_in_vain(es_world *w)
{
    return es_weights_wait(w->mine, 4, 1000);
}

static int64_t sweep(es_world *w)
{
    es_identity id;
    int64_t n = 0;
    for (int64_t i = es_sweep_next_dead(w->mine, 0, &id); i >= 0; i = es_sweep_next_dead(w->mine, (uint32_t)i + 1, &id))
        n += es_sweep_settle(w->mine, &id, 1) >= 0;
    return n;
}

static void publish_the_fourth(es_world *w)
{
    if (es_weights_latest(w->l) == 3)
        publish_n(w, 1);
}

static void overwrite_all(es_world *w)
{
    publish_n(w, 3);
}

static void close_it(es_world *w)
{
    CHECK_EQ(es_api_close(w->l), ES_OK);
}

/* --- scenarios ------------------------------------------------------------------------ */

KILL_EVERYWHERE(publish_the_first_version, PUBLISHER, .act = publish, .want = 1, .sends = 1,
                .outcomes = KEPT | LOST | REAPED,
                .through = "es_weights_publish es_version_publish seize is_leased tell");

KILL_EVERYWHERE(publish_another_version, PUBLISHER, .before = three_versions, .act = publish, .want = 4, .sends = 1,
                .outcomes = KEPT | LOST | REAPED,
                .through = "es_version_publish seize is_leased es_leaves_write copy tell");

KILL_EVERYWHERE(publish_beside_a_lease, PUBLISHER, .before = a_lease_in_the_way, .act = publish, .want = 5, .sends = 1,
                .check = its_lease_is_untouched, .outcomes = REAPED, .through = "es_version_publish seize is_leased");

KILL_EVERYWHERE(publish_wakes_a_reader, PUBLISHER, .before = a_reader_that_sleeps, .act = publish, .want = 4,
                .sends = 1, .outcomes = KEPT | REAPED | WOKEN, .through = "tell es_version_wake_all es_wait_wake");

KILL_EVERYWHERE(copy_the_latest_version, READER, .before = three_versions, .act = copy, .want = 3, .outcomes = REAPED,
                .through = "es_weights_copy es_version_copy look es_leaves_read");

KILL_EVERYWHERE(copy_nothing, READER, .act = copy, .want = ES_NOTHING, .outcomes = REAPED,
                .through = "es_weights_copy es_version_latest");

KILL_EVERYWHERE(copy_a_version_that_is_overwritten, READER, .before = three_versions, .meddle_at = "es_leaves_read",
                .meddle = overwrite_all, .act = copy, .want = ES_LAPPED, .outcomes = REAPED, .through = "look");

KILL_EVERYWHERE(lease_the_latest_version, READER, .before = three_versions, .act = lease, .want = 0, .outcomes = REAPED,
                .through = "es_weights_lease es_version_lease lease_word look");

KILL_EVERYWHERE(lease_beside_a_publisher, READER, .before = three_versions, .meddle_at = "look",
                .meddle = overwrite_all, .act = lease, .want = 0, .outcomes = REAPED,
                .through = "es_version_lease look");

KILL_EVERYWHERE(lease_nothing, READER, .act = lease, .want = ES_NOTHING, .outcomes = REAPED,
                .through = "es_version_lease");

KILL_EVERYWHERE(lease_when_none_is_free, READER, .before = all_leases_in_use, .act = lease, .want = ES_FULL,
                .check = end_its_lease, .outcomes = REAPED, .through = "es_version_lease");

KILL_EVERYWHERE(end_a_lease, READER, .before = three_versions, .prepare = lease_it, .act = end_lease, .want = ES_OK,
                .outcomes = REAPED, .through = "es_weights_release es_version_release es_version_holder");

KILL_EVERYWHERE(leave_with_a_lease, READER, .before = three_versions, .prepare = lease_it, .act = detach, .want = ES_OK,
                .outcomes = REAPED | NOBODY, .through = "es_api_detach es_version_release_all es_version_release");

KILL_EVERYWHERE(reap_a_reader_with_a_lease, READER, .before = a_dead_reader, .act = sweep, .want = 1,
                .outcomes = REAPED, .through = "es_reap es_version_release_all es_version_wake_all");

KILL_EVERYWHERE(wait_for_a_version, READER, .before = three_versions, .when_asleep = publish_the_fourth,
                .act = wait_for_four, .want = ES_OK, .outcomes = REAPED,
                .through = "es_weights_wait es_version_wait es_wait");

KILL_EVERYWHERE(wait_for_a_version_times_out, READER, .before = three_versions, .act = wait_in_vain, .want = ES_TIMEOUT,
                .outcomes = REAPED, .through = "es_weights_wait es_version_wait");

KILL_EVERYWHERE(wait_for_a_version_ends_with_a_close, READER, .before = three_versions, .when_asleep = close_it,
                .act = wait_for_four, .want = ES_ECLOSED, .outcomes = REAPED | CLOSED,
                .through = "es_weights_wait closed");
