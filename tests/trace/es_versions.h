/* Versions of weights in a world. Version n is the sample with id n. The tracer's l is a publisher, and p a reader. */
#ifndef ES_VERSIONS_H
#define ES_VERSIONS_H

#include "es_world.h"

/* Publishes the next version. Returns its number. */
int64_t versions_publish(es_world *w, es_ring *r);
/* Copies the latest version. Returns its number, if it is whole. */
int64_t versions_copy(es_world *w, es_ring *r);
/* Leases the latest version, which must be whole. Returns the lease. */
int64_t versions_lease(es_world *w, es_ring *r);
/* The slot has all bytes of that version. */
void versions_check_slot(es_world *w, es_ring *r, uint64_t number, uint64_t slot);

/* What must hold after a death and a sweep. Returns outcomes. */
unsigned versions_after(es_world *w);

#endif
