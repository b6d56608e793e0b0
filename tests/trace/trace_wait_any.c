/* Processes that are killed while they wait for a batch and for room at once, as a learner and as a producer. */
#include "es_parts.h"

#define HOUR_NS UINT64_C(3600000000000)

/* The tracee's second attachment. `mine` is the learner. */
static es_ring *producer;
/* The tracer's lease, or -1. */
static int64_t held;
static es_snapshot held_as;

/* The ring is full, and nothing can be taken: the tracer has leased its only batch. */
static void full_and_leased(es_world *w)
{
    full_ring(w);
    held = es_api_take(w->l, 0, 0, &held_as);
    CHECK_EQ(held, 0);
}

static void release_held(es_world *w)
{
    if (held < 0)
        return;
    for (uint64_t i = 0; i < w->geo.batch_size; i++)
        w->side->got[ID_BEFORE + i]++;
    CHECK_EQ(es_api_release(w->l, (uint64_t)held, held_as.round), ES_OK);
    held = -1;
}

static unsigned release_if_held(es_world *w)
{
    release_held(w);
    return 0;
}

/* The producer has searched for re-opened slots, so that a full ring has no room for it. */
static void attach_as_a_producer(es_world *w)
{
    producer = fix_join(w->f, w->locks, ES_ROLE_PRODUCER, 0);
    world_fill(w, ID_ABORTED, 1);
    CHECK_EQ(es_api_send(producer, w->leaves), ES_FULL);
}

static int64_t wait_for_both(es_world *w, uint64_t timeout_ns)
{
    const es_watch both[] = {{w->mine, ES_WATCH_BATCH}, {producer, ES_WATCH_ROOM}};
    return es_api_wait_any(both, 2, NULL, 0, timeout_ns);
}

static int64_t wait_for_an_hour(es_world *w)
{
    return wait_for_both(w, HOUR_NS);
}

/* The one that sleeps longer is woken: the tracee. */
static void park_a_producer_and_release(es_world *w)
{
    park_a_producer(w);
    release_held(w);
}

/* It is told of room and leaves it. Whether or not it lives to wake the producer behind it, that one gets the room. */
KILL_EVERYWHERE(room_is_passed_on, .batch_size = 2, .num_batches = 1, .role = ES_ROLE_LEARNER,
                .before = full_and_leased, .prepare = attach_as_a_producer, .when_asleep = park_a_producer_and_release,
                .check = release_if_held, .act = wait_for_an_hour, .want = 1, .outcomes = REAPED | WOKEN,
                .through = "es_api_wait_any check_causes es_call_enter es_call_leave es_blocking_wait_any "
                           "sleep_until_ready arm first_ready is_ready "
                           "any_detached es_wait_several wait_in_kernel pass_on es_producer_has_room es_wake_producer "
                           "es_consumer_has_batch count_sleep count_blocked count_unblocked");

static bool has_said_that_it_sleeps(es_world *w)
{
    return w->l->map.hdr->producers_sleep != 0;
}

/* Room comes between its sleep flag and its last look. */
KILL_EVERYWHERE(wait_does_not_sleep_when_room_comes, .batch_size = 2, .num_batches = 1, .role = ES_ROLE_LEARNER,
                .before = full_and_leased, .prepare = attach_as_a_producer, .meddle_when = has_said_that_it_sleeps,
                .meddle = release_held, .when_asleep = release_held, .must_not_sleep = true, .check = release_if_held,
                .act = wait_for_an_hour, .want = 1, .outcomes = REAPED, .through = "arm first_ready");

/* The same between its first look and its load of the words that it will sleep on. */
KILL_EVERYWHERE(wait_looks_again_before_it_sleeps, .batch_size = 2, .num_batches = 1, .role = ES_ROLE_LEARNER,
                .before = full_and_leased, .prepare = attach_as_a_producer, .meddle_at = "es_clock_ns",
                .meddle = release_held, .when_asleep = release_held, .must_not_sleep = true, .check = release_if_held,
                .act = wait_for_an_hour, .want = 1, .outcomes = REAPED, .through = "arm first_ready");

/* One slot is claimed, the others are committed: neither a batch nor room. */
static void a_claim_holds_up_the_batch(es_world *w)
{
    int64_t position = 0;
    CHECK_EQ(es_api_reserve(w->p, 0, &position), ES_OK);
    w->position = (uint64_t)position;
    world_send_n(w, w->geo.batch_size * w->geo.num_batches - 1);
}

static void commit_the_claim(es_world *w)
{
    if (w->position == UINT64_MAX)
        return;
    fix_write(w->p, w->position, w->next_id);
    w->side->sent[w->next_id++] = SENT_OK;
    CHECK_EQ(es_api_commit(w->p, (int64_t)w->position), ES_OK);
    w->position = UINT64_MAX;
}

static unsigned commit_if_claimed(es_world *w)
{
    commit_the_claim(w);
    return 0;
}

/* A batch ends the sleep. */
KILL_EVERYWHERE(wait_sleeps_until_a_batch_is_there, .batch_size = 2, .num_batches = 1, .role = ES_ROLE_LEARNER,
                .before = a_claim_holds_up_the_batch, .prepare = attach_as_a_producer, .when_asleep = commit_the_claim,
                .check = commit_if_claimed, .act = wait_for_an_hour, .want = 0, .outcomes = REAPED,
                .through = "es_api_wait_any first_ready es_consumer_has_batch found scan");

static int64_t wait_for_a_microsecond(es_world *w)
{
    w->mine->last_repair_ns = 0; /* so a repair is due */
    return wait_for_both(w, 1000);
}

/* Waits in vain. Checks for damage, and finds none. */
KILL_EVERYWHERE(wait_for_both_times_out, .batch_size = 2, .num_batches = 1, .role = ES_ROLE_LEARNER,
                .before = full_and_leased, .prepare = attach_as_a_producer, .check = release_if_held,
                .act = wait_for_a_microsecond, .want = ES_TIMEOUT, .outcomes = REAPED,
                .through = "sleep_until_ready wait_in_kernel repair_if_due es_repair");

static void be_interruptible(es_world *w)
{
    expect_a_signal(w);
    attach_as_a_producer(w);
}

KILL_EVERYWHERE(wait_for_both_is_interrupted, .batch_size = 2, .num_batches = 1, .role = ES_ROLE_LEARNER,
                .before = full_and_leased, .prepare = be_interruptible, .when_asleep = interrupt,
                .check = release_if_held, .act = wait_for_an_hour, .want = -EINTR, .outcomes = REAPED,
                .through = "sleep_until_ready wait_in_kernel");

static int64_t change_a_word(es_world *w)
{
    static uint32_t word;
    (void)w;
    es_api_change_word(&word);
    return word;
}

KILL_EVERYWHERE(a_changed_word, .batch_size = 2, .num_batches = 1, .role = ES_ROLE_LEARNER, .act = change_a_word,
                .want = 1, .outcomes = REAPED, .through = "es_api_change_word es_wait_wake");
