/* The words that are explored, by number. */
#ifndef XP_TRACK_H
#define XP_TRACK_H

#include <string.h>

#include "xp.h"

#define XP_MAX_WORDS 128

typedef struct xp_word {
    void *address;
    unsigned size;
    bool lock_byte;
    int holder;      /* of a lock byte: the thread that holds it; 0: none */
    bool only_grows; /* tail or head: on a ring that nobody scribbled on, nobody lowers it */
} xp_word;

extern struct xp_tracked {
    xp_word words[XP_MAX_WORDS];
    int count;
} xp_tracked;

/* Words keep their numbers from one execution of a scene to the next. */
void xp_track_begin(const xp_scene *scene);
void xp_track_end(void);
/* The number of a word; -1: it is not explored. */
int xp_track(const void *p, unsigned size);

static inline uint64_t xp_peek(const void *p, unsigned size)
{
    uint64_t value = 0;
    memcpy(&value, p, size); /* assumes little-endian */
    return value;
}

static inline void xp_poke(void *p, unsigned size, uint64_t value)
{
    memcpy(p, &value, size);
}

#endif
