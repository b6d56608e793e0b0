/* The one clock of the core. */
#ifndef ES_CLOCK_H
#define ES_CLOCK_H

#include "base/es_base.h"

/* Monotonic nanoseconds, comparable between the processes of one machine. */
uint64_t es_clock_ns(void);

#endif
