/* Park on a shared 32-bit word, and wake those parked on it, across processes. */
#ifndef ES_WAIT_H
#define ES_WAIT_H

#include "base/es_base.h"

/* Sleeps while *word == seen, at most timeout_ns. Returns ES_OK when woken, when
 * the word had changed already or for no reason; ES_TIMEOUT; or -EINTR after a
 * signal. The caller looks again in every case. */
int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);

/* Wakes everybody. One at a time would hand the wake-up to a sleeper that may be
 * killed before it acts on it. */
void es_wait_wake(_Atomic uint32_t *word);

/* "futex" or "poll": which one was built in. */
const char *es_wait_kind(void);

#endif
