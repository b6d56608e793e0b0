/* Processes that are killed while they attach, detach, ask, or are refused. */
#define _GNU_SOURCE
#include "es_parts.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int64_t attach_as(es_world *w, uint32_t role)
{
    es_identity id = {.role = role, .pid = getpid(), .pid_namespace = 7, .start_time = 2.5};
    return es_api_attach(w->mine, &id);
}

static int64_t attach_a_producer(es_world *w)
{
    return attach_as(w, ES_ROLE_PRODUCER);
}

static int64_t attach_a_learner(es_world *w)
{
    return attach_as(w, ES_ROLE_LEARNER);
}

KILL_EVERYWHERE(attach_producer, .batch_size = 2, .num_batches = 2, .act = attach_a_producer,
                .want = ES_MAX_LEARNERS + 1, .outcomes = REAPED | NOBODY,
                .through = "es_api_attach es_owner_register es_locks_seize take_byte byte_lock fill raise_high "
                           "es_owner_count_producers");

KILL_EVERYWHERE(attach_learner, .batch_size = 2, .num_batches = 2, .act = attach_a_learner, .want = 1,
                .outcomes = REAPED | NOBODY, .through = "es_api_attach es_owner_register fill raise_high");

static int64_t attach_from_scratch(es_world *w)
{
    char path[64];
    int error;
    snprintf(path, sizeof path, "/proc/self/fd/%d", w->f->lock_fd);
    es_locks *locks = es_locks_new(open(path, O_RDWR | O_CLOEXEC), ES_MAX_LEARNERS + w->geo.max_producers);
    w->mine = locks == NULL ? NULL : es_api_open(w->f->base, w->f->size, locks, 0, &error);
    return w->mine == NULL ? -1 : attach_a_producer(w);
}

KILL_EVERYWHERE(open_and_attach, .batch_size = 2, .num_batches = 2, .act = attach_from_scratch,
                .want = ES_MAX_LEARNERS + 1, .outcomes = REAPED | NOBODY,
                .through = "es_locks_new es_api_open es_layout_map es_layout_check es_api_attach");

static void claim_and_die(es_world *w)
{
    world_mine_send(w, ID_VICTIM, 1);
    world_mine_reserve(w, ID_ABORTED);
}

static void sweep(es_world *w)
{
    es_identity id;
    while (es_sweep_next_dead(w->l, 0, &id) >= 0)
        CHECK(es_sweep_settle(w->l, &id, 1) >= 0);
}

static void a_used_entry(es_world *w)
{
    world_victim(w, ES_ROLE_PRODUCER, claim_and_die);
    sweep(w);
}

/* The entry's last owner died and was reaped. */
KILL_EVERYWHERE(attach_in_a_used_entry, .batch_size = 2, .num_batches = 2, .before = a_used_entry,
                .act = attach_a_producer, .want = ES_MAX_LEARNERS + 1, .outcomes = REAPED | NOBODY,
                .through = "es_owner_register fill raise_high");

static void do_nothing(es_world *w)
{
    (void)w;
}

static void a_dead_and_a_locked_entry(es_world *w)
{
    world_victim(w, ES_ROLE_PRODUCER, claim_and_die);
    CHECK_EQ(es_locks_try(w->locks, ES_MAX_LEARNERS + 2), ES_OK);
}

static unsigned unlock_it(es_world *w)
{
    es_locks_drop(w->locks, ES_MAX_LEARNERS + 2);
    return 0;
}

/* The table has the entry of a dead owner that is not reaped, and a free entry that another process is taking. */
KILL_EVERYWHERE(attach_beside_the_dead, .batch_size = 2, .num_batches = 2, .before = a_dead_and_a_locked_entry,
                .check = unlock_it, .act = attach_a_producer, .want = ES_MAX_LEARNERS + 3, .outcomes = REAPED,
                .through = "es_owner_register es_locks_seize take_byte byte_lock");

static void a_full_table(es_world *w)
{
    for (uint32_t i = 1; i < WORLD_PRODUCERS; i++)
        world_victim(w, ES_ROLE_PRODUCER, do_nothing);
}

KILL_EVERYWHERE(attach_to_a_full_table, .batch_size = 2, .num_batches = 2, .before = a_full_table,
                .act = attach_a_producer, .want = ES_ENOOWNER, .outcomes = REAPED, .through = "es_owner_register");

static void another_takes_it_and_dies(es_world *w)
{
    world_victim(w, ES_ROLE_PRODUCER, do_nothing);
}

/* Another process takes the entry between this one's look at it and its lock. */
KILL_EVERYWHERE(attach_loses_the_race, .batch_size = 2, .num_batches = 2, .meddle_in = "take_byte",
                .meddle = another_takes_it_and_dies, .act = attach_a_producer, .want = ES_MAX_LEARNERS + 2,
                .outcomes = REAPED, .through = "es_owner_register es_locks_yield");

/* Another process registers above it in between, so the high-water mark is already higher. */
KILL_EVERYWHERE(attach_below_another, .batch_size = 2, .num_batches = 2, .meddle_in = "raise_high",
                .meddle = another_takes_it_and_dies, .act = attach_a_producer, .want = ES_MAX_LEARNERS + 1,
                .outcomes = REAPED, .through = "raise_high");

static void lock_file_for_reading(es_world *w)
{
    char path[64];
    int error;
    snprintf(path, sizeof path, "/proc/self/fd/%d", w->f->lock_fd);
    w->locks = es_locks_new(open(path, O_RDONLY | O_CLOEXEC), ES_MAX_LEARNERS + w->geo.max_producers);
    w->mine = es_api_open(w->f->base, w->f->size, w->locks, 0, &error);
}

static int64_t attach_and_sweep(es_world *w)
{
    es_identity id;
    return attach_a_producer(w) == es_sweep_next_dead(w->mine, ES_MAX_LEARNERS, &id) ? -EBADF : 0;
}

/* The lock file cannot be locked: attach is refused and leaves nothing locked or registered. */
KILL_EVERYWHERE(attach_without_locks, .batch_size = 2, .num_batches = 2, .prepare = lock_file_for_reading,
                .act = attach_and_sweep, .want = -EBADF, .outcomes = NOBODY,
                .through = "es_owner_register es_owner_next_dead byte_lock");

static int64_t detach(es_world *w)
{
    return es_api_detach(w->mine);
}

static void two_claims(es_world *w)
{
    world_mine_reserve(w, ID_ABORTED);
    world_mine_reserve(w, ID_ABORTED);
}

/* Detaches with two open claims from a full ring in which a producer sleeps. */
KILL_EVERYWHERE(detach_with_claims, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER, .prepare = two_claims,
                .between = fill_and_park_a_producer, .act = detach, .outcomes = REAPED | NOBODY | WOKEN,
                .through = "es_api_detach es_slots_reopen es_owner_free es_locks_drop es_owner_count_producers");

static void send_four(es_world *w)
{
    world_send_n(w, 4);
}

static void take_one(es_world *w)
{
    CHECK_EQ(world_tracee_take(w, 0, 0), 2);
}

static void take_two(es_world *w)
{
    take_one(w);
    take_one(w);
}

KILL_EVERYWHERE(detach_with_leases, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER, .before = send_four,
                .prepare = take_two, .act = detach, .outcomes = REAPED | NOBODY | RELEASED | GIVEN_BACK,
                .through = "es_api_detach es_lease_release_all es_lease_release es_slots_reopen es_owner_free");

/* Detaches with a lease while a producer sleeps for its space. */
KILL_EVERYWHERE(detach_wakes_a_producer, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = send_four, .prepare = take_one, .between = park_a_producer, .act = detach,
                .outcomes = REAPED | NOBODY | RELEASED | GIVEN_BACK | WOKEN,
                .through = "es_api_detach es_lease_release_all es_lease_release es_wake_producer es_slots_reopen");

static int64_t retire_and_detach(es_world *w)
{
    int rc = es_api_retire(w->mine);
    return rc == ES_OK ? es_api_detach(w->mine) : rc;
}

static void take_one_and_claim(es_world *w)
{
    take_one(w);
    world_mine_reserve(w, ID_ABORTED);
}

static void send_two(es_world *w)
{
    world_send_n(w, 2);
}

/* Retires with a lease and an open claim, and detaches. */
KILL_EVERYWHERE(retire_with_a_lease, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER, .before = send_two,
                .prepare = take_one_and_claim, .act = retire_and_detach,
                .outcomes = REAPED | NOBODY | RELEASED | GIVEN_BACK,
                .through = "es_api_retire es_api_detach es_slots_reopen es_lease_release_all es_owner_free");

static int64_t detach_and_free(es_world *w)
{
    int rc = es_api_detach(w->mine);
    es_api_free(w->mine);
    es_locks_free(w->locks);
    return rc;
}

KILL_EVERYWHERE(detach_then_free, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER, .act = detach_and_free,
                .outcomes = REAPED | NOBODY, .through = "es_api_detach es_api_free es_layout_unmap es_locks_free");

/* Closing the lock file is enough to end an owner. */
static int64_t close_without_detaching(es_world *w)
{
    es_locks_free(w->locks);
    return 0;
}

KILL_EVERYWHERE(close_the_lock_file, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER, .prepare = two_claims,
                .drops_locks = true, .act = close_without_detaching, .outcomes = REAPED, .through = "es_locks_free");

static int64_t ask(es_world *w)
{
    uint32_t held[ES_MAX_LEARNERS + WORLD_PRODUCERS] = {0};
    uint64_t ages[ES_MAX_LEARNERS + WORLD_PRODUCERS] = {0}, full;
    es_ring *r = w->mine;
    es_owner_info info;
    es_snapshot snap;
    uint64_t word = 0;
    int64_t found = 0;
    es_monitor_observe(r, &snap);
    es_monitor_count_held(r, held, es_monitor_owner_entries(r));
    es_monitor_lease_ages(r, ages, es_monitor_owner_entries(r));
    es_monitor_count_committed(r, &full);
    full += es_monitor_committed_before(r, 1);
    for (int64_t i = es_monitor_next_owner(r, ES_MAX_LEARNERS - 1, &info); i >= 0;
         i = es_monitor_next_owner(r, (uint32_t)i + 1, &info))
        found++;
    for (int64_t q = es_monitor_next_claim(r, 0, &word); q >= 0; q = es_monitor_next_claim(r, (uint64_t)q + 1, &word))
        found += es_monitor_claim_owner(word) == r->me;
    es_sweep_set_stalled(r, 1);
    found += (es_valid(r) == NULL) + (es_api_wait_kind()[0] != 0);
    return found + es_api_learner_alive(r) + es_segment_locks_held(w->locks, r->me) + (int64_t)held[r->me] +
           (es_segment_locks_held(w->locks, 9999) == -EINVAL) + (es_segment_locks_try(w->locks, 9999) == -EINVAL) +
           (es_segment_locks_any(w->locks) == 1) + (es_api_leaf_offset(r, 0) % ES_PAGE == 0) +
           (es_api_leaf_size(r, 0) == 8) + (es_segment_creator_byte() > ES_MAX_PRODUCERS) +
           (attach_as(w, ES_ROLE_LEARNER) == -EALREADY);
}

/* Two producers, two claims and the rest of what can be asked. Asking changes nothing. */
KILL_EVERYWHERE(ask_about_everything, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .prepare = two_claims, .act = ask, .want = 17, .outcomes = REAPED,
                .through = "es_monitor_observe es_monitor_count_held es_monitor_lease_ages es_monitor_count_committed "
                           "es_monitor_committed_before es_monitor_next_owner es_monitor_next_claim "
                           "es_owner_learner_alive es_locks_held "
                           "es_locks_any es_api_learner_alive");

static int64_t calls_refused(es_ring *r, int64_t why)
{
    es_snapshot snap;
    es_identity id = {.index = ES_NOBODY};
    uint8_t mask[4];
    int64_t position;
    void *none[1] = {NULL};
    return (es_api_send(r, none) == why) + (es_api_send_many(r, none, 0, 1, 0) == why) +
           (es_api_reserve(r, 0, &position) == why) + (es_api_commit(r, 0) == why) + (es_api_abort(r, 0) == why) +
           (es_api_take(r, 0, 0, &snap) == why) + (es_api_release(r, 0, 0) == why) +
           (es_api_give_back(r, 0, 0) == why) + (es_api_committed_mask(r, 0, 0, mask) == why) +
           (es_api_reset_histograms(r) == why) + (es_api_stop(r) == why) + (es_api_detach(r) == why) +
           (es_sweep_settle(r, &id, 1) == (why == ES_EFORK ? why : ES_EMPTY));
}

static int64_t refused_as_inherited(es_world *w)
{
    es_ring *r = w->l; /* an attachment of the tracer */
    es_identity id = {.role = ES_ROLE_LEARNER};
    return calls_refused(r, ES_EFORK) + (es_api_attach(r, &id) == ES_EFORK) + (es_api_close(r) == ES_EFORK) +
           (es_sweep_next_dead(r, 0, &id) == ES_EFORK) + (es_reap(r, 0) == ES_EFORK) +
           (es_api_learner_alive(r) == ES_EFORK);
}

KILL_EVERYWHERE(
    inherited_attachments_refuse, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER, .before = send_four,
    .act = refused_as_inherited, .want = 18, .outcomes = REAPED,
    .through =
        "es_api_attach es_api_close es_sweep_next_dead es_reap es_api_learner_alive es_call_enter es_sweep_settle");

static void detach_before(es_world *w)
{
    CHECK_EQ(es_api_detach(w->mine), ES_OK);
}

static int64_t refused_as_detached(es_world *w)
{
    return calls_refused(w->mine, ES_EDETACHED);
}

KILL_EVERYWHERE(detached_attachments_refuse, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = send_four, .prepare = detach_before, .act = refused_as_detached, .want = 13,
                .outcomes = NOBODY,
                .through = "es_call_enter es_api_send_wait es_api_take es_sweep_settle es_api_detach");

static void observe(es_world *w)
{
    int error;
    w->mine = es_api_open(w->f->base, w->f->size, NULL, 0, &error);
}

static int64_t refused_as_an_observer(es_world *w)
{
    int error;
    es_ring *r = w->mine;
    es_identity id = {.role = ES_ROLE_LEARNER};
    es_geometry geo;
    uint8_t text[4], uuid[16];
    int64_t pid, ns;
    int64_t n = (es_api_attach(r, &id) == ES_EREADONLY) + (es_api_close(r) == ES_EREADONLY) +
                (es_sweep_next_dead(r, 0, &id) == ES_EREADONLY) + (es_api_learner_alive(r) == ES_EREADONLY) +
                (es_api_open(w->f->base, w->f->size - 1, NULL, 0, &error) == NULL && error == ES_ESIZE);
    es_layout_describe(w->f->base, w->f->size, &geo, uuid, &pid, &ns, text, sizeof text);
    es_api_free(r);
    es_api_free(NULL);
    es_locks_free(NULL);
    return n + (geo.batch_size == 2);
}

KILL_EVERYWHERE(
    observers_are_refused, .batch_size = 2, .num_batches = 2, .before = send_four, .prepare = observe,
    .act = refused_as_an_observer, .want = 6, .outcomes = NOBODY,
    .through = "es_api_attach es_api_close es_sweep_next_dead es_api_learner_alive es_api_open es_layout_describe");
