/* Building blocks that several scenarios share. */
#ifndef ES_PARTS_H
#define ES_PARTS_H

#include "es_kill.h"

/* Called in the tracer. */
void full_ring(es_world *w);
void close_the_ring(es_world *w);
void park_a_producer(es_world *w);
void fill_and_park_a_producer(es_world *w);
void close_and_park_a_learner(es_world *w);
void interrupt(es_world *w);

/* Called in the tracee. */
void take_before(es_world *w);
int64_t give_it_back(es_world *w);
/* Installs a handler for the signal that interrupt() sends. */
void expect_a_signal(es_world *w);

#endif
