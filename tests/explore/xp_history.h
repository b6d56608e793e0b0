/* The stores to each word that matters, and which of them a thread may still see. */
#ifndef XP_HISTORY_H
#define XP_HISTORY_H

#include "xp_track.h"

/* Older stores than this many are not shown: what one more could do, two can. */
#define XP_DEEPEST 3

typedef struct xp_view {
    uint16_t at[XP_MAX_WORDS];  /* index of the oldest store to show, per word */
    uint32_t clock[XP_THREADS]; /* what of each thread happened before */
} xp_view;

typedef struct xp_kept {
    uint64_t value;
    int32_t before; /* the store that it replaced, or -1 */
    uint16_t index; /* of its word */
    xp_view released;
} xp_kept;

void xp_history_begin(void);
/* One more word is tracked: no store so far has released anything of it. */
void xp_history_grow(int word);

xp_view *xp_view_of(int thread);
void xp_view_join(xp_view *to, const xp_view *from);
/* A thread's own clock moves on with each release, so that what it does afterwards is not taken for released. */
void xp_view_advance(int thread);
/* From now on the thread is shown the last stores only. */
void xp_view_newest(int thread);

/* The first store to a word is what the stage held. */
const xp_kept *xp_history_last(int word);
/* The stores that a load of the thread may show, last one first: how many. */
int xp_history_shown(int thread, int word, const xp_kept *shown[XP_DEEPEST]);
/* The thread's load shows the store. */
void xp_history_see(int thread, int word, const xp_kept *s, int order);
/* The thread stores. replaced: the store that a locked operation read, else NULL. */
void xp_history_append(int thread, int word, uint64_t value, int order, const xp_kept *replaced);
void xp_history_fence(int thread, int order);

#endif
