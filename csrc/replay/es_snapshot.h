/* Snapshots of a store of columns: copies of its records, from which it can be opened when the records themselves are
 * lost. The rows stay where they are: see es_hold.h. */
#ifndef ES_SNAPSHOT_H
#define ES_SNAPSHOT_H

#include "base/es_base.h"
#include "replay/es_tables.h"

/* Copies the pages that differ, and holds the rows of all steps: how many bytes were copied. */
uint64_t es_snapshot_take(es_tables *m, uint8_t *to);
/* The snapshot that was taken is on the disk, and the one before is of no use any more. */
void es_snapshot_done(es_tables *m);
/* The store was opened, and this is its last snapshot: holds what it refers to. NULL: there is none any more. */
void es_snapshot_hold(es_tables *m, const uint8_t *snapshot);

#endif
