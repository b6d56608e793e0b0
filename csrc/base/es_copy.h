/* Copies past the caches. */
#ifndef ES_COPY_H
#define ES_COPY_H

#include "base/es_base.h"

/* A smaller copy is over before streaming pays for its fence (bytes). */
#define ES_COPY_STREAM_FROM 4096

/* memcpy() by streaming stores, where the processor has them. They are complete on return. */
void es_copy_stream(uint8_t *to, const uint8_t *from, uint64_t n);
/* Whether so many bytes, written in turn, have left the caches before they are written again. Copies to them should stream
 * then. */
bool es_copy_outgrows_caches(uint64_t bytes);

#endif
