/* Explores how the threads of a small scene may interleave, and which values weak
 * memory may show them.
 *
 * The scene's threads are coroutines of one real thread. Before each atomic
 * operation on an explored word the scheduler chooses the thread that runs next. At
 * a load it may also choose among the values that the memory model allows. A
 * sequence of choices is one execution. Executions are explored depth first, within
 * a budget of preemptions, stale reads and kills, or at random.
 */
#ifndef XP_H
#define XP_H

#include "es_fixture.h"

#define XP_THREADS 6 /* thread 0 is the stage: it sets up the scene and settles it */
#define XP_IDS 32

struct hook_site;

enum xp_memory {
    XP_SC,  /* every load sees the last store */
    XP_TSO, /* x86: stores may wait, in order, in a buffer per thread; locked operations and fences empty it */
    XP_C11  /* a load sees any store that the happens-before relation allows */
};

/* A ring that a scene plays on. A ring is opened beforehand even for a thread that attaches later. */
typedef struct xp_stage {
    es_fix *f;
    es_ring *of[XP_THREADS];     /* by thread */
    es_ring *producer, *learner; /* the stage's own */
} xp_stage;

typedef struct xp_scene {
    const char *name;
    uint64_t batch_size, num_batches; /* of each ring */
    uint32_t flags;
    void (*setup)(void); /* runs once, before the threads start */
    void (*threads[XP_THREADS - 1])(void);
    unsigned mortal;    /* bit t: thread t + 1 may be killed */
    unsigned together;  /* bit t: thread t + 1 is in the same process as thread t */
    bool private_words; /* also explore the words of attachments: needed when threads share one */
    /* Functions, between spaces: --orders tries this scene for their memory orders only. NULL: for all. */
    const char *orders_of;
} xp_scene;

typedef struct xp_budget {
    enum xp_memory memory;
    int preemptions, stale, kills;
    uint64_t executions; /* at most */
    uint64_t seed;       /* 0: depth first */
    bool trace;          /* print the execution that a violation was found in */
} xp_budget;

typedef struct xp_outcome {
    const char *violation; /* NULL if there was none */
    uint64_t executions, steps, longest;
    bool complete; /* depth first only: every execution within the budget was explored */
} xp_outcome;

/* Runs until a violation, until no execution is left, or until the limit. */
xp_outcome xp_explore(const xp_scene *scene, const xp_budget *budget);

/* --- for scenes ------------------------------------------------------------ */

/* Each ends with a scene without a name. */
extern const xp_scene xp_one_ring[], xp_remote_learner[], xp_two_rings[], xp_weights[];
/* All scenes, those with one ring first. NULL: no more. */
const xp_scene *xp_scene_at(int n);
int xp_count_scenes(void);

/* A memory order that can be weakened alone without any scene noticing, and why. doubled: the weaker order is caught
 * if all spare orders are weakened as well. */
typedef struct xp_known {
    const char *name;
    bool doubled;
    const char *why;
} xp_known;
extern const xp_known xp_known_orders[];

/* Weakens every memory order, one at a time, and explores. Returns whether each weaker order was caught or is in
 * xp_known_orders. */
bool xp_try_orders(const char *part);

/* The ring of a scene, and the second one of a scene with two. Without it, f is NULL. */
extern xp_stage xp_theatre, xp_annex;

/* From here on the running thread plays in the annex, or back in the theatre. So does setup, which begins and ends in
 * the theatre. */
void xp_go_to(xp_stage *stage);
xp_stage *xp_here(void);

/* To call in setup. */
enum xp_role { XP_NOBODY, XP_PRODUCER, XP_LEARNER, XP_SHARES, XP_COMES_LATER, XP_BRIDGE, XP_LEARNS };
/* What threads 1 to 4 are. */
void xp_cast(enum xp_role first, enum xp_role second, enum xp_role third, enum xp_role fourth);
void xp_claim(int t);       /* thread t has claimed a slot and written a sample */
void xp_producer(int t);    /* thread t is a producer */
void xp_learner(int t);     /* thread t is a learner */
void xp_shares(int t);      /* thread t shares the attachment of thread t - 1 */
void xp_comes_later(int t); /* thread t attaches during the scene */
/* The stage's own producer sends n samples; its learner takes n batches. */
void xp_fill(int n);
void xp_empty(int n);
/* The stage's own learner does not count: the threads' learners are the only ones. */
void xp_without_the_stage(void);

/* Timeouts: XP_LONG waits a few reap intervals, XP_NOW does not wait. */
#define XP_LONG UINT64_MAX
#define XP_NOW 0

/* Each of these calls the core, updates the account and returns the core's result. */
int xp_send(uint64_t timeout_ns);
int64_t xp_send_many(int n, uint64_t timeout_ns);
int xp_reserve(bool committing, uint64_t timeout_ns);
/* Commits what xp_claim() has claimed. */
int xp_commit(void);
/* Takes, reads and releases a batch. */
int64_t xp_take(uint32_t flags, uint64_t timeout_ns);
/* Takes batches as a loop over them does: unless the ring is shared it refers to the last one while it waits. */
void xp_loop(int batches);
/* Takes until the stream has ended, as es_api.h defines the end. Returns ES_ENDED, or the result that stopped it. */
int64_t xp_take_to_the_end(uint64_t timeout_ns);
int64_t xp_take_and_give_back(uint32_t flags, uint64_t timeout_ns);
/* Waits for one of n causes, or until xp_bell is no longer seen, as es_api_wait_any(). It must tell the truth: see
 * xp_play.c. xp_bell is left out unless the scene watches it. */
enum xp_bell { XP_NO_BELL, XP_BELL };
int xp_wait_any(const es_watch *watches, uint32_t n, enum xp_bell bell, uint64_t timeout_ns);
/* A word that a thread may watch. 0 at the start. */
extern uint32_t xp_bell;
int xp_attach(uint32_t role);
void xp_leave(void);
/* Whether the running thread's attachment is detached. Any thread that shares it may have done so. */
bool xp_has_left(void);
void xp_sweep(void);

/* To call in setup. */
void xp_claim(int t);        /* thread t has claimed a slot and written a sample */
void xp_bridge(int t);       /* thread t is a bridge */
void xp_client(int samples); /* there is one client, with this many samples: it connects to each bridge that serves */
void xp_other_client(int t); /* thread t is a bridge and has another client: xp_let_go() disconnects it */
void xp_let_go(void);
/* The client connects to this bridge and sends the samples that the ring does not have, at most `most` per call. */
enum xp_parting { XP_LEAVES_CLIENT, XP_LEAVES_RING };
void xp_serve(int most, uint64_t timeout_ns, enum xp_parting parting);

/* Thread t is a bridge that takes batches for a learner on another host. To call in setup. */
void xp_learns(int t);
/* The learner gets so many batches from this bridge, one after the other. */
void xp_learner_gets(int batches);
/* It gets one and is not done with it before the scene ends. */
void xp_learner_keeps(void);
/* The bridge takes two, calls one of them back, which the learner has not begun, and gives it back to the ring. */
void xp_learner_shares(void);

/* Sweeps. Whether thread t was dead, and its entry is free now. */
bool xp_sweep_finds(int t);

/* --- xp_weights.c: of scenes with ES_FLAG_WEIGHTS ------------------------------- */

/* A version's number, or the core's result. */
int64_t xp_publish(void);
/* Up to the store of latest. The slot is the one with the oldest version of three. */
void xp_publish_untold(void);
/* Whether another thread has done that: it happens before. */
bool xp_takes_over(void);
int64_t xp_copy(void);
/* Leases the latest version and reads it. */
enum xp_end { XP_RELEASES, XP_KEEPS };
int64_t xp_lease_version(enum xp_end end);
int xp_wait_version(uint64_t number);
/* Whether thread t sleeps though the version that it waits for is there, or will never be. */
bool xp_oversleeps_version(int t);
/* To call at the end, after a reap. */
void xp_settle_versions(void);

/* Ends the execution. Only its first violation is kept. */
void xp_violation(const char *what);
/* A step without an atomic operation: other threads may run here. */
void xp_yield(void);
/* The number of this thread. 0: the stage itself. */
int xp_me(void);

/* --- xp_stage.c: the ring that a scene plays on ------------------------------ */

/* Sets up a scene and saves its whole state. */
void xp_stage_set(const xp_scene *scene);
/* Restores the saved state. */
void xp_stage_restore(void);
void xp_stage_clear(void);
/* Tells the memory model which thread holds which lock byte. */
void xp_stage_cast(const xp_scene *scene);
/* To call when all threads sleep and none has died: no thread may sleep while there is anything for it. */
void xp_stage_nobody_oversleeps(void);
void xp_stage_reap(void);
/* Reaps, closes and drains the ring. The account must balance. */
void xp_stage_settle(void);

/* --- xp_choose.c, xp_schedule.c and xp_wait.c, for the other files --------------- */

/* Chooses which of n values a load shows. Under TSO: whether a store waits. 0 is the usual
 * choice. Any other uses up one of the budget's stale reads. */
int xp_choose_stale(int n);
int xp_running(void);
/* A point at which other threads may run. */
void xp_step(const struct hook_site *site, const void *word);
/* Prints details of the current step, if the execution is traced. */
void xp_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool xp_parked_on(int thread, const void *word);
bool xp_parked(int thread);
bool xp_dead(int thread);
/* Advances the clock. */
void xp_pass(uint64_t ns);

/* --- xp_memory.c --------------------------------------------------------------- */

void xp_memory_begin(const xp_scene *scene, enum xp_memory memory);
void xp_memory_end(void);
/* The thread holds the lock byte of this attachment. */
void xp_memory_hold(int thread, const es_ring *r);
/* From now on the thread sees all stores that other threads have done so far. */
void xp_memory_join_all(int thread);
/* Ends the threads of a process: their stores become visible to all, and their lock bytes become free. */
void xp_memory_death(unsigned threads);
void xp_memory_acquire(int thread, const void *mutex);
void xp_memory_release(int thread, const void *mutex);
/* The number of stores in the thread's buffer. */
int xp_memory_pending(int thread);
void xp_memory_flush_one(int thread);
uint64_t xp_memory_latest(const void *word, unsigned size);

/* --- xp_share.c ------------------------------------------------------------------- */

/* Zero-filled memory, shared with processes that are forked later. */
void *xp_shared_memory(size_t size);
/* Does pieces 0 .. pieces-1 on all processors. Returns false if one of the processes failed. */
bool xp_share_out(int pieces, void (*work)(int piece, void *arg), void *arg);

/* --- xp_track.c and xp_data.c ---------------------------------------------------- */

const char *xp_word_name(const void *word);
void xp_data_begin(enum xp_memory memory);
/* The running thread writes, or reads, the bytes of the slot at this index. */
void xp_data_write(const es_map *map, uint64_t index);
void xp_data_read(const es_map *map, uint64_t index);

/* Prints why the explorer itself cannot continue, and aborts. */
void xp_die(const char *why) __attribute__((noreturn));

#endif
