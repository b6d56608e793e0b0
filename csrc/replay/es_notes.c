#include "replay/es_notes.h"

#include <string.h>

static uint8_t *copy_of(const es_store *s, uint64_t turn)
{
    return s->notes + (turn % 2) * es_notes_copy_size(s);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void es_notes_write(const es_store *s, const void *bytes, uint64_t size)
{
    uint64_t turn = s->hdr->notes + 1;
    memcpy(copy_of(s, turn), bytes, least(size, s->notes_size));
    ES_COMPILER_BARRIER(); /* the bytes come before the word: a dead process has stored a prefix of both */
    *(volatile uint64_t *)&s->hdr->notes = turn;
}

void es_notes_read(const es_store *s, void *bytes, uint64_t size)
{
    memcpy(bytes, copy_of(s, s->hdr->notes), least(size, s->notes_size));
}
