/* Every place where an operation can be interrupted or killed, one after the other.
 *
 * The stepped core calls es_step() before each atomic operation and each call of fcntl(). es_step_each()
 * runs act() again and again, from a fresh ring each time: once for each of its
 * steps n, letting meanwhile() run to its end just before step n. Memory is
 * sequentially consistent here: what a missing fence would do is not seen.
 *
 * The clock advances by 1 ns a look, and a sleep does not sleep: it notes where
 * the sleeper is parked and returns a timeout.
 */
#ifndef ES_STEP_H
#define ES_STEP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct es_step_case {
    const char *name;
    void (*before)(void);    /* a fresh ring */
    void (*act)(void);       /* is interrupted */
    void (*meanwhile)(void); /* interrupts it; may be NULL */
    void (*after)(void);     /* checks */
    bool kill;               /* act() dies at that step, after meanwhile() */
} es_step_case;

void es_step_each(const es_step_case *c);
/* Steps act() has, for tests of the explorer itself. */
long es_step_count(const es_step_case *c);

/* Whether somebody parked on this word is still there: the word has not changed. */
bool es_step_parked(const void *word);
void es_step_advance(uint64_t ns);

#endif
