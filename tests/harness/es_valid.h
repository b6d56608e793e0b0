/* The statements that always hold for a ring that is not corrupt. */
#ifndef ES_VALID_H
#define ES_VALID_H

#include "ring/es_ring.h"

/* NULL, or the first statement that does not hold. The result is meaningful only for a ring at rest. Under load the
 * call is safe. */
const char *es_valid(es_ring *r);

#endif
