/* Some bytes that whoever has a store keeps in it: what belongs to its steps and is no step.
 *
 * There are two copies, and a word that counts how often they were written: its lowest bit says which one is the newest.
 * The other one is written, then the word. So after a kill the notes are those of before or those of after. */
#ifndef ES_NOTES_H
#define ES_NOTES_H

#include "base/es_base.h"
#include "replay/es_store.h"

/* size: at most as many bytes as there are are written, or read. */
void es_notes_write(const es_store *s, const void *bytes, uint64_t size);
void es_notes_read(const es_store *s, void *bytes, uint64_t size);

/* Bytes from one copy to the next. */
static inline uint64_t es_notes_copy_size(const es_store *s)
{
    return (s->notes_size + 7) / 8 * 8;
}

#endif
