/* A checkpoint becomes a store.
 *
 * What a checkpoint has of records is the first part of a store. Whoever restores it formats a new store, of the same
 * kind or another, fills it here, and opens it. The records are looked at as those of any foreign store: they are opened
 * first, which fails if they contradict each other. The memory that has them is private, and changes.
 *
 * From es_restore_records() until es_restore_rows() returns 0 nobody can open the new store: its process may be killed. */
#ifndef ES_RESTORE_H
#define ES_RESTORE_H

#include "base/es_base.h"
#include "replay/es_replay_types.h"

/* Copies records into a store that was just formatted: all of them to where they were, if there is room for as many.
 * With less room the newest steps come, the items that refer to no others, and the newest of those.
 *
 * tables: for each table of the new store the one of the old store that its items come from, or -1; set to -1 if its
 * items are of another kind. ES_OK; what is wrong with the records, as es_recover_open() says it; ES_EGEOMETRY if the
 * steps have other leaves; -ENOMEM. */
int es_restore_records(void *base, uint64_t size, void *records, uint64_t records_size, int32_t *tables,
                       es_restored *restored, es_trouble *why);
/* Reads rows of the store from files, into slots from *next on: how many bytes it were, about `most`; 0 at the end.
 * -errno, or ES_EDAMAGED: the row of the step that arrived as number why->index. */
int64_t es_restore_rows(void *base, uint64_t size, int directory, uint64_t rows, uint64_t *next, uint64_t most,
                        es_trouble *why);

#endif
