/* Takes and releases several batches in one call: what a call costs besides its batches is paid once.
 *
 * For the only learner of a ring, as a replay is of those that bring its steps. Nobody tells it that it shares the ring,
 * and that it has to keep no batch while it waits: see es_lease.h.
 */
#ifndef ES_GROUP_H
#define ES_GROUP_H

#include "ring/es_ring.h"

/* Most batches that one call takes. */
#define ES_GROUP_MOST 32

/* A batch that was taken. */
typedef struct es_group_lease {
    uint64_t batch, round, length; /* as in es_snapshot */
} es_group_lease;

/* Leases the batches that are there, at most `most` of them, without a wait: how many; or what es_api_take() returns
 * where it leases none. -EINVAL for most = 0 and for more than ES_GROUP_MOST. *sweep_due: as in es_snapshot; false
 * where the call is refused. */
int64_t es_group_take(es_ring *r, uint32_t flags, uint32_t most, es_group_lease *leases, bool *sweep_due);
/* Releases them, and then wakes one producer, and learners as es_api_release() does. ES_ESTALE when some are not leased
 * here in that round. */
int es_group_release(es_ring *r, const es_group_lease *leases, uint32_t n);

#endif
