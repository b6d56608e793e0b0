/* Reapers that are killed while they reap. The next reaper does all of it again, with the same result. */
#include "es_kill.h"

#include <string.h>

static int64_t sweep(es_world *w)
{
    es_identity id;
    int64_t reopened = 0;
    for (int64_t i = es_sweep_next_dead(w->mine, 0, &id); i >= 0; i = es_sweep_next_dead(w->mine, (uint32_t)i + 1, &id))
        reopened += es_sweep_settle(w->mine, &id, 1);
    return reopened;
}

static void send_claim_and_die(es_world *w)
{
    world_mine_send(w, ID_VICTIM, 1);
    world_mine_reserve(w, ID_ABORTED);
    world_mine_reserve(w, ID_ABORTED);
}

static void a_dead_producer(es_world *w)
{
    world_send_n(w, 1);
    world_victim(w, ES_ROLE_PRODUCER, send_claim_and_die);
}

KILL_EVERYWHERE(reap_a_producer, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER, .before = a_dead_producer,
                .act = sweep, .want = 2, .outcomes = REAPED,
                .through = "es_sweep_next_dead es_owner_next_dead es_locks_seize take_byte byte_lock es_owner_identity "
                           "es_sweep_settle es_reap es_lease_give_back_all es_slots_reopen is_claim_of es_wake_alarm "
                           "es_wake_all es_owner_free es_locks_yield es_owner_count_producers");

static void park_a_producer_in_a_full_ring(es_world *w)
{
    a_dead_producer(w);
    while (world_send(w) == ES_OK)
        ;
    world_sleeper(w, ES_ROLE_PRODUCER);
}

/* A producer sleeps for the slots that the dead producer claimed. */
KILL_EVERYWHERE(reap_wakes_a_producer, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = park_a_producer_in_a_full_ring, .act = sweep, .want = 2, .outcomes = REAPED | WOKEN,
                .through = "es_slots_reopen es_wake_all");

/* Dies between its commit and its count. */
static void commit_and_die(es_world *w)
{
    uint64_t position = world_mine_reserve(w, ID_VICTIM), index = position % w->mine->map.capacity;
    uint64_t word = w->mine->map.slots[index];
    w->side->sent[ID_VICTIM] = SENT_OK;
    atomic_store(&w->mine->map.slots[index], es_word(es_word_lap(word), w->mine->me, ES_COMMITTED));
}

static void a_complete_batch_without_a_wake(es_world *w)
{
    world_send_n(w, 1);
    world_sleeper(w, ES_ROLE_LEARNER);
    world_victim(w, ES_ROLE_PRODUCER, commit_and_die);
}

/* A batch is complete and a learner sleeps. Only the reaper wakes it, or after the reaper's death the next reaper. */
KILL_EVERYWHERE(reap_wakes_a_learner, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_PRODUCER,
                .before = a_complete_batch_without_a_wake, .act = sweep, .outcomes = REAPED | WOKEN,
                .through = "es_wake_alarm es_wake_all es_owner_free");

/* A reaper need not be registered: a process that wants an entry sweeps a full table. Nobody reaps that process. */
KILL_EVERYWHERE(reap_by_one_without_an_entry, .batch_size = 2, .num_batches = 2,
                .before = a_complete_batch_without_a_wake, .act = sweep, .outcomes = REAPED | NOBODY | WOKEN,
                .through = "es_wake_alarm es_wake_all es_owner_free");

static void take_two_and_die(es_world *w)
{
    es_snapshot snap;
    CHECK(es_api_take(w->mine, 0, 0, &snap) >= 0);
    CHECK(es_api_take(w->mine, ES_TAKE_SHORT, 0, &snap) >= 0);
}

static void a_dead_learner(es_world *w)
{
    world_send_n(w, 4);
    world_victim(w, ES_ROLE_LEARNER, take_two_and_die);
}

/* Its leases are given back, and the slots that it held in the shorter batch are re-opened. */
KILL_EVERYWHERE(reap_a_learner, .batch_size = 3, .num_batches = 3, .role = ES_ROLE_LEARNER, .before = a_dead_learner,
                .act = sweep, .want = 2, .outcomes = REAPED,
                .through = "es_reap es_lease_give_back_all es_slots_reopen is_claim_of");

/* Dies in a release that poisons the batch. */
static void die_poisoning(es_world *w)
{
    es_snapshot snap;
    CHECK_EQ(es_api_take(w->mine, 0, 0, &snap), 0);
    memset(w->mine->map.leaf_data[1], 0xff, w->f->leaf_sizes[1]);
    atomic_store(&w->mine->map.batches[0].word, es_word(snap.round, w->mine->me, ES_POISONING));
}

static void a_dead_poisoner_and_a_sleeper(es_world *w)
{
    while (world_send(w) == ES_OK)
        ;
    world_sleeper(w, ES_ROLE_PRODUCER);
    world_victim(w, ES_ROLE_LEARNER, die_poisoning);
    for (uint64_t i = 0; i < w->geo.batch_size; i++)
        w->side->sent[ID_BEFORE + i] = SENT_NOT; /* delivered to the dead learner */
}

/* The reaper finishes the release, and the poisoned batch is not delivered. */
KILL_EVERYWHERE(reap_a_poisoner, .batch_size = 2, .num_batches = 2, .before = a_dead_poisoner_and_a_sleeper,
                .act = sweep, .outcomes = REAPED | NOBODY | WOKEN, .through = "es_lease_give_back_all es_wake_all");

static void take_one_and_die(es_world *w)
{
    es_snapshot snap;
    CHECK(es_api_take(w->mine, 0, 0, &snap) >= 0);
}

static void a_dead_learner_below_head(es_world *w)
{
    world_send_n(w, 4);
    world_victim(w, ES_ROLE_LEARNER, take_one_and_die);
    CHECK(world_take(w, w->l, 0, 0) > 0);
    CHECK_EQ(world_take(w, w->l, 0, 0), ES_EMPTY);
}

/* Another learner has looked everywhere before, and head has passed the batch. */
KILL_EVERYWHERE(reap_below_head, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_PRODUCER,
                .before = a_dead_learner_below_head, .act = sweep, .outcomes = REAPED,
                .through = "es_lease_give_back_all");

static void a_sleeper_and_a_dead_learner(es_world *w)
{
    a_dead_learner(w);
    world_sleeper(w, ES_ROLE_LEARNER);
}

KILL_EVERYWHERE(reap_gives_a_lease_back_to_a_sleeper, .batch_size = 3, .num_batches = 3, .role = ES_ROLE_LEARNER,
                .before = a_sleeper_and_a_dead_learner, .act = sweep, .want = 2, .outcomes = REAPED | WOKEN,
                .through = "es_lease_give_back_all es_wake_all");

static void hold_a_slot_and_die(es_world *w)
{
    world_mine_reserve(w, ID_ABORTED);
}

static void dead_of_both_roles(es_world *w)
{
    a_dead_learner(w);
    world_victim(w, ES_ROLE_PRODUCER, hold_a_slot_and_die);
}

KILL_EVERYWHERE(reap_two, .batch_size = 3, .num_batches = 3, .role = ES_ROLE_LEARNER, .before = dead_of_both_roles,
                .act = sweep, .want = 3, .outcomes = REAPED, .through = "es_sweep_next_dead es_reap");

static int64_t spare(es_world *w)
{
    es_identity id;
    int64_t i = es_sweep_next_dead(w->mine, 0, &id);
    return i < 0 ? i : es_sweep_settle(w->mine, &id, 0) + es_sweep_settle(w->mine, &id, 0);
}

/* Decides not to reap. Then nothing is left to settle. */
KILL_EVERYWHERE(look_at_the_dead_and_spare_them, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = a_dead_producer, .act = spare, .want = ES_EMPTY, .outcomes = REAPED,
                .through = "es_sweep_next_dead es_sweep_settle es_locks_yield");

static void reap_it_first(es_world *w)
{
    es_identity id;
    while (es_sweep_next_dead(w->l, 0, &id) >= 0)
        CHECK(es_sweep_settle(w->l, &id, 1) >= 0);
}

/* Another process reaps the owner between this reaper's look at the entry and its lock. Three locks come before:
 * two for the bytes of a learner, and one of a producer. */
KILL_EVERYWHERE(reap_what_was_just_reaped, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = a_dead_producer, .meddle_in = "take_byte", .meddle_skip = 3, .meddle = reap_it_first,
                .act = sweep, .outcomes = REAPED, .through = "es_owner_next_dead drop_byte");

static es_identity being_reaped;

static void look_at_it_too(es_world *w)
{
    a_dead_producer(w);
    CHECK(es_sweep_next_dead(w->l, 0, &being_reaped) >= 0);
}

static unsigned reap_it_after(es_world *w)
{
    CHECK_EQ(es_sweep_settle(w->l, &being_reaped, 1), 2);
    return 0;
}

/* Another reaper holds the owner, so this one does not reap it. */
KILL_EVERYWHERE(reap_nobody_that_is_being_reaped, .batch_size = 2, .num_batches = 2, .role = ES_ROLE_LEARNER,
                .before = look_at_it_too, .check = reap_it_after, .act = sweep, .outcomes = REAPED,
                .through = "es_owner_next_dead byte_lock");

/* Words that no correct process writes: of entry 66, which is free, of an entry that does not exist, and of an
 * invalid state. */
static void scribble(es_world *w)
{
    es_map *m = &w->l->map;
    world_send_n(w, 1);
    atomic_store(&m->slots[1], es_word(1, 66, ES_CLAIMED));
    atomic_store(&m->slots[2], es_word(1, 0xffff, ES_CLAIMED));
    atomic_store(&m->slots[3], es_word(9, 0, ES_COMMITTED));
    atomic_store(&m->batches[1].word, es_word(0, 0, 9));
    atomic_store(&m->batches[2].word, es_word(0, 66, ES_LEASED));
    atomic_store(&m->hdr->tail, 77);
    atomic_store(&m->hdr->head, 7);
}

static unsigned repair_the_rest(es_world *w)
{
    while (es_repair(w->l) > 0)
        ;
    return 0;
}

static int64_t repair(es_world *w)
{
    return es_repair(w->mine) > 0;
}

/* A learner that is killed in a repair. */
KILL_EVERYWHERE(
    repair_a_scribbled_ring, .batch_size = 2, .num_batches = 3, .role = ES_ROLE_LEARNER, .before = scribble,
    .check = repair_the_rest, .act = repair, .want = 1, .outcomes = REAPED,
    .through =
        "es_repair repair_batch repair_slot repair_tail repair_head repair_owners announce_reopened forget_scans "
        "sweep_nobody");
