/* The current execution, and what the files that run it share. */
#ifndef XP_SCHEDULE_H
#define XP_SCHEDULE_H

#include "xp.h"

extern struct xp_execution {
    const xp_scene *scene;
    const xp_budget *budget;
    int running;                   /* thread */
    int preemptions, stale, kills; /* what is left of the budget */
    uint64_t now_ns, steps;
    bool killed, tracing;
    int rounds_since_kill; /* how often all threads slept since the last kill */
    const char *violation;
} xp;

/* --- xp_choose.c ---------------------------------------------------------------- */

bool xp_at_random(void);
unsigned xp_random_below(unsigned n);
/* At random: whether to preempt the running thread here. */
bool xp_draws_switch(void);
/* Chooses one of 0 .. n-1: the next on the path if it is known, else `drawn`. */
int xp_choose(int n, int drawn);
/* At random: draws how often the n-th execution switches and reads old values. Forgets the path. */
void xp_draw_manners(uint64_t n);
void xp_forget_path(void);
/* The next choices are those of the path, from its start. */
void xp_replay_path(void);
/* Changes the path into that of the next execution, depth first. Returns whether there is one. */
bool xp_next_path(void);

/* --- xp_schedule.c ---------------------------------------------------------------- */

enum xp_state {
    XP_ABSENT,
    XP_READY,
    XP_PARKED,  /* waits for futex words */
    XP_BLOCKED, /* waits for a mutex */
    XP_DONE,
    XP_DEAD
};

void xp_start_threads(void);
/* The running thread cannot continue: another thread runs, or the stage if none can. */
void xp_give_way(void);
/* The thread that has waited longest runs. Two threads that nap in turn cannot starve a third. */
void xp_let_others(void);
/* The running thread waits for a mutex. */
void xp_wait_for_mutex(const void *mutex);
void xp_wake_blocked(const void *mutex);
/* The running thread is queued at a futex word, beside those at which it is queued already. */
void xp_queue(const void *word);
/* The queued thread sleeps, unless a wake-up has come since it queued. Returns whether it timed out. */
bool xp_park(void);
/* The running thread leaves its queues. Returns whether a wake-up has removed it from any. */
bool xp_unqueue(void);
/* Removes from this word's queue all threads, or one, whichever, and wakes them. Such a thread stays in the queues of
 * other words until it runs again. Returns whether there is any. */
void xp_wake_all(const void *word);
bool xp_wake_any(const void *word);
bool xp_any(enum xp_state state);
/* All parked threads time out. */
void xp_time_out_all(void);

#endif
