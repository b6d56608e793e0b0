#include "ring/es_reap.h"

#include "base/es_counter.h"
#include "ring/es_journal.h"
#include "ring/es_lease.h"
#include "ring/es_owner.h"
#include "ring/es_slots.h"
#include "ring/es_version.h"
#include "ring/es_wake.h"

int64_t es_reap(es_ring *r, uint32_t index)
{
    es_map *m = &r->map;
    if (r->fork_generation != es_locks_fork_generation())
        return ES_EFORK;
    es_journal_settle(m, index);
    es_lease_give_back_all(r, index);
    int64_t n = es_slots_reopen(r, index);
    if (m->weights != NULL)
        es_version_release_all(m, index);
    es_wake_alarm(r); /* the owner may have died between a commit and its count */
    es_wake_all(r);   /* unconditionally: the owner may have cleared a sleep flag and not woken anybody */
    if (atomic_load_explicit(&m->owners[index].role, memory_order_relaxed) == ES_ROLE_PRODUCER)
        es_counter_add(&m->hdr->totals.dead_producers, 1);
    es_owner_free(m, index);
    es_locks_yield(r->locks, index);
    return n;
}
