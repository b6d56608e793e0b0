/* The scene of the stepped tests: two producers and two learners on a small ring, and the account of its samples. */
#ifndef ES_SCENE_H
#define ES_SCENE_H

#include "es_fixture.h"
#include "es_step.h"

#define SCENE_IDS 64

typedef struct es_scene {
    es_fix *f;
    es_ring *p, *q;      /* producers */
    es_ring *l, *m;      /* learners */
    int sent[SCENE_IDS]; /* enum es_sent */
    int got[SCENE_IDS];  /* deliveries */
    bool ended;
    int64_t rc; /* whatever the act leaves for the check */
} es_scene;

extern es_scene scene;

void scene_open(uint64_t batch_size, uint64_t num_batches, uint32_t flags);
void scene_close(void);
int scene_send(es_ring *r, uint64_t id);
/* Takes and releases until nothing comes: the last result. */
int64_t scene_drain(es_ring *l, uint32_t flags);
/* Reaps, closes, drains to ES_ENDED: every sample sent was delivered once, nothing else was. */
void scene_settle(es_ring *l);

#endif
