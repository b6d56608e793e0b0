/* The versions of samples, and their ages. The versions themselves: es_leaves.h. */
#include "api/es_api.h"
#include "api/es_call.h"
#include "base/es_counter.h"
#include "ring/es_stats.h"

static bool in_range(int64_t version)
{
    return version >= 0 && version <= INT64_C(1) << 62;
}

int es_age_set_version(es_ring *r, int64_t version, int by_hand)
{
    if (!in_range(version))
        return -EINVAL;
    es_ring_set_version(r, version, by_hand != 0);
    return ES_OK;
}

int64_t es_age_version(const es_ring *r)
{
    return es_ring_version(r);
}

int es_age_set_latest(es_ring *r, int64_t version)
{
    if (!in_range(version) || r->map.versions == NULL)
        return -EINVAL;
    int rc = es_call_enter(r);
    if (rc != ES_OK)
        return rc;
    /* relaxed: a number for ages. Whoever wants that version's bytes comes another way. */
    atomic_store_explicit(&r->map.hdr->latest_version, version, memory_order_relaxed);
    es_ring_set_version(r, version, false);
    es_call_leave(r);
    return ES_OK;
}

uint64_t es_age_offset(const es_ring *r)
{
    return r->map.versions == NULL ? 0 : (uint64_t)((uint8_t *)r->map.versions - r->map.base);
}

void es_age_measure(const int64_t *versions, uint64_t n, es_snapshot *snap)
{
    es_stats_ages((const _Atomic int64_t *)versions, n, snap);
}

int es_age_count_too_old(es_ring *r, uint64_t n)
{
    int rc = es_call_enter(r);
    if (rc != ES_OK)
        return rc;
    es_counter_add(&r->map.hdr->totals.too_old, n);
    es_call_leave(r);
    return ES_OK;
}
