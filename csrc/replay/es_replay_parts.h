/* What an es_replay is: for the files that have its calls. */
#ifndef ES_REPLAY_PARTS_H
#define ES_REPLAY_PARTS_H

#include "replay/es_drawn.h"
#include "replay/es_own.h"
#include "replay/es_rings.h"
#include "replay/es_tables.h"

struct es_replay {
    es_tables tables;
    es_rings rings;
    es_drawn *drawn; /* of each table */
    es_own own;
    bool version_by_hand;
};

#endif
