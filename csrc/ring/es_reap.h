/* What a dead owner leaves behind.
 *
 * The reaper has seized the dead owner's lock byte, so there is one reaper at a time.
 * If it dies half-way, the entry is still LIVE and the byte free: the next one does all of it
 * again, to the same effect. The entry is freed last. A successor in the entry before the
 * sweep is over would have its own claims re-opened. If the entry were freed before the
 * wake-ups, a reaper's death in between would leave a complete batch, a sleeping
 * learner, and nobody to wake it.
 */
#ifndef ES_REAP_H
#define ES_REAP_H

#include "ring/es_ring.h"

/* Re-opens what the owner claimed, gives back what it leased, wakes everybody, frees its entry and
 * yields its lock byte, which the caller has seized. If the caller dies in it, the next reaper
 * does all of it again. Returns the slots re-opened. */
int64_t es_reap(es_ring *r, uint32_t index);

#endif
