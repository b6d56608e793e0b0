/* Private memory that is read all over, at random. */
#ifndef ES_MEMORY_H
#define ES_MEMORY_H

#include "base/es_base.h"

/* Zeros, as from calloc(), to be freed by free(). What is large lies in huge pages, where the system has them: a read
 * then seldom waits for the address. NULL without memory. */
void *es_memory_new(uint64_t count, uint64_t size);

#endif
