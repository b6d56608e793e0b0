/* Changes of several words that happen all or not at all, although the process may be killed at any
 * instruction.
 *
 * A list of (where, new value) is written first, then its length, then the words, then the length is
 * 0 again. A list with a length is complete: whoever opens the store next writes its words once more.
 * One thread of one process writes, and nobody reads before it is dead. So the order of the stores in
 * the program is enough: a dead process has stored a prefix of them. */
#ifndef ES_REDO_H
#define ES_REDO_H

#include "base/es_base.h"

/* In the store. */
typedef struct es_redo_entry {
    uint64_t offset, value;
} es_redo_entry;

typedef struct es_redo_log {
    uint64_t length;
    uint64_t zero;
    es_redo_entry entries[];
} es_redo_log;

/* One process's hold of it. */
typedef struct es_redo {
    uint8_t *base;
    uint64_t size;
    es_redo_log *log;
    uint64_t room; /* entries */
    uint64_t length;
} es_redo;

/* Where a change comes from: a word of the store that notes it, and its new value. They are in the change's list. */
typedef struct es_origin {
    uint64_t *word, value;
} es_origin;

/* Notes that the word, which lies in the store, is to change. If it comes twice, the later value stays. */
static inline void es_redo_set(es_redo *redo, const void *word, uint64_t value)
{
    es_redo_entry *entry = &redo->log->entries[redo->length++];
    entry->offset = (uint64_t)((const uint8_t *)word - redo->base);
    entry->value = value;
}

static inline void es_redo_set_double(es_redo *redo, const double *word, double value)
{
    union {
        double number;
        uint64_t bits;
    } both = {.number = value};
    es_redo_set(redo, word, both.bits);
}

/* Changes all words of the list. */
void es_redo_commit(es_redo *redo);
/* Changes the words of a list that a dead process has completed. ES_OK, or ES_EDAMAGED when the list
 * cannot be one. */
int es_redo_recover(es_redo *redo);

#endif
