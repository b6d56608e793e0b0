/* The execution under way, and what the files that make it share. */
#ifndef XP_SCHEDULE_H
#define XP_SCHEDULE_H

#include "xp.h"

extern struct xp_execution {
    const xp_scene *scene;
    const xp_budget *budget;
    int running;                   /* thread */
    int preemptions, stale, kills; /* left */
    uint64_t now_ns, steps;
    bool killed, tracing;
    int rounds_since_kill; /* in which everybody slept */
    const char *violation;
} xp;

/* --- xp_choose.c ---------------------------------------------------------------- */

bool xp_at_random(void);
unsigned xp_random_below(unsigned n);
/* At random: whether the running thread is to be preempted here. */
bool xp_draws_switch(void);
/* 0 .. n-1: depth first the next on the path, else what the caller drew. */
int xp_choose(int n, int drawn);
/* At random: how often the n-th execution switches and reads old values. Forgets the path. */
void xp_draw_manners(uint64_t n);
void xp_forget_path(void);
/* The choices to come are those of the path, from its first. */
void xp_replay_path(void);
/* Turns the path into that of the next execution, depth first: whether there is one. */
bool xp_next_path(void);

/* --- xp_schedule.c ---------------------------------------------------------------- */

enum xp_state {
    XP_ABSENT,
    XP_READY,
    XP_PARKED,  /* waits for a futex word */
    XP_BLOCKED, /* waits for a mutex */
    XP_DONE,
    XP_DEAD
};

void xp_start_threads(void);
/* The running thread, or the stage, cannot go on: somebody else does, or the stage. */
void xp_give_way(void);
/* Whoever has waited longest goes on, so that two who nap in turns cannot keep a third away. */
void xp_let_others(void);
/* The running thread waits. Returns whether it waited in vain. */
bool xp_wait_for(enum xp_state state, const void *what);
void xp_wake(enum xp_state state, const void *what);
bool xp_any(enum xp_state state);
/* The waiting of all who are parked is over. */
void xp_time_out_all(void);

#endif
