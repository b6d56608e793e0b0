/* The statements that must always hold of a ring that nobody scribbles on. */
#ifndef ES_VALID_H
#define ES_VALID_H

#include "ring/es_ring.h"

/* NULL, or the statement that does not hold. Racy unless the ring is at rest: under load it
 * only says that something was wrong for a moment. */
const char *es_valid(es_ring *r);

#endif
