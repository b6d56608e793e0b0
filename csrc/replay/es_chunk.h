/* The rows of a checkpoint: files of a fixed number of steps, by their arrivals.
 *
 * Chunk k has the steps that arrived as number k * rows up to (k + 1) * rows. A step's arrival never changes, and
 * neither does its row. So once all these steps have arrived, a later checkpoint can use the file as it is. A step that
 * was gone when the file was written is a hole in it.
 *
 * Each row is followed by a word that is made of the row, its arrival, and who has written it: so a row that is
 * damaged, or in the wrong place, is noticed when it is read. Files are written at any place in any order; the header
 * comes last, with es_chunk_finish(). Nothing in a file is trusted when it is read. */
#ifndef ES_CHUNK_H
#define ES_CHUNK_H

#include "base/es_base.h"
#include "replay/es_replay_types.h"

/* What all chunks of a checkpoint have in common. */
typedef struct es_chunk_form {
    uint64_t row_size;
    uint64_t entry_size; /* of a row with its word */
    uint64_t rows;       /* of a chunk */
    uint64_t writer[2];  /* the uuid of the store whose process writes */
} es_chunk_form;

es_chunk_form es_chunk_form_of(uint64_t row_size, uint64_t rows, const uint8_t *writer);

/* Open files of a directory. One thread uses them. */
#define ES_CHUNK_OPEN 32
typedef struct es_chunk_files {
    es_chunk_form form;
    int directory;
    struct es_chunk_file {
        uint64_t number; /* plus 1; 0: none */
        uint64_t writer[2];
        int fd;
    } open[ES_CHUNK_OPEN];
    uint8_t *ahead;                                     /* what was read ahead, of one chunk; NULL: nothing yet */
    uint64_t ahead_chunk, ahead_from, ahead_size, last; /* last: the arrival that was read last */
} es_chunk_files;

void es_chunk_files_init(es_chunk_files *f, int directory, const es_chunk_form *form);
void es_chunk_files_close(es_chunk_files *f);

/* Puts the word behind a row that is in place at entry. */
void es_chunk_seal(const es_chunk_form *form, uint64_t arrival, uint8_t *entry);
/* Writes n entries of one chunk, whose arrivals follow each other, that were sealed. ES_OK or -errno. */
int es_chunk_write(es_chunk_files *f, uint64_t arrival, const uint8_t *entries, uint64_t n);
/* Writes one row from where it is. */
int es_chunk_write_row(es_chunk_files *f, uint64_t arrival, const uint8_t *row);
/* Writes the header of a chunk, and waits until the file is on disk. header: it is copied there. ES_OK or -errno. */
int es_chunk_finish(int directory, const es_chunk_form *form, uint64_t number, es_chunk_header *header);
/* Reads a row. ES_OK; -errno; ES_EDAMAGED when it is not there, or is another one. */
int es_chunk_read_row(es_chunk_files *f, uint64_t arrival, uint8_t *row);

#endif
