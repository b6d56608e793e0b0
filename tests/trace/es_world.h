/* The world of one kill: a ring, the processes on it, and the account of its samples.
 *
 * The tracer lives throughout. It has two attachments, a producer p and a learner l. The others are processes with
 * their own descriptor of the lock file: the tracee, victims, which die before the tracee runs, and the sleeper, which
 * is parked while the tracee runs.
 */
#ifndef ES_WORLD_H
#define ES_WORLD_H

#include <sys/types.h>

#include "es_account.h"
#include "es_everywhere.h"
#include "es_fixture.h"

#define WORLD_LEAVES 6
#define WORLD_STACK 8 /* samples per send, at most */
#define WORLD_PRODUCERS 4
#define WORLD_TAKES 4

/* Which process sends which ids: each range starts here. */
#define ID_BEFORE 1u    /* p, before the kill */
#define ID_VICTIM 32u   /* victims */
#define ID_TRACEE 64u   /* the tracee */
#define ID_SLEEPER 96u  /* the sleeper */
#define ID_AFTER 128u   /* p, after the kill */
#define ID_ABORTED 510u /* written into slots that are never committed */
#define WORLD_IDS 512u

typedef struct es_take_note {
    uint64_t batch, round;
    _Atomic uint32_t whole; /* all samples of the batch are read */
} es_take_note;

/* Memory that all processes of a world share, in addition to the ring. */
typedef struct es_side {
    _Atomic uint32_t phase;
    _Atomic int64_t rc;
    _Atomic uint8_t sent[WORLD_IDS];    /* enum es_sent */
    _Atomic uint8_t got[WORLD_IDS];     /* deliveries to the living */
    _Atomic uint8_t take_of[WORLD_IDS]; /* 1 + the index of the tracee's take that delivered it; 0: none */
    _Atomic uint32_t torn;
    _Atomic uint32_t sleeper_out, sleeper_may_leave;
    es_take_note takes[WORLD_TAKES]; /* the tracee's */
    _Atomic uint32_t num_takes;
} es_side;

typedef struct es_world es_world;
struct es_scenario;

struct es_world {
    const struct es_scenario *scenario;
    es_fix *f; /* shared; each process attaches by itself */
    es_geometry geo;
    es_side *side;
    es_locks *locks;            /* this process's */
    es_ring *p, *l;             /* the tracer's */
    es_ring *mine;              /* this child's */
    void *leaves[WORLD_LEAVES]; /* samples to send, stacked */
    uint64_t position;          /* a reservation; of weights: the latest version before the operation */
    uint64_t next_id;           /* that p sends */
    pid_t tracee, sleeper;
    uint32_t sleeper_role;
    bool slept;                 /* the tracee slept in a system call */
    bool released[WORLD_TAKES]; /* per take: the tracee released it before its death */
};

void world_open(es_world *w, const struct es_scenario *scenario);
/* Detaches p and l. No other process may be attached. */
void world_close(es_world *w);
/* After a failure: kills the sleeper and frees the attachments. */
void world_abandon(es_world *w);

/* In a child: opens its own locks and an attachment, which is registered unless role is 0. */
void world_enter(es_world *w, uint32_t role);
/* Runs body in a process that then dies. */
void world_victim(es_world *w, uint32_t role, void (*body)(es_world *w));

/* Puts n samples, ids from `first` on, into w->leaves. */
void world_fill(es_world *w, uint64_t first, uint64_t n);
/* p sends its next sample. Returns the core's result. */
int world_send(es_world *w);
void world_send_n(es_world *w, uint64_t n);
/* Takes a batch, enters its samples in the account and releases it. Returns their number, or a negative result. */
int64_t world_take(es_world *w, es_ring *r, uint32_t flags, uint64_t timeout_ns);
/* The tracee takes a batch and notes what it read. It keeps the lease. */
int64_t world_tracee_take(es_world *w, uint32_t flags, uint64_t timeout_ns);
int world_tracee_release(es_world *w);

/* Starts the sleeper, which sleeps while the tracee runs. Returns once it is parked. */
void world_sleeper(es_world *w, uint32_t role);
/* Whether there is what the sleeper waits for. Looks at the slot words, the batch words and the closed flag. */
bool world_sleeper_due(es_world *w);
/* Returns true once the sleeper's call has ended, or false once the sleeper is asleep. */
bool world_sleeper_settles(es_world *w);
/* Waits for the sleeper's end. Only the watchdog limits the wait. */
void world_sleeper_await(es_world *w);

/* For victims, and for a tracee in its prepare(). */
void world_mine_send(es_world *w, uint64_t first, uint64_t n); /* sends n samples, ids from `first` on */
uint64_t world_mine_reserve(es_world *w, uint64_t id);         /* claims a slot and writes into it */

uint64_t world_word(es_world *w, uint64_t index);
/* Lowers the tail by one, as if the last claimant had died before it advanced the tail. */
void world_lower_tail(es_world *w);

#endif
