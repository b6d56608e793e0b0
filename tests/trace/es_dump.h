/* All that counts in the store of a replay, and what a replay answers, as a list of numbers: to compare two of them. */
#ifndef ES_DUMP_H
#define ES_DUMP_H

#include <stdbool.h>
#include <stdint.h>

#define ES_DUMP_ROOM 8192

typedef struct es_dump {
    uint64_t count;
    struct es_dump_entry {
        const char *what; /* a literal: processes of one program compare it by its address */
        uint64_t which, value;
    } entries[ES_DUMP_ROOM];
} es_dump;

void es_dump_note(es_dump *d, const char *what, uint64_t which, uint64_t value);
void es_dump_note_double(es_dump *d, const char *what, uint64_t which, double value);
void es_dump_note_bytes(es_dump *d, const char *what, uint64_t which, const void *bytes, uint64_t n);

/* The header, the redo list's length, all words of the tables, the records of living steps and items with their rows,
 * and the word of each free record. Two stores with the same dump behave alike. */
void es_dump_store(es_dump *d, const void *base, uint64_t size);

/* Prints the first difference if there is one. */
bool es_dump_same(const es_dump *got, const es_dump *want);
bool es_dump_differ(const es_dump *a, const es_dump *b);

#endif
