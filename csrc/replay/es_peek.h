/* A look at the items of a store that another process may have open. */
#ifndef ES_PEEK_H
#define ES_PEEK_H

#include "base/es_base.h"
#include "replay/es_replay_types.h"

/* See es_replay_peek(). */
int es_peek(const void *base, uint64_t size, uint32_t table, double *priorities, uint64_t room, es_peeked *seen);

#endif
