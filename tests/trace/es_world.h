/* The world of one kill: a ring, the processes on it, and the account of its samples.
 *
 * The tracer lives throughout. It is a producer p and a learner l. All others are processes of their own, each with its
 * own descriptor of the lock file: the tracee; victims, which die before it; the sleeper, which is parked while the
 * tracee runs.
 */
#ifndef ES_WORLD_H
#define ES_WORLD_H

#include <sys/types.h>

#include "es_account.h"
#include "es_fixture.h"

#define WORLD_LEAVES 6
#define WORLD_STACK 8 /* samples of one send */
#define WORLD_PRODUCERS 4
#define WORLD_TAKES 4

/* Who sends which ids. */
#define ID_BEFORE 1u    /* p, before */
#define ID_VICTIM 32u   /* victims */
#define ID_TRACEE 64u   /* the tracee */
#define ID_SLEEPER 96u  /* the sleeper */
#define ID_AFTER 128u   /* p, afterwards */
#define ID_ABORTED 510u /* written into slots that are never committed */
#define WORLD_IDS 512u

enum phase { PHASE_BEFORE, PHASE_INSIDE, PHASE_OVER };

typedef struct es_take_note {
    uint64_t batch, round;
    _Atomic uint32_t whole; /* every sample of it was read */
} es_take_note;

/* Memory that all processes of a world share, beside the ring. */
typedef struct es_side {
    _Atomic uint32_t phase;
    _Atomic int64_t rc;
    _Atomic uint8_t sent[WORLD_IDS];    /* enum es_sent */
    _Atomic uint8_t got[WORLD_IDS];     /* deliveries to the living */
    _Atomic uint8_t take_of[WORLD_IDS]; /* 1 + the tracee's take that it was in */
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
    uint64_t position;          /* reserved */
    uint64_t next_id;           /* of p */
    pid_t tracee, sleeper;
    uint32_t sleeper_role;
    bool slept;                 /* the tracee, in a system call */
    bool released[WORLD_TAKES]; /* by the tracee, as of its death */
};

void world_open(es_world *w, const struct es_scenario *scenario);
/* Detaches p and l; nobody may be left. */
void world_close(es_world *w);
/* After a mishap: ends the sleeper, frees what is there. */
void world_abandon(es_world *w);

/* In a child: locks of its own and an attachment, registered when role is not 0. */
void world_enter(es_world *w, uint32_t role);
/* Runs body in a process that then dies. */
void world_victim(es_world *w, uint32_t role, void (*body)(es_world *w));

/* n samples from id first on into w->leaves. */
void world_fill(es_world *w, uint64_t first, uint64_t n);
/* p sends its next sample: the result. */
int world_send(es_world *w);
void world_send_n(es_world *w, uint64_t n);
/* Takes, enters the samples in the account, releases: how many, or a negative result. */
int64_t world_take(es_world *w, es_ring *r, uint32_t flags, uint64_t timeout_ns);
/* The tracee takes and notes what it read; the lease stays. */
int64_t world_tracee_take(es_world *w, uint32_t flags, uint64_t timeout_ns);
int world_tracee_release(es_world *w);

/* Somebody who sleeps while the tracee runs; returns once it is parked. */
void world_sleeper(es_world *w, uint32_t role);
/* Whether the sleeper has what it waits for, by the slot and batch words alone. */
bool world_sleeper_due(es_world *w);
/* Returns once it has come out (true), or has looked and gone to sleep again (false). */
bool world_sleeper_settles(es_world *w);
/* Waits for its end; the watchdog is the limit. */
void world_sleeper_await(es_world *w);

/* For victims and prepared tracees. Sends n samples from id first on; claims a slot and writes into it. */
void world_mine_send(es_world *w, uint64_t first, uint64_t n);
uint64_t world_mine_reserve(es_world *w, uint64_t id);

uint64_t world_word(es_world *w, uint64_t index);
/* As a claimant's death would have left it. */
void world_lower_tail(es_world *w);

#endif
