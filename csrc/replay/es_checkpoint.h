/* Checkpoints of a replay as Python sees them. cffi reads this file without its preprocessor lines.
 *
 * A checkpoint has the first part of a store, up to its rows; what was drawn for batches that were cut short; and the rows
 * in files of their own (es_chunk.h).
 */
#ifndef ES_CHECKPOINT_H
#define ES_CHECKPOINT_H

#include <stdint.h>

#include "replay/es_replay.h"

/* --- writing one ------------------------------------------------------------------- */

/* A checkpoint that is being written. One thread writes it, while others use the replay between its calls. */
typedef struct es_save es_save;

/* Begins one: writes the records, and what was drawn. NULL and *error otherwise: -errno, with -EBUSY if one is being
 * written; ES_ESELECTOR. */
es_save *es_checkpoint_begin(es_replay *r, const es_save_config *config, es_save_state *state, int *error);
/* Copies some rows, for es_checkpoint_write(): 0 when there are none left. */
int es_checkpoint_take(es_replay *r, es_save *save);
/* Writes them, while others use the replay. How many bytes of rows are done so far; or what is wrong: -errno, or
 * ES_EDAMAGED. */
int64_t es_checkpoint_write(es_save *save);
/* Ends it, once all rows are written, or before. ES_OK, or what is wrong. r: NULL if it was freed meanwhile. */
int es_checkpoint_end(es_replay *r, es_save *save);
/* Once it has ended, the files that steps are in: how many, and the number of each, ascending. */
uint64_t es_checkpoint_num_chunks(es_save *save);
uint64_t es_checkpoint_chunk(es_save *save, uint64_t i);
/* Completes a file that was written, and waits until it is on disk. ES_OK or -errno. */
int es_checkpoint_finish(es_save *save, uint64_t i, es_chunk_header *header);
void es_checkpoint_free(es_save *save);

/* --- restoring one ----------------------------------------------------------------- */

/* ES_OK, or what is wrong with records. es_replay_describe() reads them as it reads a store. */
int es_checkpoint_check(const void *records, uint64_t size);
/* Copies records into a store that was just formatted, and is not open. records: private memory, which changes. tables:
 * for each table of the new store the one of the old store that its items come from, or -1; set to -1 where they are of
 * another kind. With less room the newest steps come, and the items that refer to no others. ES_OK; what is wrong with
 * the records, as es_replay_open() says it; ES_EGEOMETRY if the steps have other leaves; -ENOMEM. */
int es_checkpoint_records(void *base, uint64_t size, void *records, uint64_t records_size, int32_t *tables,
                          es_restored *restored, es_trouble *why);
/* Reads rows of that store from the files of a directory, into slots from *next on: how many bytes it were, about
 * `most`; 0 at the end. -errno, or ES_EDAMAGED: the row of the step that arrived as number why->index. */
int64_t es_checkpoint_rows(void *base, uint64_t size, int32_t directory, uint64_t rows, uint64_t *next, uint64_t most,
                           es_trouble *why);
/* What was drawn, of the same tables, once the store is open. ES_OK, -ENOMEM, or ES_EDAMAGED. */
int es_checkpoint_drawn(es_replay *r, const uint8_t *from, uint64_t size);
/* The next step of each environment follows those that were stored. n: at least 1. ES_OK, -ENOMEM, or ES_EENVIRONMENT. */
int es_checkpoint_go_on(es_replay *r, uint64_t stream, const es_environment *environments, uint64_t n);

#endif
