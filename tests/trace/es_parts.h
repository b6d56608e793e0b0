/* What several scenarios do before, around and in their operation. */
#ifndef ES_PARTS_H
#define ES_PARTS_H

#include "es_kill.h"

/* The tracer. */
void full_ring(es_world *w);
void close_the_ring(es_world *w);
void park_a_producer(es_world *w);
void fill_and_park_a_producer(es_world *w);
void close_and_park_a_learner(es_world *w);
void interrupt(es_world *w);

/* The tracee. */
void take_before(es_world *w);
int64_t give_it_back(es_world *w);
/* For interrupt(): to have a handler for it. */
void expect_a_signal(es_world *w);

#endif
