/* What must hold between a slot word and its batch word. */
#ifndef ES_INVARIANT_H
#define ES_INVARIANT_H

#include "ring/es_word.h"

/* NULL, or why slot word w cannot be next to batch word b, both read while b did not change. */
const char *es_invariant_slot(uint64_t w, uint64_t b);

#endif
