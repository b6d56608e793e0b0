/* The core's instructions, and which of them a process was killed at. */
#ifndef ES_COVER_H
#define ES_COVER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct es_place {
    uint64_t address;
    const char *function, *file; /* as written: the innermost inlined function of a .c file of the core */
    uint32_t line;
    bool exchange; /* a compare-and-exchange */
    bool killed;   /* somebody, in any scenario */
} es_place;

/* NULL: not an instruction of the core. */
const es_place *cover_place(uint64_t pc);
void cover_scenario(void);
void cover_kill(uint64_t pc);
/* Instructions and functions of the core killed at in this scenario. */
void cover_counts(unsigned *instructions, unsigned *functions);
/* Whether this scenario killed in a function. */
bool cover_visited(const char *function);

/* Prints, and returns how many functions of the files named were not killed in and are not excused. */
typedef struct es_excuse {
    const char *function, *why;
} es_excuse;
unsigned cover_report(const char *const *files, const es_excuse *excuses);

#endif
