/* Which instructions of a function write into a region of memory, at nearly full speed. */
#ifndef ES_WRITES_H
#define ES_WRITES_H

#include <stdbool.h>
#include <stdint.h>

/* Whether this processor can do it. */
bool es_writes_supported(void);
/* Calls act(), and wrote() after each of its instructions that wrote into the region, each round of a repeated one
 * included. The region starts at a page; elsewhere act() may write as it likes. wrote() runs in a signal handler. Not
 * for a process that goes on to other work: signals stay caught. */
void es_writes_watch(void *region, uint64_t size, void (*act)(void *arg), void (*wrote)(void *arg), void *arg);

#endif
