/* Kills a process before every instruction of an operation. What the operation is, and what is checked after a death,
 * is the business of a world: of the ring (es_kill), or of a replay (es_revive). */
#ifndef ES_EVERYWHERE_H
#define ES_EVERYWHERE_H

#include "es_tracee.h"

/* Where the tracee is. A word of memory that it shares with the tracer. */
enum phase { PHASE_BEFORE, PHASE_INSIDE, PHASE_OVER };

typedef struct es_everywhere {
    const char *name;
    void *world;
    /* Makes a fresh world and a tracee, which is stopped before its operation. */
    bool (*start)(void *world, es_tracee *t);
    enum phase (*phase)(const void *world);
    /* NULL, or whether the tracer acts before the instruction at pc; and what it then does. */
    bool (*meddles)(void *world, uint64_t pc);
    void (*meddle)(void *world);
    /* NULL, or called before the n-th instruction, once for each, while the path is recorded. */
    void (*look)(void *world, uint32_t n);
    /* NULL, or whether a death before the n-th instruction may leave something else than one before the instruction
     * before it. Otherwise the process is not killed there. */
    bool (*leaves_more)(void *world, uint32_t n);
    /* The tracee stands before the n-th instruction. Kills it, and checks what is left. Returns outcomes. */
    unsigned (*finish)(void *world, es_tracee *t, uint32_t n);
    /* The tracee was killed, and nothing is to be checked. */
    void (*abandon)(void *world);
    const char *through; /* names of core functions in which a kill must occur */
    unsigned outcomes;   /* that must occur */
} es_everywhere;

void es_everywhere_kill(const es_everywhere *e);
/* Prints what the n-th instruction is of the path that was killed along last. */
void es_everywhere_say(uint32_t n);
/* ES_TRACE_EVERY: 1 unless it is set to a higher number. */
uint32_t es_everywhere_nth(void);
/* ES_TRACE_QUICK: whether to kill only where a death may leave something new. */
bool es_everywhere_quick(void);

#endif
