/* The end of a stream: a closed ring is emptied.
 *
 * Producers claim no more. What they could still claim becomes SEALED, claims under way
 * are waited for, then batches with gaps are handed out. SEALED is final: on a closed ring release opens no new lap.
 *
 * Who dies, and what then:
 *   between two seals   sealed slots stay so, the next learner goes on
 */
#ifndef ES_DRAIN_H
#define ES_DRAIN_H

#include "ring/es_ring.h"

/* Closes the ring to producers, forever. */
void es_drain_close(es_ring *r);
/* On a closed ring with no full batch in sight: a batch, ES_EMPTY while claims are
 * under way or others hold leases, ES_BUSY, or ES_ENDED: not the last word yet, as es_api_take() says. */
int64_t es_drain_finish(es_ring *r, uint32_t flags);

#endif
