/* Rare crossings: threads of one attachment, reapers that die half-way, steps that come very late. */
#define _GNU_SOURCE /* mkstemp */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "es_scene.h"
#include "es_test.h"

static void all_delivered(void)
{
    for (int id = 0; id < SCENE_IDS; id++)
        CHECK_EQ(scene.got[id], scene.sent[id]);
}

/* --- two threads of one attachment take partially --------------------------- */

static int64_t second_batch;
static es_snapshot second_snap;
static uint64_t claim;
static bool committed;

static void commit_claim(void)
{
    if (committed)
        return;
    committed = true;
    fix_write(scene.p, claim, 1);
    scene.sent[1] = es_api_commit(scene.p, (int64_t)claim) == ES_OK;
}

static void one_sent_one_claimed(void)
{
    second_batch = -1;
    committed = false;
    scene_open(3, 2, 0);
    scene_send(scene.q, 0);
    CHECK_EQ(es_one_claim(scene.p, &claim), ES_OK);
}

static void first_thread(void)
{
    scene_drain(scene.m, ES_TAKE_SHORT);
}

/* Takes one batch and keeps it. Does nothing when the first thread holds a lock that this one would wait for. */
static void second_thread(void)
{
    uint8_t mask[SCENE_IDS];
    es_ring *m = scene.m;
    if (pthread_mutex_trylock(&m->partial_lock) != 0)
        return;
    pthread_mutex_unlock(&m->partial_lock);
    if (pthread_mutex_trylock(&m->look_lock) != 0)
        return;
    pthread_mutex_unlock(&m->look_lock);
    commit_claim();
    second_batch = es_api_take(m, ES_TAKE_SHORT, 0, &second_snap);
    if (second_batch < 0)
        return;
    CHECK_EQ(es_api_committed_mask(m, (uint64_t)second_batch, second_snap.round, mask), (int64_t)second_snap.length);
    for (uint64_t i = 0; i < m->map.batch_size; i++) {
        uint64_t id;
        if (mask[i] && CHECK(fix_read(m, (uint64_t)second_batch * m->map.batch_size + i, &id)))
            scene.got[id]++;
    }
}

static void second_thread_releases(void)
{
    second_thread();
    if (second_batch >= 0)
        es_api_release(scene.m, (uint64_t)second_batch, second_snap.round);
    second_batch = -1;
}

static void ring_goes_on(void)
{
    commit_claim();
    CHECK_STR(es_valid(scene.l), NULL);
    scene_send(scene.q, 5);
    if (second_batch >= 0)
        es_api_release(scene.m, (uint64_t)second_batch, second_snap.round);
    for (uint64_t id = 10; id < 20; id++) {
        scene_send(scene.q, id);
        scene_drain(scene.l, ES_TAKE_SHORT);
    }
    all_delivered();
    scene_settle(scene.l);
    scene_close();
}

/* Threads do not confuse each other's held slots: no slot re-opens in a leased batch or a past lap. */
TEST(threads_share_partial_takes)
{
    es_step_case c = {"partial, partial", one_sent_one_claimed, first_thread, second_thread, ring_goes_on, false};
    es_step_each(&c);
    c = (es_step_case){"partial, partial and release", one_sent_one_claimed, first_thread,
                       second_thread_releases,         ring_goes_on,         false};
    es_step_each(&c);
}

/* --- one thread retires the attachment, another detaches it ------------------ */

static es_ring *newcomer;
static bool has_come;

static void p_has_a_claim(void)
{
    scene_open(2, 2, 0);
    newcomer = fix_open(scene.f, 0);
    has_come = false;
    CHECK_EQ(es_one_claim(scene.p, &claim), ES_OK);
}

static void p_retires(void)
{
    es_api_retire(scene.p);
}

/* A detach waits while a thread is counted. Here nobody goes on meanwhile, so it comes only when it need not wait. */
static void entry_of_p_gets_a_new_owner(void)
{
    const es_identity id = {.role = ES_ROLE_PRODUCER, .pid = 1};
    if (atomic_load(&scene.p->busy) != 0)
        return;
    CHECK_EQ(es_api_detach(scene.p), ES_OK);
    CHECK_EQ(es_api_attach(newcomer, &id), scene.p->me);
    CHECK_EQ(es_one_claim(newcomer, &claim), ES_OK);
    has_come = true;
}

static void new_owner_has_its_claim(void)
{
    if (!has_come)
        entry_of_p_gets_a_new_owner();
    CHECK_EQ(fix_slot_word(newcomer, claim), es_word(1, newcomer->me, ES_CLAIMED));
    scene_close();
}

/* A retirement that is under way does not re-open the claim of the entry's next owner. */
TEST(retirement_against_a_detach)
{
    es_step_case c = {"retire, detach",        p_has_a_claim, p_retires, entry_of_p_gets_a_new_owner,
                      new_owner_has_its_claim, false};
    es_step_each(&c);
}

/* --- the end against deaths -------------------------------------------------- */

static uint64_t round_of_m;

static void m_holds_a_lease(void)
{
    scene_open(1, 2, 0);
    scene_send(scene.q, 0);
    CHECK_EQ(fix_take(scene.m, 0, &round_of_m), 0);
}

static void m_died_after_the_close(void)
{
    m_holds_a_lease();
    es_api_close(scene.q);
    fix_die(scene.f, scene.m);
}

static void drain(void)
{
    if (!scene.ended)
        scene.ended = scene_drain(scene.l, 0) == ES_ENDED;
}

static void q_reaps(void)
{
    fix_sweep(scene.q);
}

static void drained_to_the_end(void)
{
    drain();
    all_delivered();
    scene_close();
}

/* A batch that is given back during a drain is delivered. */
TEST(end_against_a_lease_given_back)
{
    es_step_case c = {"drain, reap", m_died_after_the_close, drain, q_reaps, drained_to_the_end, false};
    es_step_each(&c);
}

static void m_died_and_head_is_past(void)
{
    m_died_after_the_close();
    CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
}

static void next_reaper_comes(void)
{
    drain();
    /* The batch is taken as soon as it is given back, because the reaper may be stopped for long. */
    CHECK(es_word_state(fix_batch_word(scene.l, 0)) != ES_FILL);
    if (!scene.ended) {
        es_locks_yield(scene.f->locks, scene.m->me); /* the kernel drops the dead reaper's locks */
        fix_sweep(scene.l);
        CHECK_EQ(scene_drain(scene.l, 0), ES_ENDED);
    }
    all_delivered();
    scene_close();
}

/* A reaper dies after it gave a batch back and before it announced that. The drain finds the batch. */
TEST(end_after_a_reaper_died_half_way)
{
    es_step_case c = {"reap, end", m_died_and_head_is_past, q_reaps, NULL, next_reaper_comes, true};
    es_step_each(&c);
}

/* --- a head that moves late --------------------------------------------------- */

static es_ring *late;

static void m_holds_a_partial_lease(void)
{
    es_snapshot snap;
    scene_open(2, 3, 0);
    late = fix_learner(scene.f);
    CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY); /* the first look of each learner is everywhere */
    CHECK_EQ(fix_take_k(late, 0), ES_EMPTY);
    scene_send(scene.q, 0);
    CHECK_EQ(es_api_take(scene.m, ES_TAKE_SHORT, 0, &snap), 0);
}

static void late_looks(void)
{
    CHECK_EQ(fix_take_k(late, 0), ES_EMPTY);
}

static void m_is_reaped(void)
{
    fix_die(scene.f, scene.m);
    fix_sweep(scene.p);
    CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY); /* looks everywhere: batch 0 was given back incomplete */
}

static void batch_0_is_found(void)
{
    es_api_detach(late);
    CHECK_EQ(scene_send(scene.q, 1), ES_OK); /* completes batch 0 */
    scene_drain(scene.l, 0);
    CHECK_EQ(scene.got[0] + 10 * scene.got[1], 11);
    for (uint64_t id = 10; id < 16; id++) {
        CHECK_EQ(scene_send(scene.q, id), ES_OK);
        scene_drain(scene.l, 0);
    }
    scene_settle(scene.l);
    scene_close();
}

/* A learner that saw a lease moves head past the batch after it was given back. The batch is still found. */
TEST(head_moves_past_a_batch_given_back)
{
    es_step_case c = {"look, reap", m_holds_a_partial_lease, late_looks, m_is_reaped, batch_0_is_found, false};
    es_step_each(&c);
}

/* --- wake-ups across the close ------------------------------------------------- */

static void m_releases(void)
{
    es_api_release(scene.m, 0, round_of_m);
}

static void close_and_wait(void)
{
    es_snapshot snap;
    es_api_close(scene.q);
    scene.rc = es_api_take(scene.l, 0, 1000, &snap);
}

static void waiter_was_woken(void)
{
    if (scene.rc < 0 && scene.rc != ES_ENDED && es_still_parked(&scene.l->map.hdr->ready_seq))
        CHECK_EQ(fix_take_k(scene.l, 0), ES_EMPTY);
    scene_close();
}

/* The last lease ends while the ring closes. The learner that waits for the end is woken. */
TEST(release_across_the_close_wakes)
{
    es_step_case c = {"release, close", m_holds_a_lease, m_releases, close_and_wait, waiter_was_woken, false};
    es_step_each(&c);
}

static void three_sent(void)
{
    scene_open(2, 2, 0);
    for (uint64_t id = 0; id < 3; id++)
        scene_send(scene.q, id);
}

static void m_takes_one_partially(void)
{
    es_snapshot snap;
    scene.got[0] = es_api_take(scene.m, ES_TAKE_SHORT, 0, &snap) >= 0;
}

static void close_commit_and_wait(void)
{
    es_snapshot snap;
    es_api_close(scene.q);
    commit_claim();
    scene.rc = es_api_take(scene.l, 0, 1000, &snap);
}

static void waiter_was_woken_for_slots(void)
{
    if (scene.got[0])
        scene_close(); /* m holds a lease, which the previous test covers */
    else
        waiter_was_woken();
}

/* A partial take lets go of held slots while the ring closes. It wakes the learner that waits to seal them. */
TEST(partial_take_across_the_close_wakes)
{
    es_step_case c = {"partial, close",           three_sent, m_takes_one_partially, close_and_wait,
                      waiter_was_woken_for_slots, false};
    es_step_each(&c);
    c = (es_step_case){"partial, close and commit", one_sent_one_claimed,       m_takes_one_partially,
                       close_commit_and_wait,       waiter_was_woken_for_slots, false};
    es_step_each(&c);
}

#define BYTE 1

static char lock_file[] = "/tmp/es-locks-XXXXXX";
static es_locks *locks;
static bool taken;

static void byte_is_held(void)
{
    strcpy(lock_file + sizeof lock_file - 7, "XXXXXX");
    locks = es_locks_new(mkstemp(lock_file), 2);
    CHECK_EQ(es_locks_try(locks, BYTE), ES_OK);
}

static void drop_it(void)
{
    es_locks_drop(locks, BYTE);
}

static void another_thread_tries(void)
{
    taken = es_locks_try(locks, BYTE) == ES_OK;
}

static void whoever_took_it_has_it(void)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(es_locks_held(es_locks_new(open(lock_file, O_RDWR), 2), BYTE));
    waitpid(child, &status, 0);
    CHECK_EQ(WEXITSTATUS(status), taken);
    es_locks_free(locks);
    unlink(lock_file);
    taken = false;
}

/* A byte that one thread drops and another takes is the other's, also for the kernel. */
TEST(byte_is_dropped_against_another_thread)
{
    es_step_case c = {"drop, try", byte_is_held, drop_it, another_thread_tries, whoever_took_it_has_it, false};
    es_step_each(&c);
}
