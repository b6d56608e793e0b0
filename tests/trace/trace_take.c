/* Learners that are killed while they take, release and give back whole batches. */
#include "es_parts.h"

#define HOUR_NS UINT64_C(3600000000000)

static void send_three(es_world *w)
{
    world_send_n(w, 3);
}

static int64_t take_and_release(es_world *w)
{
    int64_t n = world_tracee_take(w, 0, 0);
    return n < 0 ? n : world_tracee_release(w);
}

/* The first take of an attachment looks at every batch. */
KILL_EVERYWHERE(
    take_and_release_first, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER, .before = send_three,
    .act = take_and_release, .outcomes = REAPED | RELEASED | GIVEN_BACK,
    .through = "es_api_take es_blocking_take look_or_finish es_consumer_look look_locked look_everywhere takeable scan "
               "es_lease_take es_stats_count_take es_stats_snapshot es_lease_committed end_lease es_lease_release "
               "es_wake_producer");

static void send_two_batches(es_world *w)
{
    world_send_n(w, 2 * w->geo.batch_size);
}

static void send_one_batch(es_world *w)
{
    world_send_n(w, w->geo.batch_size);
}

static void take_one_before(es_world *w)
{
    CHECK_EQ(take_and_release(w), ES_OK);
}

/* The second take looks from head on, and moves head. */
KILL_EVERYWHERE(take_and_release_second, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .before = send_two_batches, .prepare = take_one_before, .act = take_and_release,
                .outcomes = REAPED | RELEASED | GIVEN_BACK,
                .through = "look_from_head scan es_lease_take es_lease_release");

static int64_t learn_and_take(es_world *w)
{
    CHECK_EQ(es_bridge_learn(w->mine), ES_OK);
    return take_and_release(w);
}

/* The same by a bridge for a learner on another host. */
KILL_EVERYWHERE(bridge_takes_and_releases, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .before = send_three, .act = learn_and_take, .outcomes = REAPED | RELEASED | GIVEN_BACK,
                .through = "es_bridge_learn es_lease_take es_lease_release");

static int64_t release_it(es_world *w)
{
    return world_tracee_release(w);
}

/* A producer sleeps for the space. */
KILL_EVERYWHERE(release_wakes_a_producer, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = full_ring, .prepare = take_before, .between = park_a_producer, .act = release_it,
                .outcomes = REAPED | RELEASED | GIVEN_BACK | WOKEN,
                .through = "es_lease_release es_wake_producer es_wait_wake_one");

/* The release poisons the batch. No learner may get that. */
KILL_EVERYWHERE(poisoning_release, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER, .poison = true,
                .before = full_ring, .prepare = take_before, .act = release_it,
                .outcomes = REAPED | RELEASED | GIVEN_BACK, .through = "es_lease_release poison");

/* Another learner waits for the last lease of a closed ring. Its stream ends, or it gets the batch. */
KILL_EVERYWHERE(release_ends_the_stream, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = send_one_batch, .prepare = take_before, .between = close_and_park_a_learner,
                .act = release_it, .outcomes = REAPED | RELEASED | GIVEN_BACK | WOKEN | CLOSED,
                .through = "es_lease_release es_wake_learners");

static int64_t take_for_a_microsecond(es_world *w)
{
    w->mine->last_repair_ns = 0; /* so a repair is due */
    return world_tracee_take(w, 0, 1000);
}

/* Parks, and times out. Checks for damage, and finds none. */
KILL_EVERYWHERE(
    take_times_out, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER, .before = send_three,
    .prepare = take_one_before, .act = take_for_a_microsecond, .want = ES_TIMEOUT, .outcomes = REAPED,
    .through = "es_blocking_take es_wait repair_if_due es_repair repair_slot repair_batch repair_tail repair_head");

static void send_one_more(es_world *w)
{
    CHECK_EQ(world_send(w), ES_OK);
}

static void send_one(es_world *w)
{
    world_send_n(w, 1);
}

static int64_t take_for_an_hour(es_world *w)
{
    int64_t n = world_tracee_take(w, 0, HOUR_NS);
    return n < 0 ? n : world_tracee_release(w);
}

/* Parks until a producer completes the batch. Dies before, in, and after its sleep. */
KILL_EVERYWHERE(take_sleeps_until_a_batch_is_there, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = send_one, .when_asleep = send_one_more, .act = take_for_an_hour,
                .outcomes = REAPED | RELEASED | GIVEN_BACK, .through = "es_blocking_take es_wait es_lease_take");

static bool learner_says_it_sleeps(es_world *w)
{
    return w->l->map.hdr->learner_sleeps != 0;
}

/* The batch is completed between the store of its sleep flag and its last look. */
KILL_EVERYWHERE(take_does_not_sleep_when_a_batch_comes, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = send_one, .meddle_when = learner_says_it_sleeps, .meddle = send_one_more,
                .when_asleep = send_one_more, .must_not_sleep = true, .act = take_for_an_hour,
                .outcomes = REAPED | RELEASED | GIVEN_BACK, .through = "es_blocking_take es_lease_take");

/* The same between its first look and its load of the word that it will sleep on. */
KILL_EVERYWHERE(take_looks_again_before_it_sleeps, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = send_one, .meddle_at = "es_clock_ns", .meddle = send_one_more, .when_asleep = send_one_more,
                .must_not_sleep = true, .act = take_for_an_hour, .outcomes = REAPED | RELEASED | GIVEN_BACK,
                .through = "es_blocking_take es_lease_take");

static void take_it_first(es_world *w)
{
    CHECK(world_take(w, w->l, 0, 0) > 0);
}

/* Another learner takes the batch just before this one's exchange. It looks again and finds the next batch. */
KILL_EVERYWHERE(take_loses_the_race, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .before = send_two_batches, .meddle_in = "es_lease_take", .meddle = take_it_first,
                .act = take_and_release, .outcomes = REAPED | RELEASED | GIVEN_BACK,
                .through = "es_lease_take look_everywhere look_locked");

static void hold_up_the_first(es_world *w)
{
    int64_t position = 0;
    CHECK_EQ(es_api_reserve(w->p, 0, &position), ES_OK);
    w->position = (uint64_t)position;
    world_send_n(w, 3);
}

static unsigned commit_the_first(es_world *w)
{
    fix_write(w->p, w->position, w->next_id);
    CHECK_EQ(es_api_commit(w->p, (int64_t)w->position), ES_OK);
    w->side->sent[w->next_id++] = SENT_OK;
    return 0;
}

/* A producer is slow. In ready order the learner takes the next batch. */
KILL_EVERYWHERE(take_past_an_open_claim, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .flags = ES_FLAG_READY_ORDER, .before = hold_up_the_first, .check = commit_the_first,
                .act = take_and_release, .outcomes = REAPED | RELEASED | GIVEN_BACK,
                .through = "look_everywhere any_order scan es_lease_take");

static void send_two_more_past_it(es_world *w)
{
    hold_up_the_first(w);
    world_send_n(w, 2);
}

KILL_EVERYWHERE(take_past_an_open_claim_again, .batch_size = 2, .num_batches = 4, .role = ES_ROLE_LEARNER,
                .flags = ES_FLAG_READY_ORDER, .before = send_two_more_past_it, .prepare = take_one_before,
                .check = commit_the_first, .act = take_and_release, .outcomes = REAPED | RELEASED | GIVEN_BACK,
                .through = "look_from_head any_order scan es_lease_take");

/* es_api_take() without its snapshot, which reads a thousand counters. */
static int64_t take_measured(es_world *w)
{
    int64_t j = es_blocking_take(w->mine, 0, 0);
    if (j < 0)
        return j;
    w->side->takes[0] = (es_take_note){.batch = (uint64_t)j, .round = w->mine->held[j] - 1};
    w->side->num_takes = 1;
    for (uint64_t i = 0; i < 2; i++)
        w->side->take_of[ID_BEFORE + i] = 1;
    w->side->takes[0].whole = 1;
    return world_tracee_release(w);
}

KILL_EVERYWHERE(take_with_detailed_metrics, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .flags = ES_FLAG_DETAILED, .before = send_three, .act = take_measured,
                .outcomes = REAPED | RELEASED | GIVEN_BACK,
                .through = "es_consumer_look es_stats_count_take es_stats_record");

static int64_t take_then_give_back(es_world *w)
{
    int64_t n = world_tracee_take(w, 0, 0);
    return n < 0 ? n : es_api_give_back(w->mine, w->side->takes[0].batch, w->side->takes[0].round);
}

KILL_EVERYWHERE(take_and_give_back, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .before = send_two_batches, .act = take_then_give_back, .outcomes = REAPED | GIVEN_BACK,
                .through = "es_api_give_back es_lease_give_back end_lease es_slots_turn es_wake_learners");

static void park_a_learner(es_world *w)
{
    world_sleeper(w, ES_ROLE_LEARNER);
}

/* Another learner sleeps. The batch that is given back is for it, below head or not. */
KILL_EVERYWHERE(give_back_wakes_a_learner, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = send_three, .prepare = take_before, .between = park_a_learner, .act = give_it_back,
                .outcomes = REAPED | GIVEN_BACK | WOKEN, .through = "es_lease_give_back es_wake_learners es_wait_wake");

static void let_the_other_go_on(es_world *w)
{
    CHECK(world_take(w, w->l, 0, 0) > 0);
    CHECK_EQ(world_take(w, w->l, 0, 0), ES_EMPTY);
}

/* Another learner has looked everywhere and gone on. The batch that is given back lies below head. */
KILL_EVERYWHERE(give_back_below_head, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .before = send_two_batches, .prepare = take_before, .between = let_the_other_go_on, .act = give_it_back,
                .outcomes = REAPED | GIVEN_BACK, .through = "es_lease_give_back");

static bool was_given_back(es_world *w)
{
    return w->l->map.hdr->given_back_seq != 0;
}

static void look(es_world *w)
{
    world_take(w, w->l, 0, 0);
}

/* A death would make everybody look everywhere again. While all live, this learner's look must have found it. */
static void it_is_found(es_world *w)
{
    world_take(w, w->l, 0, 0);
    CHECK_EQ(w->side->got[ID_BEFORE], 1);
}

/* The other learner looks again as soon as given_back_seq says that a batch was given back. */
KILL_EVERYWHERE(give_back_while_another_looks, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .before = send_two_batches, .prepare = take_before, .between = let_the_other_go_on,
                .meddle_when = was_given_back, .meddle = look, .never_releases = true, .alive = it_is_found,
                .act = give_it_back, .outcomes = REAPED | GIVEN_BACK, .through = "es_lease_give_back");

static void take_and_die(es_world *w)
{
    es_snapshot snap;
    CHECK(es_api_take(w->mine, 0, 0, &snap) >= 0);
}

static void given_back_below_head(es_world *w)
{
    es_identity id;
    world_send_n(w, 3 * w->geo.batch_size);
    world_victim(w, ES_ROLE_LEARNER, take_and_die);
    CHECK(world_take(w, w->l, 0, 0) > 0);
    CHECK_EQ(es_api_take(w->l, 0, 0, &(es_snapshot){0}), 2);
    CHECK_EQ(es_api_release(w->l, 2, 0), ES_OK);
    for (uint64_t i = 0; i < w->geo.batch_size; i++)
        w->side->got[ID_BEFORE + 2 * w->geo.batch_size + i]++;
    CHECK(es_sweep_next_dead(w->l, 0, &id) >= 0);
    CHECK(es_sweep_settle(w->l, &id, 1) >= 0);
}

/* The batch's learner died and was reaped. */
KILL_EVERYWHERE(take_what_was_given_back, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .before = given_back_below_head, .act = take_and_release, .outcomes = REAPED | RELEASED | GIVEN_BACK,
                .through = "look_everywhere es_lease_take es_lease_release");

static int64_t end_stale_leases(es_world *w)
{
    uint8_t mask[4];
    return es_api_release(w->mine, 0, 7) == ES_ESTALE && es_api_give_back(w->mine, 99, 0) == ES_ESTALE &&
           es_api_committed_mask(w->mine, 0, 7, mask) == ES_ESTALE && es_api_reset_histograms(w->mine) == ES_OK;
}

KILL_EVERYWHERE(stale_leases, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER, .before = send_three,
                .prepare = take_before, .act = end_stale_leases, .want = 1, .outcomes = REAPED | GIVEN_BACK,
                .through = "end_lease es_lease_committed es_api_reset_histograms es_lease_release es_lease_give_back");

static int64_t take_none(es_world *w)
{
    int64_t first = world_tracee_take(w, 0, 0), second = world_tracee_take(w, 0, 0);
    return first == second ? first : 1;
}

/* In ready order, both kinds of look. */
KILL_EVERYWHERE(take_nothing_in_any_order, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .flags = ES_FLAG_READY_ORDER, .before = send_one, .act = take_none, .want = ES_EMPTY,
                .outcomes = REAPED, .through = "look_everywhere look_from_head");

/* A signal ends the sleep. Its handler and the return from it are stepped through like the rest. */
KILL_EVERYWHERE(take_is_interrupted, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER, .before = send_one,
                .prepare = expect_a_signal, .when_asleep = interrupt, .act = take_for_an_hour, .want = -EINTR,
                .outcomes = REAPED, .through = "es_blocking_take es_wait");
