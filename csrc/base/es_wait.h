/* Park on a shared 32-bit word, and wake those parked on it, across processes. */
#ifndef ES_WAIT_H
#define ES_WAIT_H

#include "base/es_base.h"

/* Sleeps while *word == seen, at most timeout_ns. Returns ES_OK when woken, when the word has
 * changed already, or for no reason; ES_TIMEOUT; or -EINTR after a signal. The caller looks again
 * in every case. */
int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);

/* Wakes all sleepers. A single one might be killed before it acts on the wake-up. */
void es_wait_wake(_Atomic uint32_t *word);

/* "futex" or "poll": which one was built in. */
const char *es_wait_kind(void);

#endif
