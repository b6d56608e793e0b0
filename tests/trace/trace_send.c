/* Producers that are killed while they send, reserve, commit and abort. */
#include "es_parts.h"

static int64_t send_one(es_world *w)
{
    return es_api_send(w->mine, w->leaves);
}

static void one_before(es_world *w)
{
    world_send_n(w, 1);
}

static void reserve(es_world *w)
{
    w->position = world_mine_reserve(w, ID_TRACEE);
}

/* Sends into the middle of a batch. */
KILL_EVERYWHERE(send_into_a_batch, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_PRODUCER, .before = one_before,
                .act = send_one, .sends = 1, .outcomes = KEPT | LOST | REAPED,
                .through = "es_api_send_wait es_call_enter es_call_leave es_blocking_claim es_producer_claim try_claim "
                           "claim_word help_tail "
                           "es_leaves_write es_producer_commit");

static void one_before_a_sleeper(es_world *w)
{
    world_send_n(w, 1);
    world_sleeper(w, ES_ROLE_LEARNER);
}

/* Sends the last sample of a batch that a learner sleeps for. The sender or the sweep wakes it. */
KILL_EVERYWHERE(send_wakes_a_learner, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = one_before_a_sleeper, .act = send_one, .sends = 1, .outcomes = KEPT | LOST | REAPED | WOKEN,
                .through = "es_producer_commit es_wake_learners es_wait_wake");

KILL_EVERYWHERE(send_into_a_full_ring, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER, .before = full_ring,
                .act = send_one, .want = ES_FULL, .outcomes = REAPED,
                .through = "es_api_send_wait es_producer_claim try_claim");

static int64_t send_for_a_microsecond(es_world *w)
{
    return es_api_send_wait(w->mine, w->leaves, 1000);
}

/* Parks, and times out. */
KILL_EVERYWHERE(send_times_out, .batch_size = 2, .num_batches = 1, .role = ES_ROLE_PRODUCER, .before = full_ring,
                .act = send_for_a_microsecond, .want = ES_TIMEOUT, .outcomes = REAPED,
                .through = "es_blocking_claim es_wait es_clock_ns to_timespec");

static int64_t send_for_an_hour(es_world *w)
{
    return es_api_send_wait(w->mine, w->leaves, UINT64_C(3600000000000));
}

static void take_a_batch(es_world *w)
{
    CHECK(world_take(w, w->l, 0, 0) > 0);
}

/* Parks until a learner releases a batch. Dies before, in, and after its sleep. */
KILL_EVERYWHERE(send_sleeps_until_there_is_space, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = full_ring, .when_asleep = take_a_batch, .act = send_for_an_hour, .sends = 1,
                .outcomes = KEPT | LOST | REAPED, .through = "es_blocking_claim es_wait es_producer_commit");

static void park_another_and_take_a_batch(es_world *w)
{
    park_a_producer(w);
    take_a_batch(w);
}

/* Another producer sleeps, too. This one is woken first and wakes the other, or it dies and its reaper does. */
KILL_EVERYWHERE(send_wakes_the_next_producer, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = full_ring, .when_asleep = park_another_and_take_a_batch, .act = send_for_an_hour, .sends = 1,
                .outcomes = KEPT | LOST | REAPED | WOKEN,
                .through = "es_producer_has_room es_wake_producer es_wait_wake_one es_wait_yield");

static bool producer_says_it_sleeps(es_world *w)
{
    return w->l->map.hdr->producers_sleep != 0;
}

/* Space is released between the store of its sleep flag and its last try. */
KILL_EVERYWHERE(send_does_not_sleep_when_space_comes, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = full_ring, .meddle_when = producer_says_it_sleeps, .meddle = take_a_batch,
                .when_asleep = take_a_batch, .must_not_sleep = true, .act = send_for_an_hour, .sends = 1,
                .outcomes = KEPT | LOST | REAPED, .through = "es_blocking_claim");

/* The same between its first try and its load of the word that it will sleep on. */
KILL_EVERYWHERE(send_tries_again_before_it_sleeps, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = full_ring, .meddle_at = "es_clock_ns", .meddle = take_a_batch, .when_asleep = take_a_batch,
                .must_not_sleep = true, .act = send_for_an_hour, .sends = 1, .outcomes = KEPT | LOST | REAPED,
                .through = "es_blocking_claim");

static void two_reopened_slots(es_world *w)
{
    int64_t at[3];
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(es_api_reserve(w->p, 0, &at[i]), ES_OK);
        fix_write(w->p, (uint64_t)at[i], ID_ABORTED);
    }
    world_send_n(w, 1);
    es_api_abort(w->p, at[2]);
    es_api_abort(w->p, at[0]);
    fix_write(w->p, (uint64_t)at[1], w->next_id);
    CHECK_EQ(es_api_commit(w->p, at[1]), ES_OK);
    w->side->sent[w->next_id++] = SENT_OK;
}

/* The older of two re-opened slots. */
KILL_EVERYWHERE(send_into_a_reopened_slot, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_PRODUCER,
                .before = two_reopened_slots, .act = send_one, .sends = 1, .outcomes = KEPT | LOST | REAPED,
                .through = "claim_reopened claim_word");

static void lagging_tail(es_world *w)
{
    world_send_n(w, 2);
    world_lower_tail(w);
    world_lower_tail(w);
}

/* Two producers died before they moved the tail. */
KILL_EVERYWHERE(send_helps_the_tail, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .flags = ES_FLAG_DETAILED, .before = lagging_tail, .act = send_one, .sends = 1,
                .outcomes = KEPT | LOST | REAPED, .through = "try_claim help_tail");

static void send_before_it(es_world *w)
{
    CHECK_EQ(world_send(w), ES_OK);
}

/* Another producer claims the position just before this one's exchange. */
KILL_EVERYWHERE(send_loses_the_race_for_a_slot, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .flags = ES_FLAG_DETAILED, .meddle_in = "claim_word", .meddle = send_before_it, .act = send_one,
                .sends = 1, .outcomes = KEPT | LOST | REAPED, .through = "claim_word try_claim es_stats_record");

/* The same with a re-opened slot. It claims the next one. */
KILL_EVERYWHERE(send_loses_the_race_for_a_reopened_slot, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_PRODUCER,
                .before = two_reopened_slots, .meddle_in = "claim_word", .meddle = send_before_it, .act = send_one,
                .sends = 1, .outcomes = KEPT | LOST | REAPED, .through = "claim_reopened");

/* A signal ends the sleep. Its handler and the return from it are stepped through like the rest. */
KILL_EVERYWHERE(send_is_interrupted, .batch_size = 2, .num_batches = 1, .role = ES_ROLE_PRODUCER, .before = full_ring,
                .prepare = expect_a_signal, .when_asleep = interrupt, .act = send_for_an_hour, .want = -EINTR,
                .outcomes = REAPED, .through = "es_blocking_claim es_wait");

static const uint64_t many_leaves[] = {8, 1, 4, 8, 0, 1000};

/* All kinds of copy except the streamed one. The last leaf's copy takes several instructions. */
KILL_EVERYWHERE(send_leaves_of_all_sizes, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .leaf_sizes = many_leaves, .num_leaves = 6, .act = send_one, .sends = 1,
                .outcomes = KEPT | LOST | REAPED, .through = "es_leaves_write copy");

static const uint64_t streamed_leaves[] = {8, 4200};

static void streamed_before(es_world *w)
{
    world_send_n(w, 3);
    CHECK(world_take(w, w->l, 0, 0) > 0);
}

/* Streams past the caches, over an old sample, from and to odd addresses. */
KILL_EVERYWHERE(send_past_the_caches, .batch_size = 1, .num_batches = 3, .role = ES_ROLE_PRODUCER,
                .leaf_sizes = streamed_leaves, .num_leaves = 2, .streams = true, .before = streamed_before,
                .act = send_one, .sends = 1, .outcomes = KEPT | LOST | REAPED, .through = "es_copy_stream");

static int64_t send_five(es_world *w)
{
    return es_api_send_many(w->mine, w->leaves, 0, 5, 0);
}

/* Two samples go into one batch, which a learner sleeps for, and three into the next. */
KILL_EVERYWHERE(send_many_across_batches, .batch_size = 3, .num_batches = 3, .role = ES_ROLE_PRODUCER,
                .before = one_before_a_sleeper, .act = send_five, .want = 5, .sends = 5,
                .outcomes = KEPT | LOST | REAPED | WOKEN,
                .through = "es_api_send_many es_producer_claim try_claim es_leaves_write_run es_producer_commit_run "
                           "es_wake_learners");

static void three_before(es_world *w)
{
    world_send_n(w, 3);
}

/* There is space for one sample only. */
KILL_EVERYWHERE(send_many_until_full, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .flags = ES_FLAG_DETAILED, .before = three_before, .act = send_five, .want = 1, .sends = 1,
                .outcomes = KEPT | LOST | REAPED, .through = "es_api_send_many es_stats_record es_histogram_record");

static int64_t fill_a_slot(es_world *w)
{
    int64_t position = 0;
    int rc = es_api_reserve(w->mine, 0, &position);
    if (rc != ES_OK)
        return rc;
    for (uint32_t l = 0; l < w->geo.num_leaves; l++)
        __builtin_memcpy(w->mine->map.leaf_data[l] + (uint64_t)position * w->f->leaf_sizes[l], w->leaves[l],
                         w->f->leaf_sizes[l]);
    return es_api_commit(w->mine, position);
}

KILL_EVERYWHERE(reserve_write_commit, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_PRODUCER, .before = one_before,
                .act = fill_a_slot, .sends = 1, .outcomes = KEPT | LOST | REAPED,
                .through = "es_api_reserve es_api_commit es_producer_commit");

static int64_t stop_and_commit(es_world *w)
{
    int rc = es_api_stop(w->mine);
    return rc == ES_OK ? es_api_commit(w->mine, (int64_t)w->position) : rc;
}

/* Is told to stop between a claim and its commit. */
KILL_EVERYWHERE(stop_then_commit, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_PRODUCER, .before = one_before,
                .prepare = reserve, .act = stop_and_commit, .sends = 1, .outcomes = KEPT | LOST | REAPED,
                .through = "es_api_stop es_api_commit es_producer_commit");

static int64_t reserve_then_abort(es_world *w)
{
    int64_t position = 0;
    int rc = es_api_reserve(w->mine, 0, &position);
    return rc != ES_OK ? rc : es_api_abort(w->mine, position);
}

KILL_EVERYWHERE(reserve_and_abort, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_PRODUCER, .before = one_before,
                .act = reserve_then_abort, .outcomes = REAPED,
                .through = "es_api_reserve es_api_abort es_producer_abort es_wake_producer es_wake_learners");

static int64_t claim_it(es_world *w)
{
    uint64_t position;
    int64_t position_or_full = 0;
    return es_one_claim(w->mine, &position) == ES_OK ? es_api_reserve(w->mine, 0, &position_or_full) : 1;
}

/* A claim without a write, and a second claim for which there is no space. */
KILL_EVERYWHERE(claim_only, .batch_size = 2, .num_batches = 1, .role = ES_ROLE_PRODUCER, .before = one_before,
                .act = claim_it, .want = ES_FULL, .outcomes = REAPED, .through = "es_api_reserve");

static int64_t abort_it(es_world *w)
{
    return es_api_abort(w->mine, (int64_t)w->position);
}

/* The ring is full, and the sleeping producer gets the slot that is aborted. */
KILL_EVERYWHERE(abort_wakes_a_producer, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER, .prepare = reserve,
                .between = fill_and_park_a_producer, .act = abort_it, .outcomes = REAPED | WOKEN,
                .through = "es_producer_abort es_wake_producer es_wait_wake_one");

static bool reopened(es_world *w)
{
    return w->l->map.hdr->reopen_seq != 0;
}

static void send_another(es_world *w)
{
    CHECK_EQ(world_send(w), ES_OK);
}

/* A death would make everybody search again. While all live, one search must have found the slot. */
static void the_reopened_slot_is_claimed(es_world *w)
{
    CHECK_EQ(world_send(w), ES_OK);
    CHECK_EQ(world_take(w, w->l, 0, 0), 2);
}

/* Another producer searches as soon as reopen_seq says that a slot is re-opened. */
KILL_EVERYWHERE(abort_while_another_searches, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = one_before, .prepare = reserve, .meddle_when = reopened, .meddle = send_another,
                .alive = the_reopened_slot_is_claimed, .act = abort_it, .outcomes = REAPED,
                .through = "es_producer_abort");

static int64_t commit_it(es_world *w)
{
    return es_api_commit(w->mine, (int64_t)w->position);
}

static void close_and_evict(es_world *w)
{
    world_send_n(w, 1);
    close_the_ring(w);
    atomic_store(&w->l->map.hdr->closed_ns, es_clock_ns() - UINT64_C(2000000000));
    CHECK_EQ(world_take(w, w->l, 0, 0), 1);
}

/* The claim was evicted after the close. */
KILL_EVERYWHERE(commit_of_an_evicted_claim, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .prepare = reserve, .between = close_and_evict, .act = commit_it, .want = ES_EEVICTED,
                .outcomes = REAPED | CLOSED, .through = "es_producer_commit es_api_commit");

KILL_EVERYWHERE(abort_of_an_evicted_claim, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .prepare = reserve, .between = close_and_evict, .act = abort_it, .outcomes = REAPED | CLOSED,
                .through = "es_producer_abort");

static void send_and_close_and_park(es_world *w)
{
    world_send_n(w, 1);
    close_and_park_a_learner(w);
}

/* On a closed ring a learner sleeps for the claim under way. */
KILL_EVERYWHERE(commit_after_the_close_wakes, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .prepare = reserve, .between = send_and_close_and_park, .act = commit_it, .sends = 1,
                .outcomes = KEPT | LOST | REAPED | CLOSED | WOKEN, .through = "es_producer_commit es_wake_learners");

KILL_EVERYWHERE(abort_after_the_close_wakes, .batch_size = 3, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .prepare = reserve, .between = send_and_close_and_park, .act = abort_it,
                .outcomes = REAPED | CLOSED | WOKEN, .through = "es_producer_abort es_wake_learners");

static void send_and_close(es_world *w)
{
    world_send_n(w, 1);
    close_the_ring(w);
}

KILL_EVERYWHERE(send_into_a_closed_ring, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = send_and_close, .act = send_one, .want = ES_ECLOSED, .outcomes = REAPED | CLOSED,
                .through = "es_producer_claim is_closed");
