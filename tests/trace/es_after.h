/* The checks after a process has died. */
#ifndef ES_AFTER_H
#define ES_AFTER_H

#include "es_kill.h"

/* To call first: notes which of its leases the dead process had released. */
void after_note_releases(es_world *w);
/* Sweeps, checks the ring, sends two laps, drains it and checks the account. Returns the outcomes. */
unsigned after_death(es_world *w);

#endif
