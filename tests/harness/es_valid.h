/* The statements that must always hold of a ring that nobody scribbles on. */
#ifndef ES_VALID_H
#define ES_VALID_H

#include "ring/es_ring.h"

/* NULL, or the statement that does not hold. Meaningful only while the ring is at rest; under load the call is safe. */
const char *es_valid(es_ring *r);

#endif
