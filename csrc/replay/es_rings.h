/* The rings of a replay: those that bring steps and updates, and those that take batches to learners. */
#ifndef ES_RINGS_H
#define ES_RINGS_H

#include "replay/es_inbox.h"
#include "replay/es_outbox.h"
#include "replay/es_tables.h"

typedef struct es_rings {
    es_inbox inbox;
    es_outbox outboxes[ES_MAX_OUTBOXES];
    uint32_t num_outboxes;
} es_rings;

/* The calls of es_replay.h with these names. */
int es_rings_connect_batches(es_rings *g, es_table *table, es_ring *ring, void *segment, const uint8_t *uuid,
                             uint32_t rank, uint32_t world_size);
void es_rings_disconnect(es_rings *g);
uint64_t es_rings_turn(es_rings *g, es_tables *m, uint64_t most, es_turn *turn);

#endif
