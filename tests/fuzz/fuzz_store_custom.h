/* Custom selectors for the store target. They do what an input says: choose a member, choose none, or fail. */
#ifndef FUZZ_STORE_CUSTOM_H
#define FUZZ_STORE_CUSTOM_H

#include "fuzz.h"
#include "replay/es_replay.h"

#define FUZZ_CHOOSERS 16

typedef struct fuzz_chooser {
    fuzz_in *in; /* NULL: it chooses the first member, and never fails */
    uint64_t keys[64];
    uint32_t count, lost; /* lost: members for which there is no room */
} fuzz_chooser;

/* Fills FUZZ_CHOOSERS of both. */
void fuzz_make_choosers(fuzz_chooser *choosers, es_custom_selector *calls, fuzz_in *in);

#endif
