/* Owners: who is attached, and which of them are dead. */
#define _GNU_SOURCE /* mkstemp */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "es_fixture.h"
#include "es_test.h"

static int64_t register_producer(es_fix *f, es_ring *by)
{
    es_identity id = {.role = ES_ROLE_PRODUCER, .pid = 42, .pid_namespace = 7, .start_time = 2.25};
    return es_owner_register(&by->map, f->locks, &id);
}

/* Each role has its own range of entries, and registration reports when it is full. */
TEST(each_role_has_its_own_entries)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *l = fix_learner(f);
    CHECK_EQ(l->me, 0);
    for (uint32_t i = 0; i < FIX_PRODUCERS; i++)
        CHECK_EQ(register_producer(f, l), ES_MAX_LEARNERS + i);
    CHECK_EQ(register_producer(f, l), ES_ENOOWNER);
    CHECK_EQ(fix_learner(f)->me, 1);
    CHECK_EQ(es_owner_high(&l->map), ES_MAX_LEARNERS + FIX_PRODUCERS);
    fix_free(f);
}

/* Registration does not take a LIVE entry even if its lock byte is free, because the entry must be reaped first. */
TEST(registration_skips_live_entries_whose_byte_is_free)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *l = fix_learner(f), *p = fix_producer(f);
    fix_die(f, p);
    CHECK_EQ(register_producer(f, l), p->me + 1);
    CHECK_EQ(es_locks_held(f->locks, p->me), 0); /* registration has dropped the byte again */
    fix_free(f);
}

/* Registration skips a FREE entry whose byte is held: its owner is leaving, or another process registers in it. */
TEST(registration_skips_free_entries_whose_byte_is_held)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *l = fix_learner(f);
    CHECK_EQ(es_locks_try(f->locks, ES_MAX_LEARNERS), ES_OK);
    CHECK_EQ(register_producer(f, l), ES_MAX_LEARNERS + 1);
    CHECK_EQ(l->map.owners[ES_MAX_LEARNERS].state, ES_OWNER_FREE);
    es_locks_drop(f->locks, ES_MAX_LEARNERS);
    CHECK_EQ(register_producer(f, l), ES_MAX_LEARNERS);
    fix_free(f);
}

/* An index is used again only after its sweep, and with fresh counters. */
TEST(index_is_reused_only_after_its_sweep)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *l = fix_learner(f), *p = fix_producer(f);
    uint64_t pos;
    fix_send(p, 1);
    REQUIRE_EQ(es_one_claim(p, &pos), ES_OK);
    uint32_t index = p->me;
    fix_die(f, p);
    es_identity id;
    REQUIRE_EQ(es_sweep_next_dead(l, 0, &id), index);
    CHECK_EQ(id.pid, getpid());
    CHECK_EQ(id.index, index);
    CHECK_EQ(id.role, ES_ROLE_PRODUCER);
    CHECK_EQ(register_producer(f, l), index + 1);
    CHECK_EQ(es_reap(l, index), 1);
    CHECK_EQ(register_producer(f, l), index);
    CHECK_EQ(l->map.owners[index].samples, 0);
    CHECK_EQ(fix_slot_word(l, 1), es_word(1, 0, ES_REOPEN));
    fix_free(f);
}

/* The process that holds the byte is alive, also if it is this one. An owner that is spared can be seized again. */
TEST(only_a_free_byte_is_death)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *l = fix_learner(f), *p = fix_producer(f);
    es_identity id, other;
    CHECK_EQ(es_sweep_next_dead(l, 0, &id), ES_EMPTY);
    fix_die(f, p);
    REQUIRE_EQ(es_sweep_next_dead(l, 0, &id), p->me);
    CHECK_EQ(es_sweep_next_dead(l, 0, &other), ES_EMPTY); /* seized, so a second reaper cannot seize it */
    CHECK_EQ(es_sweep_settle(l, &other, 1), ES_EMPTY);
    CHECK_EQ(es_sweep_settle(l, &id, 0), ES_OK);
    CHECK_EQ(es_sweep_settle(l, &id, 0), ES_EMPTY); /* it is settled already */
    REQUIRE_EQ(es_sweep_next_dead(l, p->me, &id), p->me);
    CHECK_EQ(es_sweep_next_dead(l, p->me + 1, &id), ES_EMPTY);
    CHECK_EQ(es_reap(l, p->me), 0);
    CHECK_EQ(es_sweep_next_dead(l, 0, &id), ES_EMPTY);
    fix_free(f);
}

/* A process died while it registered. The entry is FREE and its byte free, so registration takes it. */
TEST(entry_half_filled_by_a_dead_registrant_is_taken)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *l = fix_learner(f);
    l->map.owners[ES_MAX_LEARNERS].pid = 999;
    l->map.hdr->owners_high = ES_MAX_LEARNERS + 1;
    es_identity id;
    CHECK_EQ(es_sweep_next_dead(l, 0, &id), ES_EMPTY);
    CHECK_EQ(register_producer(f, l), ES_MAX_LEARNERS);
    CHECK_EQ(l->map.owners[ES_MAX_LEARNERS].pid, 42);
    fix_free(f);
}

/* A scribbled high-water mark causes no read beyond the table. */
TEST(high_water_mark_is_bounded)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *l = fix_learner(f);
    es_owner_info info;
    l->map.hdr->owners_high = UINT32_MAX;
    CHECK_EQ(es_owner_high(&l->map), ES_MAX_LEARNERS + FIX_PRODUCERS);
    CHECK_EQ(es_monitor_next_owner(l, 1, &info), ES_EMPTY);
    fix_free(f);
}

/* Lock bytes exclude within a process. A byte out of range is an error. */
TEST(lock_bytes_exclude)
{
    es_locks *locks = es_locks_new(-1, 2);
    CHECK_EQ(es_locks_held(locks, 1), 0);
    CHECK_EQ(es_locks_try(locks, 1), ES_OK);
    CHECK_EQ(es_locks_try(locks, 1), -EAGAIN);
    CHECK_EQ(es_locks_held(locks, 1), 1);
    CHECK_EQ(es_locks_held(locks, 0), 0);
    es_locks_drop(locks, 1);
    CHECK_EQ(es_locks_try(locks, 1), ES_OK);
    CHECK_EQ(es_locks_try(locks, 2), -EINVAL);
    CHECK_EQ(es_locks_held(locks, 2), -EINVAL);
    es_locks_free(locks);
}

static int held_as_another_process_sees_it(const char *path, uint32_t index)
{
    pid_t child = fork();
    if (child == 0)
        _exit(es_locks_held(es_locks_new(open(path, O_RDWR), 2), index));
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

/* The kernel drops a process's locks when the process closes any descriptor of the file. So es_locks_free() leaves
 * it open while another user of the file is there. */
TEST(locks_survive_another_use_of_the_file)
{
    char path[] = "/tmp/es-locks-XXXXXX";
    es_locks *mine = es_locks_new(mkstemp(path), 2), *other = es_locks_new(open(path, O_RDWR), 2);
    CHECK_EQ(es_locks_try(mine, 1), ES_OK);
    CHECK_EQ(held_as_another_process_sees_it(path, 1), 1);
    es_locks_free(other);
    CHECK_EQ(held_as_another_process_sees_it(path, 1), 1);
    es_locks_drop(mine, 1);
    CHECK_EQ(held_as_another_process_sees_it(path, 1), 0);
    es_locks_free(mine);
    unlink(path);
}

/* A process that holds a learner's second byte knows that the first byte is free or held by a living learner. */
TEST(learners_bytes_are_seized_with_a_second_one)
{
    es_locks *locks = es_locks_new(-1, ES_MAX_LEARNERS + 2);
    CHECK_EQ(es_locks_seize(locks, 3), ES_OK);
    CHECK_EQ(es_locks_seize(locks, 3), -EBUSY);
    CHECK_EQ(es_locks_seize(locks, 4), ES_OK);
    es_locks_yield(locks, 4);
    es_locks_keep(locks, 3); /* now the caller owns it */
    CHECK_EQ(es_locks_seize(locks, 3), -EAGAIN);
    CHECK_EQ(es_locks_held(locks, 3), 1);
    es_locks_drop(locks, 3);
    CHECK_EQ(es_locks_any(locks), 0);
    CHECK_EQ(es_locks_seize(locks, 3), ES_OK);
    es_locks_drop(locks, 3);
    CHECK_EQ(es_locks_any(locks), 1); /* the second byte */
    es_locks_keep(locks, 3);
    CHECK_EQ(es_locks_any(locks), 0);
    CHECK_EQ(es_locks_seize(locks, ES_MAX_LEARNERS), ES_OK);
    CHECK_EQ(es_locks_seize(locks, ES_MAX_LEARNERS), -EAGAIN); /* a producer has one byte */
    es_locks_free(locks);
}

/* While another process looks after a dead learner, a sweep skips it and reports ES_UNSURE at the end. */
TEST(sweep_is_unsure_of_a_learner_that_others_look_after)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *l = fix_learner(f), *dead = fix_learner(f), *p = fix_producer(f);
    es_identity id, other;
    fix_die(f, dead);
    REQUIRE_EQ(es_sweep_next_dead(p, 0, &id), dead->me);
    l->finish_ns = 1;
    CHECK_EQ(es_sweep_next_dead(l, 0, &other), ES_UNSURE);
    CHECK_EQ(l->finish_ns, 0); /* the sweep restarts the clock of the drain */
    fix_die(f, p);
    CHECK_EQ(es_sweep_next_dead(l, 0, &other), p->me);
    CHECK_EQ(es_sweep_settle(l, &other, 1), 0);
    CHECK_EQ(es_sweep_next_dead(l, p->me + 1, &other), ES_UNSURE); /* this sweep has passed the uncertain entry */
    CHECK_EQ(es_sweep_settle(p, &id, 0), ES_OK);
    CHECK_EQ(es_sweep_next_dead(l, 0, &id), dead->me);
    CHECK_EQ(es_sweep_settle(l, &id, 1), 0);
    CHECK_EQ(es_sweep_next_dead(l, 0, &id), ES_EMPTY);
    CHECK_EQ(fix_learner(f)->me, dead->me); /* both of its bytes are free again */
    fix_free(f);
}

/* A retired learner keeps its leases and ends them as it likes. Its claims are re-opened, and nothing new begins. */
TEST(retired_attachment_keeps_its_leases)
{
    es_fix *f = fix_new(1, 4, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round[2];
    es_snapshot snap;
    es_identity id;
    fix_send(p, 1);
    fix_send(p, 2);
    fix_send(p, 3);
    CHECK_EQ(fix_take(l, 0, &round[0]), 0);
    CHECK_EQ(fix_take(l, 0, &round[1]), 1);
    CHECK_EQ(fix_reserve(l, 0), 3);
    CHECK_EQ(es_api_retire(l), ES_OK);
    CHECK_EQ(fix_slot_word(p, 3), es_word(1, 0, ES_REOPEN));
    CHECK_EQ(es_api_retire(l), ES_EDETACHED);
    CHECK_EQ(es_api_take(l, 0, 0, &snap), ES_EDETACHED);
    CHECK_EQ(fix_send(l, 4), ES_EDETACHED);
    CHECK_EQ(es_api_attach(l, &(es_identity){.role = ES_ROLE_LEARNER, .pid = 1}), -EALREADY);
    CHECK_EQ(es_sweep_next_dead(l, 0, &id), ES_EMPTY);
    CHECK_EQ(p->map.owners[l->me].state, ES_OWNER_LIVE);
    CHECK_EQ(es_api_release(l, 0, round[0]), ES_OK);
    CHECK_EQ(es_api_give_back(l, 1, round[1]), ES_OK);
    CHECK_EQ(es_api_detach(l), ES_OK);
    CHECK_EQ(es_api_release(l, 1, round[1]), ES_EDETACHED);
    CHECK_EQ(p->map.owners[l->me].state, ES_OWNER_FREE);
    es_ring *other = fix_learner(f);
    CHECK_EQ(fix_take_k(other, 0), 1);
    CHECK_EQ(fix_take_k(other, 0), 2);
    fix_free(f);
}

/* A stopped producer commits or aborts what it has claimed. It claims nothing more, and can be retired or detached. */
TEST(stopped_attachment_ends_its_claims)
{
    es_fix *f = fix_new(1, 4, 0);
    es_ring *p = fix_producer(f), *other = fix_producer(f), *l = fix_learner(f);
    CHECK_EQ(fix_reserve(p, 0), 0);
    CHECK_EQ(fix_reserve(p, 0), 1);
    CHECK_EQ(fix_reserve(p, 0), 2);
    CHECK_EQ(es_api_stop(p), ES_OK);
    CHECK_EQ(es_api_stop(p), ES_EDETACHED);
    CHECK_EQ(fix_send(p, 1), ES_EDETACHED);
    CHECK_EQ(fix_send_many(p, 1, 2, 0), ES_EDETACHED);
    CHECK_EQ(fix_reserve(p, 0), ES_EDETACHED);
    CHECK_EQ(es_api_commit(p, 0), ES_OK);
    CHECK_EQ(es_api_abort(p, 1), ES_OK);
    CHECK_EQ(fix_slot_word(l, 0), es_word(1, p->me, ES_COMMITTED));
    CHECK_EQ(fix_slot_word(l, 1), es_word(1, 0, ES_REOPEN));
    CHECK_EQ(fix_send(other, 1), ES_OK);
    CHECK_EQ(p->map.owners[p->me].state, ES_OWNER_LIVE);
    CHECK_EQ(es_api_attach(p, &(es_identity){.role = ES_ROLE_PRODUCER, .pid = 1}), -EALREADY);
    CHECK_EQ(es_api_retire(p), ES_OK);
    CHECK_EQ(fix_slot_word(l, 2), es_word(1, 0, ES_REOPEN));
    CHECK_EQ(es_api_commit(p, 2), ES_EDETACHED);
    CHECK_EQ(es_api_stop(p), ES_EDETACHED);
    CHECK_EQ(es_api_detach(p), ES_OK);
    CHECK_EQ(es_api_stop(p), ES_EDETACHED);
    CHECK_EQ(es_api_abort(p, 2), ES_EDETACHED);
    CHECK_EQ(es_locks_held(f->locks, p->me), 0);
    fix_free(f);
}

/* A stopped learner ends its leases and takes nothing more. */
TEST(stopped_learner_keeps_its_leases)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint64_t round;
    es_snapshot snap;
    fix_send(p, 1);
    CHECK_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(es_api_stop(l), ES_OK);
    CHECK_EQ(es_api_take(l, 0, 0, &snap), ES_EDETACHED);
    CHECK_EQ(es_api_give_back(l, 0, round), ES_OK);
    CHECK_EQ(es_api_detach(l), ES_OK);
    fix_free(f);
}

/* Detach re-opens claims and releases leases. Afterwards every call is refused. */
TEST(detach_leaves_nothing_behind)
{
    es_fix *f = fix_new(1, 3, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *other = fix_learner(f);
    es_snapshot snap;
    uint64_t round;
    fix_send(p, 1);
    CHECK_EQ(fix_reserve(p, 0), 1);
    CHECK_EQ(fix_take(l, 0, &round), 0);
    CHECK_EQ(es_api_detach(l), ES_OK);
    CHECK_EQ(es_api_detach(p), ES_OK);
    CHECK_EQ(fix_batch_word(other, 0), es_word(1, 0, ES_FILL));
    CHECK_EQ(fix_slot_word(other, 1), es_word(1, 0, ES_REOPEN));
    CHECK_EQ(es_locks_held(f->locks, p->me), 0);
    CHECK_EQ(other->map.owners[p->me].state, ES_OWNER_FREE);
    CHECK_EQ(es_api_detach(p), ES_EDETACHED);
    CHECK_EQ(fix_send(p, 1), ES_EDETACHED);
    CHECK_EQ(fix_send_many(p, 1, 2, 0), ES_EDETACHED);
    CHECK_EQ(fix_reserve(p, 0), ES_EDETACHED);
    CHECK_EQ(es_api_commit(p, 1), ES_EDETACHED);
    CHECK_EQ(es_api_abort(p, 1), ES_EDETACHED);
    CHECK_EQ(es_api_take(l, 0, 0, &snap), ES_EDETACHED);
    CHECK_EQ(es_api_release(l, 0, 0), ES_EDETACHED);
    CHECK_EQ(es_api_close(l), ES_OK); /* the only call that is still allowed */
    CHECK_STR(es_valid(other), NULL);
    fix_free(f);
}

/* An attachment that never registered cannot send. One without locks cannot register. */
TEST(observer_only_observes)
{
    es_fix *f = fix_new(1, 1, 0);
    int error;
    es_ring *r = es_api_open(f->base, f->size, NULL, 0, &error);
    REQUIRE(r != NULL);
    es_identity id = {.role = ES_ROLE_PRODUCER};
    es_snapshot snap;
    CHECK_EQ(es_api_attach(r, &id), ES_EREADONLY);
    CHECK_EQ(fix_send(r, 1), ES_EDETACHED);
    CHECK_EQ(es_api_close(r), ES_EREADONLY);
    es_monitor_observe(r, &snap);
    CHECK_EQ(snap.active_producers, 0);
    es_api_free(r);
    fix_free(f);
}

/* Learners are alive while one of them holds its byte. */
TEST(learner_is_alive_while_its_byte_is_held)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *p = fix_producer(f);
    CHECK_EQ(es_api_learner_alive(p), 0);
    es_ring *l = fix_learner(f);
    CHECK_EQ(es_api_learner_alive(p), 1);
    fix_die(f, l);
    CHECK_EQ(es_api_learner_alive(p), 0);
    fix_free(f);
}

static int in_child(int (*what)(es_fix *, es_ring *), es_fix *f, es_ring *r)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(what(f, r) == 0 ? 0 : 1);
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

static int every_call_refuses(es_fix *f, es_ring *r)
{
    es_snapshot snap;
    es_identity id;
    (void)f;
    int bad = 0;
    bad += fix_send(r, 1) != ES_EFORK;
    bad += fix_send_many(r, 1, 2, 0) != ES_EFORK;
    bad += fix_reserve(r, 0) != ES_EFORK;
    bad += es_api_commit(r, 0) != ES_EFORK;
    bad += es_api_abort(r, 0) != ES_EFORK;
    bad += es_api_take(r, 0, 0, &snap) != ES_EFORK;
    bad += es_api_release(r, 0, 0) != ES_EFORK;
    bad += es_api_close(r) != ES_EFORK;
    bad += es_sweep_next_dead(r, 0, &id) != ES_EFORK;
    bad += es_reap(r, 0) != ES_EFORK;
    bad += es_sweep_settle(r, &id, 0) != ES_EFORK;
    bad += es_api_detach(r) != ES_EFORK;
    return bad;
}

/* A forked child owns nothing: every call on what it inherited is refused, and the parent is not affected. */
TEST(inherited_attachment_refuses_every_call)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    CHECK_EQ(in_child(every_call_refuses, f, p), 0);
    CHECK_EQ(fix_send(p, 1), ES_OK);
    CHECK_EQ(fix_take_k(l, 0), 0);
    fix_free(f);
}

static int attach_refuses(es_fix *f, es_ring *r)
{
    es_identity id = {.role = ES_ROLE_PRODUCER};
    (void)f;
    return es_api_attach(r, &id) != ES_EFORK;
}

/* The same holds for an attachment that was opened, but not registered, before the fork. */
TEST(inherited_attachment_refuses_to_attach)
{
    es_fix *f = fix_new(1, 2, 0);
    CHECK_EQ(in_child(attach_refuses, f, fix_open(f, 0)), 0);
    fix_free(f);
}

static int asks_for_learners(es_fix *f, es_ring *r)
{
    int error;
    (void)r;
    es_ring *observer = es_api_open(f->base, f->size, NULL, 0, &error);
    return es_api_learner_alive(observer) == ES_EREADONLY ? 0 : 1;
}

/* Without locks it is unknown who is dead: the call returns an error and does not crash. */
TEST(observer_cannot_ask_for_learners)
{
    es_fix *f = fix_new(1, 2, 0);
    CHECK_EQ(in_child(asks_for_learners, f, fix_learner(f)), 0);
    fix_free(f);
}

/* An attachment is one owner. A second attach would leave the first entry LIVE forever. */
TEST(attached_attachment_does_not_attach_again)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f);
    es_identity id = {.role = ES_ROLE_PRODUCER};
    CHECK(es_api_attach(p, &id) < 0);
    fix_free(f);
}
