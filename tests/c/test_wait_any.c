/* Waiting for several rings at once: what is ready, what ends the sleep, and who is woken next. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "es_core.h"
#include "es_fixture.h"
#include "es_test.h"

#define MINUTE UINT64_C(60000000000)
#define WAITV 449 /* the system call's number on x86-64 and aarch64 */

/* Two rings of one batch of one sample. `in` has a learner that watches for batches, `out` a producer that watches for
 * room, as those of a replay. */
typedef struct pair {
    es_fix *in, *out;
    es_ring *from, *to;     /* the attachments that are watched */
    es_ring *sends, *takes; /* a producer of `in`, a learner of `out` */
    es_watch watches[2];
} pair;

static void fill(es_ring *p)
{
    while (fix_send(p, 1) == ES_OK)
        ;
}

static pair pair_of(es_fix *in, es_fix *out)
{
    pair w = {.in = in, .out = out};
    w.from = fix_learner(in);
    w.sends = fix_producer(in);
    w.to = fix_producer(out);
    w.takes = fix_learner(out);
    w.watches[0] = (es_watch){w.from, ES_WATCH_BATCH};
    w.watches[1] = (es_watch){w.to, ES_WATCH_ROOM};
    fill(w.to);
    return w;
}

static pair pair_new(void)
{
    return pair_of(fix_new(1, 1, 0), fix_new(1, 1, 0));
}

static void pair_free(pair *w)
{
    fix_free(w->in);
    fix_free(w->out);
}

typedef struct call {
    const es_watch *watches;
    uint32_t n;
    uint32_t *word;
    pthread_t thread;
    int rc;
} call;

static void *wait_in_thread(void *arg)
{
    call *c = arg;
    c->rc = es_api_wait_any(c->watches, c->n, c->word, 0, MINUTE);
    return NULL;
}

/* Returns once the thread has announced its sleep to the last ring. What comes then may find it asleep, or about to
 * sleep. */
static void call_start(call *c)
{
    const es_watch *last = &c->watches[c->n - 1];
    es_header *hdr = last->ring->map.hdr;
    _Atomic uint32_t *flag = last->what == ES_WATCH_ROOM ? &hdr->producers_sleep : &hdr->learner_sleeps;
    atomic_store(flag, 0);
    pthread_create(&c->thread, NULL, wait_in_thread, c);
    while (atomic_load(flag) == 0)
        sched_yield();
}

static int call_end(call *c)
{
    pthread_join(c->thread, NULL);
    return c->rc;
}

/* --- what is ready ------------------------------------------------------------- */

/* The first cause that is ready is named, and the word comes last. Nothing is taken or claimed. */
TEST(names_the_first_cause_that_is_ready)
{
    pair w = pair_new();
    uint32_t word = 7;
    CHECK_EQ(es_api_wait_any(w.watches, 2, &word, 7, 0), ES_TIMEOUT);
    CHECK_EQ(es_api_wait_any(w.watches, 2, NULL, 0, 1000), ES_TIMEOUT);
    CHECK_EQ(es_api_wait_any(w.watches, 2, &word, 6, MINUTE), 2);
    CHECK_EQ(fix_take_k(w.takes, 0), 0);
    CHECK_EQ(es_api_wait_any(w.watches, 2, &word, 6, MINUTE), 1);
    CHECK_EQ(fix_send(w.sends, 1), ES_OK);
    CHECK_EQ(es_api_wait_any(w.watches, 2, &word, 6, MINUTE), 0);
    CHECK_EQ(es_api_wait_any(w.watches + 1, 1, &word, 6, MINUTE), 0);
    CHECK_EQ(es_api_wait_any(NULL, 0, &word, 6, MINUTE), 0);
    CHECK_EQ(fix_tail(w.to), 1);
    CHECK_EQ(fix_take_k(w.from, 0), 0);
    pair_free(&w);
}

/* A batch that a learner has given back is ready, wherever it lies. One that another learner holds is not. */
TEST(a_batch_given_back_is_ready)
{
    es_fix *f = fix_new(1, 2, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f), *m = fix_learner(f);
    es_watch batch = {l, ES_WATCH_BATCH};
    uint64_t round;
    fix_send(p, 1);
    REQUIRE_EQ(fix_take(m, 0, &round), 0);
    CHECK_EQ(es_api_wait_any(&batch, 1, NULL, 0, 1000), ES_TIMEOUT);
    es_api_give_back(m, 0, round);
    CHECK_EQ(es_api_wait_any(&batch, 1, NULL, 0, MINUTE), 0);
    fix_free(f);
}

/* A re-opened slot of a full ring is room. */
TEST(a_reopened_slot_is_ready)
{
    es_fix *f = fix_new(2, 1, 0);
    es_ring *p = fix_producer(f), *q = fix_producer(f);
    es_watch room = {q, ES_WATCH_ROOM};
    int64_t pos = fix_reserve(p, 0);
    fill(q);
    CHECK_EQ(es_api_wait_any(&room, 1, NULL, 0, 1000), ES_TIMEOUT);
    es_api_abort(p, pos);
    CHECK_EQ(es_api_wait_any(&room, 1, NULL, 0, MINUTE), 0);
    fix_free(f);
}

/* A closed ring is ready for both causes, even when nothing is left of it. */
TEST(a_closed_ring_is_ready)
{
    pair w = pair_new();
    es_api_close(w.sends);
    CHECK_EQ(es_api_wait_any(w.watches, 2, NULL, 0, MINUTE), 0);
    CHECK_EQ(fix_take_k(w.from, 0), ES_ENDED);
    CHECK_EQ(es_api_wait_any(w.watches, 2, NULL, 0, MINUTE), 0);
    CHECK_EQ(es_api_wait_any(w.watches + 1, 1, NULL, 0, 1000), ES_TIMEOUT);
    es_api_close(w.takes);
    CHECK_EQ(es_api_wait_any(w.watches + 1, 1, NULL, 0, MINUTE), 0);
    CHECK_EQ(fix_send(w.to, 1), ES_ECLOSED);
    pair_free(&w);
}

/* Bad lists, and attachments that are stopped, are refused. The other attachments stay as they were. */
TEST(bad_causes_are_refused)
{
    pair w = pair_new();
    es_watch many[ES_WATCH_MOST + 1], wrong = {w.from, 3};
    uint32_t words[2] = {0, 0};
    for (int i = 0; i <= ES_WATCH_MOST; i++)
        many[i] = w.watches[0];
    CHECK_EQ(es_api_wait_any(many, ES_WATCH_MOST, NULL, 0, 1000), ES_TIMEOUT);
    CHECK_EQ(es_api_wait_any(many, ES_WATCH_MOST - 1, words, 0, 1000), ES_TIMEOUT);
    CHECK_EQ(es_api_wait_any(many, ES_WATCH_MOST + 1, NULL, 0, 1000), -E2BIG);
    CHECK_EQ(es_api_wait_any(many, ES_WATCH_MOST, words, 0, 1000), -E2BIG);
    CHECK_EQ(es_api_wait_any(many, UINT32_MAX, words, 0, 1000), -E2BIG);
    CHECK_EQ(es_api_wait_any(NULL, 0, NULL, 0, 1000), -EINVAL);
    CHECK_EQ(es_api_wait_any(&wrong, 1, NULL, 0, 1000), -EINVAL);
    CHECK_EQ(es_api_wait_any(NULL, 0, (uint32_t *)(void *)((char *)words + 1), 0, 1000), -EINVAL);
    CHECK_EQ(es_api_stop(w.to), ES_OK);
    CHECK_EQ(es_api_wait_any(w.watches, 2, NULL, 0, 1000), ES_EDETACHED);
    CHECK_EQ(atomic_load(&w.from->busy), 0);
    CHECK_EQ(atomic_load(&w.to->busy), 0);
    CHECK_EQ(es_api_detach(w.from), ES_OK);
    pair_free(&w);
}

/* --- what ends the sleep -------------------------------------------------------- */

static void commits(pair *w)
{
    fix_send(w->sends, 1);
}

static void releases(pair *w)
{
    fix_take_k(w->takes, 0);
}

static void closes_in(pair *w)
{
    es_api_close(w->sends);
}

static void closes_out(pair *w)
{
    es_api_close(w->takes);
}

static void stops_in(pair *w)
{
    es_api_stop(w->from);
}

static void stops_out(pair *w)
{
    es_api_stop(w->to);
}

static void detaches_in(pair *w)
{
    es_api_detach(w->from);
    CHECK_EQ(atomic_load(&w->from->busy), 0);
}

static void detaches_out(pair *w)
{
    es_api_detach(w->to);
    CHECK_EQ(atomic_load(&w->to->busy), 0);
}

static uint32_t bell;

static void rings(pair *w)
{
    (void)w;
    es_api_change_word(&bell);
}

/* Each of its causes ends the sleep: a commit, a release, a close, a stop, a detach, a changed word. */
TEST(every_cause_ends_the_sleep)
{
    const struct {
        void (*act)(pair *w);
        int rc;
    } cases[] = {{commits, 0},
                 {releases, 1},
                 {closes_in, 0},
                 {closes_out, 1},
                 {rings, 2},
                 {stops_in, ES_EDETACHED},
                 {stops_out, ES_EDETACHED},
                 {detaches_in, ES_EDETACHED},
                 {detaches_out, ES_EDETACHED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pair w = pair_new();
        bell = 0;
        call c = {.watches = w.watches, .n = 2, .word = &bell};
        call_start(&c);
        cases[i].act(&w);
        CHECK_EQ(call_end(&c), cases[i].rc);
        CHECK_EQ(atomic_load(&w.from->busy) + atomic_load(&w.to->busy), 0);
        pair_free(&w);
    }
}

/* As many rings as a call can watch: the last one ends the sleep as the first one does. */
TEST(the_last_of_many_rings_ends_the_sleep)
{
    es_fix *f[ES_WATCH_MOST];
    es_watch watches[ES_WATCH_MOST];
    for (int i = 0; i < ES_WATCH_MOST; i++) {
        f[i] = fix_new(1, 1, 0);
        watches[i] = (es_watch){fix_learner(f[i]), ES_WATCH_BATCH};
    }
    for (int i = ES_WATCH_MOST - 1; i >= 0; i -= ES_WATCH_MOST - 1) {
        call c = {.watches = watches, .n = ES_WATCH_MOST};
        call_start(&c);
        fix_send(fix_producer(f[i]), 1);
        CHECK_EQ(call_end(&c), i);
        CHECK_EQ(fix_take_k(watches[i].ring, 0), 0);
    }
    for (int i = 0; i < ES_WATCH_MOST; i++)
        fix_free(f[i]);
}

static void nothing(int signal)
{
    (void)signal;
}

/* A signal ends the sleep if its handler does not restart system calls. */
TEST(a_signal_ends_the_sleep)
{
    struct sigaction act = {.sa_handler = nothing}, before;
    pair w = pair_new();
    call c = {.watches = w.watches, .n = 2};
    sigaction(SIGUSR1, &act, &before);
    call_start(&c);
    /* The signal may come before the thread sleeps. */
    while (pthread_tryjoin_np(c.thread, NULL) != 0) {
        pthread_kill(c.thread, SIGUSR1);
        sched_yield();
    }
    CHECK_EQ(c.rc, -EINTR);
    sigaction(SIGUSR1, &before, NULL);
    pair_free(&w);
}

/* A process that waits in vain for a batch repairs words that nobody can have written. */
TEST(a_wait_in_vain_repairs_a_ring)
{
    pair w = pair_new();
    fix_slot(w.from, 0, 1, ES_MAX_LEARNERS + 5, ES_CLAIMED); /* an owner that nobody is */
    for (int i = 0; i < 2; i++)
        CHECK_EQ(es_api_wait_any(w.watches, 2, NULL, 0, w.in->geo.reap_interval_ns), ES_TIMEOUT);
    CHECK_EQ(es_word_state(fix_slot_word(w.from, 0)), ES_REOPEN);
    pair_free(&w);
}

/* The sleep counts as a wait of its learners and of its producers. */
TEST(a_wait_is_counted)
{
    pair w = pair_new();
    es_snapshot snap;
    es_owner *to = &w.to->map.owners[w.to->me];
    CHECK_EQ(es_api_wait_any(w.watches, 2, NULL, 0, 2000000), ES_TIMEOUT);
    CHECK_EQ(to->blocked, 1);
    CHECK_EQ(to->waiting, 0);
    CHECK(to->blocked_ns >= 2000000);
    CHECK_EQ(w.to->map.hdr->totals.push_blocked, 1);
    fix_send(w.sends, 1);
    REQUIRE_EQ(es_api_take(w.from, 0, 0, &snap), 0);
    CHECK(snap.learner_wait_ns >= 2000000);
    pair_free(&w);
}

/* --- who is woken next ------------------------------------------------------------ */

typedef struct sender {
    es_ring *r;
    pthread_t thread;
    int rc;
} sender;

static void *send_in_thread(void *arg)
{
    sender *s = arg;
    s->rc = fix_send_wait(s->r, 9, MINUTE);
    return NULL;
}

static void sender_start(sender *s, es_ring *r)
{
    *s = (sender){.r = r};
    pthread_create(&s->thread, NULL, send_in_thread, s);
    while (atomic_load(&r->map.owners[r->me].waiting) == 0)
        sched_yield();
}

/* A process that is told of room and does not use it has woken the next one. So has one that two rings have woken at
 * once, in both. If the others were faster, it waits on until its word changes. */
TEST(room_that_is_left_wakes_the_next)
{
    for (uint64_t turn = 0; turn < es_test_scaled(200); turn++) {
        es_fix *f[2] = {fix_new(1, 1, 0), fix_new(1, 1, 0)};
        es_watch watches[2];
        sender s[2];
        for (int i = 0; i < 2; i++) {
            watches[i] = (es_watch){fix_producer(f[i]), ES_WATCH_ROOM};
            fill(watches[i].ring);
        }
        bell = 0;
        call c = {.watches = watches, .n = 2, .word = &bell};
        call_start(&c);
        for (int i = 0; i < 2; i++)
            sender_start(&s[i], fix_producer(f[i]));
        for (int i = 0; i < 2; i++)
            CHECK_EQ(fix_take_k(fix_learner(f[i]), 0), 0);
        for (int i = 0; i < 2; i++) {
            pthread_join(s[i].thread, NULL);
            CHECK_EQ(s[i].rc, ES_OK);
        }
        es_api_change_word(&bell);
        CHECK(call_end(&c) >= 0);
        for (int i = 0; i < 2; i++)
            fix_free(f[i]);
    }
}

/* --- the kernel's part ------------------------------------------------------------ */

/* Whether this kernel, or what stands in for one, has futex_waitv(). */
static bool has_waitv(void)
{
    return strcmp(es_wait_kind(), "futex") == 0 && syscall(WAITV, NULL, 0, 0, NULL, 0) < 0 && errno == EINVAL;
}

typedef struct napper {
    es_wait_word words[2];
    int rc;
} napper;

static void *sleep_on_both(void *arg)
{
    napper *s = arg;
    s->rc = es_wait_several(s->words, 2, MINUTE);
    return NULL;
}

/* A sleeper on several words is found by every wake-up, whatever its turn. */
TEST(a_sleeper_on_several_words_is_woken_in_every_turn)
{
    for (int turn = 0; turn < 4 && has_waitv(); turn++) {
        _Atomic uint32_t words[2] = {5, 6};
        napper s = {.words = {{&words[0], 5}, {&words[1], 6}}};
        pthread_t thread;
        pthread_create(&thread, NULL, sleep_on_both, &s);
        /* Without a change of the word: only a sleeper that the wake-up finds goes on. */
        while (!es_wait_wake_one(&words[turn / 2], turn % 2 == 0 ? ES_WAIT_FIRST : ES_WAIT_IN_TURN))
            sched_yield();
        pthread_join(thread, NULL);
        CHECK_EQ(s.rc, ES_OK);
    }
}

/* es_wait_several() returns as es_wait() does. */
TEST(several_words_are_waited_for_as_one)
{
    _Atomic uint32_t words[2] = {5, 6};
    const es_wait_word first[] = {{&words[0], 4}, {&words[1], 6}}, second[] = {{&words[0], 5}, {&words[1], 7}},
                       none[] = {{&words[0], 5}, {&words[1], 6}};
    CHECK_EQ(es_wait_several(first, 2, MINUTE), -EAGAIN);
    CHECK_EQ(es_wait_several(second, 2, MINUTE), -EAGAIN);
    CHECK_EQ(es_wait_several(second, 1, 0), ES_TIMEOUT);
    uint64_t start = es_clock_ns();
    CHECK_EQ(es_wait_several(none, 2, 2000000), ES_TIMEOUT);
    CHECK(es_clock_ns() - start >= 2000000);
}

/* From here on this process has no futex_waitv(). Returns whether the kernel lets it. */
static bool give_up_waitv(uint32_t error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, WAITV, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {.len = 4, .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* --- processes ---------------------------------------------------------------------- */

static es_fix *shared_ring(uint64_t B, uint64_t K)
{
    es_geometry geo = fix_geometry(B, K, 0);
    return fix_new_shared(&geo, NULL);
}

static es_ring *own(const es_fix *f, uint32_t role)
{
    return fix_join(f, fix_own_locks(f), role, 0);
}

#define SAMPLES 400
#define NOT_PERMITTED 77

/* Moves samples from one ring to the other until the first is closed, as a replay does. Only causes that are not met
 * yet are watched. error: futex_waitv() fails with it. */
static void relay(es_fix *in, es_fix *out, uint32_t error)
{
    es_watch batch = {own(in, ES_ROLE_LEARNER), ES_WATCH_BATCH}, room = {own(out, ES_ROLE_PRODUCER), ES_WATCH_ROOM};
    es_snapshot snap;
    uint64_t id = 0;
    int64_t held = -1;
    if (error != 0 && !give_up_waitv(error))
        _exit(NOT_PERMITTED);
    for (;;) {
        int rc = es_api_wait_any(held < 0 ? &batch : &room, 1, NULL, 0, MINUTE);
        if (rc < 0)
            _exit(1);
        if (held < 0) {
            held = es_api_take(batch.ring, 0, 0, &snap);
            if (held == ES_ENDED)
                _exit(0);
            if (held >= 0 && fix_read_batch(batch.ring, held, &snap, &id) != 1)
                _exit(2);
        } else if (fix_send(room.ring, id) == ES_OK) {
            es_api_release(batch.ring, (uint64_t)held, snap.round);
            held = -1;
        }
    }
}

static void samples_go_through(uint32_t error)
{
    es_fix *in = shared_ring(1, 2), *out = shared_ring(1, 1);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        relay(in, out, error);
    }
    int status = 0;
    es_ring *p = fix_join(in, in->locks, ES_ROLE_PRODUCER, 0), *l = fix_join(out, out->locks, ES_ROLE_LEARNER, 0);
    es_watch watches[] = {{p, ES_WATCH_ROOM}, {l, ES_WATCH_BATCH}};
    uint64_t sent = 0, got = 0, n = es_test_scaled(SAMPLES);
    for (bool left = false; got < n && !left && es_test_failures() == 0; left = waitpid(pid, &status, WNOHANG) == pid) {
        es_snapshot snap;
        uint64_t id;
        int rc = es_api_wait_any(watches + (sent == n), 2 - (sent == n), NULL, 0, error != 0 ? 20000000 : MINUTE);
        sent += rc == 0 && sent < n && fix_send(p, sent) == ES_OK;
        int64_t j = es_api_take(l, 0, 0, &snap);
        if (j < 0)
            continue;
        CHECK_EQ(fix_read_batch(l, j, &snap, &id), 1);
        CHECK_EQ(id, got);
        es_api_release(l, (uint64_t)j, snap.round);
        got++;
    }
    if (got == n) {
        es_api_close(p);
        waitpid(pid, &status, 0);
        CHECK_EQ(status, 0);
    } else {
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == NOT_PERMITTED && error != 0);
    }
    es_api_free(p);
    es_api_free(l);
    fix_free(in);
    fix_free(out);
}

/* Every sample goes through a process between two rings, in order. No wait has a timeout that could save it. */
TEST(samples_go_through_a_process_between_two_rings)
{
    samples_go_through(0);
}

/* The same where the kernel, or a filter of system calls, has no futex_waitv(). */
TEST(samples_go_through_without_the_system_call)
{
    samples_go_through(ENOSYS);
    samples_go_through(EPERM);
}
