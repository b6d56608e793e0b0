/* A checkpoint that is being written while its replay goes on.
 *
 * When it begins, the records are written to a file; that is all that a replay waits for. A row stays what it is until
 * its slot is used again. So the rows are written afterwards, some at a time, those of the oldest steps first. Each slot
 * whose row is still to be written has a bit. Whoever stores a step in such a slot writes the old row first.
 *
 * es_save_begin(), es_save_take(), es_save_before() and es_save_end() are called by whoever uses the store, and
 * es_save_write() by the thread that writes the checkpoint, while others use the store. Nothing here changes the store,
 * and a disk that fails ends the checkpoint, not the replay. */
#ifndef ES_SAVE_H
#define ES_SAVE_H

#include "base/es_base.h"
#include "replay/es_chunk.h"
#include "replay/es_tables.h"

typedef struct es_save es_save;

/* Writes the records, and notes which rows are to be written. NULL and *code otherwise: -errno. */
es_save *es_save_begin(const es_tables *m, const es_save_config *config, es_save_state *state, int *code);
/* A step is about to be stored in that slot. */
void es_save_before(es_save *s, const es_store *store, uint32_t slot);
/* Copies some of the rows that are to be written, for es_save_write(). False: there are none. */
bool es_save_take(es_save *s, const es_store *store);
/* Writes what was taken: how many bytes of rows are done so far; or -errno, also of es_save_before(), or ES_EDAMAGED if
 * somebody has scribbled on the store. */
int64_t es_save_write(es_save *s);
/* Nobody tells it of steps any more. ES_OK, or what es_save_write() would return. */
int es_save_end(es_save *s);
/* The chunks that the steps are in: ascending. */
uint64_t es_save_num_chunks(const es_save *s);
uint64_t es_save_chunk(const es_save *s, uint64_t i);
/* See es_chunk_finish(). */
int es_save_finish_chunk(const es_save *s, uint64_t i, es_chunk_header *header);
void es_save_free(es_save *s);

#endif
