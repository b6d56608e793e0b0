/* Every place where an operation can be interrupted or killed, one after the other.
 *
 * The stepped core calls es_step() before each atomic operation (es_hook.h) and each fcntl(). es_step_each() runs act() once for each of
 * its steps n, from a fresh ring each time, and lets meanwhile() run to its end just before step n. Memory is
 * sequentially consistent: what a missing fence would do is not seen. A sleep returns at once (es_still.h).
 */
#ifndef ES_STEP_H
#define ES_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "es_still.h"

typedef struct es_step_case {
    const char *name;
    void (*before)(void);    /* a fresh ring */
    void (*act)(void);       /* is interrupted */
    void (*meanwhile)(void); /* interrupts it; may be NULL */
    void (*after)(void);     /* checks */
    bool kill;               /* act() dies at that step, after meanwhile() */
} es_step_case;

void es_step_each(const es_step_case *c);
/* How many steps act() has, for a test of es_step_each() itself. */
long es_step_count(const es_step_case *c);

#endif
