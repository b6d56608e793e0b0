/* Calls under way. Threads of one process share an attachment, and one of them may stop, retire or detach it while
 * others are inside a call. `busy` counts those. Each of the three sets its word first and looks at `busy` then; a call
 * counts itself first and looks at the word then. So a thread either sees the word, or is counted. */
#ifndef ES_CALL_H
#define ES_CALL_H

#include "ring/es_ring.h"

/* A call that may run beside es_api_detach() and writes to the ring begins with es_call_enter() and ends with
 * es_call_leave(). A bridge's one thread detaches itself. ES_OK; ES_EFORK or ES_EDETACHED, and nothing is to be ended. */
int es_call_enter(es_ring *r);
/* The same for a call that claims. -EINVAL: the segment has weights, and no sample ever comes into it. */
int es_call_enter_to_claim(es_ring *r);
/* The same for the end of a claim, which a stopped attachment may still have. */
int es_call_enter_to_settle(es_ring *r);
/* The same for the end of a lease, which a retired attachment may still have. */
int es_call_enter_to_end(es_ring *r);
void es_call_leave(es_ring *r);

/* Waits until no thread is inside a call. */
void es_call_await(es_ring *r);

#endif
