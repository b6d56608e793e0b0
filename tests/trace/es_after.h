/* What is checked when a process has died. */
#ifndef ES_AFTER_H
#define ES_AFTER_H

#include "es_kill.h"

/* First of all: which of its leases the dead had released. */
void after_note_releases(es_world *w);
/* Sweeps, looks, goes round the ring, drains it, balances the account: which outcomes there were. */
unsigned after_death(es_world *w);

#endif
