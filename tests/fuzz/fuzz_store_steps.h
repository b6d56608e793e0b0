/* Steps for the store target, and calls that store them. */
#ifndef FUZZ_STORE_STEPS_H
#define FUZZ_STORE_STEPS_H

#include "fuzz.h"
#include "replay/es_replay.h"

#define FUZZ_LEAVES 64

/* Arrays of exactly n steps, so that the sanitizer sees an access past them: how many leaves there are. */
uint32_t fuzz_store_steps_new(es_replay *r, uint64_t n, void **leaves);
void fuzz_store_steps_free(void **leaves, uint32_t num_leaves);
/* A step of each of n environments, some of which are out of range, or come twice. Returns why not all are stored. */
int fuzz_store_steps_add_vector(es_replay *r, fuzz_in *in, uint64_t n);

#endif
