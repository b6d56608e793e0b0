/* A ring, the parties attached to it, and a scribbler that writes wrong values into its words.
 *
 * The stepped core calls es_step() before each of its atomic operations. There the
 * input may let the scribbler write or another party make a call. A sleep returns at
 * once and advances the clock instead.
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
#define MAX_KEPT 4 /* open leases or reservations of a party */
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
    uint8_t *fixed;       /* a copy of what must not change: header up to the hints, leaf table, schema */
    uint64_t forever;     /* random state of a scribbler that never stops; 0: it stops */
    uint32_t period;      /* steps between two writes of a scribbler that never stops */
} scene;

extern scene *play;

scene *scene_open(const uint8_t *data, size_t size);
void scene_join(party *p);
/* Kills the party's process: its lock byte is dropped, as the kernel would do. Nothing else changes. */
void scene_die(party *p);
/* Checks that only words and slots were written and that no lock byte is held. Frees the scene. */
void scene_close(void);

/* One write by the scribbler, drawn from the input. */
void scribble(fuzz_in *in);

/* --- calls and their steps --------------------------------------------------- */

/* Makes another party's call, which the input may put between two steps. */
extern void (*scene_interlude)(void);

/* Mark the start and the end of a call into the core. The count of steps restarts after each
 * interruption. More than scene_bound() steps without an interruption are a hang. */
void call_begin(const char *name);
void call_end(void);
uint64_t scene_bound(void);

/* Prints the longest calls by name, in steps. */
void scene_print_longest(void);

/* Prints the ring's words on stderr, to explain a failure. */
void scene_print_words(void);

#endif
