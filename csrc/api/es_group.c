#include "api/es_group.h"

#include "api/es_call.h"
#include "base/es_clock.h"
#include "ring/es_blocking.h"
#include "ring/es_consumer.h"
#include "ring/es_lease.h"

/* What the caller needs of a batch that was leased now. */
static es_group_lease describe(es_ring *r, uint64_t j, uint64_t now)
{
    es_lease_note_time(r, j, now);
    return (es_group_lease){j, r->held[j] - 1, r->map.batch_size - r->scan[j].gaps};
}

int64_t es_group_take(es_ring *r, uint32_t flags, uint32_t most, es_group_lease *leases, bool *sweep_due)
{
    uint64_t numbers[ES_GROUP_MOST];
    *sweep_due = false;
    int64_t rc = most == 0 || most > ES_GROUP_MOST ? -EINVAL : es_call_enter(r);
    if (rc != ES_OK)
        return rc;
    rc = es_blocking_take(r, flags, 0);
    if (rc >= 0) {
        numbers[0] = (uint64_t)rc;
        rc = 1 + (int64_t)es_consumer_look_on(r, flags, most - 1, numbers + 1);
    }
    uint64_t last = atomic_load_explicit(&r->last_sweep_ns, memory_order_relaxed), now = es_clock_ns();
    *sweep_due = now - last >= r->map.reap_interval_ns;
    for (int64_t i = 0; i < rc; i++)
        leases[i] = describe(r, numbers[i], now);
    es_call_leave(r);
    return rc;
}

int es_group_release(es_ring *r, const es_group_lease *leases, uint32_t n)
{
    int rc = es_call_enter_to_end(r);
    if (rc != ES_OK)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        if (es_lease_end(r, leases[i].batch, leases[i].round) != ES_OK)
            rc = ES_ESTALE;
    es_lease_tell(r);
    es_call_leave(r);
    return rc;
}
