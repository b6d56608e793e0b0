/* Rows that stay as they are although their steps have gone: those of steps that a snapshot of the records has.
 *
 * A snapshot on a disk is of use as long as the rows that it refers to are what they were. So a row that it holds is not
 * written to before a later snapshot is on the disk, too. Meanwhile new steps go to spare rows. While a snapshot is being
 * made, the one before still counts: rows of both are held. All of this is derived, in private memory. */
#ifndef ES_HOLD_H
#define ES_HOLD_H

#include "base/es_base.h"
#include "replay/es_rank.h"

typedef struct es_hold {
    uint64_t limit;
    es_rank *taken;        /* rows that are in use or held; NULL: no row is ever held */
    uint64_t *held, *next; /* bitmaps: held for the last snapshot; for the one that is being made */
    bool some;             /* whether any row may be held */
} es_hold;

/* limit: how many rows there are. ES_OK or -ENOMEM. */
int es_hold_init(es_hold *h, uint64_t limit);
void es_hold_free(es_hold *h);

/* A row comes into use, or is free. */
void es_hold_enter(es_hold *h, uint32_t row);
void es_hold_leave(es_hold *h, uint32_t row);
/* How many rows a step can be written to. */
static inline uint64_t es_hold_room(const es_hold *h)
{
    return h->limit - es_rank_count(h->taken);
}

/* Holds a row that the last snapshot has: for whoever opens the store. */
void es_hold_add(es_hold *h, uint32_t row);
/* A snapshot is being made: all rows in use are held for it. living: those rows. */
void es_hold_begin(es_hold *h, const es_rank *living);
/* It is on the disk: what was held for the one before alone is free. Where that never comes, both stay. */
void es_hold_end(es_hold *h, const es_rank *living);
/* No snapshot is of use any more. */
void es_hold_drop(es_hold *h, const es_rank *living);

#endif
