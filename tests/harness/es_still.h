/* In place of es_wait.c and es_clock.c in the stepped builds (es_hook.h). A sleep returns at once, and the clock moves
 * only when somebody looks at it or sleeps. */
#ifndef ES_STILL_H
#define ES_STILL_H

#include "base/es_base.h"

/* From here on nobody is parked, and the clock is at 0. */
void es_still_begin(void);
/* Whether somebody parked on this word would still sleep: the word has not changed since. */
bool es_still_parked(const void *word);
/* Time passes. Each look at the clock takes es_still_look_ns. */
void es_still_advance(uint64_t ns);
extern uint64_t es_still_look_ns;

#endif
