/* What an es_replay is: for the files that have its calls. */
#ifndef ES_REPLAY_PARTS_H
#define ES_REPLAY_PARTS_H

#include "replay/es_drawn.h"
#include "replay/es_inbox.h"
#include "replay/es_outbox.h"
#include "replay/es_tables.h"

struct es_replay {
    es_tables tables;
    es_inbox inbox;
    es_outbox outboxes[ES_MAX_OUTBOXES];
    uint32_t num_outboxes;
    es_drawn *drawn;   /* of each table */
    es_step_head head; /* of the next step that es_replay_add() stores */
};

#endif
