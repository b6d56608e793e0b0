/* Explores how the threads of a small scene may interleave, and what weak memory
 * may show them.
 *
 * The scene's threads are coroutines of one real thread. Before each atomic
 * operation on a word that matters the scheduler chooses who goes on; at a load it
 * may also choose which of the values to show that the memory model allows. A
 * sequence of choices is one execution. They are taken one after the other, depth
 * first, as far as the budget of preemptions, stale reads and kills goes; or at random.
 */
#ifndef XP_H
#define XP_H

#include "es_fixture.h"

#define XP_THREADS 6 /* thread 0 sets the scene and settles it */
#define XP_IDS 32

struct hook_site;

enum xp_memory {
    XP_SC,  /* every load sees the last store */
    XP_TSO, /* x86: a store may wait in its thread's buffer, in order; locked operations and fences empty it */
    XP_C11  /* a load sees any store that nothing which happened before hides from it */
};

/* The ring that a scene plays on. Attachments that no thread has made yet are opened beforehand. */
typedef struct xp_stage {
    es_fix *f;
    es_ring *of[XP_THREADS];     /* by thread */
    es_ring *producer, *learner; /* the stage's own */
} xp_stage;

typedef struct xp_scene {
    const char *name;
    uint64_t batch_size, num_batches;
    uint32_t flags;
    void (*setup)(void); /* runs once, by itself */
    void (*threads[XP_THREADS - 1])(void);
    unsigned mortal;    /* bit t: thread t + 1 may be killed */
    unsigned together;  /* bit t: thread t + 1 is in the same process as thread t */
    bool private_words; /* explore the words of attachments, too: for threads that share one */
} xp_scene;

typedef struct xp_budget {
    enum xp_memory memory;
    int preemptions, stale, kills;
    uint64_t executions; /* at most */
    uint64_t seed;       /* 0: depth first */
    bool trace;          /* print the execution that a violation was found in */
} xp_budget;

typedef struct xp_outcome {
    const char *violation; /* NULL, or what was found */
    uint64_t executions, steps, longest;
    bool complete; /* depth first, and nothing within the budget is left */
} xp_outcome;

/* Runs until a violation, the end or the limit. */
xp_outcome xp_explore(const xp_scene *scene, const xp_budget *budget);

/* --- for scenes ------------------------------------------------------------ */

extern const xp_scene xp_scenes[];
int xp_count_scenes(void);

/* A weaker order that no scene catches by itself, and why. doubled: caught once all spare ones are weakened, too. */
typedef struct xp_known {
    const char *name;
    bool doubled;
    const char *why;
} xp_known;
extern const xp_known xp_known_orders[];

/* Weakens every memory order, one at a time, and explores: whether each was caught, or is
 * in the list of those that cannot be. */
bool xp_try_orders(const char *part);

extern xp_stage xp_theatre;

/* In setup: thread t is a producer, or a learner; of the same process as thread t - 1; or has yet to attach. */
void xp_producer(int t);
void xp_learner(int t);
void xp_shares(int t);
void xp_comes_later(int t);
/* The stage's own producer sends n samples; its learner takes n batches. */
void xp_fill(int n);
void xp_empty(int n);

/* Timeouts: a few reap intervals, and none. */
#define XP_LONG UINT64_MAX
#define XP_NOW 0

/* Each returns what the core returned, and keeps the account. */
int xp_send(uint64_t timeout_ns);
int64_t xp_send_many(int n, uint64_t timeout_ns);
int xp_reserve(bool commit, uint64_t timeout_ns);
/* Takes, reads and releases a batch. */
int64_t xp_take(uint32_t flags, uint64_t timeout_ns);
/* Takes until the stream has ended, as es_api.h says when that is: ES_ENDED, or what came instead. */
int64_t xp_take_to_the_end(uint64_t timeout_ns);
int64_t xp_take_and_give_back(uint32_t flags, uint64_t timeout_ns);
int xp_attach(uint32_t role);
void xp_leave(void);
/* Whether the running thread's attachment has been left, by whichever thread. */
bool xp_has_left(void);
void xp_sweep(void);

/* In setup: thread t is a bridge; there is a client, with so many samples, that comes to whichever bridge serves. */
void xp_bridge(int t);
void xp_client(int samples);
/* Thread t, a bridge, has another client as well, which it lets go. */
void xp_other_client(int t);
void xp_let_go(void);
/* The client comes to this bridge, and sends what the ring does not have, at most so many at once. */
enum xp_parting { XP_LEAVES_CLIENT, XP_LEAVES_RING };
void xp_serve(int most, uint64_t timeout_ns, enum xp_parting parting);

/* The first violation of an execution is kept; the execution ends. */
void xp_violation(const char *what);
/* Lets others in. */
void xp_yield(void);
/* Which thread this is; 0: the stage itself. */
int xp_me(void);

/* --- xp_stage.c: the ring that a scene plays on ------------------------------ */

/* Sets a scene and remembers everything. */
void xp_stage_set(const xp_scene *scene);
/* As it was remembered. */
void xp_stage_restore(void);
void xp_stage_clear(void);
/* Says which threads hold which lock bytes. */
void xp_stage_cast(const xp_scene *scene);
/* Everybody sleeps, and nobody died: nothing may be there for any of them. */
void xp_stage_nobody_oversleeps(void);
void xp_stage_reap(void);
/* Reaps, closes, drains: the account must balance. */
void xp_stage_settle(void);

/* --- xp_choose.c, xp_schedule.c and xp_wait.c, for the others ------------------- */

/* Which of n values a load shows, or, TSO, whether a store waits: 0 is the usual, all
 * others are taken from the budget of stale reads. */
int xp_choose_stale(int n);
int xp_running(void);
/* A point at which others may run. */
void xp_step(const struct hook_site *site, const void *word);
/* Prints about the step under way, when an execution is traced. */
void xp_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool xp_parked_on(int thread, const void *word);
bool xp_dead(int thread);
/* Time passes. */
void xp_pass(uint64_t ns);

/* --- xp_memory.c --------------------------------------------------------------- */

void xp_memory_begin(const xp_scene *scene, enum xp_memory memory);
void xp_memory_end(void);
/* The thread is the one that holds the lock byte of this attachment. */
void xp_memory_hold(int thread, const es_ring *r);
/* The thread sees everything that every other has done. */
void xp_memory_join_all(int thread);
/* Ends the threads of a process: what they stored is there for all to see, their lock bytes are free. */
void xp_memory_death(unsigned threads);
void xp_memory_acquire(int thread, const void *mutex);
void xp_memory_release(int thread, const void *mutex);
/* Stores in the thread's buffer. */
int xp_memory_pending(int thread);
void xp_memory_flush_one(int thread);
uint64_t xp_memory_latest(const void *word, unsigned size);

/* --- xp_share.c ------------------------------------------------------------------- */

/* Zero-filled memory that the processes begun from here on share. */
void *xp_shared_memory(size_t size);
/* Does pieces 0 .. pieces-1, on all processors: false when a process that was at it failed. */
bool xp_share_out(int pieces, void (*work)(int piece, void *arg), void *arg);

/* --- xp_track.c and xp_data.c ---------------------------------------------------- */

const char *xp_word_name(const void *word);
void xp_data_begin(enum xp_memory memory);
/* A sample's bytes at a slot's index are written, or read, by the running thread. */
void xp_data_write(uint64_t index);
void xp_data_read(uint64_t index);

/* Prints and aborts: the explorer itself cannot go on. */
void xp_die(const char *why) __attribute__((noreturn));

#endif
