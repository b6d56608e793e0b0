/* The core's instructions, and which of them a process was killed at. */
#ifndef ES_COVER_H
#define ES_COVER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct es_place {
    uint64_t address;
    const char *function, *file; /* in the source: the innermost inlined function from a .c file of the core */
    uint32_t line;
    bool exchange; /* a compare-and-exchange */
    bool killed;   /* a process was killed here, in any scenario */
} es_place;

/* NULL: not an instruction of the core. */
const es_place *cover_place(uint64_t pc);
void cover_scenario(void);
void cover_kill(uint64_t pc);
/* Instructions and functions of the core killed at in this scenario. */
void cover_counts(unsigned *instructions, unsigned *functions);
/* Whether this scenario killed a process in a function. */
bool cover_visited(const char *function);

/* Prints the coverage of these files. Returns the number of faults: functions without a kill or an excuse, needless
 * excuses, files without instructions, and one if too few instructions are covered. */
typedef struct es_excuse {
    const char *function, *why;
} es_excuse;
unsigned cover_report(const char *part, const char *const *files, const es_excuse *excuses, unsigned least_percent);

#endif
