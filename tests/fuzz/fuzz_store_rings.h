/* Rings for the store target: what a replay connects to, with whoever sends into them, and ways to damage them. */
#ifndef FUZZ_STORE_RINGS_H
#define FUZZ_STORE_RINGS_H

#include "fuzz.h"
#include "replay/es_replay.h"

#define FUZZ_KEYS 40 /* that a sender of updates knows */

typedef struct fuzz_ring {
    uint8_t *base; /* NULL: there is none */
    uint64_t size;
    es_locks *locks;
    es_ring *sender, *learner;
} fuzz_ring;

/* A writer that counts as it should, most of the time. */
typedef struct fuzz_writer {
    uint64_t number;
    uint32_t index, episode;
} fuzz_writer;

typedef struct fuzz_rings {
    es_replay *r;
    uint32_t num_tables;
    fuzz_writer writers[4];            /* by stream and environment */
    fuzz_ring steps, updates, batches; /* the replay learns from the first two, and sends into the third */
    uint32_t table;                    /* whose batches */
} fuzz_rings;

/* Makes rings for an open store, most of them such as it needs, and some of them damaged, and connects them. */
void fuzz_rings_open(fuzz_rings *rings, es_replay *r, const uint8_t *store, uint64_t size, fuzz_in *in);
/* Sends something, takes a turn, takes a batch, connects again, or has others write to a ring. keys: FUZZ_KEYS. */
void fuzz_rings_call(fuzz_rings *rings, fuzz_in *in, const uint64_t *keys);
/* After the replay was freed. */
void fuzz_rings_close(fuzz_rings *rings);

#endif
