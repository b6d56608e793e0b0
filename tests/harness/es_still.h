/* Replaces es_wait.c and es_clock.c in the stepped builds (es_hook.h). A sleep returns at once. The clock advances only
 * when it is read, when a caller sleeps, and in es_still_advance(). */
#ifndef ES_STILL_H
#define ES_STILL_H

#include "base/es_base.h"

/* Starts again: no thread is parked, and the clock is at 0. */
void es_still_begin(void);
/* Whether a thread parked on this word would still sleep: no wake-up of this word has come since it parked. */
bool es_still_parked(const void *word);
/* Advances the clock. Each reading of the clock advances it by es_still_look_ns. */
void es_still_advance(uint64_t ns);
extern uint64_t es_still_look_ns;
/* Whether a signal ends each sleep: the caller does not look again, so only a wake-up can save it. Otherwise the time
 * is over. es_still_begin() sets it to false. */
extern bool es_still_signals;

#endif
