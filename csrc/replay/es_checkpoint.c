#define _XOPEN_SOURCE 700 /* pwrite */

#include "replay/es_checkpoint.h"

#include <stdlib.h>
#include <unistd.h>

#include "replay/es_replay_parts.h"
#include "replay/es_restore.h"
#include "replay/es_save.h"

/* --- writing one ------------------------------------------------------------------- */

/* Writes what was drawn, one table after the other. */
static int write_drawn(const es_replay *r, int fd)
{
    uint64_t at = 0;
    for (uint32_t t = 0; t < r->tables.num_tables; t++) {
        const es_form *form = &r->tables.table[t].form;
        uint64_t size = es_drawn_write(&r->drawn[t], form, NULL);
        uint8_t *bytes = malloc(size);
        if (bytes == NULL)
            return -ENOMEM;
        es_drawn_write(&r->drawn[t], form, bytes);
        for (uint64_t done = 0; done < size;) {
            ssize_t n = pwrite(fd, bytes + done, size - done, (off_t)(at + done));
            if (n <= 0 && errno != EINTR) {
                free(bytes);
                return n < 0 ? -errno : -ENOSPC;
            }
            done += n > 0 ? (uint64_t)n : 0;
        }
        at += size;
        free(bytes);
    }
    return ES_OK;
}

es_save *es_checkpoint_begin(es_replay *r, const es_save_config *config, es_save_state *state, int *error)
{
    *error = r->tables.failed ? ES_ESELECTOR : r->tables.save != NULL ? -EBUSY : write_drawn(r, config->drawn);
    if (*error != ES_OK)
        return NULL;
    es_save *save = es_save_begin(&r->tables, config, state, error);
    if (save == NULL)
        return NULL;
    const es_environment *first = &r->own.environments[0];
    state->stream = r->own.stream;
    state->number = first->number;
    state->episode = first->episode;
    state->index = first->index;
    r->tables.save = save;
    return save;
}

int es_checkpoint_take(es_replay *r, es_save *save)
{
    return es_save_take(save, &r->tables.store);
}

int64_t es_checkpoint_write(es_save *save)
{
    return es_save_write(save);
}

int es_checkpoint_end(es_replay *r, es_save *save)
{
    if (r != NULL && r->tables.save == save)
        r->tables.save = NULL;
    return es_save_end(save);
}

uint64_t es_checkpoint_num_chunks(es_save *save)
{
    return es_save_num_chunks(save);
}

uint64_t es_checkpoint_chunk(es_save *save, uint64_t i)
{
    return es_save_chunk(save, i);
}

int es_checkpoint_finish(es_save *save, uint64_t i, es_chunk_header *header)
{
    return es_save_finish_chunk(save, i, header);
}

void es_checkpoint_free(es_save *save)
{
    es_save_free(save);
}

/* --- restoring one ----------------------------------------------------------------- */

int es_checkpoint_check(const void *records, uint64_t size)
{
    return es_store_check_records(records, size);
}

int es_checkpoint_records(void *base, uint64_t size, void *records, uint64_t records_size, int32_t *tables,
                          es_restored *restored, es_trouble *why)
{
    *why = (es_trouble){.table = 0};
    return es_restore_records(base, size, records, records_size, tables, restored, why);
}

int64_t es_checkpoint_rows(void *base, uint64_t size, int32_t directory, uint64_t rows, uint64_t *next, uint64_t most,
                           es_trouble *why)
{
    *why = (es_trouble){.table = 0};
    return es_restore_rows(base, size, directory, rows, next, most, why);
}

int es_checkpoint_drawn(es_replay *r, const uint8_t *from, uint64_t size)
{
    for (uint32_t t = 0; t < r->tables.num_tables; t++) {
        int64_t n = es_drawn_read(&r->drawn[t], &r->tables.table[t].form, from, size);
        if (n <= 0)
            return n < 0 ? (int)n : ES_EDAMAGED;
        from += n;
        size -= (uint64_t)n;
    }
    return size == 0 ? ES_OK : ES_EDAMAGED;
}

int es_checkpoint_go_on(es_replay *r, uint64_t stream, const es_environment *environments, uint64_t n)
{
    return es_own_go_on(&r->own, stream, environments, n);
}
