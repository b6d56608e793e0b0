/* Park on a shared 32-bit word, and wake those parked on it, across processes. */
#ifndef ES_WAIT_H
#define ES_WAIT_H

#include "base/es_base.h"

typedef enum es_wait_turn { ES_WAIT_IN_TURN, ES_WAIT_FIRST } es_wait_turn;

/* Sleeps while *word == seen, at most timeout_ns. Returns ES_OK when woken, or for no reason;
 * -EAGAIN when the word has changed already; ES_TIMEOUT; or -EINTR after a signal. The caller looks
 * again in every case. A sleeper whose call returns anything but ES_OK has used up no wake-up. */
int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, es_wait_turn turn);

/* A word to sleep on, and the value that was seen. */
typedef struct es_wait_word {
    _Atomic uint32_t *word;
    uint32_t seen;
} es_wait_word;

/* Sleeps while each of n words (1 .. ES_WATCH_MOST) is as it was seen, at most timeout_ns: a result of es_wait(), or
 * another -errno. ES_OK may have used up a wake-up of every word, and nothing says of which. Such a sleeper is woken
 * in every turn. */
int es_wait_several(const es_wait_word *words, uint32_t n, uint64_t timeout_ns);

/* Wakes all sleepers. */
void es_wait_wake(_Atomic uint32_t *word);

/* Wakes the one that has slept longest, of those with that turn or a better one. Returns whether it
 * has woken one: false if nobody sleeps, or if this cannot be known. The caller must have changed
 * the word. The woken process may be killed before it acts on the wake-up. */
bool es_wait_wake_one(_Atomic uint32_t *word, es_wait_turn turn);

/* Lets the processes go first that are awake and wait for this processor. */
void es_wait_yield(void);

/* "futex" or "poll": which one was built in. */
const char *es_wait_kind(void);

#endif
