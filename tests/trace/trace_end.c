/* Learners that are killed at the end of a stream: on a closed ring, and in a partial take on an open ring. */
#include "es_parts.h"

static void send_two(es_world *w)
{
    world_send_n(w, 2);
}

static int64_t take_short_and_release(es_world *w)
{
    int64_t n = world_tracee_take(w, ES_TAKE_SHORT, 0);
    return n < 0 ? n : world_tracee_release(w);
}

/* --- open ------------------------------------------------------------------ */

KILL_EVERYWHERE(take_a_partial_batch, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_LEARNER, .before = send_two,
                .act = take_short_and_release, .outcomes = REAPED | RELEASED | GIVEN_BACK,
                .through = "es_partial_take es_slots_help_tail es_slots_turn es_slots_turn_free lease_some_partial "
                           "lease_partial es_lease_take es_slots_let_go es_stats_count_take es_lease_release");

static void reopened_slots_and_a_lagging_tail(es_world *w)
{
    int64_t at[2];
    for (int i = 0; i < 2; i++)
        CHECK_EQ(es_api_reserve(w->p, 0, &at[i]), ES_OK);
    world_send_n(w, 1);
    world_lower_tail(w);
    es_api_abort(w->p, at[1]);
    es_api_abort(w->p, at[0]);
}

KILL_EVERYWHERE(take_a_partial_batch_with_reopened_slots, .batch_size = 4, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = reopened_slots_and_a_lagging_tail, .act = take_short_and_release,
                .outcomes = REAPED | RELEASED | GIVEN_BACK,
                .through = "es_partial_take es_slots_help_tail es_slots_turn es_slots_turn_free lease_partial");

KILL_EVERYWHERE(take_a_partial_batch_of_nothing, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .act = take_short_and_release, .want = ES_EMPTY, .outcomes = REAPED,
                .through = "es_partial_take lease_partial es_slots_let_go");

static void one_sent_one_claimed(es_world *w)
{
    int64_t position = 0;
    world_send_n(w, 1);
    CHECK_EQ(es_api_reserve(w->p, 0, &position), ES_OK);
    w->position = (uint64_t)position;
}

static unsigned commit_the_claim(es_world *w)
{
    fix_write(w->p, w->position, w->next_id);
    int rc = es_api_commit(w->p, (int64_t)w->position);
    if (rc == ES_OK)
        w->side->sent[w->next_id++] = SENT_OK;
    else
        CHECK_EQ(rc, ES_EEVICTED);
    return rc == ES_OK ? 0 : EVICTED;
}

static unsigned commit_is_good(es_world *w)
{
    CHECK_EQ(commit_the_claim(w), 0);
    return 0;
}

static bool the_last_slot_is_held(es_world *w)
{
    return es_word_state(world_word(w, 2)) == ES_HELD;
}

/* A claim keeps the learner from the batch. While it holds the only free slot, a producer sleeps for that slot. */
KILL_EVERYWHERE(held_slots_are_let_go_of, .batch_size = 3, .num_batches = 1, .role = ES_ROLE_LEARNER,
                .before = one_sent_one_claimed, .meddle_when = the_last_slot_is_held, .meddle = park_a_producer,
                .check = commit_is_good, .act = take_short_and_release, .want = ES_EMPTY, .outcomes = REAPED | WOKEN,
                .through = "es_partial_take lease_partial es_slots_let_go es_slots_turn es_wake_producer");

static void take_short(es_world *w)
{
    CHECK_EQ(world_tracee_take(w, ES_TAKE_SHORT, 0), 2);
}

/* Producers get back the slots that were held. */
KILL_EVERYWHERE(give_a_partial_batch_back, .batch_size = 3, .num_batches = 1, .role = ES_ROLE_LEARNER,
                .before = send_two, .prepare = take_short, .between = park_a_producer, .act = give_it_back,
                .outcomes = REAPED | GIVEN_BACK | WOKEN,
                .through = "es_lease_give_back es_slots_let_go es_slots_turn es_wake_producer");

/* The same when the ring is closed in between: another learner waits for the batch. */
KILL_EVERYWHERE(give_a_partial_batch_back_after_the_close, .batch_size = 3, .num_batches = 1, .role = ES_ROLE_LEARNER,
                .before = send_two, .prepare = take_short, .between = close_and_park_a_learner, .act = give_it_back,
                .outcomes = REAPED | GIVEN_BACK | WOKEN | CLOSED,
                .through = "es_lease_give_back es_slots_let_go es_wake_learners");

/* --- the close -------------------------------------------------------------- */

static int64_t close_it(es_world *w)
{
    return es_api_close(w->mine);
}

static void one_and_a_sleeper(es_world *w)
{
    world_send_n(w, 1);
    world_sleeper(w, ES_ROLE_LEARNER);
}

/* A learner sleeps for the rest of a batch that never comes. */
KILL_EVERYWHERE(close_wakes_a_learner, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = one_and_a_sleeper, .act = close_it, .outcomes = REAPED | CLOSED | WOKEN,
                .through = "es_api_close es_drain_close es_wake_alarm es_wake_all es_wait_wake");

static void full_and_a_sleeper(es_world *w)
{
    world_send_n(w, w->geo.batch_size * w->geo.num_batches);
    world_sleeper(w, ES_ROLE_PRODUCER);
}

KILL_EVERYWHERE(close_wakes_a_producer, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = full_and_a_sleeper, .act = close_it, .outcomes = REAPED | CLOSED | WOKEN,
                .through = "es_api_close es_drain_close es_wake_all");

KILL_EVERYWHERE(close_again, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER, .before = close_the_ring,
                .act = close_it, .outcomes = REAPED | CLOSED, .through = "es_drain_close");

/* --- closed ------------------------------------------------------------------ */

static int64_t drain(es_world *w)
{
    int64_t n;
    while ((n = world_tracee_take(w, 0, 0)) >= 0)
        world_tracee_release(w);
    return n;
}

static void a_reopened_slot_and_the_close(es_world *w)
{
    int64_t position = 0;
    CHECK_EQ(es_api_reserve(w->p, 0, &position), ES_OK);
    world_send_n(w, 3);
    es_api_abort(w->p, position);
    close_the_ring(w);
    CHECK_EQ(world_take(w, w->l, 0, 0), 2);
}

/* One batch has a re-opened slot, and one has no sample. The full batch was taken before. */
KILL_EVERYWHERE(
    drain_a_closed_ring, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER,
    .before = a_reopened_slot_and_the_close, .act = drain, .want = ES_ENDED,
    .outcomes = REAPED | RELEASED | GIVEN_BACK | CLOSED,
    .through = "es_drain_finish es_slots_turn es_slots_turn_free claims_open nothing_left holds_nothing within_grace "
               "es_lease_release");

static void a_claim_and_the_close(es_world *w)
{
    one_sent_one_claimed(w);
    close_the_ring(w);
}

static void long_ago(es_world *w)
{
    a_claim_and_the_close(w);
    atomic_store(&w->l->map.hdr->closed_ns, es_clock_ns() - UINT64_C(2000000000));
}

/* A claim that is still open long after the close is evicted. */
KILL_EVERYWHERE(drain_evicts, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_LEARNER, .before = long_ago,
                .check = commit_the_claim, .act = drain, .want = ES_ENDED,
                .outcomes = REAPED | RELEASED | GIVEN_BACK | CLOSED | EVICTED,
                .through = "es_drain_finish within_grace es_slots_turn claims_open nothing_left");

/* Soon after the close a drain waits for the claim. */
KILL_EVERYWHERE(drain_waits_for_a_claim, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = a_claim_and_the_close, .check = commit_is_good, .act = drain, .want = ES_EMPTY,
                .outcomes = REAPED | CLOSED, .through = "es_drain_finish claims_open");

static es_snapshot lease_of_l;

static void a_lease_and_the_close(es_world *w)
{
    world_send_n(w, 3);
    CHECK(es_api_take(w->l, 0, 0, &lease_of_l) >= 0);
    close_the_ring(w);
}

static unsigned release_of_l(es_world *w)
{
    CHECK_EQ(es_api_release(w->l, lease_of_l.batch, lease_of_l.round), ES_OK);
    for (uint64_t i = 0; i < w->geo.batch_size; i++)
        w->side->got[ID_BEFORE + i]++;
    return 0;
}

/* The drain waits for another learner's lease, because the batch may be given back. */
KILL_EVERYWHERE(drain_waits_for_a_lease, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .before = a_lease_and_the_close, .check = release_of_l, .act = drain, .want = ES_EMPTY,
                .outcomes = REAPED | RELEASED | GIVEN_BACK | CLOSED, .through = "nothing_left leased_here");

static void send_four_and_take_and_close(es_world *w)
{
    CHECK(es_api_take(w->l, 0, 0, &lease_of_l) >= 0);
    close_the_ring(w);
}

static void send_four(es_world *w)
{
    world_send_n(w, 4);
}

static unsigned release_the_second(es_world *w)
{
    CHECK_EQ(es_api_release(w->l, lease_of_l.batch, lease_of_l.round), ES_OK);
    for (uint64_t i = 0; i < w->geo.batch_size; i++)
        w->side->got[ID_BEFORE + w->geo.batch_size + i]++;
    return 0;
}

static int64_t ask_for_the_end(es_world *w)
{
    es_snapshot snap;
    return es_api_take(w->mine, 0, 0, &snap);
}

/* Two learners that each hold a lease do not wait for each other. */
KILL_EVERYWHERE(drain_with_an_own_lease, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = send_four, .prepare = take_before, .between = send_four_and_take_and_close,
                .check = release_the_second, .act = ask_for_the_end, .want = ES_ENDED,
                .outcomes = REAPED | GIVEN_BACK | CLOSED, .through = "nothing_left leased_here");
