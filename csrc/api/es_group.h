/* Several batches in one call, for C: what a call costs besides its batches is paid once. */
#ifndef ES_GROUP_H
#define ES_GROUP_H

#include "ring/es_ring.h"

/* Most batches that one call takes. */
#define ES_GROUP_MOST 32

/* A batch that was taken. */
typedef struct es_group_lease {
    uint64_t batch, round, length; /* as in es_snapshot; but length 0: all of it is sealed */
} es_group_lease;

/* Leases those that are there, at most that many, without a wait: how many; or what es_api_take() returns where it
 * leases none. -EINVAL for none and for more than ES_GROUP_MOST. *sweep_due: as in es_snapshot. */
int64_t es_group_take(es_ring *r, uint32_t flags, uint32_t most, es_group_lease *leases, bool *sweep_due);
/* Releases them, and then wakes one producer. ES_ESTALE when some are not leased here in that round. */
int es_group_release(es_ring *r, const es_group_lease *leases, uint32_t n);

#endif
