/* What workers send: steps, and new priorities. */
#ifndef ES_INBOX_H
#define ES_INBOX_H

#include "base/es_base.h"
#include "replay/es_source.h"
#include "replay/es_tables.h"

typedef struct es_inbox {
    es_source steps, updates;
    es_item_column *columns; /* of an explicit item */
    uint64_t refused;        /* steps, items and updates that nobody can have meant */
    es_ask ask;              /* of a learner, since the last turn */
} es_inbox;

/* Connects the ring that brings steps: its first leaf is an es_inbox_head with the tables' priorities, the others are
 * the store's. See es_source_open(). */
int es_inbox_open_steps(es_inbox *in, es_tables *m, es_ring *ring, void *segment, const uint8_t *uuid);
/* The ring that brings updates: its only leaf is an es_update_block. */
int es_inbox_open_updates(es_inbox *in, es_tables *m, es_ring *ring, void *segment, const uint8_t *uuid);
void es_inbox_close(es_inbox *in);

/* Stores at most that many steps: how many. *code: ES_OK if there may be more, ES_EMPTY, ES_ENDED; ES_REFUSED,
 * ES_NO_ROOM or ES_UNSYNCED when the next step has to wait, and why->table for ES_REFUSED. */
uint64_t es_inbox_store(es_inbox *in, es_tables *m, uint64_t most, int *code, es_trouble *why);
/* Makes the updates that are there, at most that many blocks: how many. Ends with one that asks for something. */
uint64_t es_inbox_update(es_inbox *in, es_tables *m, uint64_t most, int *code);

#endif
