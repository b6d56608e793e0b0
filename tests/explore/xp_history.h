/* The stores to each explored word, and which of them a thread may still see. */
#ifndef XP_HISTORY_H
#define XP_HISTORY_H

#include "xp_track.h"

/* A load shows at most this many stores, the newest ones. Two old values are enough: a third would show no new
 * behaviour. */
#define XP_DEEPEST 3

typedef struct xp_view {
    uint16_t at[XP_MAX_WORDS];  /* per word: index of the oldest store that may be shown */
    uint32_t clock[XP_THREADS]; /* per thread: how much of what it did happened before */
} xp_view;

typedef struct xp_kept {
    uint64_t value;
    int32_t before; /* the store that it replaced, or -1 */
    uint16_t index; /* among the stores to its word */
    xp_view released;
} xp_kept;

void xp_history_begin(void);
/* Adds a tracked word. No store so far has released a view of it. */
void xp_history_grow(int word);

xp_view *xp_view_of(int thread);
void xp_view_join(xp_view *to, const xp_view *from);
/* Advances the thread's own clock. Every release does this, so that later actions do not count as released. */
void xp_view_advance(int thread);
/* From now on the thread sees none of the older stores. */
void xp_view_newest(int thread);

/* The last store to the word. The first store to a word is the value that the stage saved. */
const xp_kept *xp_history_last(int word);
/* Sets `shown` to the stores that a load of the thread may show, newest first, and returns how many they are. */
int xp_history_shown(int thread, int word, const xp_kept *shown[XP_DEEPEST]);
/* The thread loads the value of this store. */
void xp_history_see(int thread, int word, const xp_kept *s, int order);
/* The thread stores. replaced: the store that a locked operation read, else NULL. */
void xp_history_append(int thread, int word, uint64_t value, int order, const xp_kept *replaced);
void xp_history_fence(int thread, int order);

#endif
