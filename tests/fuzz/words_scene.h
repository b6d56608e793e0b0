/* A ring, who is attached to it, and a scribbler that writes where it likes.
 *
 * The stepped core calls es_step() before each of its atomic operations, so the
 * scribbler, or another participant, may come in between any two of them, as the
 * input says. A sleep returns at once, and the clock moves instead.
 */
#ifndef WORDS_SCENE_H
#define WORDS_SCENE_H

#include "es_core.h"
#include "es_fixture.h"
#include "fuzz.h"

#define LEARNERS 2
#define PRODUCERS 3
#define PARTIES (LEARNERS + PRODUCERS)
#define LEAVES 3
#define MAX_KEPT 4 /* leases or reservations that a party has open */
#define MANY 8     /* samples in the largest bulk */

typedef struct party {
    es_ring *ring;
    bool busy; /* inside a call */
    int kept;
    uint64_t batch[MAX_KEPT], round[MAX_KEPT]; /* of a learner's leases */
    int64_t position[MAX_KEPT];                /* of a producer's reservations */
} party;

typedef struct scene {
    fuzz_in in;
    es_geometry geo;
    uint64_t leaf_sizes[LEAVES];
    es_fix *f;
    uint8_t *base;
    uint64_t size;
    es_locks *locks;
    party party[PARTIES]; /* learners first */
    uint8_t *fixed;       /* what nobody may write: header up to the hints, leaf table, schema */
    uint64_t forever;     /* 0, or the state of a scribbler that never rests */
    uint32_t period;      /* and the steps between two of its writes */
} scene;

extern scene *play;

scene *scene_open(const uint8_t *data, size_t size);
void scene_join(party *p);
/* Its process is killed: the kernel drops its lock byte, and that is all. */
void scene_die(party *p);
/* Checks that nothing was written beside the words and the slots, and no byte is held. */
void scene_close(void);

/* One write by the scribbler, drawn from the input. */
void scribble(fuzz_in *in);

/* --- calls and their steps --------------------------------------------------- */

/* What the input may put in between two steps, beside the scribbler: another party's call. */
extern void (*scene_interlude)(void);

/* Brackets a call into the core. Steps are counted anew after each interruption:
 * more than scene_bound() of them in peace are a hang. */
void call_begin(const char *name);
void call_end(void);
uint64_t scene_bound(void);

/* Longest call seen, in steps without an interruption, by name. */
void scene_print_longest(void);

/* The ring's words on stderr: what a failure was about. */
void scene_print_words(void);

#endif
